"""What Temporal shows of runs and loops in its lists and its Web UI: written at the start, read by `list`.

The live values (phase, cost) are the workflow's own to write.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, get_args

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey

from steersman.contracts import names
from steersman.contracts.loop_status import LoopStatus
from steersman.contracts.request import RunRequest
from steersman.contracts.text import literal
from steersman.errors import UnreadablePayload
from steersman.reports import LoopSummary, RunSummary

if TYPE_CHECKING:
    from steersman.contracts.loop import LoopRequest

AGENT_NAME = SearchAttributeKey.for_keyword(names.AGENT_NAME)
RUN_PHASE = SearchAttributeKey.for_keyword(names.RUN_PHASE)
COST_USD = SearchAttributeKey.for_float(names.COST_USD)
PAUSE_INFO = "TemporalPauseInfo"
"""What Temporal itself sets where an activity is paused."""
MAX_FACT = 4096
"""Characters of a path, as long as the kernel takes."""


def introduction(request: RunRequest) -> dict[str, Any]:
    """Summary, details and memo of a new run, as keyword arguments of start_workflow."""
    task = request.prompt if request.prompt.strip() else " ".join(request.command or ())
    return {
        "static_summary": literal(_one_line(f"{request.agent}: {task}", 180), 180),
        "static_details": _details(Agent=request.agent, Workspace=request.workspace.path, Task=_one_line(task, 120)),
        "memo": {"agent": request.agent, "workspace": request.workspace.path, "labels": request.labels},
    }


def loop_introduction(request: "LoopRequest") -> dict[str, Any]:
    """The same of a new loop."""
    run, done = request.run, request.done
    plan = _one_line(request.plan if isinstance(request.plan, str) else request.plan.path, 120)
    verify = _one_line(done.verify.shown(), 120) if done.verify else ""
    return {
        "static_summary": literal(_one_line(f"loop of {run.agent}: {plan}", 180), 180),
        "static_details": _details(Agent=run.agent, Workspace=run.workspace.path, Plan=plan, Verification=verify),
        "memo": {
            "agent": run.agent,
            "workspace": run.workspace.path,
            "plan": plan,
            "labels": run.labels,
            # A loop that has gone on as a new execution is listed with that one's start.
            "started_at": datetime.now(UTC).isoformat(),
        },
    }


def _details(**facts: str) -> str:
    return "\n".join(f"- **{name}**: {literal(value, MAX_FACT)}" for name, value in facts.items() if value)


def _one_line(text: str, limit: int) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= limit else line[: limit - 1] + "…"


async def list_runs(client: Client, query: str | None, limit: int) -> list[RunSummary]:
    """Runs that match, the newest first."""
    runs = f'WorkflowType="{names.RUN_WORKFLOW}"'
    found = client.list_workflows(f"{runs} AND ({query})" if query else runs, limit=limit)
    return [await _summary(execution) async for execution in found]


async def list_loops(client: Client, query: str | None, limit: int) -> list[LoopSummary]:
    """Loops that match, the newest first; each once, however often it has gone on as a new execution."""
    loops = f'WorkflowType="{names.LOOP_WORKFLOW}" AND ExecutionStatus != "ContinuedAsNew"'
    found = client.list_workflows(f"{loops} AND ({query})" if query else loops, limit=limit)
    return [await _loop_summary(execution) async for execution in found]


async def _memo(execution: WorkflowExecution) -> Mapping[str, Any]:
    """Empty where it is encrypted and not for us: one run's secret must not hide all others."""
    try:
        return await execution.memo()
    except UnreadablePayload:
        return {}


async def _summary(execution: WorkflowExecution) -> RunSummary:
    memo = await _memo(execution)
    attributes = execution.typed_search_attributes
    status = execution.status
    is_open = status == WorkflowExecutionStatus.RUNNING
    labels = memo.get("labels")
    return RunSummary.model_validate(
        {
            "id": execution.id,
            "execution": execution.run_id,
            "agent": attributes.get(AGENT_NAME) or memo.get("agent"),
            "phase": (attributes.get(RUN_PHASE) or "queued") if is_open else "closed",
            "status": status.name.lower() if status else "running",
            "paused": bool(is_open and execution.search_attributes.get(PAUSE_INFO)),
            "cost_usd": attributes.get(COST_USD) or 0.0,
            "workspace": memo.get("workspace"),
            "labels": labels if isinstance(labels, dict) else {},
            "started_at": execution.start_time,
            "closed_at": execution.close_time,
        }
    )


_CLOSED: dict[WorkflowExecutionStatus, LoopStatus] = {
    WorkflowExecutionStatus.COMPLETED: "completed",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.TIMED_OUT: "failed",
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.TERMINATED: "cancelled",
}


async def _loop_summary(execution: WorkflowExecution) -> LoopSummary:
    memo = await _memo(execution)
    attributes = execution.typed_search_attributes
    told = attributes.get(RUN_PHASE)
    closed = _CLOSED.get(execution.status) if execution.status else None
    # One that was left early closes as completed, too: only the loop itself knows which.
    status = closed if closed and (closed, told) != ("completed", "stopped") else told
    labels = memo.get("labels")
    return LoopSummary.model_validate(
        {
            "id": execution.id,
            "execution": execution.run_id,
            "agent": attributes.get(AGENT_NAME) or _word(memo.get("agent")),
            "status": status if status in get_args(LoopStatus) else None,
            "cost_usd": attributes.get(COST_USD) or 0.0,
            "workspace": _word(memo.get("workspace")),
            "plan": _word(memo.get("plan")),
            "labels": labels if isinstance(labels, dict) else {},
            "started_at": _time(memo.get("started_at")) or execution.start_time,
            "closed_at": execution.close_time,
        }
    )


def _word(said: object) -> str | None:
    """A memo can be anybody's."""
    return said if isinstance(said, str) else None


def _time(said: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(said) if isinstance(said, str) else None
    except ValueError:
        return None
    return time if time and time.tzinfo else None
