"""Threads are interrupted as SDKs of agents promise it, with the real Claude Code: 22 cases.

Two ways to run (awaited, streamed), three ways to say it (interrupt, a signal, the end of whoever awaits), and each
moment: before, during, after, twice, one over the other. Each says what the user sees, and that no process is left.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from steersman.client import Steersman
from steersman.contracts.events import AgentEvent, CancelledEvent
from steersman.contracts.run import RunResult
from steersman.errors import RunCancelled, RunInterrupted, ThreadBusy
from steersman.threads import AbortSignal, Thread
from tests.acceptance.site import Site, gone, in_order
from tests.scripted_model import Script, ScriptedModel, hold, say, tool
from tests.scripted_model.script import Steps
from tests.support.processes import marked, until

IN_TOOL = tool("Bash", command="python3 -c 'import time; time.sleep(60)'", description="wait")
THINKING = hold("thinking")
FIRST, NEXT = "count the apples", "and the pears"


class Talk:
    """A thread whose model plays a script, and a mark that all processes of it have."""

    def __init__(self, site: Site, steersman: Steersman, script: Script, mark: str) -> None:
        self.steersman, self.script, self.mark = steersman, script, mark
        self._request = site.claude(script, mark=mark, permissions={"mode": "full"})
        self.thread = self.of(steersman)

    def of(self, steersman: Steersman, thread_id: str | None = None) -> Thread:
        """A thread with the same fields."""
        fields = {name: self._request[name] for name in ("agent", "workspace", "env", "permissions")}
        return steersman.thread(thread_id=thread_id, **fields)

    async def held(self, *tasks: asyncio.Task[Any]) -> None:
        """Wait until the model holds an answer. A task that ends before it does says why."""
        holding = asyncio.create_task(self.script.wait_held())
        done, _ = await asyncio.wait({holding, *tasks}, return_when=asyncio.FIRST_COMPLETED, timeout=40)
        holding.cancel()
        for each in done - {holding}:
            raise AssertionError(f"it ended early: {each}")
        assert holding in done

    async def awaited(self, **options: Any) -> asyncio.Task[RunResult]:
        """A run at work, awaited by a task."""
        task = asyncio.create_task(self.thread.run(FIRST, **options))
        await self.held(task)
        return task

    async def stopped(self) -> None:
        """Whoever leaves a run waits for its stop, but on a busy machine not to its end."""
        assert not marked(self.mark)

        async def is_cancelled() -> bool:
            return (await self.steersman.state(self.thread.id)).closed_as == "cancelled"

        await until(is_cancelled)

    async def streamed(self, **options: Any) -> asyncio.Task[list[AgentEvent]]:
        """A run at work, whose events a task reads."""

        async def read() -> list[AgentEvent]:
            return [event async for event in self.thread.run_streamed(FIRST, **options)]

        task = asyncio.create_task(read())
        await self.held(task)
        return task

    async def interrupted(self, task: asyncio.Task[RunResult], reason: str) -> RunInterrupted:
        """The awaited run was interrupted, for that reason; nothing of it is left."""
        with pytest.raises(RunInterrupted) as raised:
            await asyncio.wait_for(task, 40)
        assert not marked(self.mark)
        assert isinstance(raised.value, RunCancelled)
        assert (raised.value.code, raised.value.reason) == ("interrupted", reason)
        assert raised.value.stop_report is not None
        assert raised.value.stop_report.outcome == "stopped"
        return raised.value

    async def cancelled(self, task: asyncio.Task[list[AgentEvent]], reason: str) -> CancelledEvent:
        """The streamed run ends with one `cancelled` that has the reason; nothing of it is left."""
        events = await asyncio.wait_for(task, 40)
        assert not marked(self.mark)
        assert in_order(events)
        last = events[-1]
        assert isinstance(last, CancelledEvent)
        assert last.reason == reason
        return last

    async def goes_on(self, text: str = "here I am", *, saw: str = FIRST) -> RunResult:
        """The thread's next run answers with that, and knows what was said in the runs before."""
        result = await self.thread.run(NEXT)
        assert result.text == text
        assert self.script.requests[-1].saw(NEXT)
        assert self.script.requests[-1].saw(saw)
        await gone(self.mark)
        return result


@pytest.fixture
def talk(shared: Site, steersman: Steersman, model: ScriptedModel, mark: str) -> Callable[..., Talk]:
    def begun(*steps: Steps) -> Talk:
        return Talk(shared, steersman, model.script("talk", *steps), mark)

    return begun


