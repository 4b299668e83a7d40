"""Transcripts of ACP agents, over recorded journals: the same after any snapshot, and sound whatever an agent says."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from activities.agents.acp.messages import INTERRUPTED
from activities.agents.acp.transcript import AcpTranscript
from activities.agents.opencode.transcript import OpencodeTranscript
from activities.ports.agent import Verdict
from activities.ports.runtime import Record
from activities.shim.client.journal import RecordParser
from steersman.contracts.events import MAX_TEXT, EventBase
from tests.agents.journals import Line
from tests.agents.kits import AcpKit, GeminiKit, OpencodeKit
from tests.agents.test_claude_journals import HOSTILE, KILLED, LEFT, _damaged, _mutated, _sound

JOURNALS = sorted(Path(__file__).parent.glob("journals/acp/*.journal"))
KINDS: dict[str, type[AcpKit]] = {"acp": AcpKit, "opencode": OpencodeKit, "gemini": GeminiKit}
DAMAGED = 12


def kind_of(path: Path) -> type[AcpTranscript]:
    return OpencodeTranscript if path.stem == "opencode" else AcpTranscript


def transcript(kind: type[AcpTranscript] = AcpTranscript) -> AcpTranscript:
    return kind(structured=True)


def load(path: Path) -> list[Record]:
    return list(RecordParser().feed(path.read_bytes()))


def told(records: list[Record], found: AcpTranscript) -> list[EventBase]:
    return [event for record in records for event in found.feed(record)]


def all_that_follows(found: AcpTranscript) -> dict[str, object]:
    """Everything that anybody asks of it."""

    def verdict_facts(verdict: Verdict) -> object:
        return verdict.error and (verdict.error.type, verdict.error.message), verdict.resumable, verdict.start_over

    names = set(found.snapshot_kind.names()) - {"hopeless", "_error", "_told_failure"}
    return {
        "state": {name: getattr(found, name) for name in names},
        "flags": (found.working, found.finished, found.turn_open, found.turn_over, found.answer_due),
        "hopeless": found.hopeless and (found.hopeless.type, found.hopeless.message),
        "verdicts": [verdict_facts(found.verdict(fact)) for fact in (LEFT, KILLED)],
    }


def cut_everywhere(records: list[Record], kind: type[AcpTranscript], step: int = 1) -> None:
    """At each record, and what is left is fed to the one and to the other."""
    before = transcript(kind)
    for cut in range(0, len(records) + 1, step):
        told(records[max(cut - step, 0) : cut], before)
        plain, restored = transcript(kind), transcript(kind)
        told(records[:cut], plain)
        taken = before.snapshot()
        assert taken is not None
        restored.restore(taken)
        assert all_that_follows(restored) == all_that_follows(plain), cut
        assert told(records[cut:], restored) == told(records[cut:], plain), cut
        assert all_that_follows(restored) == all_that_follows(plain), cut


def test_there_are_journals() -> None:
    assert JOURNALS


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.stem)
class TestEveryJournal:
    def test_what_it_comes_to(self, path: Path) -> None:
        found = transcript(kind_of(path))
        events = told(load(path), found)
        _sound(events, found)
        assert found.turn_over
        assert found.verdict(LEFT) == Verdict()
        assert found.progress.structured == {"answer": 42}
        assert {(each.state, each.how) for each in found.last_words()} <= {
            ("acknowledged", "interrupted"),
            ("acknowledged", "mid_turn"),
            ("acknowledged", "new_turn"),
            ("delivered", "interrupted"),  # one without a text
            ("unverified", INTERRUPTED),  # one that is to steer the turn which the next one ends
        }
        states = [each.state for each in events if each.type == "permission"]  # type: ignore[attr-defined]
        assert states[:3] + states[4:] == ["asked", "allowed", "asked", "asked", "withdrawn"]
        assert states[3] == ("denied" if KINDS[path.stem].goes_on else "allowed")

    def test_restored_after_any_record_all_that_follows_is_the_same(self, path: Path) -> None:
        cut_everywhere(load(path), kind_of(path))

    def test_whatever_a_hostile_agent_says(self, path: Path) -> None:
        records = load(path)
        for seed in range(DAMAGED):
            damaged: list[Record] = [_damaged(each, random.Random(f"{seed}-{each.seq}")) for each in records]
            found = transcript(kind_of(path))
            _sound(told(damaged, found), found)
            cut_everywhere(damaged, kind_of(path), 7)

    def test_a_forged_snapshot_is_refused_or_does_no_more_than_a_forged_journal(self, path: Path) -> None:
        records = load(path)
        for seed in range(DAMAGED * 4):
            chance, found = random.Random(seed), transcript(kind_of(path))
            cut = chance.randrange(len(records))
            told(records[:cut], found)
            forged = json.dumps(_mutated(json.loads(found.snapshot() or b""), chance)).encode()
            restored = transcript(kind_of(path))
            try:
                restored.restore(forged)
            except ValueError:
                continue
            _sound(told(records[cut:], restored), restored)
            again = transcript(kind_of(path))
            again.restore(restored.snapshot() or b"")


@pytest.mark.parametrize("kind", [AcpTranscript, OpencodeTranscript])
def test_nothing_that_feeding_changes_is_left_out(kind: type[AcpTranscript]) -> None:
    given = {"resumption", "answer_accepted", "owed", "_session", "_resumes", "_structured"}
    assert set(vars(transcript(kind))) == given | set(kind.snapshot_kind.names())


@pytest.mark.parametrize("kind", [AcpTranscript, OpencodeTranscript])
@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: repr(value)[:20])
def test_a_wrong_type_in_any_place_of_a_snapshot(value: Any, kind: type[AcpTranscript]) -> None:
    whole = transcript(kind)
    for path in (each for each in JOURNALS if issubclass(kind, kind_of(each))):
        told(load(path)[:-8], whole)
    taken = json.loads(whole.snapshot() or b"")

    def forged(part: Any) -> Any:
        """Each place in turn."""
        if isinstance(part, dict):
            for key in list(part)[:20]:
                yield {**part, key: value}
                for inner in forged(part[key]):
                    yield {**part, key: inner}

    for each in forged(taken):
        found = transcript(kind)
        try:
            found.restore(json.dumps(each).encode())
        except ValueError:
            continue
        _sound(told(load(JOURNALS[0]), found), found)


@pytest.mark.exhaustive
def test_a_message_of_many_small_parts_costs_no_more_than_a_large_one() -> None:
    """Copied whole for each part, a million of them would hold a worker up for minutes."""
    path = next(each for each in JOURNALS if each.stem == "gemini")
    records = load(path)
    at = next(n for n, each in enumerate(records) if b"agent_message_chunk" in each.data)
    found = transcript()
    told(records[:at], found)
    frame = json.loads(records[at].data)
    frame["params"]["update"]["content"]["text"] = "x"
    part = replace_data(records[at], json.dumps(frame).encode())
    for _ in range(MAX_TEXT + 5_000):
        found.feed(part)
    taken = found.snapshot()
    assert taken is not None
    restored = transcript()
    restored.restore(taken)
    for each in (found, restored):
        whole = [event for event in told(records[at + 1 :], each) if getattr(event, "delta", True) is False]
        assert len(getattr(whole[0], "text", "")) == MAX_TEXT
        assert whole[0].truncated


def replace_data(record: Record, data: bytes) -> Record:
    return Line(record.seq, record.time_ms, record.stream, data, record.id)
