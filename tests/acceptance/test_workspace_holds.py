"""One run at a time works in a workspace: whoever comes second is told who has it, however the first one ends."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from activities.store.hold_files import Hold, file_name
from steersman.client import Steersman
from steersman.contracts.errors import InvalidRequest
from steersman.errors import RunCancelled
from tests.acceptance.programs import OBEDIENT, python
from tests.acceptance.site import Site, answered, leader, phase
from tests.acceptance.test_reset import reset
from tests.scripted_model import ScriptedModel, hold, say
from tests.support.processes import marked, until
from tests.support.temporal import new_namespace


def at_work(site: Site, workspace: Path | None = None, **request: Any) -> dict[str, Any]:
    """A request for a program that works until it is stopped."""
    return site.process(*python(OBEDIENT), workspace=workspace, **request)


async def running(steersman: Steersman, request: dict[str, Any]) -> str:
    run = await steersman.start(request)
    await phase(steersman, run, "running")
    return run


async def refused(steersman: Steersman, request: dict[str, Any], holder: str) -> str:
    """The sentence with which the request is refused."""
    with pytest.raises(InvalidRequest) as raised:
        await steersman.run(request)
    assert f"run {holder} has" in raised.value.message
    assert "workspace.on_overlap" in raised.value.message
    assert raised.value.facts["workspace_holder"] == holder
    return raised.value.message


@pytest.mark.exhaustive
async def test_a_second_run_is_refused_by_the_name_of_the_first_until_that_has_ended(
    shared: Site, steersman: Steersman
) -> None:
    workspace = shared.workspace()
    first = await running(steersman, at_work(shared, workspace))

    await refused(steersman, shared.process("true", workspace=workspace), first)
    await steersman.stop(first)

    assert (await steersman.run(shared.process("true", workspace=workspace))).status == "succeeded"
    assert (await steersman.run(shared.process("true", workspace=workspace))).status == "succeeded"


@pytest.mark.exhaustive
async def test_directories_inside_and_around_and_links_to_them_are_held_too(
    shared: Site, steersman: Steersman, tmp_path: Path
) -> None:
    workspace = shared.workspace()
    for name in ("a/inside", "ab"):
        (workspace / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to(workspace / "a")
    first = await running(steersman, at_work(shared, workspace / "a"))

    for path in (workspace, workspace / "a", workspace / "a/inside", tmp_path / "link", tmp_path / "link/inside"):
        said = await refused(steersman, shared.process("true", workspace=path), first)
        assert str(path.resolve()) in said
    assert (await steersman.run(shared.process("true", workspace=workspace / "ab"))).status == "succeeded"
    await steersman.stop(first)


async def test_runs_that_may_only_read_share_with_anybody(
    shared: Site, steersman: Steersman, model: ScriptedModel
) -> None:
    script = model.script("reads", hold("reading"), say("read"))
    workspace = shared.workspace()
    reads = shared.claude(script, workspace=workspace, permissions={"mode": "read_only"})
    reader = await running(steersman, reads)
    await script.wait_held()  # the first to ask: the second one is not held

    writer = await running(steersman, at_work(shared, workspace))
    second = await steersman.start(reads)
    assert (await steersman.result(second)).text == "read"

    await script.release()
    assert (await steersman.result(reader)).status == "succeeded"
    await refused(steersman, shared.process("true", workspace=workspace), writer)
    await steersman.stop(writer)


@pytest.mark.exhaustive
async def test_of_twenty_at_once_on_two_workers_exactly_one_runs(site: Site, tmp_path: Path) -> None:
    await asyncio.gather(*(site.worker().ready() for _ in range(2)))
    steersman = await site.steersman()
    workspace = site.workspace()
    done = tmp_path / "done"
    request = site.process("sh", "-c", f"while [ ! -e {done} ]; do sleep 0.1; done", workspace=workspace)

    runs = await asyncio.gather(*(steersman.start(request) for _ in range(20)))

    async def refusals() -> list[str] | None:
        states = [await answered(partial(steersman.state, run)) for run in runs]
        found = [state.error for state in states if state.error]
        return found if len(found) == len(runs) - 1 else None

    said = await until(refusals, 60)
    (winner,) = [run for run in runs if (await steersman.state(run)).error is None]
    assert all(f"run {winner} has" in each for each in said)
    done.touch()
    assert (await steersman.result(winner)).status == "succeeded"


async def stopped(site: Site, steersman: Steersman, run: str, mark: str) -> None:
    await steersman.stop(run)
    with pytest.raises(RunCancelled):
        await steersman.result(run)


async def terminated(site: Site, steersman: Steersman, run: str, mark: str) -> None:
    await site.temporal("workflow", "terminate", "--workflow-id", run, "--reason", "away with it")


async def terminated_unseen(site: Site, steersman: Steersman, run: str, mark: str) -> None:
    """No worker is there to hear of it."""
    site.workers[-1].kill()
    await terminated(site, steersman, run, mark)
    await site.worker().ready()


async def deleted(site: Site, steersman: Steersman, run: str, mark: str) -> None:
    await site.temporal("workflow", "delete", "--workflow-id", run, "--yes")


@pytest.mark.exhaustive
@pytest.mark.parametrize("end", [stopped, terminated, terminated_unseen, deleted])
async def test_a_workspace_is_free_once_its_run_has_closed_and_its_agent_is_gone(
    site: Site, mark: str, end: Callable[[Site, Steersman, str, str], Awaitable[None]]
) -> None:
    await site.worker().ready()
    steersman = await site.steersman()
    workspace = site.workspace()
    first = await running(steersman, at_work(site, workspace, mark=mark))
    assert marked(mark)

    await end(site, steersman, first, mark)

    async def free() -> bool:
        try:
            await steersman.run(site.process("true", workspace=workspace))
        except InvalidRequest:
            return False
        assert not marked(mark)
        return True

    await until(free, 20)
    await until(lambda: not list((site.state / "holds").iterdir()))


@pytest.mark.exhaustive
async def test_a_run_keeps_its_workspace_over_takeover_and_reset(site: Site, model: ScriptedModel) -> None:
    first = site.worker()
    await first.ready()
    steersman = await site.steersman()
    script = model.script("keeps", hold("a"), say("b"))
    workspace = site.workspace()
    run = await running(steersman, site.claude(script, workspace=workspace))
    await script.wait_held()

    first.kill()
    await site.worker().ready()

    async def taken_over() -> bool:
        return await leader(steersman, run) not in (None, first.pid)

    await until(taken_over, 40)
    await refused(steersman, site.process("true", workspace=workspace), run)

    await reset(site, run)
    await refused(steersman, site.process("true", workspace=workspace), run)
    await script.release()
    assert (await steersman.result(run)).text == "a"
    assert (await steersman.run(site.process("true", workspace=workspace))).status == "succeeded"


async def test_a_closed_run_that_begins_anew_asks_for_its_workspace(site: Site) -> None:
    await site.worker().ready()
    steersman = await site.steersman()
    workspace = site.workspace()
    first = await steersman.start(site.process("true", workspace=workspace))
    await steersman.result(first)
    second = await running(steersman, at_work(site, workspace))

    await reset(site, first)

    with pytest.raises(InvalidRequest, match=f"run {second} has it"):
        await steersman.result(first)
    await steersman.stop(second)


@pytest.mark.exhaustive
async def test_a_hold_that_was_lost_is_taken_anew_by_whoever_leads_the_run(site: Site) -> None:
    first = site.worker()
    await first.ready()
    steersman = await site.steersman()
    workspace = site.workspace()
    run = await running(steersman, at_work(site, workspace))
    for file in (site.state / "holds").iterdir():
        file.unlink()

    first.kill()
    await site.worker().ready()

    await until(lambda: list((site.state / "holds").glob("*.json")), 40)
    await refused(steersman, site.process("true", workspace=workspace), run)
    await steersman.stop(run)


@pytest.mark.exhaustive
async def test_what_another_namespace_has_is_refused_without_its_name(site: Site) -> None:
    await site.worker().ready()
    other = await new_namespace(site.namespace.address)
    foreign = Steersman(await other.connect())
    await site.worker(**other.env).ready()
    steersman = await site.steersman()
    workspace = site.workspace()
    run = await running(steersman, at_work(site, workspace))

    with pytest.raises(InvalidRequest, match="a run of another Temporal namespace has it") as raised:
        await foreign.run(site.process("true", workspace=workspace))

    assert run not in raised.value.message
    await steersman.stop(run)
    assert (await foreign.run(site.process("true", workspace=workspace))).status == "succeeded"


@pytest.mark.exhaustive
async def test_a_run_that_waits_for_a_slot_has_its_workspace_already(site: Site) -> None:
    await site.worker("--max-runs", "1").ready()
    steersman = await site.steersman()
    workspace = site.workspace()
    busy = await running(steersman, at_work(site))
    waits = await steersman.start(site.process("true", workspace=workspace))
    await until(lambda: len(list((site.state / "holds").glob("*.json"))) == 2)

    await refused(steersman, site.process("true", workspace=workspace), waits)

    await steersman.stop(busy)
    assert (await steersman.result(waits)).status == "succeeded"


@pytest.mark.exhaustive
async def test_a_hold_that_another_hosts_claim_left_behind_counts_for_nobody(
    site: Site, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A worker took a run's workspace and died over its answer; then a worker of another host claimed the run."""
    other = Site(tmp_path_factory.mktemp("other"), site.namespace)
    try:
        here, there = [await each.worker().ready() for each in (site, other)]
        steersman = await site.steersman()
        workspace = site.workspace()
        request = at_work(site, workspace)
        run = await running(steersman, {**request, "workspace": {**request["workspace"], "host": there}})
        (left,) = (other.state / "holds").glob("*.json")
        facts = json.loads(left.read_text())
        (site.state / "holds").mkdir()
        copied = site.state / "holds" / left.name

        copied.write_text(json.dumps(facts))
        mine = {**site.process("true", workspace=workspace), "workspace": {"path": str(workspace), "host": here}}
        await refused(steersman, mine, run)
        copied.write_text(json.dumps({**facts, "since": facts["since"] - 60}))

        assert (await steersman.run(mine)).status == "succeeded"
        await steersman.stop(run)
    finally:
        other.end()


