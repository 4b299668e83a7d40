"""The messages that were written to one process of Claude Code, and how each is settled.

Read from the journal alone. Claude Code reports each user frame by its uuid: queued, started, then completed or
cancelled. Started is not read: a hook of the user's may still block it. What begins a turn is read, and in the session,
once Claude Code asks the model with it; what is told in a turn is in the session a tenth of a second later, by when the
model answers. What the agent answers must not live here (see transcript).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from activities.agents.claude.frames import blocks
from activities.agents.command_ids import INTERRUPT, MESSAGE
from activities.agents.frames import Frame
from activities.ports.agent import END_PREFIX
from activities.untrusted_json import MAX_NAME, object_at, text_of
from steersman.contracts.activities import Settlement
from steersman.contracts.events import MAX_TEXT
from steersman.contracts.run import FINAL_STATES, MessageState

MID_TURN = "mid_turn"
"""How a message is read that is told in a turn."""
UNREAD = "interrupted before the agent had read it"
MAX_OWED = 10_000
"""The agent may report this many user frames as open that were not written to it."""


@dataclass
class Messages:
    """Messages, interrupts and ends of the run. The fields' names and values are in snapshots."""

    written: set[str] = field(default_factory=set)
    """Ids of the commands in the journal's input."""
    owed: dict[str, str] = field(default_factory=dict)
    """Uuid -> state of each user frame that the agent has not completed."""
    interrupting: str | None = None
    """The interrupt that is ending the open turn."""
    interrupted_by: str | None = None
    """The interrupt that ended the last turn; None once another turn has begun."""
    ending: bool = False
    """A person asked to end the run with its turn."""
    end_answered: bool = False
    """The agent has answered that request."""
    _ids: dict[str, str] = field(default_factory=dict)
    _interrupts: dict[str, str] = field(default_factory=dict)
    _ends: dict[str, Settlement] = field(default_factory=dict)
    _settled: dict[str, Settlement] = field(default_factory=dict)
    _untold: dict[str, list[str]] = field(default_factory=dict)
    """Texts of people's messages that no event has told of, by the uuids of their frames."""
    _told: set[str] = field(default_factory=set)
    """Those that one has told of."""
    _began: dict[str, str] = field(default_factory=dict)
    """Message -> how it is read, of those that are started and that may not be in the session yet."""

    def is_sound(self) -> bool:
        """Whether frames can have led to this state; it may be from a forged snapshot."""
        settlements = (*self._ends.values(), *self._settled.values())
        kept = max(len(self.owed), len(self._untold), len(self._told), len(self._began))
        return kept <= 2 * MAX_OWED and all(
            len(each.id) <= MAX_NAME and len(each.how or "") <= MAX_NAME for each in settlements
        )

    @property
    def interrupted(self) -> bool:
        """A person has interrupted this process, or ended the run with its turn."""
        return bool(self._interrupts or self._ends)

    def settlements(self) -> list[Settlement]:
        """The settlement of each message, as the journal has it."""
        return list(self._settled.values())

    def last_words(self) -> list[Settlement]:
        """The settlement of each message once the process has ended: see ports.Transcript."""
        return [*self._settled.values(), *(self._unread(each) for each in self._open())]

    def _open(self) -> list[str]:
        written = dict.fromkeys((*self._interrupts.values(), *self._ids.values()))
        return [each for each in written if self._is_open(each)]

    def _is_open(self, message_id: str) -> bool:
        known = self._settled.get(message_id)
        if known is None or known.how != "interrupted":
            return known is None or known.state not in FINAL_STATES
        # A completed interrupt is open only if its text was written, too.
        return known.state not in FINAL_STATES and MESSAGE + message_id in self.written

    def _unread(self, message_id: str) -> Settlement:
        return Settlement(id=message_id, state="unverified", how="the agent ended before it said that it had read this")

    def wrote(self, message_id: str) -> bool:
        """Whether the journal's input has any command of the message."""
        return not self.written.isdisjoint((MESSAGE + message_id, INTERRUPT + message_id, END_PREFIX + message_id))

    def settlement(self, message_id: str) -> Settlement | None:
        """The settlement of one message; None if the journal has none yet."""
        return self._settled.get(message_id)

    def frame_written(self, command: str, frame: Frame, *, running: bool) -> None:
        """A frame was written to the agent. `running`: there is a turn that an interrupt would end."""
        self.written.add(command)
        if frame.get("type") == "user":
            uuid = str(frame.get("uuid"))
            self.owed[uuid] = "written"
            if command.startswith(MESSAGE):
                self._ids[uuid] = command.removeprefix(MESSAGE)
                texts = [text_of(each.get("text")) for each in blocks(frame)]
                self._untold[uuid] = [text[: MAX_TEXT + 1] for text in texts if text]
        elif frame.get("type") == "control_request":
            request_id = str(frame.get("request_id"))
            if command.startswith(INTERRUPT):
                self._interrupts[request_id] = command.removeprefix(INTERRUPT)
                if running:
                    self.interrupting = self.interrupting or command.removeprefix(INTERRUPT)
            elif command.startswith(END_PREFIX):
                self.ending = True
                how = "interrupted" if running else "nothing was running"
                self._ends[request_id] = Settlement(id=command.removeprefix(END_PREFIX), state="acknowledged", how=how)

    def told(self, uuid: str) -> list[str]:
        """The texts of a message that is told of now; none the second time."""
        texts = self._untold.pop(uuid, [])
        if texts:
            self._told.add(uuid)
        return texts

    def has_told(self, uuid: str) -> bool:
        """Whether an event has told of a person's message."""
        return uuid in self._told

    def state_reported(self, uuid: str, state: str, *, turn_open: bool) -> None:
        """Claude Code reported the state of a user frame."""
        if state in ("completed", "cancelled"):
            self.owed.pop(uuid, None)
            self._untold.pop(uuid, None)
        elif uuid in self.owed or len(self.owed) < MAX_OWED:
            self.owed[uuid] = state
        message_id = self._ids.get(uuid)
        if message_id is None:
            return
        how = MID_TURN if turn_open else "new_turn"
        if message_id in self._interrupts.values():
            how = "interrupted"
        if state == "queued":
            self._settle(message_id, "delivered", None)
        elif state == "started":
            self._began[message_id] = how
            self._settle(message_id, "delivered", None)
        elif state == "completed" and message_id in self._began:
            pass  # read, or blocked by a hook: what comes next says it
        elif state == "completed" or message_id in self._began:
            self._settle(message_id, "acknowledged", self._began.pop(message_id, how))
        elif state == "cancelled":
            self._settle(message_id, "rejected", UNREAD)

    def turn_ended(self, *, aborted: bool, unsubmitted: bool = False) -> None:
        """The turn has ended; `aborted`: by an interrupt, `unsubmitted`: before hooks let through what begins it."""
        if unsubmitted:
            for message_id in self._began:
                self._settle(message_id, "rejected", UNREAD)
            self._began.clear()
        self.read()
        self.interrupted_by, self.interrupting = self.interrupting if aborted else None, None

    def turn_began(self) -> None:
        """A turn has begun: further interrupts are of this one."""
        self.interrupted_by = None

    def read(self) -> None:
        """What was started is in the session: the model answers it, or its turn is over."""
        for message_id, how in self._began.items():
            self._settle(message_id, "acknowledged", how)
        self._began.clear()

    def asked_with(self, uuids: Iterable[object]) -> None:
        """Claude Code asks the model, with these user frames in the conversation."""
        for message_id in {self._ids.get(str(uuid), "") for uuid in uuids} & self._began.keys():
            if self._began[message_id] != MID_TURN:
                self._settle(message_id, "acknowledged", self._began.pop(message_id))

    def blocked(self, reason: str) -> None:
        """A hook of the user's has blocked what was started last: what was told in a turn is completed before that."""
        completed = {each for uuid, each in self._ids.items() if uuid not in self.owed} & self._began.keys()
        for message_id in completed or {each for each, how in self._began.items() if how != MID_TURN}:
            del self._began[message_id]
            self._settle(message_id, "rejected", f"a hook blocked it: {reason}"[:MAX_NAME])

    def idle(self) -> None:
        """Claude Code is idle: it has completed every frame that it had started."""
        self.owed = {uuid: state for uuid, state in self.owed.items() if state != "started"}

    def control_answered(self, frame: Frame) -> bool:
        """Claude Code answered a control request of the worker's; True if that is the interrupt which is at work."""
        response = object_at(frame, "response")
        request_id = str(response.get("request_id"))
        self.end_answered = self.end_answered or request_id in self._ends
        message_id = self._interrupts.get(request_id)
        if message_id is None or response.get("subtype") != "success":
            return False
        # A message with a text is acknowledged by the reports on its user frame.
        self._settle(message_id, "delivered", "interrupted")
        return message_id == self.interrupting

    def end_reached(self) -> None:
        """The turn has ended, and the run with it."""
        for each in self._ends.values():
            self._settle(each.id, each.state, each.how)

    def _settle(self, message_id: str, state: MessageState, how: str | None) -> None:
        known = self._settled.get(message_id)
        if known is None or known.state == "delivered":
            self._settled[message_id] = Settlement(id=message_id, state=state, how=how)
