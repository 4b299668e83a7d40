"""Journals of real Claude Code processes, as lines of JSON, and the events that they give.

`python -m tests.agents.journals.record` makes them anew with the CLI at hand.
"""

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from activities.agents.claude.transcript import ClaudeTranscript
from activities.ports.runtime import Record
from steersman.contracts.events import EVENT, EventBase

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Line:
    """One record of a journal."""

    seq: int
    time_ms: int
    stream: str
    data: bytes
    id: str = ""


def load(path: Path) -> list[Record]:
    """The records in a file."""
    return [_record(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def _record(line: dict[str, object]) -> Line:
    data = line["text"]
    raw = base64.b64decode(str(line["base64"])) if data is None else str(data).encode()
    return Line(int(str(line["seq"])), int(str(line["time_ms"])), str(line["stream"]), raw, str(line["id"]))


def save(path: Path, records: Iterable[Record]) -> None:
    """Write records as lines of JSON."""
    path.write_text("".join(_line(record) + "\n" for record in records), encoding="utf-8")


def _line(record: Record) -> str:
    try:
        text: str | None = record.data.decode()
        raw = None
    except UnicodeDecodeError:
        text, raw = None, base64.b64encode(record.data).decode()
    facts = {"seq": record.seq, "time_ms": record.time_ms, "stream": record.stream, "id": record.id}
    return json.dumps({**facts, "text": text, **({"base64": raw} if raw else {})}, ensure_ascii=False)


def journals() -> list[Path]:
    """All journals."""
    return sorted(path for path in HERE.glob("*.jsonl") if not path.name.endswith(".events.jsonl"))


def told(records: Iterable[Record], transcript: ClaudeTranscript | None = None) -> list[EventBase]:
    """The events that a transcript tells of these records."""
    transcript = transcript or ClaudeTranscript()
    return [event for record in records for event in transcript.feed(record)]


def as_lines(events: Iterable[EventBase]) -> str:
    """Events as lines of JSON."""
    return "".join(json.dumps(json.loads(EVENT.dump_json(event)), ensure_ascii=False) + "\n" for event in events)  # type: ignore[arg-type]
