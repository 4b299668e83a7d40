"""Reading a run's events from the host that has its log, live or after the end, from any number on.

Order, completeness and the one last event are kept here. Where the log lives and how the run closed is asked of the
client through the two functions given.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from temporalio.client import Client

from steersman._client.host_calls import Patience, call_host
from steersman._client.workflow_outcome import Closing, unheard
from steersman.contracts.activities import EndRun, EventPage, ReadEvents, RunEnd, RunKey
from steersman.contracts.events import AgentEvent, TerminalEvent, is_terminal
from steersman.contracts.names import END_RUN, READ_EVENTS
from steersman.errors import HostUnreachable, RunNotFound, ServerRefused, Unreachable

LONG_POLL_S: Final = 20.0
"""Short, because a worker that is killed takes the call that waits on it along: this much later somebody notices."""
READ_S: Final = 3.0
"""What reading itself may take."""
FIRST_PATIENCE_S: Final = 10.0
PATIENCE_S: Final = 60.0
"""How long a host or the server may be away in the middle of following."""
LAST_WORDS_S: Final = 1.0
"""How long a read that is on its way gets when the run has closed meanwhile."""
END_S: Final = 60.0
"""What a host may take to stop an agent whose workflow has closed, and to write the end."""
BEGINNING_S: Final = 3.0
"""A worker that took a run in the moment in which it closed has noticed by then: until then it may begin a log."""


@dataclass(frozen=True)
class Place:
    """Where a run's log is."""

    key: RunKey
    host: str
    store: str = ""
    """The store that the run was claimed for."""


class RunLog:
    """One run's event log, as far as its host lets us read it."""

    def __init__(self, client: Client, place: Place) -> None:
        self._client = client
        self._place = place
        self._patience = Patience(FIRST_PATIENCE_S)

    async def page(self, after: int, wait_s: float) -> EventPage:
        """The next events, waiting for the first of them up to `wait_s` seconds; transient failures are borne."""
        question = ReadEvents(key=self._place.key, after=after, wait_s=wait_s, store=self._place.store)
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

    async def end(self) -> RunEnd:
        """The run's terminal event, for which the host stops what is left of a run whose workflow has closed.

        Raises HostUnreachable, ServerUnreachable, ServerRefused.
        """
        question = EndRun(key=self._place.key)
        return await call_host(
            self._client, self._place.host, END_RUN, question, RunEnd, takes_s=END_S, heartbeats=True
        )

    async def follow(
        self,
        after: int,
        closing: Callable[[], Awaitable[Closing]],
        unlogged: Callable[[], Awaitable[TerminalEvent]],
    ) -> AsyncGenerator[AgentEvent, None]:
        """Events after that number as they come; the last is terminal. Nothing if that had been read.

        `unlogged`: the one event of a run that has closed and of which its host has no log.
        """
        closed: asyncio.Future[Closing] = asyncio.ensure_future(closing())
        try:
            async with aclosing(self._until_end(after, closed, unlogged)) as events:
                async for event in events:
                    yield event
        except HostUnreachable as error:
            if not closed.done():
                raise
            raise unheard(closed.result(), error) from error
        finally:
            closed.cancel()

    async def _until_end(
        self, after: int, closed: asyncio.Future[Closing], unlogged: Callable[[], Awaitable[TerminalEvent]]
    ) -> AsyncGenerator[AgentEvent, None]:
        last, over_since, pause, wait_s = after, 0.0, 0.05, 0.0
        while True:
            over = closed.done()
            page = await self._page_until_closed(last, closed, wait_s)
            for event in page.events:
                if event.seq > last:
                    last = event.seq
                    yield event
            if page.ended or (page.events and is_terminal(page.events[-1])):
                return
            if page.events:
                pause = 0.05
            elif over:
                # The workflow closed, and a read that began after that found no end in the log.
                over_since = over_since or time.monotonic()
                end = await self._ended()
                if not end.known and time.monotonic() - over_since > BEGINNING_S:
                    if not last:
                        yield await unlogged()
                    return
                # Without an end the run goes on, as a new execution: it was reset.
                wait_s = LONG_POLL_S if end.known and end.event is None else 0.0
            if not page.known:
                # The host has claimed the run and not begun it.
                await asyncio.sleep(pause)
                pause = min(pause * 2, 1.0)

    async def _ended(self) -> RunEnd:
        while True:
            try:
                end = await self.end()
            except (Unreachable, ServerRefused) as error:
                await self._patience.bear(error)
                continue
            self._patience.reset()
            return end

    async def _page_until_closed(self, after: int, closed: asyncio.Future[Closing], wait_s: float) -> EventPage:
        """The next events; as soon as the run closes, what there is. `wait_s`: how long to wait if it has closed."""
        if closed.done():
            # A host may know the end of a run that the server has forgotten.
            if not isinstance(closed.exception(), RunNotFound):
                closed.result()
            return await self.page(after, wait_s)
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
