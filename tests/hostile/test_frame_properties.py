"""Whatever an agent writes: its transcript tells sound events, the same each time, and its log is read back whole."""

import json
import tempfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.agents.claude.frames import is_control_frame
from activities.agents.claude.snapshot import MAX_ASKED
from activities.agents.claude.transcript import ClaudeTranscript
from activities.agents.frames import parse_frame
from activities.ports.agent import ExitFact
from activities.ports.runtime import Record
from activities.shim.client.journal import Record as Line
from activities.shim.client.journal import Stream
from activities.store.event_reader import Cursor, is_ended, read
from activities.store.eventlog import EventLog
from steersman.contracts.events import EVENT, AgentEvent, CancelledEvent, EventBase, is_terminal
from tests.agents.journals import journals, load
from tests.hostile.test_event_log import NOW

pytestmark = pytest.mark.property

STREAMS: list[Stream] = ["out", "out", "out", "in", "err"]
RECORDED = [load(path) for path in journals()]
FRAMES = [frame for journal in RECORDED for each in journal if (frame := parse_frame(each.data))]
WORDS = sorted({word for frame in FRAMES for word in (*frame, *map(str, frame.values())) if len(word) < 40})
FORGED = {"type": "done", "source": [1 << 62, 0, 0]}

texts = (
    st.text(max_size=20)
    | st.sampled_from(WORDS)
    | st.just("\ud800\0\x1b")
    | st.just('"source":[4611686018427387904,0,0]}\n')
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts
values = st.recursive(
    scalars | st.builds(lambda: dict(FORGED)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
)


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """A recorded frame with a few values exchanged, lost or added, at any depth."""
    frame = json.loads(json.dumps(draw(st.sampled_from(FRAMES))))
    for _ in range(draw(st.integers(0, 3))):
        place: Any = frame
        while isinstance(place, dict) and place:
            name = draw(st.sampled_from(sorted(place)))
            if not isinstance(place[name], dict) or draw(st.booleans()):
                break
            place = place[name]
        if isinstance(place, dict) and place:
            name = draw(st.sampled_from(sorted(place)))
            match draw(st.integers(0, 2)):
                case 0:
                    del place[name]
                case 1:
                    place[name] = draw(values)
                case _:
                    place[draw(texts)] = place[name]
    return frame


frames = mutated() | st.dictionaries(texts, values)
lines = (
    st.builds(lambda frame: json.dumps(frame).encode(), frames)
    | st.builds(lambda frame: json.dumps(frame, ensure_ascii=False).encode("utf-8", "surrogatepass"), frames)
    | st.binary(max_size=50)
)
records = st.lists(st.tuples(st.sampled_from(STREAMS), lines, texts), max_size=25).map(
    lambda drawn: [
        Line(number, 1000 + number, stream, data, ident) for number, (stream, data, ident) in enumerate(drawn, 1)
    ]
)
ends = st.builds(
    ExitFact,
    code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 15),
    reason=st.sampled_from(["exited", "stopped", "lease", "terminated", "lost"]),
    lost=st.booleans(),
    stderr=st.lists(texts, max_size=3).map(tuple),
)


def state(transcript: ClaudeTranscript) -> tuple[Any, ...]:
    return (
        repr(transcript.progress),
        transcript.working,
        transcript.finished,
        transcript.parked,
        transcript.turn_open,
        repr(transcript.hopeless),
        transcript.settlements(),
        repr(transcript.pending),
    )


def fed(transcript: ClaudeTranscript, journal: Iterable[Record]) -> list[list[EventBase]]:
    return [transcript.feed(each) for each in journal]


@st.composite
def stories(draw: st.DrawFn) -> list[Record]:
    """A recorded journal with records lost, doubled and put among others."""
    journal: list[Record] = list(draw(st.sampled_from(RECORDED)))[:60]
    for each in draw(records)[:8]:
        journal.insert(draw(st.integers(0, len(journal))), each)
    for _ in range(draw(st.integers(0, 4))):
        if journal:
            place = draw(st.integers(0, len(journal) - 1))
            journal[place : place + 1] = journal[place : place + 1] * draw(st.sampled_from([0, 2]))
    return journal


@given(journal=records | stories(), end=ends)
def test_a_transcript_bears_everything(journal: list[Record], end: ExitFact) -> None:
    transcript = ClaudeTranscript()
    told = fed(transcript, journal)
    for event in (event for events in told for event in events):
        assert not is_terminal(event)
        again = EVENT.validate_json(event.model_dump_json())
        assert again.model_dump_json() == event.model_dump_json()
    assert all(is_control_frame(frame) for frame in transcript.pending.values())
    assert len(transcript.pending) <= MAX_ASKED
    verdict = transcript.verdict(end)
    assert not (verdict.start_over and not verdict.resumable)
    second = ClaudeTranscript()
    assert [[e.model_dump_json() for e in events] for events in fed(second, journal)] == [
        [e.model_dump_json() for e in events] for events in told
    ]
    assert state(second) == state(transcript)
    assert repr(second.verdict(end)) == repr(verdict)


@given(journal=records | stories(), cut=st.integers(0, 80), end=st.booleans())
def test_a_log_taken_over_anywhere_is_the_same_log(journal: list[Record], cut: int, end: bool) -> None:  # noqa: FBT001
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "events.jsonl"
        expected: list[AgentEvent] = []
        for epoch, upto in enumerate((cut, len(journal)), 1):
            transcript = ClaudeTranscript()
            with closing(EventLog.take_over(path, epoch)) as log:
                for number, record in enumerate(journal[:upto], 1):
                    expected += log.append(1, number, transcript.feed(record))  # type: ignore[arg-type]
                assert not is_ended(path)
        if end:
            with closing(EventLog.take_over(path, 3)) as log:
                log.end(CancelledEvent(time=NOW))
        assert is_ended(path) == end
        events, ended = read(path, Cursor(), 0, 1 << 40)
        assert ended == end
        assert [event.seq for event in events] == list(range(1, len(expected) + 1 + end))
        assert [event.model_dump_json() for event in events[: len(expected)]] == [e.model_dump_json() for e in expected]
