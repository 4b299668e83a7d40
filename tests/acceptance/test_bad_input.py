"""What is wrong with a request fails it at once, by type and by the field's name, whoever sent it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from steersman.client import Steersman
from steersman.contracts.errors import InvalidRequest
from steersman.errors import AlreadyRunning
from steersman.ids import new_run_id
from tests.acceptance.site import Site

GOOD: dict[str, Any] = {"agent": "process", "command": ["true"]}
CLAUDE: dict[str, Any] = {"agent": "claude", "prompt": "hello"}


async def failure_of(site: Site, *inputs: str) -> ApplicationError:
    """How a run closes that the Temporal CLI starts with these inputs."""
    run = new_run_id()
    options = [part for each in inputs for part in ("--input", each)]
    start = ("--type", "AgentRun", "--task-queue", "steersman", "--workflow-id", run)
    await site.temporal("workflow", "start", *start, *options)
    handle = (await site.steersman()).temporal.get_workflow_handle(run)
    with pytest.raises(WorkflowFailureError) as failure:
        await asyncio.wait_for(handle.result(), 15)
    assert isinstance(failure.value.cause, ApplicationError)
    return failure.value.cause


async def misjudged(site: Site, name: str, text: str, field: str) -> str | None:
    """What is not as it should be with the refusal of a request."""
    try:
        failure = await failure_of(site, text)
    except TimeoutError:
        return f"{name}: nothing was refused"
    result = failure.details[0] if failure.details else {}
    whole = (failure.type, result.get("status"), result.get("error")) == ("InvalidRequest", "failed", failure.message)
    if whole and field in failure.message:
        return None
    return f"{name}: {failure.type}: {failure.message} {failure.details}"


WRONG: dict[str, tuple[str | dict[str, Any], str]] = {
    "no object but a list": ("[]", "one JSON object"),
    "no object but a string": ('"claude"', "one JSON object"),
    "no object but a number": ("7", "one JSON object"),
    "null": ("null", "one JSON object"),
    "empty": ("{}", "agent"),
    "unknown field": ({**GOOD, "promt": "x"}, "promt"),
    "unknown field inside": ({**GOOD, "limits": {"turnz": 1}}, "limits.turnz"),
    "unknown agent": ({**GOOD, "agent": "clod"}, "agent"),
    "agent of another type": ({**GOOD, "agent": 7}, "agent"),
    "no workspace": ({"agent": "process", "command": ["true"], "workspace": None}, "workspace"),
    "relative workspace": ({**GOOD, "workspace": {"path": "here"}}, "workspace.path"),
    "missing workspace": ({**GOOD, "workspace": {"path": "/nowhere/at/all"}}, "workspace.path"),
    "workspace is a file": ({**GOOD, "workspace": {"path": "/etc/passwd"}}, "workspace.path"),
    "no command": ({"agent": "process"}, "command"),
    "command is a string": ({**GOOD, "command": "true"}, "command"),
    "empty command": ({**GOOD, "command": []}, "command"),
    "NUL in the command": ({**GOOD, "command": ["true", "a\0b"]}, "command"),
    "command for claude": ({**CLAUDE, "command": ["true"]}, "command"),
    "no prompt": ({"agent": "claude"}, "prompt"),
    "limit of nothing": ({**GOOD, "limits": {"duration_s": 0}}, "limits.duration_s"),
    "negative limit": ({**CLAUDE, "limits": {"cost_usd": -1}}, "limits.cost_usd"),
    "turns of a process": ({**GOOD, "limits": {"turns": 3}}, "limits.turns"),
    "permissions of a process": ({**GOOD, "permissions": {"mode": "ask"}}, "permissions"),
    "unknown permission mode": ({**CLAUDE, "permissions": {"mode": "yolo"}}, "permissions.mode"),
    "short lease": ({**GOOD, "lease_s": 1}, "lease_s"),
    "no schema": ({**CLAUDE, "output_schema": {"type": "objekt"}}, "output_schema"),
    "schema is a list": ({**CLAUDE, "output_schema": []}, "output_schema"),
    "unknown option": ({**CLAUDE, "options": {"color": "red"}}, "options.color"),
    "option of a process": ({**GOOD, "options": {"color": "red"}}, "options.color"),
    "relative add_dirs": ({**CLAUDE, "options": {"add_dirs": ["here"]}}, "options.add_dirs"),
    "literal secret": ({**GOOD, "env": {"MY_API_KEY": "x"}}, "MY_API_KEY"),
    "env of another type": ({**GOOD, "env": {"A": 1}}, "env.A"),
    "env from two places": ({**GOOD, "env": {"A": {"from_env": "B", "from_file": "/c"}}}, "env.A"),
    "env from nowhere": ({**GOOD, "env": {"A": {"from": "B"}}}, "env.A"),
    "wrong name in env": ({**GOOD, "env": {"A-B": "x"}}, "A-B"),
    "env not allowed": ({**GOOD, "env": {"A": {"from_env": "HOME"}}}, "env.A.from_env"),
    "file not allowed": ({**GOOD, "env": {"A": {"from_file": "/etc/passwd"}}}, "env.A.from_file"),
    "env that changes the agent": ({**GOOD, "env": {"LD_PRELOAD": "/x.so"}}, "env.LD_PRELOAD"),
    "another runtime": ({**GOOD, "runtime": {"kind": "moon"}}, "runtime.kind"),
    "session of a process": ({**GOOD, "session": "abc"}, "session"),
    "fork without a session": ({**CLAUDE, "fork_session": True}, "fork_session"),
    "wrong stop times": ({**GOOD, "stop": {"kill_after_s": -1}}, "stop.kill_after_s"),
}


async def test_whatever_is_wrong_is_named(shared: Site) -> None:
    workspace = {"path": str(shared.workspace())}

    async def complaint(name: str, wrong: str | dict[str, Any], field: str) -> str | None:
        text = wrong if isinstance(wrong, str) else json.dumps({"workspace": workspace, **wrong})
        return await misjudged(shared, name, text, field)

    found = await asyncio.gather(*(complaint(name, wrong, field) for name, (wrong, field) in WRONG.items()))
    assert not [each for each in found if each]


async def test_no_input_two_inputs_and_what_is_no_json(shared: Site) -> None:
    text = json.dumps({**GOOD, "workspace": {"path": str(shared.workspace())}})

    assert "one JSON object" in (await failure_of(shared)).message
    assert "one JSON object" in (await failure_of(shared, text, text)).message

    steersman = await shared.steersman()
    handle = await steersman.temporal.start_workflow("AgentRun", b"\xff\x00", id=new_run_id(), task_queue="steersman")
    with pytest.raises(WorkflowFailureError) as failure:
        await asyncio.wait_for(handle.result(), 15)
    assert isinstance(failure.value.cause, ApplicationError)
    assert failure.value.cause.type == "InvalidRequest"


async def test_a_program_that_is_not_there_and_a_machine_that_is_not(shared: Site, steersman: Steersman) -> None:
    workspace = {"path": str(shared.workspace())}
    missing = await failure_of(shared, json.dumps({**GOOD, "workspace": workspace, "command": ["no-such-program"]}))

    assert missing.type == "AgentNotInstalled"
    assert "no-such-program" in missing.message


async def test_the_python_client_refuses_before_anything_is_sent(steersman: Steersman) -> None:
    for wrong in ({}, {"agent": "process"}, {**GOOD, "workspace": {"path": "here"}}):
        run = new_run_id()
        with pytest.raises(InvalidRequest):
            await steersman.start(wrong, run_id=run)
        assert (await steersman.stop(run)).outcome == "not_found"


@pytest.mark.parametrize("days", [-1.0, float("nan"), float("inf")])
async def test_nothing_is_pruned_by_what_is_no_number_of_days(shared: Site, steersman: Steersman, days: float) -> None:
    run = await steersman.start(shared.process("true"))
    await steersman.result(run)
    host = (await steersman.state(run)).host
    assert host
    with pytest.raises(InvalidRequest, match="keep_days"):
        await steersman.prune(host, days)
    assert (await steersman.events(run))[-1].type == "done"


@pytest.fixture
def strict(site: Site) -> Site:
    """A machine whose operator allows little: one root, one variable, one file, one agent, reading."""
    root = site.root / "allowed"
    root.mkdir()
    (site.root / "secret").write_text("s")
    flags = ("--workspace-root", str(root), "--allow-env", "GIVEN", "--allow-file", str(site.root / "secret"))
    asyncio.run(site.bare_worker(*flags, "--agent", "claude", "--max-permission", "ask", GIVEN="1", KEPT="2").ready())
    return site


async def test_what_the_operator_does_not_allow_is_named(strict: Site) -> None:
    root = strict.root / "allowed"
    (root / "way-out").symlink_to(strict.root)

    def request(**fields: Any) -> dict[str, Any]:
        return {**CLAUDE, "workspace": {"path": str(root)}, "permissions": {"mode": "ask"}, **fields}

    def env(value: Any) -> dict[str, Any]:
        return request(env={"A": value})

    (root / "link").symlink_to("/etc/hostname")
    refused = {
        "agent": {**GOOD, "workspace": {"path": str(root)}},
        "permissions.mode": request(permissions={"mode": "accept_edits"}),
        "env.A.from_env: KEPT": env({"from_env": "KEPT"}),
        "env.A.from_file": env({"from_file": str(root / "link")}),
        "workspace.path": request(workspace={"path": str(Path(root).parent)}),
        "workspace.path: " + str(root / "way-out"): request(workspace={"path": str(root / "way-out")}),
        "workspace.path: " + f"{root}/..": request(workspace={"path": f"{root}/.."}),
        "options.add_dirs": request(options={"add_dirs": ["/etc"]}),
        "env.ANTHROPIC_BASE_URL": request(env={"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}),
    }

    found = await asyncio.gather(
        *(misjudged(strict, field, json.dumps(wrong), field) for field, wrong in refused.items())
    )
    assert not [each for each in found if each]


async def test_starting_a_run_twice_is_refused_while_it_runs(shared: Site, steersman: Steersman) -> None:
    run = await steersman.start(shared.process("sleep", "600"))
    with pytest.raises(AlreadyRunning):
        await steersman.start(shared.process("true"), run_id=run)
    await steersman.stop(run)
    assert await steersman.start(shared.process("true"), run_id=run) == run
    assert (await steersman.result(run)).status == "succeeded"
    assert [event.type for event in await steersman.events(run)][-1] == "done"


async def test_a_refused_run_has_closed_in_every_view(shared: Site, steersman: Steersman) -> None:
    run = new_run_id()
    workspace = str(shared.workspace())
    handle = await steersman.temporal.start_workflow(
        "AgentRun", {**GOOD, "workspace": {"path": f"{workspace}/missing"}}, id=run, task_queue="steersman"
    )
    with pytest.raises(WorkflowFailureError):
        await asyncio.wait_for(handle.result(), 15)

    state = await steersman.state(run)
    assert state.phase == "closed"
    assert "workspace.path" in (state.error or "")
    assert [event.type for event in await steersman.events(run)] == ["failed"]
    with pytest.raises(InvalidRequest, match=r"workspace\.path"):
        await steersman.result(run)
