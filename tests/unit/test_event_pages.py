"""Readers that wait for the next event of a log: woken at once, and asleep while it is silent."""

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from activities.store import disk, event_pages
from activities.store.event_pages import LAST_LOOK_S, EventPages
from activities.store.eventlog import EventLog
from activities.store.log_watch import watched, written
from steersman.contracts.activities import ReadEvents, RunKey
from steersman.contracts.events import ProgressEvent

KEY = RunKey(run="r", execution="e")


def progress(text: str) -> ProgressEvent:
    return ProgressEvent(time=datetime.now(UTC), text=text)


def texts(page: Any) -> list[str]:
    return [each.text for each in page.events]


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    return EventLog(tmp_path / "events.jsonl", epoch=1)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When a log was looked at."""
    found: list[float] = []
    length = disk.length

    def looked(path: Path) -> int:
        found.append(time.monotonic())
        return length(path)

    monkeypatch.setattr(disk, "length", looked)
    return found


async def waiting(pages: EventPages, path: Path, after: int = 0) -> "asyncio.Task[Any]":
    """A reader that has looked and found nothing."""
    reading = asyncio.create_task(pages.page(ReadEvents(key=KEY, after=after, wait_s=30), path))
    await asyncio.sleep(0.6)
    assert not reading.done()
    return reading


async def test_a_reader_is_woken_by_what_this_process_writes(
    log: EventLog, tmp_path: Path, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_pages, "FIRST_LOOK_S", 60.0)
    monkeypatch.setattr(event_pages, "LAST_LOOK_S", 60.0)
    pages, path = EventPages(), tmp_path / "events.jsonl"
    first = await waiting(pages, path)
    assert len(looks) == 1
    await asyncio.to_thread(log.append, 1, 1, [progress("one")])
    assert texts(await asyncio.wait_for(first, 5)) == ["one"]
    second = await waiting(pages, path, after=1)
    log.append(1, 2, [progress("two")])
    assert texts(await asyncio.wait_for(second, 5)) == ["two"]
    assert len(looks) == 4


async def test_a_silent_log_is_looked_at_ever_more_seldom(log: EventLog, tmp_path: Path, looks: list[float]) -> None:
    """And what another process writes is found all the same."""
    path = tmp_path / "events.jsonl"
    reading = await waiting(EventPages(), path)
    assert len(looks) < 0.6 / LAST_LOOK_S + 10
    other = EventLog(tmp_path / "other.jsonl", epoch=1)
    other.append(1, 1, [progress("from elsewhere")])
    path.write_bytes((tmp_path / "other.jsonl").read_bytes())
    assert texts(await asyncio.wait_for(reading, 5)) == ["from elsewhere"]


async def test_nobody_is_kept_who_does_not_read_any_more(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with watched(path) as first:
        with watched(path) as second:
            written(path)
            await asyncio.sleep(0)
            assert (first.is_set(), second.is_set()) == (True, True)
        first.clear()
        written(path)
        await asyncio.sleep(0)
        assert first.is_set()
    written(path)


def test_a_reader_whose_loop_has_ended_is_in_nobodys_way(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"

    async def left() -> Any:
        watching = watched(path)
        watching.__enter__()
        return watching

    watching = asyncio.run(left())
    written(path)
    watching.__exit__(None, None, None)
