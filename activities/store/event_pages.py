"""Pages of an event log, for readers that wait for the next event. Who may read must not live here."""

import asyncio
import json
import time
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

from activities.store import disk
from activities.store.event_reader import Cursor, read_json
from activities.store.log_watch import watched
from steersman.contracts.activities import ReadEvents, RunKey

FIRST_LOOK_S, LAST_LOOK_S = 0.02, 0.25
"""Seconds between two looks at a log that is written elsewhere: the longer it is silent, the more."""
MAX_WAIT_S = 60.0
MAX_CURSORS = 1000
MAX_PAGE = 2_000_000
"""A page has at most this many bytes of events, whatever its reader asks for: Temporal takes 2 MiB."""


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
                        max_bytes = min(wanted.max_bytes, MAX_PAGE)
                        events, ended = await asyncio.to_thread(read_json, path, cursor, wanted.after, max_bytes)
                        if events or ended:
                            self._remember(wanted.key, cursor)
                            return _page(events, ended=ended)
                left_s = until - time.monotonic()
                if left_s <= 0:
                    return _page([], ended=False, known=now >= 0)
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), min(pause_s, left_s))
                pause_s = min(pause_s * 1.5, LAST_LOOK_S)

    def _remember(self, key: RunKey, cursor: Cursor) -> None:
        self._cursors[(key, cursor.seq)] = cursor
        while len(self._cursors) > MAX_CURSORS:
            self._cursors.popitem(last=False)


def _page(events: list[bytes], *, ended: bool, known: bool = True) -> bytes:
    # The log has its events as JSON: to make models of them, and JSON of these, would take most of the time.
    flags = json.dumps({"ended": ended, "known": known}, separators=(",", ":"))
    return b'{"events":[%s],%s' % (b",".join(events), flags[1:].encode())
