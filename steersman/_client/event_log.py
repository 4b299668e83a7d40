"""A run's event log, read from the host that has it: live or after the run's end, from any event number on.

The order of events, their completeness and the single terminal event are ensured here. Where the log is and how the
run closed are given by the caller.
"""

import asyncio
import binascii
import time
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter
from temporalio.client import Client

from steersman._client.backoff import OUTAGE_S, Backoff
from steersman._client.futures import prefetched, retrieve_exception
from steersman._client.host_calls import answers_oddly, call_host
from steersman._client.workflow_outcome import WorkflowOutcome, log_unreachable
from steersman.contracts import deferral
from steersman.contracts.activities import EndRun, EventPage, ReadEvents, RunEnd, RunKey
from steersman.contracts.events import AgentEvent, TerminalEvent, is_terminal
from steersman.contracts.names import END_RUN, READ_EVENTS
from steersman.errors import HostUnreachable, RunNotFound, ServerRefused, Unreachable

LONG_POLL_S: Final = 20.0
"""A read waits this many seconds for the next event. Short, because a read ends with the worker that is killed over it,
and the next read is the first to notice.
"""
READ_S: Final = 3.0
"""The reading itself may take this many seconds, beside the long poll."""
FIRST_READ_OUTAGE_S: Final = 10.0
"""The first read is retried for this many seconds, later ones for OUTAGE_S."""
PAGE: Final = 1_500_000
"""Bytes of events that are asked for at once. A call costs as much as a megabyte does; Temporal takes 2 MiB, of which a
codec may need some.
"""
MAX_PAGE: Final = 64 * 1024 * 1024
"""A page that was compressed is refused where it has more bytes."""
GZIP: Final = 31
"""What zlib calls gzip's format."""
READ_AFTER_CLOSE_S: Final = 1.0
"""A read that is under way when the run closes gets this many seconds to return."""
END_S: Final = 60.0
"""A host may take this many seconds to stop an agent whose workflow has closed and to write the terminal event."""
LOG_START_S: Final = 3.0
"""A worker that took a run while its workflow closed may begin the log this many seconds later: by then it has noticed
the close.
"""

_EVENTS: Final = TypeAdapter(tuple[AgentEvent, ...], config=ConfigDict(defer_build=deferral.models_are_deferred))


@dataclass(frozen=True)
class LogLocation:
    """Which host has the event log of which run."""

    key: RunKey
    host: str
    store: str = ""
    """The id of the store that the run was claimed for."""


class EventLogReader:
    """Reads one run's event log, and retries what may pass."""

    def __init__(self, client: Client, location: LogLocation) -> None:
        self._client = client
        self._location = location
        self._backoff = Backoff(FIRST_READ_OUTAGE_S)

    async def page(self, after: int, wait_s: float, arrived: Callable[[EventPage], None] = lambda _: None) -> EventPage:
        """The next events after number `after`; waits up to `wait_s` seconds for the first of them. `arrived` hears of
        the page before its events are gone through.

        Raises: HostUnreachable, ServerUnreachable, ServerRefused, after retries.
        """
        where = self._location
        argument = ReadEvents(key=where.key, after=after, wait_s=wait_s, max_bytes=PAGE, store=where.store, gzip=True)
        while True:
            try:
                async with prefetched(self._asked(argument)) as reading:
                    _build_models()
                    page = await reading
                arrived(page)
                await asyncio.sleep(0)  # so that what that asks for is sent before
                page = self._uncompressed(page)
            except (Unreachable, ServerRefused) as error:
                await self._backoff.pause_after(error)
                continue
            self._backoff.limit_s = OUTAGE_S
            self._backoff.reset()
            return page

    async def _asked(self, argument: ReadEvents) -> EventPage:
        takes_s = argument.wait_s + READ_S
        return await call_host(self._client, self._location.host, READ_EVENTS, argument, EventPage, takes_s=takes_s)

    def _uncompressed(self, page: EventPage) -> EventPage:
        try:
            return uncompressed(page)
        except ValueError as error:
            raise ServerRefused(answers_oddly(self._location.host)) from error

    async def end(self) -> RunEnd:
        """The run's terminal event. Of a run whose workflow has closed, the host first stops what is left of the agent.

        Raises: HostUnreachable, ServerUnreachable, ServerRefused.
        """
        argument = EndRun(key=self._location.key)
        return await call_host(self._client, self._location.host, END_RUN, argument, RunEnd, takes_s=END_S)

    async def follow(
        self,
        after: int,
        outcome: Callable[[], Awaitable[WorkflowOutcome]],
        unlogged_end: Callable[[], Awaitable[TerminalEvent]],
    ) -> AsyncGenerator[tuple[AgentEvent, ...], None]:
        """Events after number `after` as they come, one or more at once; the last is terminal. Nothing where `after` is
        the terminal one's.

        `outcome` waits until the run has closed. `unlogged_end` makes the only event of a closed run of which the host
        has no log.
        """
        closed: asyncio.Future[WorkflowOutcome] = asyncio.ensure_future(outcome())
        try:
            async with aclosing(self._events_to_end(after, closed, unlogged_end)) as pages:
                async for events in pages:
                    yield events
        except HostUnreachable as error:
            if not closed.done():
                raise
            raise log_unreachable(closed.result(), error) from error
        finally:
            closed.cancel()

    async def _events_to_end(
        self,
        after: int,
        closed: asyncio.Future[WorkflowOutcome],
        unlogged_end: Callable[[], Awaitable[TerminalEvent]],
    ) -> AsyncGenerator[tuple[AgentEvent, ...], None]:
        last, endless_since, wait_s = after, 0.0, 0.0
        pauses = Backoff()
        with closing(_Pages(self, closed)) as pages:
            while True:
                page, was_closed = await pages.next(last, wait_s)
                if fresh := _after(page.events, last):
                    last = fresh[-1].seq
                    yield fresh
                if _ends(page):
                    return
                if page.events:
                    pauses.reset()
                elif was_closed:
                    # The read began after the workflow had closed, and the log has no end.
                    endless_since = endless_since or time.monotonic()
                    end = await self._end_with_retries()
                    if not end.known and time.monotonic() - endless_since > LOG_START_S:
                        if not last:
                            yield (await unlogged_end(),)
                        return
                    # A known run without a terminal event was reset: it goes on as a new execution.
                    wait_s = LONG_POLL_S if end.known and end.event is None else 0.0
                if not page.known:
                    # The host has claimed the run and not begun its log.
                    await pauses.pause()

    async def _end_with_retries(self) -> RunEnd:
        while True:
            try:
                end = await self.end()
            except (Unreachable, ServerRefused) as error:
                await self._backoff.pause_after(error)
                continue
            self._backoff.reset()
            return end

    async def page_or_close(
        self,
        after: int,
        closed: asyncio.Future[WorkflowOutcome],
        wait_s: float,
        arrived: Callable[[EventPage], None],
    ) -> EventPage:
        """The next events, or none as soon as the run closes. A run that has closed is waited for `wait_s` seconds."""
        if closed.done():
            # A host may know the end of a run that the server has forgotten.
            if not isinstance(closed.exception(), RunNotFound):
                closed.result()
            return await self.page(after, wait_s, arrived)
        read = asyncio.ensure_future(self.page(after, LONG_POLL_S, arrived))
        try:
            awaited: set[asyncio.Future[Any]] = {read, closed}
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if not read.done():
                await asyncio.wait({read}, timeout=READ_AFTER_CLOSE_S)
            return read.result() if read.done() else EventPage(events=(), ended=False)
        finally:
            read.cancel()

    async def recorded(self, after: int, limit: int | None) -> list[AgentEvent]:
        """The events that the log has now after number `after`, in order; at most `limit`."""
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