@pytest.mark.exhaustive
async def test_nothing_is_told_of_directories_that_requests_may_not_use(site: Site) -> None:
    workspace = site.workspace()
    (workspace / "mine").mkdir()
    await site.worker().ready()
    other = await new_namespace(site.namespace.address)
    foreign = Steersman(await other.connect())
    host = await site.worker("--workspace-root", str(workspace / "mine"), **other.env).ready()
    steersman = await site.steersman()
    run = await running(steersman, at_work(site, workspace))

    with pytest.raises(InvalidRequest, match="has a directory around it") as raised:
        await foreign.run(site.process("true", workspace=workspace / "mine"))

    assert str(workspace) not in raised.value.message.replace(str(workspace / "mine"), "")
    assert (await foreign.workspaces(host)).holders == ()
    assert [each.path for each in (await steersman.workspaces(host)).holders] == [str(workspace)]
    await steersman.stop(run)


async def test_a_forged_hold_of_a_run_that_is_not_there_keeps_nobody_out(shared: Site, steersman: Steersman) -> None:
    workspace = shared.workspace()
    run = await running(steersman, at_work(shared, workspace))
    holds = [each for each in (shared.state / "holds").glob("*.json") if run in each.read_text()]
    facts = json.loads(holds[0].read_text())
    await steersman.stop(run)
    for key in ({"run": run, "execution": "another"}, {"run": "nobody", "execution": "x"}):
        forged = Hold.of_json(json.dumps({**facts, "key": key}))
        (shared.state / "holds" / file_name(forged)).write_text(forged.to_json())

    assert (await steersman.run(shared.process("true", workspace=workspace))).status == "succeeded"
