"""`steer` about a run whose host has no worker, while others decide for its workflow."""

import asyncio
import re
import signal
from datetime import datetime, time, timedelta

import pytest
from temporalio.worker import Worker

from steersman.cli.exits import Exit
from steersman.client import Steersman
from steersman.contracts import names
from tests.cli.steer import Steer, ended
from tests.cli.test_commands import begin
from tests.client.fake_host import FakeHost
from tests.client.fake_loop import FakeLoopHost, checkpoint

pytestmark = pytest.mark.acceptance

AWAY = "away"
LEASE_S = 900
"""As of a request that says nothing of it."""


async def left_alone(fake_host: FakeHost, steersman: Steersman, workspace: str) -> str:
    """A run at work on a host whose worker has ended since."""
    fake_host.host = AWAY
    async with Worker(steersman.temporal, task_queue=names.runs_queue(AWAY), activities=[fake_host.run_agent]):
        return await begin(steersman, workspace)


async def test_show_says_that_nobody_leads_it(
    steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str
) -> None:
    led = await begin(steersman, workspace)
    shown = await steer("show", led)
    assert (shown.code, shown.err) == (0, "")
    shown = await steer("show", await left_alone(fake_host, steersman, workspace))
    assert shown.code == 0
    assert shown.err.startswith(f"no worker of host {AWAY} answers: the run waits for one;")
    assert re.search(r"^phase +running$", shown.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("command", "what", "stop"),
    [
        (("run", "-d", "process", "--host", AWAY, "-w", "{workspace}", "--", "true"), "run", "stop"),
        (("loop", "start", "-d", "--host", AWAY, "-w", "{workspace}", "--verify", "true", "go"), "loop", "loop stop"),
    ],
)
async def test_start_says_that_the_host_it_names_has_none(
    steer: Steer, steersman: Steersman, workspace: str, command: tuple[str, ...], what: str, stop: str
) -> None:
    started = await steer(*(each.format(workspace=workspace) for each in command))
    told, id = started.err.splitlines(), started.out.strip()
    await steersman.temporal.get_workflow_handle(id).terminate()
    assert started.code == 0
    assert told[-1] == (
        f"no worker of host {AWAY} answers: the {what} waits for one, and fails after 10 minutes. "
        f"Take it back: steer {stop} {id}"
    )


@pytest.mark.usefixtures("fake_host")
async def test_show_says_that_the_host_that_a_run_names_has_none(
    steer: Steer, steersman: Steersman, workspace: str
) -> None:
    run = await steersman.start({"agent": "claude", "prompt": "go", "workspace": {"path": workspace, "host": AWAY}})
    shown = await steer("show", run)
    told = f"no worker of host {AWAY} answers: the run waits for one, and fails after 10 minutes"
    assert (shown.code, shown.err) == (0, f"{told}. Take it back: steer stop {run}\n")
    await steersman.temporal.get_workflow_handle(run).terminate()


@pytest.mark.usefixtures("fake_host")
async def test_attach_says_that_the_host_that_a_run_names_has_none(
    steer: Steer, steersman: Steersman, workspace: str
) -> None:
    run = await steersman.start({"agent": "claude", "prompt": "go", "workspace": {"path": workspace, "host": AWAY}})
    told = f"no worker of host {AWAY} answers: the run waits for one, and fails after 10 minutes. Take it back: steer"
    terminal = await steer.at_terminal("attach", run)
    await terminal.until("no worker of host")
    terminal.type("\x04")
    assert await terminal.ended() == 130
    assert told in " ".join(terminal.text.split())
    process = await steer.start("attach", run)
    assert process.stderr
    async with asyncio.timeout(60):
        assert (await process.stderr.readline()).decode() == f"{told} stop {run}\n"
    process.send_signal(signal.SIGINT)
    assert (await ended(process)).code == 130
    await steersman.temporal.get_workflow_handle(run).terminate()


async def test_stop_says_that_it_waits_and_until_when(
    steer: Steer, fake_host: FakeHost, steersman: Steersman, workspace: str
) -> None:
    run = await left_alone(fake_host, steersman, workspace)
    lease_over = datetime.now().astimezone() + timedelta(seconds=LEASE_S)
    process = await steer.start("stop", run)
    assert process.stderr
    async with asyncio.timeout(60):
        told = (await process.stderr.read(1000)).decode()
    found = re.match(rf"no worker of host {AWAY} takes the stop: it waits for one until (\S+), ", told)
    assert found, told
    until = datetime.combine(lease_over.date(), time.fromisoformat(found[1])).astimezone()
    assert timedelta(0) < (until - lease_over) % timedelta(days=1) < timedelta(minutes=5)
    process.send_signal(signal.SIGINT)
    left = await ended(process)
    assert (left.code, left.err) == (130, "the stop that was asked for goes on; asked for again, it is hurried\n")
    assert (await steersman.state(run)).phase == "stopping"
    await steersman.temporal.get_workflow_handle(run).terminate()