@pytest.mark.exhaustive
async def test_01_interrupt_of_an_awaited_run(talk: Callable[..., Talk]) -> None:
    this = talk(THINKING)
    run = await this.awaited()

    report = await this.thread.interrupt("too slow")

    assert (report.run, report.outcome, report.reason) == (this.thread.id, "stopped", "too slow")
    assert not marked(this.mark)
    await this.interrupted(run, "too slow")


@pytest.mark.exhaustive
async def test_02_interrupt_of_a_streamed_run(talk: Callable[..., Talk]) -> None:
    this = talk(THINKING)
    run = await this.streamed()

    await this.thread.interrupt("too slow")

    assert (await this.cancelled(run, "too slow")).stop_report is not None


async def test_03_interrupt_without_a_reason(talk: Callable[..., Talk]) -> None:
    this = talk(THINKING)
    run = await this.awaited()

    await this.thread.interrupt()

    assert str(await this.interrupted(run, "")) == f"run {this.thread.id} was cancelled"


async def test_04_interrupt_of_a_thread_that_has_had_no_run(talk: Callable[..., Talk]) -> None:
    this = talk(say("here I am"))

    assert (await this.thread.interrupt("nothing there")).outcome == "not_found"

    await this.goes_on(saw=NEXT)


async def test_05_interrupt_of_a_run_that_was_only_just_asked_for(talk: Callable[..., Talk]) -> None:
    this = talk(say("here I am"))
    run = asyncio.create_task(this.thread.run(FIRST))

    report = await this.thread.interrupt("on second thoughts")

    assert report.outcome == "stopped"
    assert not marked(this.mark)
    await this.interrupted(run, "on second thoughts")
    await this.goes_on(saw=NEXT)


@pytest.mark.exhaustive
async def test_06_interrupt_while_the_agent_starts(talk: Callable[..., Talk]) -> None:
    # Whether the model is asked before the stop depends on the moment.
    this = talk(lambda request: say("here I am") if request.saw(NEXT) else THINKING)
    run = asyncio.create_task(this.thread.run(FIRST))
    await until(lambda: bool(marked(this.mark)), 30)

    await this.thread.interrupt("too soon")

    await this.interrupted(run, "too soon")
    await this.goes_on(saw=NEXT)


async def test_07_interrupt_in_a_tool_ends_what_the_tool_has_started(talk: Callable[..., Talk]) -> None:
    this = talk(IN_TOOL, say("here I am"))
    run = asyncio.create_task(this.thread.run(FIRST))
    await until(lambda: any("time.sleep(60)" in line for line in marked(this.mark).values()), 30)

    report = await this.thread.interrupt("enough")

    assert report.processes >= 2
    await this.interrupted(run, "enough")
    await this.goes_on()


async def test_08_the_next_run_goes_on_with_the_session(talk: Callable[..., Talk]) -> None:
    this = talk(say("first"), THINKING, say("here I am"))
    first = await this.thread.run("remember the milk")
    run = await this.awaited()
    await this.thread.interrupt("wait")
    await this.interrupted(run, "wait")

    assert (await this.goes_on(saw="remember the milk")).session_id == first.session_id


@pytest.mark.exhaustive
async def test_09_interrupt_after_the_end(talk: Callable[..., Talk]) -> None:
    this = talk(say("first"), say("here I am"))
    result = await this.thread.run(FIRST)

    assert (await this.thread.interrupt("too late")).outcome == "already_finished"

    assert result.text == "first"
    assert (await this.steersman.state(this.thread.id)).closed_as == "succeeded"
    await this.goes_on()


@pytest.mark.exhaustive
async def test_10_interrupt_twice_at_once(talk: Callable[..., Talk]) -> None:
    this = talk(THINKING, say("here I am"))
    run = await this.streamed()

    reports = await asyncio.gather(this.thread.interrupt("first"), this.thread.interrupt("first"))

    assert "stopped" in [each.outcome for each in reports]
    await this.cancelled(run, "first")
    await this.goes_on()


async def test_11_interrupt_twice_in_a_row_has_the_first_reason(talk: Callable[..., Talk]) -> None:
    this = talk(THINKING)
    run = await this.awaited()

    first = await this.thread.interrupt("first")
    second = await this.thread.interrupt("second")

    assert (first.outcome, second.outcome) == ("stopped", "already_finished")
    await this.interrupted(run, "first")


async def test_12_by_another_client_that_has_the_id(shared: Site, talk: Callable[..., Talk]) -> None:
    this = talk(THINKING, say("here I am"))
    run = await this.streamed()
    other = await (await shared.steersman()).resume_thread(this.thread.id)

    assert (await other.interrupt("from afar")).outcome == "stopped"

    await this.cancelled(run, "from afar")
    await this.goes_on()


