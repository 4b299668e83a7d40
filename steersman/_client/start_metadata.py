"""What Temporal shows of a new run or loop: summary, details and memo, written when the workflow is started."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from steersman.contracts.request import RunRequest
from steersman.contracts.text import literal

if TYPE_CHECKING:
    from steersman.contracts.loop import LoopRequest

MAX_DETAIL: Final = 4096
"""Characters of one detail: a path may have as many (PATH_MAX)."""
MAX_SUMMARY: Final = 180
MAX_LINE: Final = 120


def run_metadata(request: RunRequest) -> dict[str, Any]:
    """Keyword arguments of start_workflow for a new run: static_summary, static_details (Markdown), memo."""
    task = task_of(request)
    return {
        "static_summary": literal(_one_line(f"{request.agent}: {task}", MAX_SUMMARY), MAX_SUMMARY),
        "static_details": _details(
            Agent=request.agent, Workspace=request.workspace.path, Task=_one_line(task, MAX_LINE)
        ),
        "memo": {
            "agent": request.agent,
            "workspace": request.workspace.path,
            "title": _one_line(task, MAX_LINE),
            "labels": request.labels,
        },
    }


def task_of(request: RunRequest) -> str:
    """What is asked: the prompt, else the command line."""
    return request.prompt if request.prompt.strip() else " ".join(request.command or ())


def loop_metadata(request: "LoopRequest") -> dict[str, Any]:
    """The same for a new loop."""
    run, done = request.run, request.done
    plan = _one_line(request.plan if isinstance(request.plan, str) else request.plan.path, MAX_LINE)
    verify = _one_line(done.verify.shown(), MAX_LINE) if done.verify else ""
    return {
        "static_summary": literal(_one_line(f"loop of {run.agent}: {plan}", MAX_SUMMARY), MAX_SUMMARY),
        "static_details": _details(Agent=run.agent, Workspace=run.workspace.path, Plan=plan, Verification=verify),
        "memo": {
            "agent": run.agent,
            "workspace": run.workspace.path,
            "plan": plan,
            "labels": run.labels,
            # Temporal's start time is that of the newest execution, which continue-as-new began.
            "started_at": datetime.now(UTC).isoformat(),
        },
    }


def _details(**details: str) -> str:
    return "\n".join(f"- **{name}**: {literal(value, MAX_DETAIL)}" for name, value in details.items() if value)


def _one_line(text: str, limit: int) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= limit else line[: limit - 1] + "…"