async def test_a_stop_that_no_worker_takes_is_recorded(steer: Steer, steersman: Steersman, workspace: str) -> None:
    run = await steersman.start({"agent": "claude", "prompt": "go", "workspace": {"path": workspace}})
    said = await steer("stop", run)
    assert said.code == 4
    assert said.err.startswith("the stop is recorded, and carried out once a worker is there\nerror: no worker answers")
    await steersman.temporal.get_workflow_handle(run).terminate()


async def test_the_doctor_names_the_namespace_that_lacks_search_attributes(steer: Steer) -> None:
    checks = (await steer("--namespace", "temporal-system", "doctor", "--json")).json
    hint = next(each["hint"] for each in checks if each["check"] == "search attributes")
    assert "search-attribute create --namespace temporal-system --name RunPhase --type Keyword" in hint


async def test_a_loop_whose_host_has_none_says_so_whatever_it_is_told(
    steer: Steer, loop_host: FakeLoopHost, steersman: Steersman, workspace: str
) -> None:
    request = {"run": {"agent": "claude", "workspace": {"path": workspace}}, "plan": "p"}
    loop = await steersman.loops.start({**request, "done": {"items": {"kind": "checkboxes", "path": "PLAN.md"}}})
    assert (await steer("loop", "status", loop)).err == ""
    assert (await steer("loop", "feedback", loop, "more")).err == ""
    await loop_host.set_state(loop, host=AWAY, stuck=True, checkpoints=[checkpoint(1)])
    told = (
        f"no worker of host {AWAY} answers: the loop waits for one, with what it is told; an agent at work is stopped "
        f"when its lease is over. `steer loop stop {loop}` ends the loop"
    )
    shown = await steer("loop", "status", loop)
    assert (shown.code, " ".join(shown.err.split())) == (0, told)
    answer = await steer("loop", "feedback", loop, "more")
    assert (answer.code, " ".join(answer.err.split())) == (0, told)
    attached = await steer.start("loop", "attach", loop)
    assert attached.stderr
    async with asyncio.timeout(60):
        assert (await attached.stderr.readline()).decode() == f"{told}\n"
    attached.send_signal(signal.SIGINT)
    assert (await ended(attached)).code == 130
    unanswered = await steer("loop", "rollback", loop, "1", "--yes")
    assert unanswered.code == Exit.UNREACHABLE
    assert f"no worker of host {AWAY} answers: the loop goes on, with what it was told" in unanswered.err
    await loop_host.set_state(loop, stuck=False)
    await loop_host.end_loop(loop)
    await steersman.loops.result(loop)
    assert (await steer("loop", "status", loop)).err == ""


async def test_a_loop_says_that_the_host_that_it_names_has_none(
    steer: Steer, loop_host: FakeLoopHost, steersman: Steersman, workspace: str
) -> None:
    run = {"agent": "claude", "workspace": {"path": workspace, "host": AWAY}}
    loop = await steersman.loops.start({"run": run, "plan": "p", "done": {"verify": {"command": "true"}}})
    await loop_host.set_state(loop, host=None)
    told = f"no worker of host {AWAY} answers: the loop waits for one, and fails after 10 minutes"
    shown = await steer("loop", "status", loop)
    assert (shown.code, shown.err) == (0, f"{told}. Take it back: steer loop stop {loop}\n")
    await loop_host.end_loop(loop)


@pytest.mark.parametrize("command", [("loop", "stop"), ("stop",)], ids=" ".join)
async def test_stop_of_a_loop_says_that_its_run_waits(
    command: tuple[str, ...], steer: Steer, loop_host: FakeLoopHost, steersman: Steersman, workspace: str
) -> None:
    request = {"run": {"agent": "claude", "workspace": {"path": workspace}}, "plan": "p"}
    loop = await steersman.loops.start({**request, "done": {"verify": {"command": "true"}}})
    run = await left_alone(loop_host, steersman, workspace)
    await loop_host.set_state(loop, host=AWAY, run=run, stuck=True)
    process = await steer.start(*command, loop)
    await steersman.temporal.get_workflow_handle(run).cancel()  # as the loop itself does
    assert process.stderr
    async with asyncio.timeout(60):
        told = (await process.stderr.read(1000)).decode()
    assert told.startswith(f"no worker of host {AWAY} takes the stop: it waits for one until "), told
    assert "the loop closes some 4 min later" in " ".join(told.split())
    process.kill()
    await loop_host.set_state(loop, stuck=False)
    await steersman.temporal.get_workflow_handle(run).terminate()


async def test_stop_of_a_loop_that_is_not_at_work_says_what_it_waits_for(
    steer: Steer, loop_host: FakeLoopHost, steersman: Steersman, workspace: str
) -> None:
    request = {"run": {"agent": "claude", "workspace": {"path": workspace}}, "plan": "p"}
    loop = await steersman.loops.start({**request, "done": {"verify": {"command": "true"}}})
    await loop_host.set_state(loop, host=AWAY, stuck=True)
    process = await steer.start("loop", "stop", loop)
    assert process.stderr
    async with asyncio.timeout(60):
        told = (await process.stderr.read(1000)).decode()
    assert told.startswith(f"no worker of host {AWAY} answers: the loop waits a minute for one, "), told
    process.kill()
    await loop_host.set_state(loop, stuck=False)
