"""Threads with the real Claude Code: gone on with by another process, forked, reset, stopped at any moment.

How they are interrupted is in test_thread_interrupts.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from steersman._client.run_calls import RunCalls
from steersman.client import Steersman
from steersman.errors import RunInterrupted, ServerUnreachable, ThreadBusy
from tests.acceptance.site import Site, gone, leader, phase
from tests.acceptance.test_reset import reset
from tests.acceptance.test_thread_interrupts import FIRST, NEXT, THINKING, Talk
from tests.scripted_model import ScriptedModel, say
from tests.support.processes import marked, until

CLIENT = """
import asyncio
import sys

from steersman.client import Steersman


async def main() -> None:
    address, namespace, thread_id, prompt = sys.argv[1:]
    steersman = await Steersman.connect(address=address, namespace=namespace)
    thread = await steersman.resume_thread(thread_id)
    print((await thread.run(prompt)).text)


asyncio.run(main())
"""


@asynccontextmanager
async def client_at_work(this: Talk, site: Site, prompt: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Another process that awaits a run of the thread, which is at work."""
    arguments = (site.namespace.address, site.namespace.name, this.thread.id, prompt)
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, *arguments, stderr=asyncio.subprocess.PIPE
    )
    try:
        await this.held(asyncio.create_task(client.wait()))
        yield client
    finally:
        if client.returncode is None:
            client.kill()
        await client.communicate()


@pytest.mark.exhaustive
async def test_the_death_of_a_client_stops_nothing_and_another_goes_on(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    this = Talk(shared, steersman, model.script("died", say("one"), THINKING, say("here I am")), mark)
    await this.thread.run(FIRST)
    async with client_at_work(this, shared, "think about it") as client:
        client.kill()
        await client.wait()

    with pytest.raises(ThreadBusy):
        await this.thread.run(NEXT)
    assert marked(mark)
    await this.script.release()
    assert [event.type async for event in steersman.attach(this.thread.id)][-1] == "done"
    await this.goes_on()
    assert this.script.requests[-1].saw("think about it")


@pytest.mark.exhaustive
async def test_ctrl_c_in_a_client_stops_the_run_that_it_awaits(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    this = Talk(shared, steersman, model.script("left", say("one"), THINKING, say("here I am")), mark)
    await this.thread.run(FIRST)
    async with client_at_work(this, shared, "think about it") as client:
        client.send_signal(signal.SIGINT)
        await asyncio.wait_for(client.wait(), 20)
        assert not marked(mark)

    assert (await steersman.state(this.thread.id)).closed_as == "cancelled"
    await this.goes_on()


async def test_a_fork_knows_what_was_said_and_leaves_the_thread_alone(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    steps = (say("one"), say("in the fork"), say("further in the fork"), say("here I am"))
    this = Talk(shared, steersman, model.script("forked", *steps), mark)
    first = await this.thread.run(FIRST)

    fork = await this.thread.fork()
    forked = await fork.run("in another way")
    assert this.script.requests[-1].saw(FIRST)
    assert (await (await steersman.resume_thread(fork.id)).run("further")).session_id == forked.session_id
    assert this.script.requests[-1].saw("in another way")

    assert forked.session_id != first.session_id
    assert (await this.goes_on()).session_id == first.session_id
    assert not this.script.requests[-1].saw("in another way")


@pytest.mark.exhaustive
async def test_whoever_awaits_a_run_that_is_reset_gets_the_end_of_its_successor(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    this = Talk(shared, steersman, model.script("reset", THINKING, THINKING, say("here I am")), mark)
    run = await this.awaited()
    await phase(steersman, this.thread.id, "running")
    await reset(shared, this.thread.id)
    await until(lambda: leader(steersman, this.thread.id))
    await this.script.release()
    assert (await run).text == "thinking"

    stopped = await this.awaited()
    await phase(steersman, this.thread.id, "running")
    await reset(shared, this.thread.id)
    await until(lambda: leader(steersman, this.thread.id))
    await this.thread.interrupt("enough")
    with pytest.raises(RunInterrupted, match="enough"):
        await stopped
    await gone(mark)
    await this.goes_on()


@pytest.mark.exhaustive
async def test_a_run_that_nobody_owns_is_followed_by_anyone_and_earlier_ones_stay_readable(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    this = Talk(shared, steersman, model.script("started", say("one"), THINKING, say("three")), mark)
    assert await this.thread.runs() == []
    await this.thread.run(FIRST)

    starting = asyncio.create_task(this.thread.start(NEXT))
    second = await starting
    await this.script.wait_held()
    with pytest.raises(ThreadBusy):
        await this.thread.start("a third")
    await reset(shared, this.thread.id)
    await until(lambda: leader(steersman, this.thread.id))
    runs = await this.thread.runs()
    assert [(run.prompt, run.is_open) for run in runs] == [(FIRST, False), (NEXT, True)]  # the reset one is there once

    attached = await anext(this.thread.attach(second))
    assert attached.seq == 1
    assert [event.type for event in [each async for each in this.thread.attach(runs[0].execution)]][-1] == "done"
    await this.thread.interrupt("enough")
    other = this.thread.with_options(model="claude-haiku-4-5")
    assert (other.id, other.template.model) == (this.thread.id, "claude-haiku-4-5")
    assert (await other.run("a third")).text == "three"


@pytest.mark.exhaustive
async def test_a_run_that_was_left_while_the_server_was_away_is_stopped_once_it_is_back(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is there any more who could ask again."""
    cancel, away = RunCalls.cancel, [ServerUnreachable("it is away")] * 3

    async def cut(self: RunCalls, run_id: str, execution: str | None, reason: str) -> None:
        if away:
            raise away.pop()
        await cancel(self, run_id, execution, reason)

    monkeypatch.setattr(RunCalls, "cancel", cut)
    this = Talk(shared, steersman, model.script("away", THINKING), mark)
    run = await this.awaited()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not away
    await gone(mark)


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ["cancelled", "interrupted"])
async def test_a_thread_that_is_stopped_at_any_moment_of_its_first_run_goes_on(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str, how: str
) -> None:
    """A session that was named and never written down would be one that no run could resume."""
    script = model.script("moments", lambda request: say("here I am") if request.saw(NEXT) else THINKING)

    async def stop_and_go_on(number: int) -> None:
        this = Talk(shared, steersman, script, f"{mark}-{number}")
        run = asyncio.create_task(this.thread.run(FIRST))
        await asyncio.sleep(number * 0.2)
        if how == "cancelled":
            run.cancel()
        else:
            await this.thread.interrupt("at that moment")
        with pytest.raises(asyncio.CancelledError if how == "cancelled" else RunInterrupted):
            await run
        if how == "cancelled":  # kept for the stop for 10 s, which an overloaded machine may need
            await gone(this.mark)
        assert not marked(this.mark)
        assert (await this.thread.run(NEXT)).text == "here I am"

    await asyncio.gather(*map(stop_and_go_on, range(6)))
