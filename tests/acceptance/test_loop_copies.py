"""A loop whose runs work in copies of its workspace, here and elsewhere: what they do comes back after each."""

import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from steersman.client import Steersman
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.names import SWEEP_WORKFLOW, TASK_QUEUE
from steersman.hosts import host_name
from tests.acceptance.loops import PLAN, claude_loop, ended, process_loop, project, reaches, tick
from tests.acceptance.site import Site
from tests.acceptance.test_ssh import THERE, Elsewhere, steersman, there
from tests.loops.loop_site import git
from tests.scripted_model import ScriptedModel, say, tool

NESTED = "git init -q lib; touch lib/file"

__all__ = ["steersman", "there"]


@pytest.fixture(params=["copy", "ssh"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def sweep(site: Site, steersman: Steersman) -> None:
    """As it comes every ten minutes."""
    id = f"sweep-{secrets.token_hex(4)}"
    host = host_name(site.state)
    await steersman.temporal.execute_workflow(SWEEP_WORKFLOW, host, id=id, task_queue=TASK_QUEUE)


def carried(kind: str, request: dict[str, Any]) -> dict[str, Any]:
    """The same loop, its runs in copies."""
    run = request["run"]
    if kind == "ssh":
        return {**request, "run": {**run, "runtime": THERE}}
    return {**request, "run": {**run, "workspace": {**run["workspace"], "isolation": "copy"}}}


@pytest.mark.exhaustive
async def test_it_is_verified_gone_back_with_and_forked(
    there: Elsewhere, steersman: Steersman, model: ScriptedModel, kind: str
) -> None:
    await verified_gone_back_with_and_forked(there.site, steersman, model, partial(carried, kind))
    await sweep(there.site, steersman)
    assert there.kept == []
    assert list(there.site.state.glob("copies/*")) == []


async def verified_gone_back_with_and_forked(
    site: Site, steersman: Steersman, model: ScriptedModel, placed: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """A loop of Claude Code. `placed`: the same loop where its runs are to be."""
    workspace = project(site)
    script = model.script(
        f"loop-{secrets.token_hex(4)}",
        tool("Bash", command=f"pwd; {tick('one')}; mkdir ignored; touch ignored/built"),
        say("the password is swordfish"),
        tool("Bash", command="rm -f src/app.py; echo x > wrong"),
        say("ruined"),
        tool("Bash", command=f"test -e ignored/built && {tick('two')}"),
        say("two is done"),
        tool("Bash", command=tick("two")),
        say("done by the fork"),
    )
    done = {"items": {"kind": "checkboxes"}, "verify": {"command": "test ! -e wrong && test -e ignored/built"}}
    request = placed(claude_loop(site, script, workspace, mode="checkpoint", done=done))
    loop = await steersman.loops.start(request)
    first = await reaches(steersman, loop, "waiting_for_decision")
    assert first.verification
    assert first.verification.status == "passed"
    assert "[x] one" in (workspace / "PLAN.md").read_text()
    other = await steersman.start(site.process("true", workspace=workspace))
    with pytest.raises(InvalidRequest, match=f"loop {loop} has it"):
        await steersman.result(other)
    await steersman.loops.resume(loop)
    second = await reaches(steersman, loop, lambda now: now.status == "waiting_for_decision" and now.iteration == 2, 60)
    assert second.verification
    assert second.verification.status == "failed"
    assert (workspace / "wrong").exists()
    assert not (workspace / "src/app.py").exists()
    assert script.requests[-1].saw("swordfish")

    await steersman.loops.rollback(loop, 1)
    assert (workspace / "src/app.py").exists()
    assert not (workspace / "wrong").exists()
    await steersman.loops.resume(loop)
    result = await ended(steersman, loop)
    assert (result.status, result.stop_reason) == ("completed", "done")
    assert (workspace / "PLAN.md").read_text() == PLAN.replace("[ ]", "[x]")
    assert not (workspace / "ignored").exists()

    changes = {
        "mode": "autonomous",
        "done": {"items": {"kind": "checkboxes"}, "verify": {"command": "test ! -e wrong"}},
    }
    fork = await steersman.loops.fork(loop, 1, changes)
    assert (await ended(steersman, fork)).status == "completed"
    assert script.requests[-1].saw("swordfish")
    assert (workspace / "PLAN.md").read_text() == PLAN.replace("[ ]", "[x]")


@pytest.mark.exhaustive
@pytest.mark.parametrize("reuse", [True, False])
async def test_what_is_ignored_stays_from_run_to_run_or_not(
    there: Elsewhere, steersman: Steersman, kind: str, *, reuse: bool
) -> None:
    workspace = project(there.site)
    seen = Path(f"{workspace}.seen")
    program = f"ls ignored >> {seen} 2>&1; pwd >> {seen}.cwd; mkdir -p ignored; touch ignored/built; "
    program += f"if grep -q '\\[x\\] one' PLAN.md; then {tick('two')}; else {tick('one')}; fi"
    request = carried(kind, process_loop(there.site, program, workspace, done={"items": {"kind": "checkboxes"}}))
    request["run"]["workspace"] |= {"reuse": reuse}
    loop = await steersman.loops.start(request)
    assert (await ended(steersman, loop)).status == "completed"
    first, second = seen.read_text().splitlines()
    assert "No such file" in first
    assert ("No such file" in second) != reuse
    directories = Path(f"{seen}.cwd").read_text().splitlines()
    assert (len(set(directories)) == 1) == reuse
    await sweep(there.site, steersman)
    assert not any(Path(each).exists() for each in directories)


async def test_what_both_have_changed_is_named(there: Elsewhere, steersman: Steersman, kind: str) -> None:
    workspace = project(there.site)
    program = f"echo a person > {workspace}/src/app.py; echo the agent > src/app.py; {tick('one', 'two')}"
    loop = await steersman.loops.start(carried(kind, process_loop(there.site, program, workspace)))
    assert (await ended(steersman, loop)).status == "completed"
    assert (workspace / "src/app.py").read_text() == "a person\n"
    (note,) = [each.note for each in await steersman.loops.checkpoints(loop) if each.kind == "iteration"]
    ref = f"refs/steersman/conflicts/{loop}-1"
    assert note == f"not carried back, kept in {ref}: src/app.py, changed there as well"
    assert git(workspace, "show", f"{ref}:src/app.py") == "the agent\n"


async def test_what_cannot_be_carried_back_pauses_it(there: Elsewhere, steersman: Steersman, kind: str) -> None:
    workspace = project(there.site)
    told = Path(f"{workspace}.told")
    program = f"test -e {told} && {{ {tick('one', 'two')}; exit 0; }}; touch {told}; {NESTED}"
    loop = await steersman.loops.start(carried(kind, process_loop(there.site, program, workspace)))
    paused = await reaches(steersman, loop, "paused")
    assert "a repository of its own lies in the copy: lib" in (paused.waits_for or "")
    assert paused.failures == 0
    await steersman.loops.resume(loop)
    still = await reaches(
        steersman, loop, lambda now: now.status == "paused" and "steer workspace retry" in (now.waits_for or "")
    )
    assert still.failures == 0
    await steersman.discard_workspace(f"{loop}-1")
    await steersman.loops.resume(loop)
    result = await ended(steersman, loop)
    assert (result.status, result.stop_reason) == ("completed", "done")
    assert not (workspace / "lib").exists()
