"""A run's events as they come, wherever its log is. Reading one log is in event_log."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from temporalio.client import Client

from steersman._client.event_log import EventLogReader, LogLocation
from steersman._client.run_calls import RunCalls
from steersman.contracts.activities import RunKey
from steersman.contracts.events import AgentEvent


async def run_event_pages(
    client: Client, calls: RunCalls, run_id: str, execution: str | None = None, *, after: int = 0
) -> AsyncGenerator[tuple[AgentEvent, ...], None]:
    """The events with a number greater than `after`, those together that were read together; `execution`: by default
    the newest of that id.

    Raises what `Steersman.attach` documents.
    """
    location = await calls.log_location(run_id, execution)
    if location is None:
        if after < 1:
            yield (await calls.unlogged_end(run_id, execution),)
        return
    logged = location.key.execution
    following = EventLogReader(client, location).follow(
        after,
        outcome=lambda: calls.outcome(run_id, logged),
        unlogged_end=lambda: calls.unlogged_end(run_id, logged),
    )
    async with aclosing(following) as pages:
        async for events in pages:
            yield events


async def without_log(client: Client, run_id: str) -> str | None:
    """The host of a closed run whose agent was at work there and that has no event log of it any more; None for others.

    Raises RunNotFound, NoWorker, HostUnreachable, ServerUnreachable, ServerRefused.
    """
    state = await RunCalls(client).state(run_id)
    if state.phase != "closed" or not state.attempt or state.host is None or state.execution is None:
        return None
    location = LogLocation(RunKey(run=run_id, execution=state.execution), state.host, state.store)
    return None if (await EventLogReader(client, location).end()).known else state.host