@pytest.mark.exhaustive
async def test_13_a_signal_stops_an_awaited_run(talk: Callable[..., Talk]) -> None:
    this = talk(THINKING, say("here I am"))
    signal = AbortSignal()
    run = await this.awaited(signal=signal)

    signal.abort("the user left")

    await this.interrupted(run, "the user left")
    await this.goes_on()


@pytest.mark.exhaustive
async def test_14_a_signal_stops_a_streamed_run(talk: Callable[..., Talk]) -> None:
    this = talk(THINKING)
    signal = AbortSignal()
    run = await this.streamed(signal=signal)

    signal.abort("the user left")

    await this.cancelled(run, "the user left")


async def test_15_a_plain_event_is_a_signal(talk: Callable[..., Talk]) -> None:
    this = talk(THINKING)
    signal = asyncio.Event()
    run = await this.awaited(signal=signal)

    signal.set()

    await this.interrupted(run, "")


async def test_16_a_signal_that_is_set_already_has_nothing_started(talk: Callable[..., Talk]) -> None:
    this = talk(say("here I am"))
    signal = AbortSignal()
    signal.abort("never mind")

    with pytest.raises(RunInterrupted, match="never mind") as raised:
        await this.thread.run(FIRST, signal=signal)
    events = [event async for event in this.thread.run_streamed(FIRST, signal=signal)]

    assert (raised.value.code, raised.value.reason) == ("interrupted", "never mind")
    assert [(event.type, event.reason) for event in events if isinstance(event, CancelledEvent)] == [
        ("cancelled", "never mind")
    ]
    assert in_order(events)
    assert (await this.steersman.stop(this.thread.id)).outcome == "not_found"
    assert not this.script.requests
    await this.goes_on(saw=NEXT)


@pytest.mark.exhaustive
async def test_17_a_signal_that_is_set_after_the_end_says_nothing(talk: Callable[..., Talk]) -> None:
    this = talk(say("first"), say("here I am"))
    signal = AbortSignal()
    assert (await this.thread.run(FIRST, signal=signal)).text == "first"

    signal.abort("too late")

    await this.goes_on()


async def test_18_a_second_run_is_refused_and_the_first_goes_on(shared: Site, talk: Callable[..., Talk]) -> None:
    this = talk(THINKING)
    run = await this.awaited()
    others = (this.thread, this.of(await shared.steersman(), this.thread.id))

    for thread in others:
        with pytest.raises(ThreadBusy, match=this.thread.id) as refused:
            await thread.run("me first")
        assert refused.value.run == this.thread.id
        assert refused.value.execution == (await this.steersman.state(this.thread.id)).execution

    await this.script.release()
    assert (await run).text == "thinking"
    await gone(this.mark)


@pytest.mark.exhaustive
async def test_19_a_second_run_interrupts_the_first_on_request(shared: Site, talk: Callable[..., Talk]) -> None:
    this = talk(THINKING, say("here I am"))
    run = await this.streamed()
    other = this.of(await shared.steersman(), this.thread.id)

    result = await other.run("me first", on_running="interrupt")

    assert result.text == "here I am"
    assert this.script.requests[-1].saw(FIRST)
    await this.cancelled(run, "the next run of the thread interrupted it")


async def test_20_the_cancelled_task_takes_its_run_along(talk: Callable[..., Talk]) -> None:
    this = talk(THINKING, THINKING, say("here I am"))
    for begin in (this.awaited, this.streamed):
        run = await begin()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        await this.stopped()

    await this.goes_on()


@pytest.mark.exhaustive
async def test_21_whoever_leaves_the_stream_stops_the_run(talk: Callable[..., Talk]) -> None:
    this = talk(THINKING, say("here I am"))
    async with aclosing(this.thread.run_streamed(FIRST)) as events:
        async for event in events:
            if event.type == "message":
                break

    await this.stopped()
    await this.goes_on()


@pytest.mark.exhaustive
async def test_22_other_threads_go_on(talk: Callable[..., Talk], shared: Site, model: ScriptedModel) -> None:
    this = talk(THINKING)
    other = Talk(shared, this.steersman, model.script("other", THINKING), f"{this.mark}-other")
    run, beside = await this.awaited(), await other.awaited()

    await this.thread.interrupt("only this one")

    assert other.thread.id != this.thread.id
    with pytest.raises(RunInterrupted, match="only this one"):
        await run
    assert not beside.done()
    await other.script.release()
    assert (await beside).text == "thinking"
    await gone(this.mark)
