"""Runs that wait for their workspace get it one after another, in the order in which they came, whatever befalls."""

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from steersman.client import Steersman
from steersman.contracts.errors import InvalidRequest, RunTimedOut
from steersman.contracts.run import RunState
from steersman.errors import RunCancelled
from tests.acceptance.site import Site, answered, phase
from tests.acceptance.test_reset import reset
from tests.acceptance.test_workspace_holds import at_work, running
from tests.cli.steer import Steer
from tests.support.processes import until

QUEUE = {"on_overlap": "queue"}


def note(site: Site, workspace: Path, text: str, **request: Any) -> dict[str, Any]:
    """A request for a program that notes down that it has begun and ended, when its turn has come."""
    script = f"echo begin {text} >> order; sleep 0.05; echo end {text} >> order"
    asked = site.process("sh", "-c", script, workspace=workspace, **request)
    return {**asked, "workspace": {**asked["workspace"], **QUEUE}}


async def waiting(steersman: Steersman, run: str) -> RunState:
    """The state of a run that waits for its workspace."""

    async def there() -> RunState | None:
        now = await answered(partial(steersman.state, run))
        return now if now.workspace_held_by else None

    return await until(there, 30)


async def queued(steersman: Steersman, request: dict[str, Any]) -> str:
    run = await steersman.start(request)
    await waiting(steersman, run)
    return run


def order(workspace: Path) -> list[str]:
    return (workspace / "order").read_text().splitlines()


@pytest.mark.exhaustive
async def test_those_who_wait_come_in_order_and_say_for_whom_they_wait(shared: Site, steersman: Steersman) -> None:
    workspace = shared.workspace()
    first = await running(steersman, at_work(shared, workspace))
    runs = [await queued(steersman, note(shared, workspace, str(number))) for number in range(6)]
    states = [await steersman.state(run) for run in runs]
    assert {state.phase for state in states} == {"queued"}
    assert [each.id for each in states[2].workspace_held_by] == [first, *runs[:2]]
    assert [each.waits for each in states[2].workspace_held_by] == [False, True, True]
    with pytest.raises(InvalidRequest, match=f"run {first} has it, and before this run came also run {runs[0]}, "):
        await steersman.run(shared.process("true", workspace=workspace))

    found = await steersman.workspaces(states[0].host or "")
    here = [each for each in found.holders if each.path == str(workspace)]
    assert [(each.id, each.waits, each.on_overlap) for each in here] == [
        (first, False, "reject"),
        *((run, True, "queue") for run in runs),
    ]
    assert [each.id for each in found.before(runs[1])] == [first, runs[0]]

    await steersman.stop(first)

    for run in runs:
        assert (await steersman.result(run)).status == "succeeded"
    assert order(workspace) == [f"{what} {number}" for number in range(6) for what in ("begin", "end")]
    assert (await steersman.state(runs[0])).workspace_held_by == ()
    found = await steersman.workspaces(states[0].host or "")
    assert not [each for each in found.holders if each.path == str(workspace)]


async def test_steer_says_who_has_it_and_who_waits_for_whom(shared: Site, steersman: Steersman) -> None:
    workspace = shared.workspace()
    steer = Steer(shared.namespace.address, shared.root / "home", shared.namespace.name)
    words = ("run", "process", "-d", "-w", str(workspace), "--on-overlap", "queue", "--id")
    first = await running(steersman, at_work(shared, workspace))
    for name in ("second", "third"):
        await steer(*words, name, "--", "true")
        await waiting(steersman, name)
    host = (await steersman.state(first)).host or ""

    table = (await steer("workspaces", "--host", host)).out
    assert [line.split()[1:3] for line in table.splitlines() if str(workspace) in line] == [
        ["run", first],
        ["run", "second"],
        ["run", "third"],
    ]
    assert "waits (queue)" in table
    listed = json.loads((await steer("workspaces", "--host", host, "--json")).out)
    assert [each["id"] for each in listed["holders"] if each["path"] == str(workspace)] == [first, "second", "third"]
    said = f"run {first} has it, run second waits before it"
    assert said in (await steer("show", "third")).out
    assert f"third waits for its workspace: {said}" in (await steer("list")).out

    refused = await steer("run", "process", "-w", str(workspace), "--", "true")
    assert (refused.code, f"run {first} has it" in refused.out) == (2, True)
    await steer("stop", first)
    assert (await steersman.result("third")).status == "succeeded"
    assert "waits for" not in (await steer("show", "third")).out


@pytest.mark.exhaustive
async def test_of_twenty_at_once_each_runs_alone(shared: Site, steersman: Steersman) -> None:
    workspace = shared.workspace()
    runs = await asyncio.gather(*(steersman.start(note(shared, workspace, str(each))) for each in range(20)))
    for run in runs:
        assert (await steersman.result(run)).status == "succeeded"
    lines = order(workspace)
    assert len(lines) == 40
    assert all(begun.split()[1] == ended.split()[1] for begun, ended in zip(lines[::2], lines[1::2], strict=True))


