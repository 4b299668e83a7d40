"""What was said to one process of Claude Code and what became of it: messages, interrupts, the end of the run.

Read from the journal alone. Claude Code reports each user frame by its uuid: queued, started, then completed or
cancelled. What the agent does with a message is the transcript's.
"""

from activities.agents.claude_frames import Frame, part
from activities.ports import END
from steersman.contracts.activities import Settlement
from steersman.contracts.run import MessageState

MESSAGE = "message-"
INTERRUPT = "interrupt-"
MAX_OWED = 10_000
"""Frames of which an agent may say that it has still to deal with them."""


class Messages:
    """What the agent owes, and how each message is settled."""

    def __init__(self) -> None:
        self.written: set[str] = set()
        """The commands in the journal's input."""
        self.owed: dict[str, str] = {}
        """Uuid -> state of each user frame that is not dealt with."""
        self.ending = False
        """The run was asked to end with its turn."""
        self.end_answered = False
        """The agent has heard that."""
        self._ids: dict[str, str] = {}
        self._interrupts: dict[str, str] = {}
        self._ends: dict[str, Settlement] = {}
        self._settled: dict[str, Settlement] = {}

    def settlements(self) -> list[Settlement]:
        """What the journal says of each message."""
        return list(self._settled.values())

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
            elif command.startswith(END):
                self.ending = True
                how = "interrupted" if running else "nothing was running"
                self._ends[request_id] = Settlement(id=command.removeprefix(END), state="acknowledged", how=how)

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
