"""The event log: numbered without gaps, nothing twice, one end, whoever writes."""

import json
import random
import resource
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from activities.ports.runtime import Fenced
from activities.running.progress import last_event
from activities.store.event_reader import Cursor, is_ended, read, terminal_event
from activities.store.eventlog import RECOVERED, EventLog, end_log
from steersman.contracts.events import (
    CancelledEvent,
    DoneEvent,
    EventBase,
    MessageEvent,
    ToolUseEvent,
    UsageEvent,
)
from steersman.contracts.run import Usage

NOW = datetime(2026, 1, 2, tzinfo=UTC)
ALL = 10**9


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def said(*texts: str) -> list[EventBase]:
    return [MessageEvent(time=NOW, text=text) for text in texts]


def texts(path: Path, after: int = 0) -> list[str]:
    return [event.text for event in read(path, Cursor(), after, ALL)[0]]


def bytes_read() -> int:
    """What this process has read from files so far."""
    return int(Path("/proc/self/io").read_text(encoding="ascii").split()[1])


def numbers(path: Path) -> list[int]:
    return [event.seq for event in read(path, Cursor(), 0, ALL)[0]]


def test_events_are_numbered_from_one_without_gaps(path: Path) -> None:
    log = EventLog(path)
    log.append(1, 1, said("a", "b"))
    log.append(1, 2, [])
    (added,) = log.append(2, 1, said("c"))
    log.end(DoneEvent(time=NOW, text="c"))
    log.close()
    assert (added.seq, added.attempt) == (3, 2)
    assert numbers(path) == [1, 2, 3, 4]


def test_a_journal_fed_twice_adds_nothing(path: Path) -> None:
    for _worker in range(3):
        log = EventLog.take_over(path, 1)
        for record in range(1, 4):
            log.append(1, record, said(f"{record}a", f"{record}b"))
        log.close()
    assert texts(path) == ["1a", "1b", "2a", "2b", "3a", "3b"]


def test_a_worker_that_died_within_a_record_is_continued_within_it(path: Path) -> None:
    first = EventLog(path)
    first.append(1, 1, said("a", "b", "c")[:2])
    first.close()
    second = EventLog.take_over(path, 2)
    assert [event.seq for event in second.append(1, 1, said("a", "b", "c"))] == [3]
    second.close()
    assert texts(path) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "torn",
    [
        b'{"type":"message","te',
        b'{"type":"message","text":"x","seq":3,"source":[1,3,0]}',
        b"\xff\xfe\n",
        b"[]\n",
        b'{"seq":"x","source":[1,3,0],"type":"message"}\n',
        b'{"seq":3}\n',
        b"\0" * 4096,
    ],
    ids=["half", "without newline", "no utf-8", "no object", "no number", "no source", "zeroes of a lost write"],
)
def test_a_torn_last_line_is_written_anew(path: Path, torn: bytes) -> None:
    log = EventLog(path)
    log.append(1, 1, said("a"))
    log.append(1, 2, said("b"))
    log.close()
    with path.open("ab") as file:
        file.write(torn)
    log = EventLog.take_over(path, 3)
    log.append(1, 1, said("a"))
    log.append(1, 2, said("b"))
    log.append(1, 3, said("c"))
    log.close()
    assert texts(path) == ["a", "b", "c"]
    assert numbers(path) == [1, 2, 3]


def test_a_writer_that_was_taken_over_is_harmless(path: Path) -> None:
    old = EventLog(path)
    old.append(1, 1, said("a"))
    new = EventLog.take_over(path, 4)
    with pytest.raises(Fenced):
        old.append(1, 2, said("written by the worker that hung"))
    new.append(1, 2, said("b"))
    with pytest.raises(Fenced):
        old.end(CancelledEvent(time=NOW))
    new.append(1, 3, said("c"))
    old.close()
    new.close()
    assert texts(path) == ["a", "b", "c"]


def test_whoever_ends_the_log_leaves_nothing_to_say_to_a_session_that_lives_on(path: Path) -> None:
    session = EventLog.take_over(path, 1)
    session.append(1, 1, said("a"))
    other = EventLog(path)
    other.end(CancelledEvent(time=NOW))
    other.close()
    with pytest.raises(Fenced, match="something else has written"):
        session.append(1, 2, said("b"))
    session.close()
    assert [event.type for event in read(path, Cursor(), 0, ALL)[0]] == ["message", "cancelled"]


@pytest.mark.parametrize("name", ["events.jsonl", "events.epoch"])
def test_a_writer_whose_files_were_taken_away_stops_writing(path: Path, name: str) -> None:
    log = EventLog.take_over(path, 1)
    log.append(1, 1, said("a"))
    path.with_name(name).unlink()
    with pytest.raises(Fenced):
        log.append(1, 2, said("b"))
    log.close()
    again = EventLog.take_over(path, 2)
    for record, text in enumerate("abc", 1):
        again.append(1, record, said(text))
    again.close()
    assert texts(path) == ["a", "b", "c"]


