"""Workers that freeze at any moment of a write or a takeover: the log has every event once, whoever thaws when."""

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from activities.ports.runtime import Fenced
from activities.store.event_reader import Cursor, read
from activities.store.eventlog import EventLog
from steersman.contracts.events import DoneEvent, EventBase, MessageEvent
from tests.hostile.test_event_log import NOW, path
from tests.support.processes import until

__all__ = ["path"]

pytestmark = [pytest.mark.integration, pytest.mark.linux]

SIZE = 200_000
WRITER = """
import sys, time
from pathlib import Path
from activities.ports.runtime import Fenced
from activities.store.eventlog import EventLog
from tests.hostile.test_log_fence import record
try:
    log = EventLog.take_over(Path(sys.argv[1]), int(sys.argv[2]))
    for number in range(1, 1_000_000):
        log.append(1, number, record(number))
        time.sleep(float(sys.argv[3]))
except Fenced:
    sys.exit(7)
"""
FENCED = 7


def record(number: int) -> list[EventBase]:
    """The events in a record of the journal, the same whoever reads it."""
    return [MessageEvent(time=NOW, text=f"{number}.{index} " + "x" * SIZE) for index in range(2)]


@contextmanager
def writer(path: Path, epoch: int, pause_s: float = 0) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-c", WRITER, str(path), str(epoch), str(pause_s)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2]) as process:
        try:
            yield process
        finally:
            process.kill()


def freeze(process: "subprocess.Popen[bytes]") -> None:
    """Until it is really stopped, if it has not ended."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def lock_is_free(path: Path) -> bool:
    with path.with_suffix(".epoch").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def frozen_in_a_write(process: "subprocess.Popen[bytes]", path: Path) -> None:
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        freeze(process)
        if not lock_is_free(path):
            return
        process.send_signal(signal.SIGCONT)
    raise TimeoutError("it was never met in a write")


def whole(path: Path) -> None:
    """Every event once, in order, and one end."""
    events, ended = read(path, Cursor(), 0, 1 << 40)
    assert ended
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    told = [event.text.split(" ")[0] for event in events[:-1]]
    assert told == [f"{number}.{index}" for number in range(1, len(told) // 2 + 1) for index in range(2)]


async def begun(path: Path) -> None:
    await until(lambda: path.exists() and path.stat().st_size > 20 * SIZE, 30)


def lead_to_its_end(log: EventLog, path: Path, *, records: int = 10) -> None:
    last = log.source[1] + records
    for number in range(1, last + 1):
        log.append(1, number, record(number))
    log.end(DoneEvent(time=NOW))
    log.close()
    whole(path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("in_a_write", [True, False])
async def test_a_writer_that_froze_is_fenced_when_it_thaws(path: Path, *, in_a_write: bool) -> None:
    with writer(path, 1) as frozen:
        await begun(path)
        if in_a_write:
            frozen_in_a_write(frozen, path)
        else:
            freeze(frozen)
            while not lock_is_free(path):
                frozen.send_signal(signal.SIGCONT)
                freeze(frozen)
        before = path.stat().st_ino
        log = EventLog.take_over(path, 2)
        assert (path.stat().st_ino != before) == in_a_write, "whose lock is free need not be written round"
        frozen.send_signal(signal.SIGCONT)
        assert frozen.wait(30) == FENCED
        lead_to_its_end(log, path)


@pytest.mark.exhaustive
async def test_writers_that_freeze_and_thaw_while_others_take_over(path: Path) -> None:
    """Again and again, at whatever moment each happens to be: nobody ever writes beside another."""
    with ExitStack() as writers:
        older = writers.enter_context(writer(path, 1, 0.01))
        await begun(path)
        for epoch in range(2, 5):
            newer = writers.enter_context(writer(path, epoch, 0.01))
            while older.poll() is None:
                freeze(older)
                await asyncio.sleep(0.01)
                older.send_signal(signal.SIGCONT)
                await asyncio.sleep(0.01)
            assert older.returncode == FENCED
            older = newer
    lead_to_its_end(EventLog.take_over(path, 20), path)


@pytest.mark.exhaustive
async def test_workers_that_freeze_in_a_takeover_are_replaced_too(path: Path) -> None:
    with writer(path, 1) as frozen:
        await begun(path)
        frozen_in_a_write(frozen, path)
        with path.open("r+b") as file:  # so that a copy takes its time
            file.truncate(path.stat().st_size + 400_000_000)
        with writer(path, 2) as taking:
            await until(lambda: list(path.parent.glob("events.jsonl.*")), 30)
            freeze(taking)
            log = EventLog.take_over(path, 3)
            for each in (taking, frozen):
                each.send_signal(signal.SIGCONT)
            assert [each.wait(60) for each in (taking, frozen)] == [FENCED, FENCED]
            lead_to_its_end(log, path)
    assert {each.name for each in path.parent.iterdir()} == {"events.jsonl", "events.epoch"}


async def test_a_lock_that_something_else_keeps_holds_nobody_up(path: Path) -> None:
    """As an agent may that runs programs: its run is fenced off and taken again, and nothing waits for ever."""
    log = EventLog.take_over(path, 1)
    log.append(1, 1, record(1))
    with path.with_suffix(".epoch").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        began = time.monotonic()
        with pytest.raises(Fenced, match="another process holds the lock"):
            log.append(1, 2, record(2))
        assert time.monotonic() - began < 30
        again = EventLog.take_over(path, 2)
        lead_to_its_end(again, path)
    log.close()
