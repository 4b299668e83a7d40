"""What is wrong with a loop's request fails it at once, by the field's name, whoever sent it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from steersman.contracts.loop_state import LoopResult
from steersman.ids import new_loop_id
from tests.acceptance.loops import project
from tests.acceptance.site import Site

CLAUDE: dict[str, Any] = {"agent": "claude"}
VERIFY: dict[str, Any] = {"verify": {"command": "true"}}
BOXES: dict[str, Any] = {"items": {"kind": "checkboxes"}}
GOOD: dict[str, Any] = {"run": CLAUDE, "plan": "do it", "done": VERIFY}
FILES = {
    "PLAN.md": "- [ ] one\n",
    "cyclic/01-a.md": "---\ndepends_on: [02-b]\n---\n- [ ] a\n",
    "cyclic/02-b.md": "---\ndepends_on: [01-a]\n---\n- [ ] b\n",
    "unknown/01-a.md": "Depends on: 07-nothing\n\n- [ ] a\n",
    "empty/00-overview.md": "nothing here\n",
}

WRONG: dict[str, tuple[Any, str]] = {
    "no object": ([], "one JSON object"),
    "null": (None, "one JSON object"),
    "empty": ({}, "run"),
    "no run": ({"plan": "do it", "done": VERIFY}, "run"),
    "no plan": ({"run": CLAUDE, "done": VERIFY}, "plan"),
    "no done": ({"run": CLAUDE, "plan": "do it"}, "done"),
    "an empty done": ({**GOOD, "done": {}}, "done"),
    "a promise alone": ({**GOOD, "done": {"promise": "DONE"}}, "done"),
    "a promise of two lines": ({**GOOD, "done": {**VERIFY, "promise": "A\nB"}}, "done"),
    "unknown field": ({**GOOD, "promt": "x"}, "promt"),
    "unknown field inside": ({**GOOD, "limits": {"iteratoins": 1}}, "limits.iteratoins"),
    "unknown field of the run": ({**GOOD, "run": {**CLAUDE, "modle": "x"}}, "run.modle"),
    "a prompt in the run": ({**GOOD, "run": {**CLAUDE, "prompt": "x"}}, "prompt"),
    "a duration in the run": ({**GOOD, "run": {**CLAUDE, "limits": {"duration_s": 3}}}, "iteration_duration_s"),
    "an empty plan": ({**GOOD, "plan": "  "}, "plan"),
    "a plan of another type": ({**GOOD, "plan": 7}, "plan"),
    "a plan outside": ({**GOOD, "plan": {"path": "../PLAN.md"}}, "plan"),
    "an absolute plan": ({**GOOD, "plan": {"path": "/etc/passwd"}}, "plan"),
    "a missing plan": ({**GOOD, "plan": {"path": "NO.md"}}, "plan"),
    "a missing phase": ({**GOOD, "plan": {"path": "cyclic", "phase": "09"}}, "plan"),
    "cyclic phases": ({**GOOD, "plan": {"path": "cyclic"}}, "01-a"),
    "an unknown dependency": ({**GOOD, "plan": {"path": "unknown"}}, "07-nothing"),
    "no phases": ({**GOOD, "plan": {"path": "empty"}}, "plan"),
    "a plan that leads out": ({**GOOD, "plan": {"path": "out.md"}}, "plan"),
    "boxes of a text": ({**GOOD, "done": BOXES}, "done.items.path"),
    "boxes that lead out": ({**GOOD, "done": {"items": {"kind": "checkboxes", "path": "out.md"}}}, "done.items.path"),
    "json that is none": ({**GOOD, "done": {"items": {"kind": "json", "path": "PLAN.md"}}}, "done.items.path"),
    "items of no kind": ({**GOOD, "done": {"items": {"kind": "wishes"}}}, "done.items.kind"),
    "beads without ids": ({**GOOD, "done": {"items": {"kind": "beads"}}}, "ids"),
    "beads without bd": ({**GOOD, "done": {"items": {"kind": "beads", "ids": ["a-1"]}}}, "done.items: bd"),
    "no iterations": ({**GOOD, "limits": {"iterations": 0}}, "limits.iterations"),
    "a mode that is none": ({**GOOD, "mode": "yolo"}, "mode"),
    "a session of a process": (
        {**GOOD, "run": {"agent": "process", "command": ["true"]}, "session": "continue"},
        "session",
    ),
    "money of a process": (
        {**GOOD, "run": {"agent": "process", "command": ["true"]}, "limits": {"cost_usd": 1}},
        "limits.cost_usd",
    ),
    "a program that is not there": ({**GOOD, "run": {"agent": "process", "command": ["no-such-program"]}}, "command"),
    "a literal secret": ({**GOOD, "run": {**CLAUDE, "env": {"MY_API_KEY": "x"}}}, "MY_API_KEY"),
    "a missing workspace": ({**GOOD, "run": {**CLAUDE, "workspace": {"path": "/nowhere/at/all"}}}, "workspace.path"),
    "a fork of nothing": ({**GOOD, "from_checkpoint": {"loop": "loop-none", "number": 1}}, "from_checkpoint"),
}
NOT_INVALID = {"a program that is not there": "AgentNotInstalled"}


async def failure_of(site: Site, text: str) -> ApplicationError:
    """How a loop closes that the Temporal CLI starts with this input."""
    loop = new_loop_id()
    start = ("--type", "AgentLoop", "--task-queue", "steersman", "--workflow-id", loop, "--input", text)
    await site.temporal("workflow", "start", *start)
    handle = (await site.steersman()).temporal.get_workflow_handle(loop)
    with pytest.raises(WorkflowFailureError) as failure:
        await asyncio.wait_for(handle.result(), 20)
    assert isinstance(failure.value.cause, ApplicationError), failure.value.cause
    return failure.value.cause


def placed(said: Any, workspace: Path) -> str:
    """The request as JSON, with a workspace where it should have one."""
    if isinstance(said, dict) and isinstance(said.get("run"), dict):
        said = {**said, "run": {"workspace": {"path": str(workspace)}, **said["run"]}}
    return json.dumps(said)


async def misjudged(site: Site, name: str, text: str, field: str) -> str | None:
    """What is not as it should be with a refusal."""
    try:
        failure = await failure_of(site, text)
    except TimeoutError:
        return f"{name}: nothing was refused"
    result = LoopResult.model_validate(failure.details[0]) if failure.details else None
    whole = result is not None and (result.status, result.error) == ("failed", failure.message)
    if whole and failure.type == NOT_INVALID.get(name, "InvalidRequest") and field in failure.message:
        return None
    return f"{name}: {failure.type}: {failure.message} {failure.details}"


@pytest.mark.exhaustive
async def test_whatever_is_wrong_is_refused_at_once_and_named(shared: Site) -> None:
    gate = asyncio.Semaphore(6)  # each is a process of the Temporal CLI

    async def judged(name: str) -> str | None:
        said, field = WRONG[name]
        async with gate:
            workspace = project(shared, FILES)
            (workspace / "out.md").symlink_to("/etc/passwd")
            complaint = await misjudged(shared, name, placed(said, workspace), field)
        # It has left nothing in the repository.
        assert not (workspace / ".git/refs/steersman").exists()
        return complaint

    complaints = await asyncio.gather(*map(judged, WRONG))
    assert [each for each in complaints if each] == []


@pytest.mark.parametrize(
    ("flags", "request_", "field"),
    [
        (("--agent", "claude"), GOOD, 'done.verify: agent: "process"'),
        (("--max-permission", "accept_edits"), GOOD, "done.verify: command: `sh"),
        (
            ("--agent", "claude"),
            {**GOOD, "done": {"items": {"kind": "command", "command": "true"}}},
            'done.items: agent: "process"',
        ),
    ],
    ids=["agent", "permission", "items"],
)
async def test_programs_of_the_loop_need_the_operators_leave(
    site: Site, flags: tuple[str, ...], request_: dict[str, Any], field: str
) -> None:
    await site.bare_worker(*flags).ready()

    failure = await failure_of(site, placed(request_, project(site, FILES)))

    assert failure.type == "InvalidRequest"
    assert field in failure.message
