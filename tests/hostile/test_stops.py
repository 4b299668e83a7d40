"""A requester who would keep an operator waiting, or spend without end: real server, worker and processes."""

import asyncio
from pathlib import Path

import pytest

from steersman.contracts.errors import ErrorType, RunError
from tests.acceptance.programs import DEAF, OBEDIENT, python
from tests.acceptance.site import Site, following, gone, phase
from tests.scripted_model import ScriptedModel, Usage, say
from tests.support.files import below

pytestmark = [pytest.mark.integration, pytest.mark.linux]

AN_HOUR = {"terminate_after_s": 3600, "kill_after_s": 3600}


async def test_a_second_stop_and_a_terminate_wait_for_no_grace(site: Site, mark: str) -> None:
    await site.worker().ready()
    steersman = await site.steersman()
    runs = [
        await steersman.start(site.process(*python(DEAF), mark=f"{mark}-{number}", stop=AN_HOUR)) for number in range(2)
    ]
    for run in runs:
        async with following(steersman, run) as attached:
            await attached.until(lambda e: e.type == "message")

    first = asyncio.create_task(steersman.stop(runs[0]))
    await phase(steersman, runs[0], "stopping")
    async with asyncio.timeout(60):
        second = await steersman.stop(runs[0])
        assert (await first) == second
    assert (second.outcome, second.how) == ("stopped", "killed")
    await gone(f"{mark}-0")

    await site.temporal("workflow", "terminate", "--workflow-id", runs[1], "--reason", "enough")
    await gone(f"{mark}-1")


@pytest.mark.exhaustive
async def test_an_operators_caps_hold_whatever_a_request_says(site: Site, model: ScriptedModel, mark: str) -> None:
    caps = ("--max-stop-s", "0.5", "--max-duration-s", "20", "--max-cost", "0.01", "--max-lease-s", "10")
    worker = site.worker(*caps)
    await worker.ready()
    steersman = await site.steersman()
    slow = await steersman.start(site.process(*python(DEAF), mark=mark, stop=AN_HOUR, lease_s=300_000_000))
    async with following(steersman, slow) as attached:
        await attached.until(lambda e: e.type == "message")
    async with asyncio.timeout(60):
        assert (await steersman.stop(slow)).how == "killed"
    await gone(mark)

    dear = model.script("dear", say("an expensive answer", usage=Usage(input=1_000_000, output=1_000_000)))
    with pytest.raises(RunError) as spent:
        await steersman.run(site.claude(dear, limits={"cost_usd": 1e6}))
    assert spent.value.type == ErrorType.BUDGET_EXCEEDED
    assert "$0.01" in spent.value.message

    endless = await steersman.start(site.process(*python(OBEDIENT), mark=mark, limits={"duration_s": 1e6}))
    await phase(steersman, endless, "running")
    with pytest.raises(RunError) as late:
        await asyncio.wait_for(steersman.result(endless), 40)
    assert late.value.type == ErrorType.RUN_TIMED_OUT
    await gone(mark)


@pytest.mark.exhaustive
async def test_what_holds_secrets_goes_with_the_run(shared: Site, model: ScriptedModel, tmp_path: Path) -> None:
    steersman = await shared.steersman()
    server = {"type": "http", "url": "http://127.0.0.1:9/", "headers": {"X": "a-literal-in-a-header"}}
    request = shared.claude(
        model.script("mcp", say("done")), system_prompt="be brief", options={"mcp_servers": {"far": server}}
    )
    run = await steersman.start(request)
    await steersman.result(run)
    left = [path for path in below(shared.state) if path.parent.name == "files" and run in str(path)]
    assert left == []


@pytest.mark.exhaustive
async def test_a_worker_that_may_not_go_on_with_a_run_leaves_nothing_of_it(site: Site, mark: str) -> None:
    worker = site.worker()
    await worker.ready()
    steersman = await site.steersman()
    run = await steersman.start(site.process(*python(OBEDIENT), mark=mark))
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message")
    worker.kill()

    await site.bare_worker("--agent", "claude").ready()
    with pytest.raises(RunError, match=r"is not allowed on this worker.*was stopped") as refused:
        await asyncio.wait_for(steersman.result(run), 40)
    assert refused.value.type == ErrorType.INVALID_REQUEST
    await gone(mark)