def uncompressed(page: EventPage) -> EventPage:
    """The page, its events as events. Raises ValueError where they were not compressed as a page's are."""
    if not page.gzip:
        return page
    unpacking = zlib.decompressobj(wbits=GZIP)
    try:
        events = unpacking.decompress(binascii.a2b_base64(page.gzip), MAX_PAGE)
    except zlib.error as error:
        raise ValueError(f"no gzip: {error}") from error
    if not unpacking.eof:
        raise ValueError("cut off, or larger than any page")
    return page.model_copy(update={"events": _EVENTS.validate_json(events), "gzip": ""})


def _build_models() -> None:
    """What a page is read with, where models are built at their first use."""
    EventPage.model_rebuild()
    _EVENTS.rebuild()


class _Pages:
    """The pages of a log, one after another: the host reads the next two while a page is shown."""

    def __init__(self, reader: EventLogReader, closed: asyncio.Future[WorkflowOutcome]) -> None:
        self._reader, self._closed = reader, closed
        self._ahead: dict[int, asyncio.Future[tuple[EventPage, bool]]] = {}
        """Reads under way, by the event that they begin after."""
        self._awaited: int | None = None
        """Where the page begins that is waited for."""

    async def next(self, after: int, wait_s: float) -> tuple[EventPage, bool]:
        """The page after this event, see `page_or_close`; and whether the run had closed before it was asked for."""
        reading, self._awaited = self._ahead.pop(after, None), after
        try:
            page, was_closed = await (reading or self._read(after, wait_s))
        finally:
            self._awaited = None
        if page.events and not _ends(page):
            self._read_ahead(page.events[-1].seq, page.next_end, wait_s)
            await asyncio.sleep(0)  # asked for before this page is gone through
        return page, was_closed

    def _read_ahead(self, last: int, next_end: int | None, wait_s: float) -> None:
        begins = {last} if next_end is None else {last, next_end}
        for other in self._ahead.keys() - begins:
            self._ahead.pop(other).cancel()
        for begin in sorted(begins - self._ahead.keys()):
            reading = self._ahead[begin] = asyncio.ensure_future(self._read(begin, wait_s))
            reading.add_done_callback(retrieve_exception)

    async def _read(self, after: int, wait_s: float) -> tuple[EventPage, bool]:
        was_closed = self._closed.done()

        def arrived(page: EventPage) -> None:
            if self._awaited == after and page.last is not None and not page.ended:
                self._read_ahead(page.last, page.next_end, wait_s)

        return await self._reader.page_or_close(after, self._closed, wait_s, arrived), was_closed

    def close(self) -> None:
        """Wait for nothing any more."""
        for reading in self._ahead.values():
            reading.cancel()


def _after(events: Sequence[AgentEvent], last: int) -> tuple[AgentEvent, ...]:
    """Those of a page that come after that number, each once, whatever order a host answers in."""
    fresh = []
    for event in events:
        if event.seq > last:
            last = event.seq
            fresh.append(event)
    return tuple(fresh)


def _ends(page: EventPage) -> bool:
    return page.ended or (bool(page.events) and is_terminal(page.events[-1]))
