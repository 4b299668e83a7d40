"""Readers that wait for the next event of a log: woken at once, and asleep while it is silent."""

import asyncio
import base64
import gzip
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from activities.store import disk, event_pages
from activities.store.event_pages import LAST_LOOK_S, EventPages
from activities.store.eventlog import EventLog
from activities.store.log_watch import watched, written
from steersman._client.event_log import MAX_PAGE, uncompressed
from steersman.contracts.activities import EventPage, ReadEvents, RunKey
from steersman.contracts.events import DoneEvent, ProgressEvent

KEY = RunKey(run="r", execution="e")


def progress(text: str) -> ProgressEvent:
    return ProgressEvent(time=datetime.now(UTC), text=text)


def texts(page: bytes) -> list[str]:
    return [event.text for event in EventPage.model_validate_json(page).events if isinstance(event, ProgressEvent)]


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


async def page(path: Path, after: int = 0, **more: Any) -> EventPage:
    answer = await EventPages().page(ReadEvents(key=KEY, after=after, **more), path)
    assert b"source" not in answer
    return EventPage.model_validate_json(answer)


async def test_pages_have_the_events_of_the_log_each_once(log: EventLog, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    written_events = log.append(1, 1, [progress(f"{number} \u2028 'x' \\ 日本") for number in range(100)])
    log.end(DoneEvent(time=datetime.now(UTC), text="done"))
    events: list[Any] = []
    while not (found := await page(path, len(events), max_bytes=1000)).ended:
        assert 0 < len(found.events) < 10
        events += found.events
    assert [*events, *found.events][:-1] == written_events
    assert found.events[-1].type == "done"
    at_end = await page(path, 101)
    assert (at_end.events, at_end.ended) == ((), True)
    unknown = await page(tmp_path / "none")
    assert (unknown.events, unknown.ended, unknown.known) == ((), False, False)


async def test_a_large_page_is_compressed_for_who_takes_that(log: EventLog, tmp_path: Path) -> None:
    """A reader from before is given it as ever, and a small page is no page to wait for."""
    path = tmp_path / "events.jsonl"
    log.append(1, 1, [progress(f"{number} \u2028 'x' \\ 日本") for number in range(1000)])
    plain = await page(path)
    assert len(plain.events) == 1000
    asked = ReadEvents(key=KEY, gzip=True)
    answer = await EventPages().page(asked, path)
    assert len(answer) < len(plain.model_dump_json()) / 5
    compressed = EventPage.model_validate_json(answer)
    assert (compressed.events, compressed.last) == ((), 1000)
    assert uncompressed(compressed).events == plain.events == uncompressed(plain).events
    small = EventPage.model_validate_json(await EventPages().page(asked.model_copy(update={"after": 990}), path))
    assert (len(small.events), small.gzip) == (10, "")


@pytest.mark.parametrize(
    "data",
    [
        b"no gzip",
        gzip.compress(b"[]")[:-9],
        gzip.compress(b'[{"type":"unheard of"}]'),
        gzip.compress(b"[" * 100_000),
        gzip.compress(b" " * (MAX_PAGE + 1)),
    ],
    ids=["no gzip", "cut off", "no events", "deep", "a bomb"],
)
def test_what_no_worker_has_compressed_is_no_page(data: bytes) -> None:
    packed = EventPage(events=(), ended=False, gzip=base64.b64encode(data).decode())
    with pytest.raises(ValueError, match=r"gzip|cut off|validation error"):
        uncompressed(packed)


def test_base64_that_is_none_is_no_page() -> None:
    with pytest.raises(ValueError, match="ASCII"):
        uncompressed(EventPage(events=(), ended=False, gzip="é"))


@pytest.mark.parametrize(
    ("line", "read"),
    [
        (b'{"seq":1,"time":"2026-01-02T00:00:00Z","type":"progress","text":"bare"}', ["bare"]),
        (
            b'{"seq":1,"time":"2026-01-02T00:00:00Z","type":"progress","text":"a","data":{"n":NaN},"source":[1,1,0]}',
            ["a"],
        ),
        (b'{"seq":1,"source":[1,1,0]},{"seq":2,"source":[1,1,0]}', None),
        (b'{"seq":1,"time":"2026-01-02T00:00:00Z","type":"progress","text":"a"],"ended":true,"source":[1,1,0]}', None),
        (b'{"seq":1,"time":"2026-01-02T00:00:00Z","type":"progress","text":"\xff","source":[1,1,0]}', None),
        (b"[" * 5000 + b',"source":[1,1,0]}', None),
        (b"", None),
    ],
    ids=["no source", "not a number", "two in one", "the page's end", "no UTF-8", "deep", "empty"],
)
async def test_a_line_that_no_worker_has_written_spoils_no_page(
    tmp_path: Path, line: bytes, read: list[str] | None
) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(line + b"\n")
    if read is None:
        with pytest.raises(ValueError, match="validation error"):
            await page(path)
        return
    answer = await EventPages().page(ReadEvents(key=KEY), path)
    assert texts(answer) == read
    json.loads(answer, parse_constant=pytest.fail)


@pytest.mark.parametrize("longest", [1, 300, 3000])
async def test_a_page_says_where_the_next_one_ends(log: EventLog, tmp_path: Path, longest: int) -> None:
    """So that the one after it can be asked for at the same time: it begins where the next one ends."""
    path = tmp_path / "events.jsonl"
    for number in range(200):
        log.append(1, number, [progress("x" * (number * 7919 % longest))])
    ends, said = [0], []
    while (found := await page(path, ends[-1], max_bytes=2000)).events:
        ends.append(found.events[-1].seq)
        said.append(found.next_end)
    assert ends[-1] == 200
    told = [end for end in said if end is not None]
    assert [end for end, where in zip(ends[2:], said, strict=False) if where is not None] == told
    assert said[-2:] == [None, None]
    if longest < 2000:
        assert len(told) == len(said) - 2
