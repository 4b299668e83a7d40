"""The messages that were written to one process of an ACP agent, and how each is settled. Read from the journal alone.

The protocol has no receipt for a prompt. What shows that one was read is the first update of its turn, or its answer.
Of a message that is to steer the turn the agent says that it has it; that the model was given it shows what the model
says once a tool has ended since, or the turn's own end.
"""

from dataclasses import dataclass, field
from typing import Final

from activities.agents.acp.frames import AGAIN
from activities.agents.command_ids import INTERRUPT, MESSAGE
from activities.ports.agent import END_PREFIX
from activities.untrusted_json import MAX_NAME
from steersman.contracts.activities import Settlement
from steersman.contracts.run import FINAL_STATES, MessageState

UNREAD: Final = "the agent ended before it said that it had read this"
FAILED: Final = "the agent answered with an error before it showed that it had read this"
INTERRUPTED: Final = "the turn was interrupted before the model showed that it had read this"


@dataclass
class Messages:
    """Messages, interrupts and ends of the run. The fields' names and values are in snapshots."""

    written: set[str] = field(default_factory=set)
    """Ids of the commands in the journal's input."""
    open: list[str] = field(default_factory=list)
    """Ids of the prompts that the agent has not answered, in order."""
    steering: list[str] = field(default_factory=list)
    """Ids of the messages that are to steer the turn, and of which the agent has not said what became of them."""
    injected: dict[str, bool] = field(default_factory=dict)
    """Messages that the agent has for its turn, and the model may not have read: whether a tool has ended since."""
    late: list[str] = field(default_factory=list)
    """Ids of the messages that found no turn to steer, or whose own a late cancel has ended: they are to be written as
    prompts.
    """
    interrupting: str | None = None
    """The interrupt that is ending the open turn."""
    interrupted_by: str | None = None
    """The interrupt that ended the last turn; None once another one has begun."""
    outlived: bool = False
    """The last turn came to its own end as it was to be interrupted: the agent may yet take the cancel for the next."""
    ending: bool = False
    """A person asked to end the run with its turn."""
    _settled: dict[str, Settlement] = field(default_factory=dict)
    _ends: list[str] = field(default_factory=list)

    def is_sound(self) -> bool:
        """Whether frames can have led to this state; it may be from a forged snapshot."""
        names = (
            *self.open,
            *self.steering,
            *self.injected,
            *self.late,
            *self._ends,
            self.interrupting or "",
            self.interrupted_by or "",
        )
        known = self._settled.values()
        return all(len(each) <= 2 * MAX_NAME for each in names) and all(
            len(each.id) <= MAX_NAME and len(each.how or "") <= MAX_NAME for each in known
        )

    @property
    def stopping(self) -> bool:
        """A person has interrupted the open turn, or ends the run with it."""
        return self.interrupting is not None or self.ending

    def settlements(self) -> list[Settlement]:
        """The settlement of each message, as the journal has it."""
        return list(self._settled.values())

    def settlement(self, message_id: str) -> Settlement | None:
        """The settlement of one message; None if the journal has none yet."""
        return self._settled.get(message_id)

    def last_words(self) -> list[Settlement]:
        """The settlement of each message once the process has ended: see ports.Transcript."""
        return [
            Settlement(id=each.id, state="unverified", how=UNREAD) if self._is_unread(each) else each
            for each in self._settled.values()
        ]

    def _is_unread(self, known: Settlement) -> bool:
        """An interrupt that has ended its turn has done so, whether it had a text or not; a text may be unread."""
        texts = not self.written.isdisjoint((MESSAGE + known.id, AGAIN + known.id))
        return known.state not in FINAL_STATES and (texts or known.how != "interrupted")

    def wrote(self, message_id: str) -> bool:
        """Whether the journal's input has any command of the message."""
        prefixes = (MESSAGE, AGAIN, INTERRUPT, END_PREFIX)
        return any(prefix + message_id in self.written for prefix in prefixes)

    # ---- what was written

    def prompt_written(self, command: str) -> None:
        """A prompt; the turn that an interrupt ended is over."""
        self.open.append(command)
        self.interrupted_by = None
        for prefix in (MESSAGE, AGAIN):
            if command.startswith(prefix):
                message_id = command.removeprefix(prefix)
                self.late = [each for each in self.late if each != message_id]
                self._settle(message_id, "delivered", self._how(message_id, None))

    def steering_written(self, command: str) -> None:
        """A message that is to steer the turn."""
        self.steering.append(command.removeprefix(MESSAGE))
        self._settle(command.removeprefix(MESSAGE), "delivered", None)

    def cancel_written(self, command: str) -> None:
        """A cancel of the turn: an interrupt's, or an end's."""
        if command.startswith(END_PREFIX):
            self.ending = True
            self._ends.append(command.removeprefix(END_PREFIX))
        if not command.startswith(INTERRUPT):
            return
        message_id = command.removeprefix(INTERRUPT)
        self._settle(message_id, "delivered", None)
        if self.open:
            self.interrupting = self.interrupting or message_id

    # ---- what the agent said

    def turn_shown(self) -> None:
        """The agent says something in its turn: it has read the prompt that is open, if that is the only one."""
        if len(self.open) == 1:
            self._read(self.open[0])

    def tool_ended(self) -> None:
        """What the agent has for its turn goes to the model with the result."""
        self.injected = dict.fromkeys(self.injected, True)

    def model_speaks(self) -> None:
        """It was given what went to it with the results before."""
        self._injected_read([each for each, is_given in self.injected.items() if is_given])

    def _injected_read(self, ids: list[str]) -> None:
        for each in ids:
            del self.injected[each]
            self._settle(each, "acknowledged", "mid_turn")

    def prompt_read(self, command: str, *, mid_turn: bool) -> None:
        """The model has read this prompt; `mid_turn`: within a turn that was open before."""
        self._read(command, "mid_turn" if mid_turn else "new_turn")

    def prompt_answered(self, command: str, *, cancelled: bool, failed: bool = False) -> None:
        """A prompt's turn has ended; `failed`: the answer is an error."""
        self.open = [each for each in self.open if each != command]
        if cancelled and self.outlived and not self.stopping and command.startswith(MESSAGE):
            self.late.append(command.removeprefix(MESSAGE))
        if not cancelled:
            if failed:
                self._settle_text(command, "unverified", FAILED)
            self._read(command)
            self._injected_read([*self.injected])
        elif self.interrupting is not None:
            self._settle(self.interrupting, "delivered", "interrupted")
        for each in self.injected:
            self._settle(each, "unverified", INTERRUPTED)
        self.injected.clear()
        if not self.open:
            self.outlived = not cancelled and self.interrupting is not None
            self.interrupted_by, self.interrupting = (self.interrupting if cancelled else None), None

    def steering_answered(self, command: str, outcome: str, error: str | None) -> None:
        """What became of a message that was to steer the turn."""
        message_id = command.removeprefix(MESSAGE)
        self.steering = [each for each in self.steering if each != message_id]
        if outcome == "promptRequired":
            self.late.append(message_id)
        elif error is not None:
            self._settle(message_id, "rejected", error[:MAX_NAME])
        elif outcome == "startedNewTurn":
            self._settle(message_id, "acknowledged", "new_turn")
        elif outcome != "injected":  # codex-acp has "failed", of which nobody knows how far it came
            self._settle(message_id, "unverified", f"the agent said of it: {outcome}"[:MAX_NAME])
        elif self.open:
            self.injected[message_id] = False
        elif self.interrupted_by is not None or self.ending:
            self._settle(message_id, "unverified", INTERRUPTED)
        else:  # the turn's own end was told before
            self._settle(message_id, "acknowledged", "mid_turn")

    def end_reached(self) -> None:
        """The turn has ended, and the run with it."""
        for each in self._ends:
            self._settle(each, "acknowledged", "interrupted")

    def _read(self, command: str, how: str = "new_turn") -> None:
        self._settle_text(command, "acknowledged", how)

    def _settle_text(self, command: str, state: MessageState, how: str) -> None:
        for prefix in (MESSAGE, AGAIN):
            if command.startswith(prefix):
                message_id = command.removeprefix(prefix)
                self._settle(message_id, state, self._how(message_id, how))

    def _how(self, message_id: str, otherwise: str | None) -> str | None:
        return "interrupted" if INTERRUPT + message_id in self.written else otherwise

    def _settle(self, message_id: str, state: MessageState, how: str | None) -> None:
        known = self._settled.get(message_id)
        if known is None or known.state not in FINAL_STATES:
            self._settled[message_id] = Settlement(id=message_id, state=state, how=how)
