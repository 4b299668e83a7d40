"""Reading a run's events from the host that has its log, live or after the end, from any number on.

Order, completeness and the one last event are kept here. Where the log lives and how the run closed is asked of the
client through the two functions given.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from temporalio.client import Client

from steersman.contracts.activities import EventPage, ReadEvents, RunKey
from steersman.contracts.events import AgentEvent, is_terminal
from steersman.contracts.names import READ_EVENTS
from steersman.errors import ServerRefused, Unreachable
from steersman.hostcalls import Patience, call_host
from steersman.outcome import Closing, terminal_event

LONG_POLL_S: Final = 20.0
"""Short, because a worker that is killed takes the call that waits on it along: this much later somebody notices."""
READ_S: Final = 3.0
"""What reading itself may take."""
FIRST_PATIENCE_S: Final = 10.0
PATIENCE_S: Final = 60.0
"""How long a host or the server may be away in the middle of following."""
LAST_WORDS_S: Final = 1.0
"""How long a read that is on its way gets when the run has closed meanwhile."""


@dataclass(frozen=True)
class Place:
    """Where a run's log is."""

    key: RunKey
    host: str


class RunLog:
    """One run's event log, as far as its host lets us read it."""

    def __init__(self, client: Client, place: Place) -> None:
        self._client = client
        self._place = place
        self._patience = Patience(FIRST_PATIENCE_S)

    async def page(self, after: int, wait_s: float) -> EventPage:
        """The next events, waiting for the first of them up to `wait_s` seconds; transient failures are borne."""
        question = ReadEvents(key=self._place.key, after=after, wait_s=wait_s)
        while True:
            try:
                page = await call_host(
                    self._client,
                    self._place.host,
                    READ_EVENTS,
                    question,
                    EventPage,
                    takes_s=wait_s + READ_S,
                    heartbeats=True,
                )
            except (Unreachable, ServerRefused) as error:
                await self._patience.bear(error)
                continue
            self._patience.limit_s = PATIENCE_S
            self._patience.reset()
            return page

    async def follow(self, after: int, closing: Callable[[], Awaitable[Closing]]) -> AsyncGenerator[AgentEvent, None]:
        """Events after that number as they come; the last is terminal. Nothing if that had been read."""
        closed: asyncio.Future[Closing] = asyncio.ensure_future(closing())
        last = after
        pause = 0.05
        try:
            while True:
                over = closed.done()
                page = await self._page_until_closed(last, closed)
                for event in page.events:
                    if event.seq > last:
                        last = event.seq
                        yield event
                    if is_terminal(event):
                        return
                if page.ended:
                    return
                if page.events:
                    pause = 0.05
                elif over:
                    # The workflow closed, and a read that began after that found no end in the log.
                    yield terminal_event(await closed, last + 1)
                    return
                elif not page.known:
                    # The host has claimed the run and not begun it.
                    await asyncio.wait({closed}, timeout=pause)
                    pause = min(pause * 2, 1.0)
        finally:
            closed.cancel()

    async def _page_until_closed(self, after: int, closed: asyncio.Future[Closing]) -> EventPage:
        if closed.done():
            closed.result()
            return await self.page(after, 0)
        read = asyncio.ensure_future(self.page(after, LONG_POLL_S))
        try:
            awaited: set[asyncio.Future[Any]] = {read, closed}
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if not read.done():
                await asyncio.wait({read}, timeout=LAST_WORDS_S)
            return read.result() if read.done() else EventPage(events=(), ended=False)
        finally:
            read.cancel()

    async def recorded(self, after: int, limit: int | None) -> list[AgentEvent]:
        """What the log holds now, in order; at most `limit` events."""
        events: list[AgentEvent] = []
        last = after
        while limit is None or len(events) < limit:
            page = await self.page(last, 0)
            fresh = [event for event in page.events if event.seq > last]
            if not fresh:
                break
            events += fresh
            last = fresh[-1].seq
            if page.ended:
                break
        return events[:limit]
