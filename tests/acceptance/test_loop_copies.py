"""A loop whose runs work in copies of its workspace, here and elsewhere: what they do comes back after each."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steersman.client import Steersman
from steersman.contracts.errors import InvalidRequest
from tests.acceptance.loops import PLAN, claude_loop, ended, process_loop, project, reaches, tick
from tests.acceptance.site import Site
from tests.acceptance.test_ssh import THERE, Elsewhere
from tests.scripted_model import ScriptedModel, say, tool
from tests.support.sshd import missing
from tests.support.temporal import new_namespace

NESTED = "git init -q lib; touch lib/file"


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory, dev_server: str) -> Iterator[Elsewhere]:
    if reason := missing():
        pytest.skip(reason)
    elsewhere = Elsewhere(Site(tmp_path_factory.mktemp("ssh"), asyncio.run(new_namespace(dev_server))))
    try:
        asyncio.run(elsewhere.site.worker(*elsewhere.flags).ready())
        yield elsewhere
    finally:
        elsewhere.end()


@pytest.fixture
async def steersman(there: Elsewhere) -> Steersman:
    return await there.site.steersman()


@pytest.fixture(params=["copy", "ssh"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def carried(kind: str, request: dict[str, Any]) -> dict[str, Any]:
    """The same loop, its runs in copies."""
    run = request["run"]
    if kind == "ssh":
        return {**request, "run": {**run, "runtime": THERE}}
    return {**request, "run": {**run, "workspace": {**run["workspace"], "isolation": "copy"}}}


async def test_it_is_verified_gone_back_with_and_forked(
    there: Elsewhere, steersman: Steersman, model: ScriptedModel, kind: str
) -> None:
    workspace = project(there.site)
    script = model.script(
        f"loop-{kind}",
        tool("Bash", command=f"pwd; {tick('one')}; touch ignored.log"),
        say("the password is swordfish"),
        tool("Bash", command="rm -f src/app.py; echo x > wrong"),
        say("ruined"),
        tool("Bash", command=tick("two")),
        say("two is done"),
        tool("Bash", command=tick("two")),
        say("done by the fork"),
    )
    done = {"items": {"kind": "checkboxes"}, "verify": {"command": "test ! -e wrong"}}
    request = carried(kind, claude_loop(there.site, script, workspace, mode="checkpoint", done=done))
    loop = await steersman.loops.start(request)
    first = await reaches(steersman, loop, "waiting_for_decision")
    assert first.verification
    assert first.verification.status == "passed"
    assert "[x] one" in (workspace / "PLAN.md").read_text()
    other = await steersman.start(there.site.process("true", workspace=workspace))
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

    fork = await steersman.loops.fork(loop, 1, {"mode": "autonomous"})
    assert (await ended(steersman, fork)).status == "completed"
    assert script.requests[-1].saw("swordfish")
    assert (workspace / "PLAN.md").read_text() == PLAN.replace("[ ]", "[x]")
    if kind == "ssh":
        assert there.kept == []


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
