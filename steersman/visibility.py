"""What Temporal shows of runs in its lists and its Web UI: written at the start, read by `list`.

The live values (phase, cost) are the workflow's own to write.
"""

from typing import Any

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey

from steersman.contracts import names
from steersman.contracts.request import RunRequest
from steersman.reports import RunSummary

AGENT_NAME = SearchAttributeKey.for_keyword(names.AGENT_NAME)
RUN_PHASE = SearchAttributeKey.for_keyword(names.RUN_PHASE)
COST_USD = SearchAttributeKey.for_float(names.COST_USD)


def introduction(request: RunRequest) -> dict[str, Any]:
    """Summary, details and memo of a new run, as keyword arguments of start_workflow."""
    task = request.prompt if request.prompt.strip() else " ".join(request.command or ())
    line = _one_line(task, 120)
    workspace = request.workspace.path
    return {
        "static_summary": _one_line(f"{request.agent}: {task}", 180),
        "static_details": "\n".join(
            f"- **{name}**: `{value}`"
            for name, value in (("Agent", request.agent), ("Workspace", workspace), ("Task", line))
            if value
        ),
        "memo": {"agent": request.agent, "workspace": workspace, "labels": request.labels},
    }


def _one_line(text: str, limit: int) -> str:
    line = text.strip().partition("\n")[0].replace("`", "'")
    return line if len(line) <= limit else line[: limit - 1] + "…"


async def list_runs(client: Client, query: str | None, limit: int) -> list[RunSummary]:
    """Runs that match, the newest first."""
    runs = f'WorkflowType="{names.RUN_WORKFLOW}"'
    found = client.list_workflows(f"{runs} AND ({query})" if query else runs, limit=limit)
    return [await _summary(execution) async for execution in found]


async def _summary(execution: WorkflowExecution) -> RunSummary:
    memo = await execution.memo()
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
            "cost_usd": attributes.get(COST_USD) or 0.0,
            "workspace": memo.get("workspace"),
            "labels": labels if isinstance(labels, dict) else {},
            "started_at": execution.start_time,
            "closed_at": execution.close_time,
        }
    )
