"""What the program's journal means. Deterministic, and never raises: the journal may be forged, and a snapshot, too.

What is written to the program must not live here.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from activities import untrusted_json
from activities.agents.command_ids import MESSAGE
from activities.agents.crashes import crash
from activities.agents.frames import Frame, TooMuch, parse_frame
from activities.ports.agent import MAX_SNAPSHOT, MAX_STRUCTURED, ExitFact, Progress, Verdict
from activities.ports.runtime import Record
from steersman.contracts.activities import Settlement
from steersman.contracts.errors import AgentFailed
from steersman.contracts.events import MAX_TEXT, ErrorEvent, EventBase, InitEvent, MessageEvent
from steersman.contracts.messages import MESSAGE_ID
from steersman.contracts.model import JsonValue

VERSION: Final = 1
"""Must change with any change after which a transcript would go on wrongly from an older snapshot."""
MAX_MESSAGES: Final = 4_000
"""More than a run takes."""
UNREAD: Final = "the program has ended, and has not said that it read it"


class State(BaseModel):
    """What feeding changes, and so what a snapshot holds."""

    model_config = ConfigDict(extra="forbid", strict=True, validate_assignment=False)

    version: Literal[1] = VERSION
    begun: bool = False
    session: Annotated[str, Field(max_length=untrusted_json.MAX_NAME)] | None = None
    text: Annotated[str, Field(max_length=MAX_TEXT)] = ""
    structured: JsonValue = None
    failed: Annotated[str, Field(max_length=2000)] | None = None
    done: bool = False
    stdin_closed: bool = False
    read: Annotated[dict[str, bool], Field(max_length=MAX_MESSAGES)] = Field(default_factory=dict)
    """Each message that was written, and whether the program has read it."""


class RecipeTranscript:
    """See activities.ports.agent.Transcript. `structured`: the request asks for an answer by a schema."""

    hopeless = None
    parked = False

    def __init__(self, *, structured: bool) -> None:
        self.progress = Progress(stop_reason="done")
        self._structured = structured
        self._state = State()

    # What the worker asks.

    @property
    def working(self) -> bool:
        """It speaks until it has ended."""
        return not self.finished

    @property
    def finished(self) -> bool:
        """It ends by itself after that."""
        return self._state.done or self._state.failed is not None

    @property
    def stdin_closed(self) -> bool:
        """Nothing is written to it any more."""
        return self._state.stdin_closed

    def wrote(self, message_id: str) -> bool:
        """See the port."""
        return message_id in self._state.read

    def was_read(self, message_id: str) -> bool:
        """Whether the program has said so."""
        return self._state.read.get(message_id, False)

    def settlements(self) -> list[Settlement]:
        """Delivered, or acknowledged where the program has read it."""
        return [Settlement(id=each, state="acknowledged" if read else "delivered") for each, read in self._messages()]

    def last_words(self) -> list[Settlement]:
        """Nobody can tell whether a message was read that the program says nothing of."""
        return [
            Settlement(id=each, state="acknowledged") if read else Settlement(id=each, state="unverified", how=UNREAD)
            for each, read in self._messages()
        ]

    def _messages(self) -> list[tuple[str, bool]]:
        return list(self._state.read.items())

    def verdict(self, exit_fact: ExitFact) -> Verdict:
        """Its work is done, a step has failed, or it died: then its session goes on in another process."""
        if self._state.failed is not None:
            return Verdict(AgentFailed(self._state.failed))
        if self._state.done:
            return Verdict()
        return Verdict(crash(exit_fact), resumable=True, start_over=self._state.session is None)

    # What the journal says.

    def feed(self, record: Record) -> list[EventBase]:
        """See the port."""
        time = datetime.fromtimestamp(record.time_ms / 1000, UTC)
        if record.stream == "eof":
            self._state.stdin_closed = True
        if record.stream not in ("in", "out"):
            return []
        try:
            frame = parse_frame(record.data)
        except TooMuch as error:
            return [ErrorEvent(time=time, message=f"a line of the program was left out: {error}")]
        if frame is None:
            return []
        if record.stream == "in":
            return self._told(time, record.id, frame)
        return [*self._began(time, frame), *self._said(time, frame)]

    def _began(self, time: datetime, frame: Frame) -> list[EventBase]:
        if self._state.begun:
            return []
        self._state.begun = True
        if frame.get("type") == "session":
            self._state.session = self.progress.session_id = untrusted_json.name_of(frame.get("id"))
        return [InitEvent(time=time, session_id=self.progress.session_id, version="recipe")]

    def _told(self, time: datetime, command: str, frame: Frame) -> list[EventBase]:
        message_id = command.removeprefix(MESSAGE)
        known = self._state.read
        if message_id == command or message_id in known or len(known) >= MAX_MESSAGES:
            return []
        if not MESSAGE_ID.fullmatch(message_id):
            return []
        known[message_id] = False
        return [_message(time, "user", untrusted_json.text_of(frame.get("text")))]

    def _said(self, time: datetime, frame: Frame) -> list[EventBase]:
        state, text = self._state, untrusted_json.text_of(frame.get("text"))
        match frame.get("type"):
            case "said":
                state.text = self.progress.text = self.progress.said = text[:MAX_TEXT]
                return [_message(time, "assistant", text)]
            case "read" if isinstance(named := frame.get("id"), str) and named in state.read:
                state.read[named] = True
            case "answer" if self._structured and len(str(frame.get("value"))) <= MAX_STRUCTURED:
                state.structured = self.progress.structured = frame.get("value")
            case "failed":
                state.failed = text[:2000]
            case "done":
                state.done = True
        return []

    # Snapshots.

    def snapshot(self) -> bytes | None:
        """See the port."""
        written = self._state.model_dump_json().encode()
        return written if len(written) <= MAX_SNAPSHOT else None

    def restore(self, snapshot: bytes) -> None:
        """See the port. A ValidationError is a ValueError."""
        state = self._state = State.model_validate_json(snapshot)
        progress = self.progress
        progress.session_id, progress.structured = state.session, state.structured
        progress.text = progress.said = state.text


def _message(time: datetime, role: Any, text: str) -> MessageEvent:
    return MessageEvent(time=time, role=role, text=text[:MAX_TEXT], truncated=len(text) > MAX_TEXT)
