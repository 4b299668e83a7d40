"""Today's workflows replay the histories of earlier runs, and their modules stay fit for the sandbox."""

import ast
import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from steersman.converter import DATA_CONVERTER
from workflows.agent_loop import AgentLoop
from workflows.agent_run import AgentRun
from workflows.host_sweep import SweepHost
from workflows.runner import ReplaySafeRunner

HISTORIES = sorted(Path(__file__).parent.glob("*.json"))
WORKFLOWS: list[type] = [AgentRun, AgentLoop, SweepHost]


async def replayed(text: str) -> Exception | None:
    """What a replay, with the settings of the worker, says against it."""
    started = json.loads(text)["events"][0]["workflowExecutionStartedEventAttributes"]
    # Its own id: the runs of a loop are named after it.
    history = WorkflowHistory.from_json(started["workflowId"], text)
    replayer = Replayer(workflows=WORKFLOWS, data_converter=DATA_CONVERTER, workflow_runner=ReplaySafeRunner())
    result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    return result.replay_failure


async def _wait_for(future: Any, timeout: float | None) -> Any:
    async with asyncio.timeout(timeout):
        return await future


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
class TestEveryHistory:
    async def test_it_replays(self, path: Path) -> None:
        assert await replayed(path.read_text(encoding="utf-8")) is None

    async def test_it_replays_where_asyncio_waits_in_other_steps(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As of Python 3.12 (and, where that runs the tests, they were recorded under 3.11)."""
        monkeypatch.setattr(asyncio, "wait_for", _wait_for)
        assert await replayed(path.read_text(encoding="utf-8")) is None

    def test_it_is_short(self, path: Path) -> None:
        events = json.loads(path.read_text(encoding="utf-8"))["events"]
        runs = [each["eventType"] for each in events].count("EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED")
        assert len(events) < 100 + 40 * runs

    def test_no_task_of_it_ever_failed(self, path: Path) -> None:
        assert "EVENT_TYPE_WORKFLOW_TASK_FAILED" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["AgentRun", "AgentLoop"])
def test_every_way_to_end_is_there(kind: str) -> None:
    ends = set()
    for path in HISTORIES:
        events = json.loads(path.read_text(encoding="utf-8"))["events"]
        if events[0]["workflowExecutionStartedEventAttributes"]["workflowType"]["name"] == kind:
            ends.add(events[-1]["eventType"].rpartition("_")[2])
    assert ends >= {"COMPLETED", "FAILED", "CANCELED"}


async def test_a_history_of_another_workflow_is_noticed() -> None:
    """The check itself: it must be able to fail."""
    path = next(path for path in HISTORIES if path.stem == "process_succeeded")
    history: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for event in history["events"]:
        if "activityTaskScheduledEventAttributes" in event:
            event["activityTaskScheduledEventAttributes"]["activityType"]["name"] = "another_activity"
    failure = await replayed(json.dumps(history))
    assert isinstance(failure, workflow.NondeterminismError)


@pytest.mark.parametrize("kind", WORKFLOWS)
async def test_workflow_modules_import_nothing_that_the_sandbox_does_not_know(kind: type) -> None:
    """No module is passed through unsaid, none is loaded in the middle of a run: what is loaded is what is declared."""
    policy = (
        workflow.SandboxImportNotificationPolicy.WARN_ON_DYNAMIC_IMPORT
        | workflow.SandboxImportNotificationPolicy.RAISE_ON_UNINTENTIONAL_PASSTHROUGH
    )
    restrictions = SandboxRestrictions.default.with_import_notification_policy(policy)
    definition = workflow._Definition.must_from_class(kind)  # noqa: SLF001 - the SDK's runner takes no other
    SandboxedWorkflowRunner(restrictions=restrictions).prepare_workflow(definition)


NOT_THE_SAME_ON_ALL_PYTHONS = {"as_completed", "gather", "timeout", "timeout_at", "wait", "wait_for", "TaskGroup"}
"""Of asyncio: what was written anew, or goes by the order of a set."""


def test_workflows_wait_by_what_is_the_same_on_every_python() -> None:
    root = Path(__file__).parents[2] / "workflows"
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "asyncio":
                assert node.attr not in NOT_THE_SAME_ON_ALL_PYTHONS, f"{path}:{node.lineno}"
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "workflow.wait_condition":
                is_timed = any(each.arg == "timeout" for each in node.keywords)
                assert not is_timed or path.name == "waiting.py", f"{path}:{node.lineno}: see workflows.waiting"
