"""Two runs cannot be at work on one session of an agent; one after the other they can, however the first one ended."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from steersman.client import Steersman
from steersman.contracts.errors import InvalidRequest
from steersman.errors import RunCancelled
from tests.acceptance.site import Site, answered, leader
from tests.acceptance.test_reset import reset
from tests.acceptance.test_resume import handle_of
from tests.scripted_model import ScriptedModel, hold, say
from tests.support.processes import until
from tests.support.temporal import new_namespace

READS: dict[str, Any] = {"permissions": {"mode": "read_only"}}
"""Of runs that share a workspace."""


async def logged_end(steersman: Steersman, run: str) -> None:
    """Once the run's log has its end: what it did in a copy is merged then, and its workspace is free."""
    async for _ in steersman.attach(run):
        pass


async def session_of(steersman: Steersman, run: str) -> str:
    """The session that the run has, once it has one."""

    async def known() -> str | None:
        return (await answered(partial(steersman.state, run))).session_id

    return await until(known)


async def locked(site: Site, session: str) -> None:
    await until((site.state / "sessions" / f"claude@{session}.json").is_file)


async def test_a_session_at_work_is_refused_by_the_name_of_its_run(
    shared: Site, steersman: Steersman, model: ScriptedModel
) -> None:
    script = model.script("busy", hold("thinking"), say("forked"), say("after"))
    workspace = shared.workspace()
    first = await steersman.start(shared.claude(script, workspace=workspace, **READS))
    session = await session_of(steersman, first)
    await locked(shared, session)
    second = shared.claude(script, prompt="and then", workspace=workspace, session=session, **READS)

    with pytest.raises(InvalidRequest) as refused:
        await steersman.run(second)
    assert first in refused.value.message
    assert session in refused.value.message
    assert "fork_session" in refused.value.message
    forked = await steersman.run({**second, "fork_session": True})
    assert (forked.text, forked.session_id == session) == ("forked", False)
    await script.release()
    assert (await steersman.result(first)).session_id == session

    after = await steersman.run(second)
    assert (after.text, after.session_id) == ("after", session)


async def stopped(site: Site, steersman: Steersman, run: str) -> None:
    await steersman.stop(run)
    with pytest.raises(RunCancelled):
        await steersman.result(run)


async def terminated(site: Site, steersman: Steersman, run: str) -> None:
    await site.temporal("workflow", "terminate", "--workflow-id", run, "--reason", "away with it")


async def terminated_unseen(site: Site, steersman: Steersman, run: str) -> None:
    """No worker is there to hear of it."""
    site.workers[-1].kill()
    await terminated(site, steersman, run)
    await site.worker().ready()


@pytest.mark.exhaustive
@pytest.mark.parametrize("end", [stopped, terminated, terminated_unseen])
async def test_a_session_is_free_once_its_run_has_closed(
    site: Site, model: ScriptedModel, end: Callable[[Site, Steersman, str], Awaitable[None]]
) -> None:
    await site.worker().ready()
    steersman = await site.steersman()
    script = model.script("closed", hold("thinking"), say("went on"))
    workspace = site.workspace()
    first = await steersman.start(site.claude(script, workspace=workspace))
    await script.wait_held()
    session = await session_of(steersman, first)
    await locked(site, session)

    await end(site, steersman, first)
    after = await steersman.run(site.claude(script, workspace=workspace, session=session))

    assert (after.text, after.session_id) == ("went on", session)


@pytest.mark.exhaustive
async def test_of_two_that_start_at_once_one_has_the_session(site: Site, model: ScriptedModel) -> None:
    await asyncio.gather(*(site.worker().ready() for _ in range(2)))
    steersman = await site.steersman()
    script = model.script("race", say("begun"), hold("mine"))
    workspace = site.workspace()
    session = (await steersman.run(site.claude(script, workspace=workspace))).session_id
    request = site.claude(script, workspace=workspace, session=session, **READS)

    runs = [await steersman.start(request) for _ in range(6)]
    await script.wait_held()

    async def refusals() -> list[str] | None:
        states = [await steersman.state(run) for run in runs]
        found = [state.error for state in states if state.error]
        return found if len(found) == len(runs) - 1 else None

    refused = await until(refusals, 30)
    (winner,) = [run for run in runs if (await steersman.state(run)).error is None]
    assert all(f"run {winner} is at work on {session}" in each for each in refused)
    await script.release()
    assert (await steersman.result(winner)).text == "mine"


@pytest.mark.exhaustive
async def test_a_run_keeps_its_session_over_takeover_resume_and_reset(site: Site, model: ScriptedModel) -> None:
    first = site.worker()
    await first.ready()
    steersman = await site.steersman()
    script = model.script("keeps", say("begun"), hold("a"), say("b"), say("c"))
    workspace = site.workspace()
    session = (await steersman.run(site.claude(script, workspace=workspace))).session_id
    run = await steersman.start(site.claude(script, workspace=workspace, session=session))
    await script.wait_held()
    before = await handle_of(steersman, run)
    first.kill()
    await site.worker().ready()

    async def taken_over() -> bool:
        return await leader(steersman, run) not in (None, first.pid)

    await until(taken_over, 40)
    os.kill(before.pid, 9)
    result = await steersman.result(run)
    assert (result.text, result.attempts, result.session_id) == ("b", 2, session)

    await reset(site, run)
    assert (await steersman.result(run)).text == "c"


@pytest.mark.exhaustive
async def test_what_another_namespace_has_is_refused_without_its_name(site: Site, model: ScriptedModel) -> None:
    await site.worker().ready()
    other = await new_namespace(site.namespace.address)
    foreign = Steersman(await other.connect())
    await site.worker(**other.env).ready()
    steersman = await site.steersman()
    script = model.script("foreign", hold("mine"))
    workspace = site.workspace()
    run = await steersman.start(site.claude(script, workspace=workspace, **READS))
    session = await session_of(steersman, run)
    await locked(site, session)

    with pytest.raises(InvalidRequest, match="session: a run of another Temporal namespace") as refused:
        await foreign.run(site.claude(script, workspace=workspace, session=session, **READS))

    assert run not in refused.value.message
    await script.release()
    await steersman.result(run)