def test_a_write_that_fails_leaves_nothing_of_its_record(path: Path) -> None:
    log = EventLog(path)
    log.append(1, 1, said("a"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            log.append(1, 2, said("b" * 1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    log.append(1, 2, said("b"))
    log.close()
    assert texts(path) == ["a", "b"]


def test_a_log_of_an_older_version_is_not_shared_with_its_writer(path: Path) -> None:
    """Which appends without the lock, and says so by its epoch file."""
    first = EventLog(path)
    first.append(1, 1, said("a"))
    first.close()
    path.with_suffix(".epoch").write_text("1")
    with path.open("ab") as older:
        log = EventLog.take_over(path, 2)
        older.write(b"what the older one still writes\n")
        older.flush()
        log.append(1, 2, said("b"))
    log.close()
    assert texts(path) == ["a", "b"]
    assert int(path.with_suffix(".epoch").read_text()) == 2, "the older version understands it, too"


def test_only_the_end_of_a_long_log_is_looked_at(path: Path) -> None:
    """Nothing before it is read, so that gigabytes cost nothing; what is torn there, however much, is written anew."""
    log = EventLog(path)
    for record in range(1, 401):
        log.append(1, record, said(f"{record} " + "x" * 50_000))
    log.close()
    size = path.stat().st_size
    assert size > 3 * RECOVERED
    for torn in (b"", b"{", b"[]\n", b"\0" * (2 * RECOVERED), b"\0" * RECOVERED + b"\n"):
        with path.open("r+b") as file:
            file.write(b"?" * 1000)  # nobody looks
            file.seek(0, 2)
            file.write(torn)
        log = EventLog.take_over(path, 2)
        assert (log.seq, log.source) == (400, (1, 400, 0))
        assert log.append(1, 400, said("again")) == []
        log.close()
        assert path.stat().st_size == size


def test_a_log_whose_end_is_all_torn_is_followed_back_to_what_is_whole(path: Path) -> None:
    log = EventLog(path)
    log.append(1, 1, said("a"))
    log.close()
    with path.open("ab") as file:
        file.write(b"junk\n" * RECOVERED)
    log = EventLog.take_over(path, 2)
    log.append(1, 2, said("b"))
    log.close()
    assert texts(path) == ["a", "b"]


def test_taking_over_leaves_one_log_that_only_its_user_can_read(path: Path) -> None:
    for worker in range(3):
        log = EventLog.take_over(path, worker)
        log.append(1, 1, said("a"))
        log.close()
    assert {each.name for each in path.parent.iterdir()} == {path.name, "events.epoch"}
    assert {each.stat().st_mode & 0o777 for each in path.parent.iterdir()} == {0o600}


def test_there_is_one_end_and_nothing_after_it(path: Path) -> None:
    log = EventLog(path)
    log.append(1, 1, said("a"))
    log.end(DoneEvent(time=NOW, text="first"))
    log.end(CancelledEvent(time=NOW))
    assert log.append(1, 2, said("late")) == []
    log.close()
    again = EventLog.take_over(path, 6)
    assert again.ended
    again.end(CancelledEvent(time=NOW))
    assert again.append(9, 9, said("later")) == []
    again.close()
    events, ended = read(path, Cursor(), 0, ALL)
    assert ([event.type for event in events], ended) == (["message", "done"], True)


def test_numbers_that_are_no_json_do_not_get_into_the_log(path: Path) -> None:
    log = EventLog(path)
    log.append(1, 1, [ToolUseEvent(time=NOW, id="t", name="Bash", input={"a": float("nan"), "b": float("inf")})])
    log.append(1, 2, said("after"))
    log.close()
    assert numbers(path) == [1, 2]
    for line in path.read_bytes().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_no_text_of_an_agent_looks_like_the_end(path: Path) -> None:
    assert not is_ended(path)
    log = EventLog(path)
    log.end(DoneEvent(time=NOW, text="x"))
    log.close()
    assert is_ended(path)
    mark = path.read_text()
    path.unlink()
    log = EventLog(path)
    log.append(1, 1, said(mark, mark.strip()[:-1], mark[-60:]))
    log.append(1, 2, [ToolUseEvent(time=NOW, id="t", name="x", input={"source": [1 << 62, 0, 0], "type": "done"})])
    log.close()
    assert not is_ended(path)


class TestRead:
    @pytest.fixture
    def log(self, path: Path) -> Iterator[EventLog]:
        log = EventLog(path)
        for record, text in enumerate("abcde", 1):
            log.append(1, record, said(text))
        yield log
        log.close()

    def test_a_cursor_goes_on_where_it_was(self, path: Path, log: EventLog) -> None:
        cursor = Cursor()
        assert [event.text for event in read(path, cursor, 0, ALL)[0]] == list("abcde")
        log.append(1, 6, said("f"))
        assert [event.text for event in read(path, cursor, 5, ALL)[0]] == ["f"]
        assert read(path, cursor, 6, ALL) == ([], False)

    def test_a_cursor_may_go_back(self, path: Path, log: EventLog) -> None:
        cursor = Cursor()
        read(path, cursor, 0, ALL)
        assert [event.text for event in read(path, cursor, 3, ALL)[0]] == ["d", "e"]

    def test_pages_are_bounded_and_join_without_a_gap(self, path: Path, log: EventLog) -> None:
        cursor = Cursor()
        seen: list[str] = []
        while page := read(path, cursor, len(seen), 1)[0]:
            assert len(page) == 1
            seen += [event.text for event in page]
        assert seen == list("abcde")

    def test_a_line_that_is_being_written_is_not_read(self, path: Path, log: EventLog) -> None:
        cursor = Cursor()
        with path.open("ab") as file:
            line = path.read_bytes().splitlines()[-1].replace(b'"seq":5', b'"seq":6')
            file.write(line[:20])
            file.flush()
            assert len(read(path, cursor, 0, ALL)[0]) == 5
            file.write(line[20:] + b"\n")
        assert [event.seq for event in read(path, cursor, 5, ALL)[0]] == [6]

    def test_the_end_is_told_also_to_who_has_it_already(self, path: Path, log: EventLog) -> None:
        log.end(DoneEvent(time=NOW))
        assert read(path, Cursor(), 0, ALL)[1]
        assert read(path, Cursor(), 6, ALL) == ([], True)

    def test_a_number_beyond_the_end_reads_nothing(self, path: Path, log: EventLog) -> None:
        assert read(path, Cursor(), 99, ALL) == ([], False)

    @pytest.mark.linux
    def test_any_number_in_a_long_log_is_found_without_reading_all_before(self, path: Path) -> None:
        log, chance = EventLog(path), random.Random(1)
        for record in range(1, 3001):
            log.append(1, record, said("x" * chance.choice([1, 100, 60_000])))
        log.close()
        assert path.stat().st_size > 50_000_000
        second = path.read_bytes().index(b"\n") + 1
        for after in (1, 2, 700, 1500, 2998, 2999):
            for cursor in (Cursor(), Cursor(1, second)):
                before = bytes_read()
                assert [event.seq for event in read(path, cursor, after, 1)[0]] == [after + 1]
                assert bytes_read() - before < 5_000_000
                assert cursor.seq == after + 1
        assert read(path, Cursor(), 3000, ALL) == ([], False)

    def test_a_file_without_numbers_is_read_through(self, path: Path) -> None:
        path.write_bytes(b"x" * 1_000_000 + b"\n" + b"y\n" * 500_000)
        assert read(path, Cursor(), 10**7, ALL) == ([], False)

    def test_no_log(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "none", Cursor(), 0, ALL)


def test_the_last_event_is_one_short_line() -> None:
    assert last_event(ToolUseEvent(time=NOW, seq=3, id="t", name="Bash", input={})).summary == "Bash"
    assert last_event(MessageEvent(time=NOW, text="x" * 1000)).summary == "x" * 200
    assert last_event(MessageEvent(time=NOW, role="user", text=" use tabs ")).summary == "to the agent: use tabs"
    assert last_event(UsageEvent(time=NOW, usage=Usage(), cost_usd=0, turns=2)).summary == "2"
    assert last_event(CancelledEvent(time=NOW)).summary == "cancelled"


def test_a_session_that_comes_back_late_does_not_get_the_log(path: Path) -> None:
    newer = EventLog.take_over(path, 2)
    with pytest.raises(Fenced):
        EventLog.take_over(path, 1)
    newer.append(1, 1, said("mine"))
    newer.close()
    assert numbers(path) == [1]


def test_an_end_waits_for_the_last_words_of_whoever_writes(path: Path) -> None:
    log = EventLog.take_over(path, 3)
    log.append(1, 1, said("a"))
    ends = [threading.Thread(target=end_log, args=(path, DoneEvent(time=NOW, text=name))) for name in "xyz"]
    for end in ends:
        end.start()
    log.append(1, 2, said("last words"))
    assert not is_ended(path)
    log.close()
    for end in ends:
        end.join()
    events, ended = read(path, Cursor(), 0, ALL)
    assert ([(event.seq, event.type) for event in events], ended) == (
        [(1, "message"), (2, "message"), (3, "done")],
        True,
    )
    assert terminal_event(path) == events[-1]
    end_log(path, CancelledEvent(time=NOW))
    assert terminal_event(path) == events[-1]


def test_whoever_hangs_over_a_log_is_cut_off_by_its_end(path: Path) -> None:
    log = EventLog.take_over(path, 3)
    log.append(1, 1, said("a"))
    end_log(path, CancelledEvent(time=NOW, terminated=True), 0.05)
    assert terminal_event(path) == CancelledEvent(time=NOW, seq=2, terminated=True)
    with pytest.raises(Fenced):
        log.append(1, 2, said("woken"))
    with pytest.raises(Fenced):
        log.end(DoneEvent(time=NOW))
    log.close()
    events, ended = read(path, Cursor(), 0, ALL)
    assert ([event.type for event in events], ended) == (["message", "cancelled"], True)


def test_a_log_without_an_end_and_one_that_is_not_there_have_no_terminal_event(path: Path) -> None:
    assert terminal_event(path) is None
    log = EventLog(path)
    log.append(1, 1, said("a"))
    log.close()
    assert terminal_event(path) is None
