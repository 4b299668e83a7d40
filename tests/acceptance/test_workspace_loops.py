"""A loop has its workspace from its start to its end: its runs work under it, all others wait or are refused."""

import asyncio
from typing import Any

import pytest
from temporalio.common import WorkflowIDConflictPolicy

from steersman.client import Steersman
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.names import LOOP_WORKFLOW, RUN_WORKFLOW, TASK_QUEUE
from tests.acceptance.loops import ended, process_loop, project, reaches, tick
from tests.acceptance.site import Site, answered
from tests.acceptance.test_workspace_holds import at_work, running
from tests.acceptance.test_workspace_queue import note, order, queued
from tests.support.processes import marked, until

GATE = "while [ ! -e ignored/gate ]; do sleep 0.05; done; "


async def refused(steersman: Steersman, request: dict[str, Any], loop: str) -> None:
    with pytest.raises(InvalidRequest, match=f"loop {loop} has it"):
        await steersman.run(request)


async def test_iterations_and_verifications_work_under_the_loops_hold(shared: Site, steersman: Steersman) -> None:
    workspace = project(shared)
    loop = await steersman.loops.start(
        process_loop(
            shared,
            f"if grep -q '\\[x\\] one' PLAN.md; then {tick('two')}; else {tick('one')}; fi",
            workspace,
            done={"items": {"kind": "checkboxes"}, "verify": {"command": "grep -q '\\[x\\]' PLAN.md"}},
        )
    )
    result = await ended(steersman, loop)
    assert (result.status, result.iterations) == ("completed", 2)
    assert result.verification is not None
    assert result.verification.status == "passed"
    assert (await steersman.run(shared.process("true", workspace=workspace))).status == "succeeded"


async def test_others_are_refused_in_the_midst_of_an_iteration_between_two_and_in_a_pause(
    shared: Site, steersman: Steersman
) -> None:
    workspace = project(shared)
    (workspace / "ignored").mkdir()
    loop = await steersman.loops.start(
        process_loop(shared, GATE + tick("one", "two"), workspace, mode="checkpoint", limits={"no_progress": 0})
    )
    other = shared.process("true", workspace=workspace)
    await reaches(steersman, loop, lambda now: now.run)
    await refused(steersman, other, loop)

    await steersman.loops.pause(loop, now=True)
    await reaches(steersman, loop, "paused")
    await refused(steersman, other, loop)
    waits = await queued(steersman, note(shared, workspace, "after"))

    (workspace / "ignored/gate").touch()
    await steersman.loops.resume(loop)
    assert (await ended(steersman, loop)).status == "completed"
    assert (await asyncio.wait_for(steersman.result(waits), 20)).status == "succeeded"
    assert order(workspace) == ["begin after", "end after"]


@pytest.mark.exhaustive
async def test_a_loop_waits_its_turn_and_can_be_ended_while_it_waits(shared: Site, steersman: Steersman) -> None:
    workspace = project(shared)
    first = await running(steersman, at_work(shared, workspace))
    overlap = {"run": {"workspace": {"path": str(workspace), "on_overlap": "queue"}}}
    request = process_loop(shared, tick("one", "two"), workspace)
    request["run"] |= overlap["run"]
    given_up, waits = [await steersman.loops.start(request) for _ in range(2)]
    for loop in (given_up, waits):
        now = await reaches(steersman, loop, lambda now: now.workspace_held_by)
        assert now.workspace_held_by[0].id == first
        assert f"run {first}" in (now.waits_for or "")

    await steersman.loops.exit(given_up, reason="not needed")
    assert (await ended(steersman, given_up)).status == "exited"
    await steersman.stop(first)

    assert (await ended(steersman, waits)).status == "completed"


async def test_a_loop_is_refused_where_a_run_is_at_work(shared: Site, steersman: Steersman) -> None:
    workspace = project(shared)
    first = await running(steersman, at_work(shared, workspace))
    loop = await steersman.loops.start(process_loop(shared, "true", workspace))
    with pytest.raises(InvalidRequest, match=f"run {first} has it"):
        await steersman.loops.result(loop)
    await steersman.stop(first)


