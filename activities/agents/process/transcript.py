"""What a program's journal means: each line of its output is a message, and so is each that it was given; what it says
on stderr is progress.

The journal may be forged, and so may a snapshot: see ports.agent.Transcript. What is written must not live here.
"""

from datetime import UTC, datetime
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from activities import untrusted_json
from activities.agents.command_ids import MESSAGE
from activities.agents.crashes import exit_facts, last_words
from activities.agents.process.options import text_of_line
from activities.ports.agent import MAX_SNAPSHOT, MAX_STRUCTURED, ExitFact, Progress, Verdict
from activities.ports.runtime import Record
from steersman.contracts.activities import Settlement
from steersman.contracts.errors import AgentCrashed, AgentFailed, RunError
from steersman.contracts.events import MAX_TEXT, EventBase, InitEvent, MessageEvent, ProgressEvent
from steersman.contracts.messages import MESSAGE_ID, MessageId

VERSION: Final = 2
"""Must change with any change after which a transcript would continue wrongly from an older snapshot."""
MAX_RESULT = 64 * 1024
"""The run's text is this many characters at the end of the output."""
MAX_WRITTEN = 4_000
"""This many messages of a journal are known by their ids: more than a run takes, also one that was reset."""
SHOWN_LINE = 200
"""Characters of a line that an error quotes."""


class ProcessSnapshot(BaseModel):
    """What feeding a ProcessTranscript changes, before the end of its process."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, ser_json_bytes="base64", val_json_bytes="base64"
    )

    version: Literal[2] = VERSION
    begun: bool
    text: Annotated[str, Field(max_length=MAX_RESULT)]
    last_line: Annotated[bytes, Field(max_length=MAX_STRUCTURED + 1)]
    """The last line of output that is not empty."""
    written: Annotated[tuple[MessageId, ...], Field(max_length=MAX_WRITTEN)]
    stdin_closed: bool


class ProcessTranscript:
    """See ports.Transcript. `structured`: the last line of the output is the answer, and has to be JSON."""

    working = True
    finished = False
    parked = False
    hopeless = None

    def __init__(self, program: str, *, structured: bool = False) -> None:
        self.progress = Progress(stop_reason="exit")
        self.stdin_closed = False
        """The program's stdin has been closed, by whomever: nothing is written to it any more."""
        self._program = program
        self._structured = structured
        self._begun = False
        self._last_line = b""
        self._written: dict[str, None] = {}
        self._no_answer: RunError | None = None

    def feed(self, record: Record) -> list[EventBase]:
        time = datetime.fromtimestamp(record.time_ms / 1000, UTC)
        events: list[EventBase] = []
        if not self._begun:
            self._begun = True
            events.append(InitEvent(time=time, version=self._program))
        if record.stream == "out":
            events.append(self._said(time, record.data))
        elif record.stream == "err":
            text, truncated = _text(record.data)
            events.append(ProgressEvent(time=time, text=text, truncated=truncated, data={"stream": "stderr"}))
        elif record.stream == "in" and record.id.startswith(MESSAGE):
            events += self._given(time, record.id.removeprefix(MESSAGE), record.data)
        elif record.stream == "eof":
            self.stdin_closed = True
        elif record.stream == "exit" and self._structured:
            self._answer()
        return events

    def _said(self, time: datetime, line: bytes) -> EventBase:
        # A character has at most four bytes: no more of a long line is decoded than can be shown.
        end = line[-4 * MAX_RESULT :].decode("utf-8", "replace")
        self.progress.text = f"{self.progress.text}\n{end}"[-MAX_RESULT:].lstrip("\n")
        if line and not line.isspace():
            self._last_line = line[: MAX_STRUCTURED + 1]
        text, truncated = _text(line)
        return MessageEvent(time=time, text=text, truncated=truncated)

    def _given(self, time: datetime, message_id: str, line: bytes) -> list[EventBase]:
        known = message_id in self._written or len(self._written) >= MAX_WRITTEN
        if known or not MESSAGE_ID.fullmatch(message_id):
            return []
        self._written[message_id] = None
        text = text_of_line(message_id, line)
        return [MessageEvent(time=time, role="user", text=text[:MAX_TEXT], truncated=len(text) > MAX_TEXT)]

    def _answer(self) -> None:
        line = self._last_line
        if len(line) > MAX_STRUCTURED:
            self._no_answer = AgentFailed(
                f"output_schema: the last line of the output has more than {MAX_STRUCTURED} bytes: {_quoted(line)}"
            )
            return
        if not line:
            return  # there is no answer: see admission.schemas
        try:
            self.progress.structured = untrusted_json.parse_value(line)
        except ValueError as error:
            self._no_answer = AgentFailed(
                f"output_schema: the last line of the output is no JSON ({str(error)[:SHOWN_LINE]}): {_quoted(line)}"
            )

    def snapshot(self) -> bytes | None:
        state = ProcessSnapshot(
            begun=self._begun,
            text=self.progress.text,
            last_line=self._last_line,
            written=tuple(self._written),
            stdin_closed=self.stdin_closed,
        )
        written = state.model_dump_json().encode()
        return written if len(written) <= MAX_SNAPSHOT else None

    def restore(self, snapshot: bytes) -> None:
        state = ProcessSnapshot.model_validate_json(snapshot)
        self._begun, self.progress.text, self._last_line = state.begun, state.text, state.last_line
        self._written, self.stdin_closed = dict.fromkeys(state.written), state.stdin_closed

    def settlements(self) -> list[Settlement]:
        return [Settlement(id=each, state="delivered") for each in self._written]

    def last_words(self) -> list[Settlement]:
        how = "the program has ended, and says of no message whether it read it"
        return [Settlement(id=each, state="unverified", how=how) for each in self._written]

    def wrote(self, message_id: str) -> bool:
        return message_id in self._written

    def verdict(self, exit_fact: ExitFact) -> Verdict:
        if exit_fact.code == 0:
            return Verdict(self._no_answer)
        how = f"signal {exit_fact.signal}" if exit_fact.signal else f"exit code {exit_fact.code}"
        told = f"{self._program} ended with {how}"
        if exit_fact.lost:
            told = f"{self._program}: its end was not seen (the machine or its shim died)"
        message = f"{told}{last_words(exit_fact)}"
        return Verdict(AgentCrashed(message[:2000], **exit_facts(exit_fact)))


def _text(line: bytes) -> tuple[str, bool]:
    """As much of a line as an event has, and whether that is not all."""
    text = line[: 4 * MAX_TEXT + 4].decode("utf-8", "replace")
    return text[:MAX_TEXT], len(text) > MAX_TEXT


def _quoted(line: bytes) -> str:
    text = line[: 4 * SHOWN_LINE + 4].decode("utf-8", "replace")
    return repr(text if len(text) <= SHOWN_LINE else f"{text[:SHOWN_LINE]}…")
