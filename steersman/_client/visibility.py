"""Lists of runs and loops, read from Temporal's visibility: search attributes, memo and status of each workflow."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from heapq import heappush, heappushpop
from typing import Any, Final, TypeVar, get_args

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus

from steersman._client.search_attributes import AGENT_NAME, COST_USD, RUN_PHASE
from steersman.contracts import names
from steersman.contracts.loop_status import LoopStatus, current_status
from steersman.contracts.run import Phase
from steersman.errors import UnreadablePayload
from steersman.reports import LoopSummary, RunSummary

PAGE: Final = 1000
"""The server is asked for at most this many at once."""
PAUSE_INFO: Final = "TemporalPauseInfo"
"""A search attribute that Temporal sets while an activity of the workflow is paused."""


async def list_runs(client: Client, query: str | None, limit: int, *, of_loops: bool = True) -> list[RunSummary]:
    """At most `limit` runs that match Temporal's list filter `query`, the newest first. `of_loops`: theirs, too."""
    runs = f'WorkflowType="{names.RUN_WORKFLOW}"' + ("" if of_loops else " AND ParentWorkflowId IS NULL")
    return await _newest(client, f"{runs} AND ({query})" if query else runs, limit, _run_summary)


async def executions(client: Client, id: str) -> list[WorkflowExecution]:
    """All of one workflow, the oldest first; the newest by its id, as lists lag. Raises RPCError."""
    newest = await client.get_workflow_handle(id).describe()
    listed = [each async for each in client.list_workflows(f'WorkflowId = "{id}"') if each.run_id != newest.run_id]
    return [*sorted(listed, key=lambda each: each.start_time), newest]


async def list_loops(client: Client, query: str | None, limit: int) -> list[LoopSummary]:
    """The same of loops; a loop is listed once, whatever the number of its executions."""
    loops = f'WorkflowType="{names.LOOP_WORKFLOW}" AND ExecutionStatus != "ContinuedAsNew"'
    return await _newest(client, f"{loops} AND ({query})" if query else loops, limit, _loop_summary)


S = TypeVar("S", RunSummary, LoopSummary)


async def _newest(
    client: Client, query: str, limit: int, summary: Callable[[WorkflowExecution], Awaitable[S]]
) -> list[S]:
    """The `limit` that began last. The server has an order of its own: those that are open, the last begun first, then
    the others, the last closed first.
    """
    if limit < 1:
        return []
    found: dict[str, S] = {}
    begins: list[datetime] = []  # a heap: of the newest so far, the one that began first comes first
    size = min(2 * limit + 20, PAGE)
    # The open ones before the others: what closes meanwhile is in both.
    for ends in ("IS NULL", "IS NOT NULL"):
        async for execution in client.list_workflows(f"{query} AND CloseTime {ends}", page_size=size):
            if len(begins) >= limit and (execution.close_time or execution.start_time) <= begins[0]:
                break  # and all that follow began earlier still
            known = execution.run_id in found
            found[execution.run_id] = each = await summary(execution)
            if not known:
                (heappush if len(begins) < limit else heappushpop)(begins, each.started_at)
    return sorted(found.values(), key=lambda each: each.started_at, reverse=True)[:limit]


async def _memo(execution: WorkflowExecution) -> Mapping[str, Any]:
    """The memo; empty where it cannot be decrypted here, so that one run does not hide all others."""
    try:
        return await execution.memo()
    except UnreadablePayload:
        return {}


async def _run_summary(execution: WorkflowExecution) -> RunSummary:
    memo = await _memo(execution)
    attributes = execution.typed_search_attributes
    status = execution.status
    is_open = status == WorkflowExecutionStatus.RUNNING
    phase = attributes.get(RUN_PHASE) or "queued"
    return RunSummary.model_validate(
        {
            "id": execution.id,
            "execution": execution.run_id,
            "agent": attributes.get(AGENT_NAME) or _text(memo.get("agent")),
            "phase": "closed" if not is_open else phase if phase in get_args(Phase) else None,
            "status": status.name.lower() if status else "running",
            "paused": bool(is_open and execution.search_attributes.get(PAUSE_INFO)),
            "cost_usd": attributes.get(COST_USD) or 0.0,
            "workspace": _text(memo.get("workspace")),
            "title": _text(memo.get("title")),
            "labels": _labels(memo.get("labels")),
            "parent": execution.parent_id or None,
            "started_at": execution.start_time,
            "closed_at": execution.close_time,
        }
    )


_CLOSED: Final[dict[WorkflowExecutionStatus, LoopStatus]] = {
    WorkflowExecutionStatus.COMPLETED: "completed",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.TIMED_OUT: "failed",
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.TERMINATED: "cancelled",
}


async def _loop_summary(execution: WorkflowExecution) -> LoopSummary:
    memo = await _memo(execution)
    attributes = execution.typed_search_attributes
    closed = _CLOSED.get(execution.status) if execution.status else None
    phase = current_status(attributes.get(RUN_PHASE))
    # Temporal calls a loop completed that has exited: only the search attribute says so.
    status = closed if closed and (closed, phase) != ("completed", "exited") else phase
    return LoopSummary.model_validate(
        {
            "id": execution.id,
            "execution": execution.run_id,
            "agent": attributes.get(AGENT_NAME) or _text(memo.get("agent")),
            "status": status if status in get_args(LoopStatus) else None,
            "cost_usd": attributes.get(COST_USD) or 0.0,
            "workspace": _text(memo.get("workspace")),
            "plan": _text(memo.get("plan")),
            "labels": _labels(memo.get("labels")),
            "started_at": _time(memo.get("started_at")) or execution.start_time,
            "closed_at": execution.close_time,
        }
    )


def _text(value: object) -> str | None:
    """The value if it is a text: any client can have written the memo."""
    return value if isinstance(value, str) else None


def _labels(value: object) -> dict[str, str]:
    texts = value.items() if isinstance(value, dict) else ()
    return {name: text for name, text in texts if isinstance(text, str)}


def _time(value: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return time if time and time.tzinfo else None
