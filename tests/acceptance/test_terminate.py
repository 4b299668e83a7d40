"""A terminated run is asked nothing, and leaves nothing behind all the same."""

import asyncio

import pytest

from steersman.client import Steersman
from steersman.errors import RunTerminated
from tests.acceptance.programs import OBEDIENT, STUBBORN, python
from tests.acceptance.site import Site, following, gone, in_order, phase
from tests.scripted_model import ScriptedModel, hold, say
from tests.support.processes import lives, marked, until


async def terminate(site: Site, run: str) -> None:
    await site.temporal("workflow", "terminate", "--workflow-id", run, "--reason", "enough")


async def test_the_worker_notices(shared: Site, steersman: Steersman, model: ScriptedModel, mark: str) -> None:
    script = model.script("terminated", hold("thinking"))
    claude = await steersman.start(shared.claude(script, mark=mark))
    program = await steersman.start(shared.process(*python(STUBBORN), mark=mark))
    await script.wait_held()
    async with following(steersman, program) as attached:
        await attached.until(lambda e: e.type == "message")

        await asyncio.gather(terminate(shared, claude), terminate(shared, program))

        await gone(mark, 6)
        events = await attached.end()
    assert in_order(events)
    with pytest.raises(RunTerminated, match="enough"):
        await steersman.result(program)


async def test_without_a_worker_the_next_one_or_the_lease_sees_to_it(
    site: Site, model: ScriptedModel, mark: str
) -> None:
    worker = site.worker()
    steersman = await site.steersman()
    await worker.ready()
    swept, leased = f"{mark}-swept", f"{mark}-leased"
    script = model.script("leased", hold("thinking"), say("back again"))
    terminated = await steersman.start(site.process(*python(STUBBORN), mark=swept))
    forgotten = await steersman.start(site.claude(script, mark=leased, lease_s=10))
    await script.wait_held()
    for run in (terminated, forgotten):
        await phase(steersman, run, "running")
    left = set(marked(swept))
    assert len(left) >= 4

    worker.kill()
    await terminate(site, terminated)
    # Nobody renews the lease: the shim itself ends the agent. The other's is long.
    await gone(leased, 25)
    assert left == set(marked(swept))

    await site.worker().ready()
    # A process on its way out has lost its environment, and so its mark, before it is gone.
    await until(lambda: not any(map(lives, left)), 6)
    assert not marked(swept)

    # The run whose lease ran out was not terminated: the next worker goes on with its session.
    result = await asyncio.wait_for(steersman.result(forgotten), 60)
    assert (result.text, result.attempts) == ("back again", 2)
    events = await steersman.events(forgotten)
    assert in_order(events)

    async def closed() -> bool:
        return (await steersman.events(terminated))[-1].type == "failed"

    await until(closed)
    assert in_order(await steersman.events(terminated))


async def test_termination_of_one_run_leaves_the_others_alone(shared: Site, steersman: Steersman, mark: str) -> None:
    other = await steersman.start(shared.process(*python(OBEDIENT), mark=f"{mark}-other"))
    run = await steersman.start(shared.process(*python(OBEDIENT), mark=f"{mark}-gone"))
    for each in (other, run):
        await phase(steersman, each, "running")
    await terminate(shared, run)
    await gone(f"{mark}-gone", 6)

    assert marked(f"{mark}-other")
    assert (await steersman.stop(other)).outcome == "stopped"
