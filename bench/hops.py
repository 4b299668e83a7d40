"""Where a run's time went between two of its history's events: the hops of Temporal and of our activities."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from steersman.client import Steersman

Hop = tuple[str, float]


async def history(steersman: Steersman, run: str) -> list[HistoryEvent]:
    """The run's events."""
    return list((await steersman.temporal.get_workflow_handle(run).fetch_history()).events)


def hops(events: Iterable[HistoryEvent], begin: str, end: str = "") -> list[Hop]:
    """Milliseconds from each event to the next, from the first one named `begin` until one named `end` is reached."""
    found: list[Hop] = []
    before: tuple[str, float] | None = None
    # The server writes down that an activity has started only when it ends: the order is by time.
    timed = sorted((event.event_time.ToNanoseconds() / 1e6, name) for event, name in _named(events))
    for at, name in timed:
        if before:
            found.append((f"{before[0]} -> {name}", at - before[1]))
        if before or name == begin:
            before = (name, at)
        if before and end and name == end:
            break
    return found


def _named(events: Iterable[HistoryEvent]) -> Iterator[tuple[HistoryEvent, str]]:
    """Each event with its name; of an activity's start, which activity."""
    activities: dict[int, str] = {}
    for event in events:
        name = name_of(event)
        activities[event.event_id] = event.activity_task_scheduled_event_attributes.activity_type.name
        ended = (
            event.activity_task_started_event_attributes.scheduled_event_id
            or event.activity_task_completed_event_attributes.scheduled_event_id
            or event.activity_task_canceled_event_attributes.scheduled_event_id
        )
        yield event, f"{name} {activities.get(ended, '')}".strip()


def medians(all_hops: Iterable[list[Hop]]) -> dict[str, float]:
    """Median of each hop over many runs, in the order of first sight."""
    table: dict[str, list[float]] = defaultdict(list)
    for each in all_hops:
        for name, took in each:
            table[name].append(took)
    return {name: round(statistics.median(took), 2) for name, took in table.items()}


def name_of(event: HistoryEvent) -> str:
    """`ActivityTaskScheduled stop_agent`, `WorkflowTaskStarted`, ..."""
    kind = EventType.Name(event.event_type).removeprefix("EVENT_TYPE_").title().replace("_", "")
    details = (
        event.activity_task_scheduled_event_attributes.activity_type.name,
        event.workflow_execution_signaled_event_attributes.signal_name,
        event.workflow_execution_update_accepted_event_attributes.accepted_request.input.name,
    )
    return " ".join([kind, *filter(None, details)])
