"""A run's events as they come, wherever its log is. Reading one log is in event_log."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from temporalio.client import Client

from steersman._client.event_log import EventLogReader
from steersman._client.run_calls import RunCalls
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
