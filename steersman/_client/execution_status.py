"""Whether an execution is held: the status that the SDK does not know, and a run's activity.

`temporal workflow pause` holds a workflow where the namespace allows it (an experiment of Temporal's). The SDK
(temporalio 1.35.0) raises ValueError for such an execution, wherever it is described or listed: one would keep all
others out of a list, and a worker that looks how its run stands would fail, and in the end stop the agent. It is open;
until it goes on, what it is told waits.
"""

from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus

from steersman.contracts import names

PAUSED = 8


def _missing(cls: type[WorkflowExecutionStatus], value: object) -> WorkflowExecutionStatus | None:
    return cls.RUNNING if value == PAUSED else None


def know_paused() -> None:
    """Have the SDK take a paused execution for one that runs."""
    WorkflowExecutionStatus._missing_ = classmethod(_missing)  # type: ignore[assignment]


def is_activity_paused(execution: WorkflowExecutionDescription) -> bool:
    """Whether somebody has paused the activity that leads a run, of which this is Temporal's description."""
    pending = execution.raw_description.pending_activities
    return any(each.paused and each.activity_type.name == names.RUN_AGENT for each in pending)
