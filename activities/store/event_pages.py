"""Pages of an event log, for readers that wait for the next event. Who may read must not live here."""

import asyncio
import base64
import gzip
import json
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from activities.store import disk
from activities.store.event_reader import Cursor, page_end, read_json
from activities.store.log_watch import watched
from steersman.contracts.activities import ReadEvents, RunKey

FIRST_LOOK_S, LAST_LOOK_S = 0.02, 0.25
"""Seconds between two looks at a log that is written elsewhere: the longer it is silent, the more."""
MAX_WAIT_S = 60.0
MAX_CURSORS = 1000
MAX_PAGE = 2_000_000
"""A page has at most this many bytes of events, whatever its reader asks for: Temporal takes 2 MiB."""
COMPRESSED_FROM = 16_384
"""A page of so many bytes is compressed, where its reader takes that: a smaller one is nearly as quick without."""


class EventPages:
    """Remembers where readers are in their logs, so that the next page is found at once."""

    def __init__(self) -> None:
        self._cursors: OrderedDict[tuple[RunKey, int], Cursor] = OrderedDict()

    async def page(self, wanted: ReadEvents, path: Path) -> bytes:
        """The next page of the log, an EventPage as JSON; waits up to wait_s seconds for its first event.

        Raises: OSError; ValueError where a line of the log is no event.
        """
        cursor = self._cursors.pop((wanted.key, wanted.after), None) or Cursor()
        until = time.monotonic() + min(wanted.wait_s, MAX_WAIT_S)
        size, pause_s = -1, FIRST_LOOK_S
        with watched(path) as changed:
            while True:
                changed.clear()
                now = disk.length(path)
                if now != size:
                    size, pause_s = now, FIRST_LOOK_S
                    if now >= 0:
                        found = await asyncio.to_thread(_read, path, cursor, wanted)
                        if found.has_news:
                            self._remember(wanted.key, cursor)
                            if found.next:
                                self._remember(wanted.key, found.next)
                            return found.json
                left_s = until - time.monotonic()
                if left_s <= 0:
                    return _json([], ended=False, known=now >= 0)
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), min(pause_s, left_s))
                pause_s = min(pause_s * 1.5, LAST_LOOK_S)

    def _remember(self, key: RunKey, cursor: Cursor) -> None:
        self._cursors[(key, cursor.seq)] = cursor
        while len(self._cursors) > MAX_CURSORS:
            self._cursors.popitem(last=False)


@dataclass(frozen=True)
class _Page:
    """`json`: an EventPage."""

    json: bytes
    has_news: bool
    next: Cursor | None
    """Where the page after this one ends."""


def _read(path: Path, cursor: Cursor, wanted: ReadEvents) -> _Page:
    max_bytes = min(wanted.max_bytes, MAX_PAGE)
    events, ended = read_json(path, cursor, wanted.after, max_bytes)
    after = None if ended else page_end(path, cursor, max_bytes)
    page = _json(events, ended=ended, next_end=after.seq if after else None, last=cursor.seq if wanted.gzip else None)
    return _Page(page, bool(events or ended), after)


def _json(
    events: list[bytes], *, ended: bool, known: bool = True, next_end: int | None = None, last: int | None = None
) -> bytes:
    """An EventPage as pydantic would write it. Its events are JSON, as in the log: models of them, and JSON of these,
    would take half the time. `last`: the number of the last one, where they may be compressed.
    """
    more: dict[str, Any] = {"ended": ended, "known": known, "next_end": next_end}
    array = b"[%s]" % b",".join(events)
    if last is not None and len(array) >= COMPRESSED_FROM:
        more["last"] = last
        more["gzip"] = base64.b64encode(gzip.compress(array, compresslevel=1, mtime=0)).decode()
        array = b"[]"
    return b'{"events":%s,%s' % (array, json.dumps(more, separators=(",", ":"))[1:].encode())