@pytest.mark.exhaustive
async def test_a_wait_takes_no_slot_of_the_worker(site: Site) -> None:
    await site.worker("--max-runs", "2").ready()
    steersman = await site.steersman()
    workspace = site.workspace()
    first = await running(steersman, at_work(site, workspace))
    waits = [await queued(steersman, note(site, workspace, str(number))) for number in range(4)]

    assert (await steersman.run(site.process("true"))).status == "succeeded"

    await steersman.stop(first)
    for run in waits:
        assert (await steersman.result(run)).status == "succeeded"


@pytest.mark.exhaustive
async def test_one_that_waits_can_be_stopped_and_ended_and_has_its_limit(shared: Site, steersman: Steersman) -> None:
    workspace = shared.workspace()
    first = await running(steersman, at_work(shared, workspace))
    limited = await queued(steersman, note(shared, workspace, "limited", limits={"duration_s": 2}))
    stopped = await queued(steersman, note(shared, workspace, "stopped"))
    terminated = await queued(steersman, note(shared, workspace, "terminated"))
    last = await queued(steersman, note(shared, workspace, "last"))

    report = await steersman.stop(stopped, reason="not now")
    assert (report.outcome, report.processes, report.reason) == ("stopped", 0, "not now")
    with pytest.raises(RunCancelled):
        await steersman.result(stopped)
    with pytest.raises(RunTimedOut):
        await steersman.result(limited)
    await shared.temporal("workflow", "terminate", "--workflow-id", terminated, "--reason", "away")
    assert [each.type for each in await steersman.events(stopped)] == ["cancelled"]

    await steersman.stop(first)
    assert (await steersman.result(last)).status == "succeeded"
    assert order(workspace) == ["begin last", "end last"]


@pytest.mark.parametrize("reader", ["stopped", "terminated"])
async def test_the_next_one_begins_whichever_way_the_holder_ends(site: Site, reader: str) -> None:
    await site.worker().ready()
    steersman = await site.steersman()
    workspace = site.workspace()
    first = await running(steersman, at_work(site, workspace))
    waits = await queued(steersman, note(site, workspace, "next"))
    if reader == "stopped":
        await steersman.stop(first)
    else:
        await site.temporal("workflow", "terminate", "--workflow-id", first, "--reason", "away")
    assert (await asyncio.wait_for(steersman.result(waits), 15)).status == "succeeded"


@pytest.mark.exhaustive
async def test_waiting_survives_kills_and_deploys_of_workers_and_a_restart_of_the_server(
    site_with_server: Site,
) -> None:
    site = site_with_server
    killed = site.worker()
    await killed.ready()
    steersman = await site.steersman()
    workspace = site.workspace()
    first = await running(steersman, at_work(site, workspace))
    waits = [await queued(steersman, note(site, workspace, str(number))) for number in range(3)]

    killed.kill()
    deployed = site.worker()
    await deployed.ready()
    await deployed.terminate()
    last = site.worker()
    await last.ready()
    # What the server has handed out, and no worker has got, comes again after a heartbeat's timeout.
    await until(lambda: len(list(site.state.glob(f"workers/{last.pid}-*/runs/*[0-9a-f]"))) == len([first, *waits]))
    await asyncio.to_thread(site.server.kill)
    await asyncio.to_thread(site.server.start)
    waits.append(await answered(lambda: queued(steersman, note(site, workspace, "3"))))
    await answered(lambda: steersman.stop(first))

    for run in waits:
        assert (await asyncio.wait_for(steersman.result(run), 60)).status == "succeeded"
    assert order(workspace) == [f"{what} {number}" for number in range(4) for what in ("begin", "end")]


@pytest.mark.exhaustive
async def test_a_reset_keeps_the_place_in_the_order(site: Site) -> None:
    await site.worker().ready()
    steersman = await site.steersman()
    workspace = site.workspace()
    first = await running(steersman, at_work(site, workspace))
    waits = [await queued(steersman, note(site, workspace, str(number))) for number in range(2)]

    await reset(site, waits[0])
    await waiting(steersman, waits[0])
    await reset(site, first)
    await phase(steersman, first, "running")
    assert not (workspace / "order").exists()
    await steersman.stop(first)

    for run in waits:
        assert (await steersman.result(run)).status == "succeeded"
    assert order(workspace) == [f"{what} {number}" for number in range(2) for what in ("begin", "end")]


@pytest.mark.exhaustive
async def test_nested_workspaces_wait_for_each_other_both_ways(shared: Site, steersman: Steersman) -> None:
    workspace = shared.workspace()
    (workspace / "a").mkdir()
    (workspace / "b").mkdir()
    inside = await running(steersman, at_work(shared, workspace / "a"))
    around = await queued(steersman, note(shared, workspace, "around"))
    beside = await queued(steersman, note(shared, workspace / "b", "beside"))
    assert [each.id for each in (await steersman.state(beside)).workspace_held_by] == [around]

    await steersman.stop(inside)

    assert (await steersman.result(around)).status == (await steersman.result(beside)).status == "succeeded"
