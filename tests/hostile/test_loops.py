"""Loops in hostile company, on a real Temporal: their cancel is quick, and they say what holds them up."""

import os
import time
from pathlib import Path

import pytest

from steersman.client import Steersman
from tests.acceptance.conftest import mark, shared, steersman
from tests.acceptance.loops import process_loop, project, reaches, refs
from tests.acceptance.site import Site
from tests.loops.loop_site import put
from tests.support.processes import lives, marked, until

__all__ = ["mark", "shared", "steersman"]

pytestmark = [pytest.mark.acceptance, pytest.mark.integration, pytest.mark.linux]

SOON_S = 10.0


def far_away(workspace: Path, directory: Path) -> None:
    """Alternates at which git hangs, where nobody looks before git does."""
    objects = directory / "far" / "objects"
    (objects / "info").mkdir(parents=True)
    (objects / "pack").mkdir()
    os.mkfifo(objects / "info" / "alternates")
    put(workspace, {".git/objects/info/alternates": f"{objects}\n"})


@pytest.mark.exhaustive
async def test_a_cancel_while_git_hangs(shared: Site, steersman: Steersman, mark: str, tmp_path: Path) -> None:
    workspace = project(shared)
    far_away(workspace, tmp_path)
    loop = await steersman.loops.start(process_loop(shared, "true", workspace, mark))
    gits = await until(lambda: marked(f"/loops/{loop}/lock"))

    began = time.monotonic()
    await steersman.loops.stop(loop)

    assert time.monotonic() - began < SOON_S
    assert not any(lives(pid) for pid in gits)
    assert marked(f"/loops/{loop}/lock") == {}


@pytest.mark.exhaustive
async def test_a_loop_goes_on_without_the_files_that_git_hangs_at(
    shared: Site, steersman: Steersman, mark: str
) -> None:
    workspace = project(shared)
    script = "rm -f .gitignore; mkfifo .gitignore; [ ! -e once ] || sed -i 's/\\[ \\]/[x]/' PLAN.md; touch once"
    loop = await steersman.loops.start(process_loop(shared, script, workspace, mark))
    began = time.monotonic()
    result = await steersman.loops.result(loop)
    assert (result.status, result.iterations) == ("completed", 2)
    assert time.monotonic() - began < SOON_S * 2
    notes = [each.note for each in await steersman.loops.checkpoints(loop)]
    assert notes == [None, *["the files could not be kept: git would hang at .gitignore"] * 2]
    assert list(refs(workspace, loop)) == [0]


@pytest.mark.exhaustive
async def test_a_workflow_of_somebody_elses_in_a_runs_place(shared: Site, steersman: Steersman, mark: str) -> None:
    loop = f"loop-{mark}"
    await shared.temporal(
        "workflow", "start", "--type", "Anything", "--task-queue", "nobody", "--workflow-id", f"{loop}-1"
    )
    asked = process_loop(shared, "sed -i 's/\\[ \\]/[x]/' PLAN.md", project(shared), mark)
    await steersman.loops.start(asked, loop_id=loop)
    state = await reaches(steersman, loop, "paused", SOON_S)
    assert state.waits_for is not None
    assert f"a workflow {loop}-1 is open, one of" in state.waits_for
    await steersman.loops.resume(loop)
    assert (await steersman.loops.result(loop)).status == "completed"
    await shared.temporal("workflow", "terminate", "--workflow-id", f"{loop}-1")
