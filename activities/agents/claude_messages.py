"""What was said to one process of Claude Code and what became of it: messages, interrupts, the end of the run.

Read from the journal alone. Claude Code reports each user frame by its uuid: queued, started, then completed or
cancelled. What the agent does with a message is the transcript's.
"""

from dataclasses import dataclass, field

from activities.agents.claude_frames import MAX_NAME, Frame, part
from activities.ports.agent import END_PREFIX
from steersman.contracts.activities import Settlement
from steersman.contracts.run import FINAL_STATES, MessageState

MESSAGE = "message-"
INTERRUPT = "interrupt-"
MAX_OWED = 10_000
"""Frames of which an agent may say that it has still to deal with them."""


@dataclass
class Messages:
    """What the agent owes, and how each message is settled."""

    written: set[str] = field(default_factory=set)
    """The commands in the journal's input."""
    owed: dict[str, str] = field(default_factory=dict)
    """Uuid -> state of each user frame that is not dealt with."""
    interrupting: str | None = None
    """The interrupt that is ending the turn at work."""
    interrupted_by: str | None = None
    """The interrupt that ended the last turn; None once something has begun since."""
    ending: bool = False
    """The run was asked to end with its turn."""
    end_answered: bool = False
    """The agent has heard that."""
    _ids: dict[str, str] = field(default_factory=dict)
    _interrupts: dict[str, str] = field(default_factory=dict)
    _ends: dict[str, Settlement] = field(default_factory=dict)
    _settled: dict[str, Settlement] = field(default_factory=dict)

    def is_sound(self) -> bool:
        """Whether frames can have come to this; it may be from a file."""
        told = (*self._ends.values(), *self._settled.values())
        return len(self.owed) <= 2 * MAX_OWED and all(
            len(each.id) <= MAX_NAME and len(each.how or "") <= MAX_NAME for each in told
        )

    def settlements(self) -> list[Settlement]:
        """What the journal says of each message."""
        return list(self._settled.values())

    def last_words(self) -> list[Settlement]:
        """What is known of each message once the process has ended: see ports.Transcript."""
        return [*self._settled.values(), *(self._unread(each) for each in self._open())]

    def _open(self) -> list[str]:
        written = dict.fromkeys((*self._interrupts.values(), *self._ids.values()))
        return [each for each in written if self._is_open(each)]

    def _is_open(self, message_id: str) -> bool:
        known = self._settled.get(message_id)
        if known is None or known.how != "interrupted":
            return known is None or known.state not in FINAL_STATES
        # An interrupt that was done; whether a text was to follow it, and came too late, others know.
        return known.state not in FINAL_STATES and MESSAGE + message_id in self.written

    def _unread(self, message_id: str) -> Settlement:
        return Settlement(id=message_id, state="unverified", how="the agent ended before it said that it had read this")

    def wrote(self, message_id: str) -> bool:
        """Whether any of it stands in the journal's input."""
        return not self.written.isdisjoint((MESSAGE + message_id, INTERRUPT + message_id, END_PREFIX + message_id))

    def settlement(self, message_id: str) -> Settlement | None:
        """What the journal says of one message."""
        return self._settled.get(message_id)

    def said(self, command: str, frame: Frame, *, running: bool) -> None:
        """A frame that was written to the agent; `running`: there is a turn that an interrupt would end."""
        self.written.add(command)
        if frame.get("type") == "user":
            uuid = str(frame.get("uuid"))
            self.owed[uuid] = "written"
            if command.startswith(MESSAGE):
                self._ids[uuid] = command.removeprefix(MESSAGE)
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

    def moved(self, uuid: str, state: str, *, turn_open: bool) -> None:
        """Claude Code tells how far it is with a user frame."""
        if state in ("completed", "cancelled"):
            self.owed.pop(uuid, None)
        elif uuid in self.owed or len(self.owed) < MAX_OWED:
            self.owed[uuid] = state
        message_id = self._ids.get(uuid)
        if message_id is None:
            return
        how = "mid_turn" if turn_open else "new_turn"
        if message_id in self._interrupts.values():
            how = "interrupted"
        if state == "queued":
            self._settle(message_id, "delivered", None)
        elif state in ("started", "completed"):
            self._settle(message_id, "acknowledged", how)
        elif state == "cancelled":
            self._settle(message_id, "rejected", "interrupted before the agent had read it")

    def turn_ended(self, *, aborted: bool) -> None:
        """The turn is over; `aborted`: it was interrupted."""
        self.interrupted_by, self.interrupting = self.interrupting if aborted else None, None

    def turn_began(self) -> None:
        """Something was begun: what is interrupted from now on is that."""
        self.interrupted_by = None

    def idle(self) -> None:
        """Claude Code owes nothing that it has begun."""
        self.owed = {uuid: state for uuid, state in self.owed.items() if state != "started"}

    def responded(self, frame: Frame) -> None:
        """The answer to a control request of ours."""
        response = part(frame, "response")
        request_id = str(response.get("request_id"))
        self.end_answered = self.end_answered or request_id in self._ends
        message_id = self._interrupts.get(request_id)
        if message_id is not None and response.get("subtype") == "success":
            # With a text the message is settled by the text's own way through the agent.
            self._settle(message_id, "delivered", "interrupted")

    def end_reached(self) -> None:
        """The turn is over, and the run with it."""
        for each in self._ends.values():
            self._settle(each.id, each.state, each.how)

    def _settle(self, message_id: str, state: MessageState, how: str | None) -> None:
        known = self._settled.get(message_id)
        if known is None or known.state == "delivered":
            self._settled[message_id] = Settlement(id=message_id, state=state, how=how)
