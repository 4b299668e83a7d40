"""The checks of the campaign themselves: each must be able to fail. Evidence is made up, and wrong in one place."""

import json
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from steersman.contracts.messages import DecisionReceipt, MessageReceipt
from steersman.contracts.run import MessageRecord, StopReport
from tests.chaos import checks, readers, workerlogs
from tests.chaos.evidence import Evidence, of_subject, read_journal
from tests.chaos.machine import build_clock
from tests.chaos.programs import counting
from tests.chaos.schedule import WEIGHTS, schedule
from tests.chaos.subjects import Subject
from tests.support.processes import until

NOW = datetime(2026, 1, 2, tzinfo=UTC)
STOPPED = StopReport(outcome="stopped", phase="running", how="terminated", processes=1)


def event(seq: int, kind: str = "message", **fields: Any) -> dict[str, Any]:
    source = [1 << 62, 0, 0] if kind in checks.TERMINAL else [1, seq, 0]
    return {"type": kind, "seq": seq, "source": source, **fields}


def counted() -> Evidence:
    """A program that said three lines, and nothing is wrong."""
    texts = ["begin 7-7", "line 1", "line 2", "line 3"]
    events = [event(seq, text=text) for seq, text in enumerate(texts, 1)]
    records = [(number, "out", "-", text.encode()) for number, text in enumerate(texts, 1)]
    run = Evidence("counting-1", "counting", "COMPLETED", events=[*events, event(5, "done")], journals=[records])
    run.noted = {"7-7": [1, 2, 3]}
    return run


def talked() -> Evidence:
    """Claude that was told something in its first turn, and nothing is wrong."""
    run = Evidence("talking-1", "talking", "COMPLETED", answered=[1, 2], ran=[1])
    words = [event(number, text=f"[talking-1 word {number}]") for number in (1, 2)]
    run.events = [*words, event(3, "done")]
    run.journals = [[(1, "in", "prompt", b""), (2, "in", "message-a", b""), (3, "out", "-", b"")]]
    run.said = {"a": "<heard a>", "b": "<heard b>"}
    run.conversations = [["go"], ["go", "note: <heard a>"]]
    run.receipts = [MessageReceipt(id="a", state="acknowledged", how="mid_turn", latency_ms=1)]
    run.messages = (record("a", "acknowledged"), record("b", "too_late"))
    return run


def record(message_id: str, state: Any) -> MessageRecord:
    return MessageRecord(id=message_id, kind="steer", text="", state=state, received_at=NOW)


def decided(number: int, word: Any, approval: str = "toolu_1") -> DecisionReceipt:
    return DecisionReceipt(id=approval, decision=word, tool="Bash", input={"command": f"echo {number} >> ran"})


def close(run: Evidence, status: str, kind: str, *faults: str) -> None:
    assert run.events
    run.status, run.befell = status, Counter(faults)
    run.events[-1]["type"] = kind


@pytest.mark.parametrize("made", [counted, talked])
def test_nothing_is_found_where_nothing_is_wrong(made: Callable[[], Evidence]) -> None:
    assert checks.findings(made()) == []


def events_of(run: Evidence) -> list[dict[str, Any]]:
    assert run.events
    return run.events


def terminated_with_a_loss(run: Evidence) -> None:
    close(run, "TERMINATED", "failed", "terminated")
    run.journals[0].pop()
    run.noted["7-7"].append(4)


def stopped_and_alive(run: Evidence) -> None:
    close(run, "CANCELED", "cancelled", "cancelled")
    run.report = STOPPED
    run.living_at_close[7] = "sleep"


