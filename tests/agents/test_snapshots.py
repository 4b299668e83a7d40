"""A transcript that is restored from a snapshot goes on as the one that the snapshot was taken of."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from activities.agents.claude.snapshot import ClaudeSnapshot
from activities.agents.claude.transcript import ClaudeTranscript
from activities.agents.process.transcript import MAX_RESULT, ProcessTranscript
from activities.ports.agent import MAX_SNAPSHOT, Transcript, Verdict
from activities.ports.runtime import Record
from steersman.contracts.errors import RunError
from tests.agents.journals import Line, journals, load, told
from tests.agents.test_claude_journals import HOSTILE, KILLED, LEFT, _damaged, _mutated, _sound, line, transcript

DAMAGED = 12


def error_facts(error: RunError | None) -> object:
    return error and (type(error), error.message, error.facts)


def verdict_facts(verdict: Verdict) -> object:
    return error_facts(verdict.error), verdict.resumable, verdict.start_over


def all_that_follows(found: ClaudeTranscript) -> dict[str, object]:
    """Everything that anybody asks of it."""
    return {
        "progress": vars(found.progress),
        "settlements": found.settlements(),
        "flags": (found.working, found.finished, found.parked, found.turn_open),
        "hopeless": error_facts(found.hopeless),
        "pending": found.pending,
        "withdrawn": found.withdrawn,
        "messages": vars(found.messages),
        "verdicts": [verdict_facts(found.verdict(fact)) for fact in (LEFT, KILLED)],
    }


def cut_everywhere(records: list[Record], step: int = 1) -> None:
    """At each record, and what is left is fed to the one and to the other."""
    before = transcript()
    for cut in range(0, len(records) + 1, step):
        told(records[max(cut - step, 0) : cut], before)
        plain, restored = transcript(), transcript()
        told(records[:cut], plain)
        taken = before.snapshot()
        assert taken is not None
        restored.restore(taken)
        assert all_that_follows(restored) == all_that_follows(plain), cut
        assert told(records[cut:], restored) == told(records[cut:], plain), cut
        assert all_that_follows(restored) == all_that_follows(plain), cut


@pytest.mark.parametrize("path", journals(), ids=lambda path: path.stem)
class TestEveryJournal:
    def test_restored_after_any_record_all_that_follows_is_the_same(self, path: Path) -> None:
        cut_everywhere(load(path))

    def test_whatever_a_hostile_agent_says(self, path: Path) -> None:
        records = load(path)
        for seed in range(DAMAGED):
            cut_everywhere([_damaged(each, random.Random(f"{seed}-{each.seq}")) for each in records], 7)

    def test_a_forged_snapshot_is_refused_or_does_no_more_than_a_forged_journal(self, path: Path) -> None:
        records = load(path)
        for seed in range(DAMAGED * 4):
            chance, found = random.Random(seed), transcript()
            cut = chance.randrange(len(records))
            told(records[:cut], found)
            forged = json.dumps(_mutated(json.loads(found.snapshot() or b""), chance)).encode()
            restored = transcript()
            try:
                restored.restore(forged)
            except ValueError:
                continue
            _sound(told(records[cut:], restored), restored)
            again = transcript()
            again.restore(restored.snapshot() or b"")


def test_nothing_that_feeding_changes_is_left_out() -> None:
    given = {"_mode", "_rate_limit_s", "_resumes", "_servers"}
    assert set(vars(transcript())) == given | set(ClaudeSnapshot.names())


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: repr(value)[:20])
def test_a_wrong_type_in_any_place_of_a_snapshot(value: Any) -> None:
    whole = transcript()
    for path in journals():
        told(load(path), whole)
    taken = json.loads(whole.snapshot() or b"")

    def forged(part: Any) -> Any:
        """Each place in turn."""
        if isinstance(part, dict):
            for key in list(part)[:20]:
                yield {**part, key: value}
                for inner in forged(part[key]):
                    yield {**part, key: inner}

    count = 0
    for each in forged(taken):
        found = transcript()
        try:
            found.restore(json.dumps(each).encode())
        except ValueError:
            continue
        count += 1
        _sound(told(load(journals()[0]), found), found)
    assert count < 2000


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"null", b"[]", b"[true]", b'["x", 1]', b"[" * 100_000, b'{"a":' * 50_000, b"\xff", b'{"version": 2}'],
)
@pytest.mark.parametrize("kind", ["claude", "process"])
def test_what_is_no_snapshot_is_refused(kind: str, data: bytes) -> None:
    made: dict[str, Transcript] = {"claude": transcript(), "process": ProcessTranscript("x")}
    with pytest.raises(ValueError):  # noqa: PT011 - whatever is wrong with it
        made[kind].restore(data)


def test_a_session_that_is_no_id_is_not_resumed() -> None:
    found = transcript()
    taken = json.loads(found.snapshot() or b"")
    taken["progress"]["session_id"] = "../../etc/passwd"
    with pytest.raises(ValueError, match="no journal could"):
        found.restore(json.dumps(taken).encode())


def test_questions_without_measure_are_no_snapshot() -> None:
    found = transcript()
    request = {"subtype": "can_use_tool", "tool_name": "x", "input": {"a": "x" * (MAX_SNAPSHOT // 4)}}
    for number in range(4):
        found.feed(line({"type": "control_request", "request_id": str(number), "request": request}))
    assert found.snapshot() is None


def test_a_content_that_was_written_to_a_file_is_not_kept() -> None:
    found = transcript()
    for number in range(150):
        written = {
            "type": "tool_use",
            "id": f"t{number}",
            "name": "Write",
            "input": {"file_path": "/a", "content": "x" * 200_000},
        }
        found.feed(line({"type": "assistant", "message": {"content": [written]}}))
    assert len(found.snapshot() or b"") in range(1000, 100_000)


def test_a_process_goes_on_with_its_end() -> None:
    lines = [Line(number, 1000, "out", b"line %d " % number + b"x" * 5000) for number in range(1, 41)]
    for cut in (0, 1, 20, 40):
        plain, restored = ProcessTranscript("x"), ProcessTranscript("x")
        for each in lines[:cut]:
            plain.feed(each)
        restored.restore(plain.snapshot() or b"")
        assert [plain.feed(each) for each in lines[cut:]] == [restored.feed(each) for each in lines[cut:]]
        assert vars(restored) == vars(plain)
        assert len(plain.progress.text) <= MAX_RESULT
