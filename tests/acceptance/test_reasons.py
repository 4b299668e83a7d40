"""Why a run was stopped, and until when one waits for a person, with real agents: told wherever one looks."""

import asyncio
import subprocess
from datetime import timedelta

import pytest

from steersman.client import Steersman
from steersman.contracts.errors import BudgetExceeded
from steersman.contracts.events import CancelledEvent, DoneEvent, FailedEvent
from steersman.errors import RunCancelled
from tests.acceptance.programs import OBEDIENT, python
from tests.acceptance.site import Site, phase
from tests.cli.steer import STEER
from tests.scripted_model import ScriptedModel, hold, say, tool
from tests.support.processes import marked, until

TOOL = tool("Bash", command="true")


async def steer(site: Site, *words: str) -> str:
    """What `steer` prints."""
    command = [*STEER, "--address", site.namespace.address, "--namespace", site.namespace.name, *words]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.exhaustive
async def test_a_cancel(shared: Site, steersman: Steersman, mark: str) -> None:
    run = await steersman.start(shared.process(*python(OBEDIENT), mark=mark))
    await phase(steersman, run, "running")

    await steersman.temporal.get_workflow_handle(run).cancel(reason="it costs too much")

    with pytest.raises(RunCancelled, match="was cancelled: it costs too much") as raised:
        await steersman.result(run)
    report = raised.value.stop_report
    assert report is not None
    assert (report.outcome, report.how, report.reason) == ("stopped", "terminated", "it costs too much")
    event = (await steersman.events(run))[-1]
    assert isinstance(event, CancelledEvent)
    assert (event.stop_report, event.reason) == (report, report.reason)
    assert "it costs too much" in await steer(shared, "show", run)
    assert "it costs too much" in await steer(shared, "attach", run)


async def test_a_limit_in_the_middle_of_a_turn(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    script = model.script("limit", TOOL, hold("on and on"))
    limits = {"turns": 1}
    run = await steersman.start(shared.claude(script, mark=mark, permissions={"mode": "full"}, limits=limits))

    with pytest.raises(BudgetExceeded, match=r"limits\.turns") as raised:
        await steersman.result(run)

    assert not marked(mark)
    assert raised.value.result is not None
    report = raised.value.result.stop_report
    assert report is not None
    assert (report.outcome, report.how, report.reason) == ("stopped", "terminated", str(raised.value))
    event = (await steersman.events(run))[-1]
    assert isinstance(event, FailedEvent)
    assert event.stop_report == report == (await steersman.state(run)).stop_report


@pytest.mark.exhaustive
async def test_an_end_with_its_turn(shared: Site, steersman: Steersman, model: ScriptedModel, mark: str) -> None:
    script = model.script("ended", hold("thinking"))
    run = await steersman.start(shared.claude(script, mark=mark))
    await script.wait_held()
    await phase(steersman, run, "running")

    await steersman.interrupt(run, reason="lunch", end=True)

    result = await steersman.result(run)
    assert not marked(mark)
    report = result.stop_report
    assert report is not None
    assert (report.outcome, report.reason, report.left) == ("stopped", "lunch", ())
    assert report.processes >= 1
    event = (await steersman.events(run))[-1]
    assert isinstance(event, DoneEvent)
    assert event.stop_report == report
    for word in ("show", "attach"):
        assert ": lunch" in await steer(shared, word, run)


@pytest.mark.exhaustive
async def test_until_when_a_run_waits_for_a_person(shared: Site, steersman: Steersman, model: ScriptedModel) -> None:
    script = model.script("asks", tool("Bash", command="touch made"), say("made"))
    run = await steersman.start(shared.claude(script, permissions={"mode": "ask"}, limits={"approval_s": 7200}))
    await phase(steersman, run, "waiting")

    (approval,) = (await steersman.state(run)).approvals
    assert approval.deadline == approval.since + timedelta(hours=2)

    async def listed() -> bool:
        return run in [each.id for each in await steersman.list('RunPhase="waiting"')]

    await until(listed)
    assert f"{run} waits for {approval.id}  Bash, denied at" in await steer(shared, "list")
    shown = await steer(shared, "show", run)
    assert "waiting" in shown
    assert f"{approval.deadline.astimezone():%H:%M:%S}" in shown
    assert "Bash, denied at" in shown
    await steersman.decide(run, approval.id, "allow")
    assert (await steersman.result(run)).text == "made"