WRONG: dict[str, tuple[Callable[[], Evidence], Callable[[Evidence], object], str]] = {
    "lost": (counted, lambda r: setattr(r, "status", "RUNNING"), "still open"),
    "failed for nothing": (counted, lambda r: close(r, "FAILED", "failed"), "nothing that befell it explains"),
    "cancelled by nobody": (counted, lambda r: close(r, "CANCELED", "cancelled"), "nothing that befell it explains"),
    "terminated by nobody": (counted, lambda r: close(r, "TERMINATED", "failed"), "nothing that befell it explains"),
    "claude gave up after one crash": (
        talked,
        lambda r: close(r, "FAILED", "failed", "agent_killed"),
        "nothing that befell it explains",
    ),
    "no log": (counted, lambda r: setattr(r, "events", None), "no event log"),
    "gap": (counted, lambda r: events_of(r).pop(1), "not numbered"),
    "number twice": (counted, lambda r: events_of(r).insert(1, events_of(r)[0]), "not numbered"),
    "source twice": (counted, lambda r: events_of(r)[1].update(source=[1, 1, 0]), "do not rise"),
    "torn": (counted, lambda r: setattr(r, "torn", True), "torn"),
    "no end": (counted, lambda r: events_of(r).pop(), "terminal events are []"),
    "two ends": (counted, lambda r: events_of(r).insert(4, event(5, "failed")), "terminal events are"),
    "words after the end": (counted, lambda r: events_of(r).append(event(6, text="x")), "the last event is message"),
    "end of another kind": (counted, lambda r: events_of(r)[-1].update(type="failed"), "the log says failed"),
    "journal with a gap": (counted, lambda r: r.journals[0].pop(1), "journal is not numbered"),
    "command twice": (talked, lambda r: r.journals[0].append((4, "in", "message-a", b"")), "written twice"),
    "line lost": (counted, lambda r: r.noted["7-7"].extend([4, 5]), "3 lines in the log, 5 noted"),
    "line made up": (counted, lambda r: setattr(r, "noted", {"7-7": [1]}), "3 lines in the log, 1 noted"),
    "line doubled": (counted, lambda r: events_of(r)[2].update(text="line 1"), "are not 1 to 3"),
    "line of a terminated run lost": (
        counted,
        terminated_with_a_loss,
        "lines in the log, 4 noted",
    ),
    "word doubled": (talked, lambda r: events_of(r)[1].update(text="[talking-1 word 1]"), "doubled or out of order"),
    "word lost": (talked, lambda r: r.answered.append(3), "the model said [1, 2, 3], the log has [1, 2]"),
    "tool ran twice": (talked, lambda r: r.ran.append(1), "ran twice: [1]"),
    "message twice": (talked, lambda r: r.conversations[1].append("<heard a>"), "a is 2 times"),
    "never read": (
        talked,
        lambda r: setattr(r, "conversations", [["go"]]),
        "a was acknowledged (mid_turn), and the agent has not read it",
    ),
    "too late, and read": (talked, lambda r: r.conversations[1].append("<heard b>"), "b was too_late"),
    "refused, and read": (
        talked,
        lambda r: r.receipts.append(MessageReceipt(id="a", state="rejected", how="no", latency_ms=1)),
        "a was rejected (no), and the agent has read it",
    ),
    "denied, and ran": (talked, lambda r: r.decisions.append(decided(1, "deny")), "1 was denied, and ran"),
    "two answers": (
        talked,
        lambda r: r.decisions.extend([decided(2, "deny"), decided(2, "allow")]),
        "was allowed and denied",
    ),
    "orphan": (counted, lambda r: r.living.update({7: "sleep"}), "orphans: {7: 'sleep'}"),
    "stopped, and alive": (
        counted,
        stopped_and_alive,
        "closed as stopped while processes of it lived",
    ),
    "done, and alive": (counted, lambda r: r.living_at_close.update({7: "sleep"}), "while processes of it lived"),
    "overlap": (counted, lambda r: r.overlaps.append("overlap-8-8"), "two agents at once"),
    "two of Claude Code": (talked, lambda r: setattr(r, "agents_at_once", 2), "2 processes of the agent at once"),
    "files": (talked, lambda r: r.files.append("mcp.json"), "left of Launch.files: ['mcp.json']"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_found(name: str) -> None:
    made, spoil, words = WRONG[name]
    run = made()
    spoil(run)
    assert words in "\n".join(checks.findings(run))


class TestExplained:
    """What befell a run explains some ends and some losses, and no more than that."""

    def test_a_crash_of_a_process_is_its_end(self) -> None:
        run = counted()
        close(run, "FAILED", "failed", "agent_killed")
        assert checks.findings(run) == []

    def test_a_shims_death_takes_along_what_it_had_not_read(self) -> None:
        run = counted()
        run.noted["7-7"].extend([4, 5])
        close(run, "FAILED", "failed", "shim_killed")
        assert checks.findings(run) == []

    def test_a_message_of_a_turn_that_crashed_may_be_in_the_conversation_twice(self) -> None:
        run = talked()
        run.conversations[1].append("<heard a>")
        run.befell["agent_killed"] = 1
        assert checks.findings(run) == []


class TestReaders:
    LOG = counted().events

    def test_the_beginning_of_the_log_is_right(self) -> None:
        assert self.LOG
        assert readers.findings("r", self.LOG[:3], self.LOG) == []

    @pytest.mark.parametrize("wrong", ["gap", "double", "other"])
    def test_anything_else_is_found(self, wrong: str) -> None:
        assert self.LOG
        shown = list(self.LOG)
        match wrong:
            case "gap":
                del shown[1]
            case "double":
                shown.insert(1, shown[0])
            case "other":
                shown[1] = {**shown[1], "text": "something else"}
        assert readers.findings("r", shown, self.LOG)


class TestWorkerLogs:
    @pytest.mark.parametrize(
        ("line", "found"),
        [
            ('{"level": "info", "action": "worker_ready"}', 0),
            ('{"level": "error", "action": "temporal.core", "message": "no server"}', 0),
            ('{"level": "error", "action": "run_seized"}', 1),
            ('{"level": "warning", "action": "sweep_failed"}', 0),
            ('{"level": "warning", "action": "log_incomplete"}', 1),
            ("Traceback (most recent call last):", 1),
            ("Traceback\n  File\nRPCError: no", 1),
            ("7", 1),
        ],
    )
    def test_errors_are_found(self, tmp_path: Path, line: str, found: int) -> None:
        log = tmp_path / "worker-0.log"
        log.write_text(f"{line}\n")
        assert len(workerlogs.findings([log])) == found

    def test_a_freeze_explains_a_workflow_task_that_took_too_long(self, tmp_path: Path) -> None:
        log = tmp_path / "worker-0.log"
        log.write_text('{"level": "error", "action": "t", "error": "_DeadlockError: [TMPRL1101] Potential deadlock"}\n')
        assert len(workerlogs.findings([log], {"worker-1.log"})) == 1
        assert not workerlogs.findings([log], {"worker-0.log"})


class TestEvidence:
    def test_what_began_a_turn_that_was_ended_at_once_is_in_the_session_alone(self, tmp_path: Path) -> None:
        directory = tmp_path / "state" / "runs" / "talking-1" / "abc"
        directory.mkdir(parents=True)
        (directory / "events.jsonl").write_text(json.dumps({**event(1), "type": "init", "session_id": "s"}) + "\n")
        record = tmp_path / "claude" / "projects" / "-w" / "s.jsonl"
        record.parent.mkdir(parents=True)
        queued = '{"type":"queue-operation","operation":"enqueue","content":"<heard b>"}'
        record.write_text(f'{queued}\n{{"type":"user","message":{{"content":"<heard a>"}}}}\n')
        found = of_subject(tmp_path / "state", Subject("talking-1", "talking", "m", tmp_path, {}), "talking-1")
        found.said = {"a": "<heard a>", "b": "<heard b>"}
        found.receipts = [MessageReceipt(id=name, state="acknowledged", how="new_turn", latency_ms=1) for name in "ab"]
        assert list(checks.receipts(found)) == ["b was acknowledged (new_turn), and the agent has not read it"]

    def test_a_run_is_read_from_its_files(self, tmp_path: Path) -> None:
        directory = tmp_path / "state" / "runs" / "counting-1" / "abc"
        attempt = directory / "attempts" / "1"
        attempt.mkdir(parents=True)
        (attempt / "files").mkdir()
        (attempt / "files" / "left").touch()
        (directory / "events.jsonl").write_text(json.dumps(event(1, text="begin 7-7")) + '\n{"type": "mess')
        (attempt / "journal").write_bytes(b"1 99 out 6 -\nline\n1\n2 99 in 2 close\n{}\n3 99 out 9 -\ntorn")
        record = tmp_path / "record"
        record.mkdir()
        (record / "said-7-7").write_text("1\n2\n")
        (record / "overlap-8-8").touch()
        (record / "ran").write_text("4\n4\n")
        found = of_subject(tmp_path / "state", Subject("counting-1", "counting", "m", record, {}), "counting-1")
        assert found.journals == [[(1, "out", "-", b"line\n1"), (2, "in", "close", b"{}")]]
        assert (found.token, found.torn, found.noted) == ("7-7", True, {"7-7": [1, 2]})
        assert (found.files, found.overlaps, found.ran) == (["left"], ["overlap-8-8"], [4, 4])

    def test_a_journal_of_nothing(self) -> None:
        assert read_journal(b"") == []


class TestSchedule:
    def test_it_is_a_function_of_the_seed(self) -> None:
        first = list(islice(schedule(7), 500))
        assert first == list(islice(schedule(7), 500))
        assert first != list(islice(schedule(8), 500))
        assert {step.fault for step in first} == set(WEIGHTS)


class TestPrograms:
    async def test_a_second_agent_beside_the_first_is_noted(self, tmp_path: Path) -> None:
        command = counting(tmp_path, 1000, 0.05)
        first = subprocess.Popen(command, stdout=subprocess.PIPE)
        try:
            assert first.stdout
            assert first.stdout.readline().startswith(b"begin ")
            second = subprocess.run(counting(tmp_path, 2, 0.0), capture_output=True, check=True)
            assert second.stdout.splitlines()[1:] == [b"line 1", b"line 2"]
            assert len(list(tmp_path.glob("overlap-*"))) == 1
            await until(lambda: any("1" in path.read_text() for path in tmp_path.glob("said-*")))
        finally:
            first.kill()
            first.wait()
            first.communicate()

    def test_a_clock_that_is_stepped(self, tmp_path: Path) -> None:
        env = build_clock(tmp_path)
        if not env:
            pytest.skip("no C compiler here")
        Path(env["CHAOS_CLOCK"]).write_bytes(struct.pack("l", 3600))
        code = "import time; print(time.time(), time.clock_gettime(time.CLOCK_REALTIME), time.monotonic())"
        command = [sys.executable, "-I", "-S", "-c", code]
        told = [subprocess.run(command, env=each, capture_output=True, check=True).stdout for each in (env, {})]
        stepped, right = ([float(part) for part in each.split()] for each in told)
        assert [round((a - b) / 60) for a, b in zip(stepped, right, strict=True)] == [60, 60, 0]