async def test_nobody_passes_for_a_loops_child_by_what_a_request_says(shared: Site, steersman: Steersman) -> None:
    workspace = project(shared)
    (workspace / "ignored").mkdir()
    loop = await steersman.loops.start(process_loop(shared, GATE + tick("one", "two"), workspace))
    await reaches(steersman, loop, lambda now: now.run)
    labels = {"loop": loop, "iteration": "1", "role": "verify"}
    asked = shared.process("touch", "stolen", workspace=workspace, labels=labels)

    forged = await steersman.temporal.start_workflow(
        RUN_WORKFLOW, asked, id=f"{loop}-1-verify", task_queue=TASK_QUEUE, memo={"labels": labels}
    )

    with pytest.raises(InvalidRequest, match=f"loop {loop} has it"):
        await steersman.result(forged.id)
    assert not (workspace / "stolen").exists()
    (workspace / "ignored/gate").touch()
    assert (await ended(steersman, loop)).status == "completed"


@pytest.mark.exhaustive
async def test_a_terminated_loop_gives_its_workspace_back_once_its_run_is_gone(
    shared: Site, steersman: Steersman, mark: str
) -> None:
    workspace = project(shared)
    (workspace / "ignored").mkdir()
    loop = await steersman.loops.start(process_loop(shared, GATE, workspace, mark=mark))
    await reaches(steersman, loop, lambda now: now.run)
    await shared.temporal("workflow", "terminate", "--workflow-id", loop, "--reason", "away with it")

    async def free() -> bool:
        try:
            return (await steersman.run(shared.process("true", workspace=workspace))).status == "succeeded"
        except InvalidRequest:
            return False

    await until(free, 20)


@pytest.mark.exhaustive
@pytest.mark.parametrize("same_id", [True, False])
async def test_a_loop_that_queues_follows_one_that_was_terminated_for_it(
    shared: Site, steersman: Steersman, mark: str, *, same_id: bool
) -> None:
    """As schedules do it with TerminateOther, and starts with "terminate existing"."""
    workspace = project(shared)
    begun = workspace / "begun"
    request = process_loop(shared, "echo $$ >> begun; exec sleep 600", workspace, mark)
    request["run"]["workspace"]["on_overlap"] = "queue"
    first = await steersman.loops.start(request)
    await until(begun.exists)
    following = first if same_id else f"{first}-next"
    if not same_id:
        await steersman.temporal.get_workflow_handle(first).terminate()
    replace = WorkflowIDConflictPolicy.TERMINATE_EXISTING
    await steersman.temporal.start_workflow(
        LOOP_WORKFLOW, request, id=following, task_queue=TASK_QUEUE, id_conflict_policy=replace
    )
    await until(lambda: len(begun.read_text().splitlines()) == 2)
    last = begun.read_text().splitlines()[-1]
    assert [str(pid) for pid, line in marked(mark).items() if "sleep 600" in line] == [last]
    await steersman.loops.exit(following)
    assert (await ended(steersman, following)).status == "exited"


@pytest.mark.exhaustive
async def test_a_loop_waits_on_when_its_worker_is_killed(site: Site) -> None:
    worker = site.worker()
    await worker.ready()
    steersman = await site.steersman()
    workspace = project(site)
    first = await running(steersman, at_work(site, workspace))
    request = process_loop(site, tick("one", "two"), workspace)
    request["run"] |= {"workspace": {"path": str(workspace), "on_overlap": "queue"}}
    loop = await steersman.loops.start(request)
    await reaches(steersman, loop, lambda now: now.workspace_held_by)

    worker.kill()
    await site.worker().ready()
    await answered(lambda: steersman.stop(first))

    assert (await ended(steersman, loop)).status == "completed"
