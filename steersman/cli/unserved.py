"""What a person is told of a host that has no worker."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from steersman.cli.output import remark
from steersman.cli.targets import named_host

if TYPE_CHECKING:
    from steersman.client import Steersman
    from steersman.contracts.loop_state import LoopState
    from steersman.contracts.run import RunState
    from steersman.reports import StopResult

UNTAKEN_S = 4.0
"""A worker takes a run or a stop in milliseconds: after so many seconds it is looked whether one has."""


async def tell_of_unserved(steersman: "Steersman", host: str | None, consequence: str) -> None:
    """Say that no worker of the host polls, and what comes of it; nothing where one does, or there is no host yet.

    Raises ServerUnreachable, ServerRefused.
    """
    if told := await _unserved(steersman, host, consequence):
        remark(told, style="yellow")


async def tell_of_unserved_loop(steersman: "Steersman", loop: str, state: "LoopState | None" = None) -> None:
    """The same of an open loop's host, which has it, or which its request names. `state`: the loop's, where it is
    known. Nothing where the loop, or the server, cannot be asked.
    """
    from steersman._client.loop_calls import LoopCalls
    from steersman.contracts.loop_state import CLOSED
    from steersman.errors import SteersmanError

    why = "the loop waits for one, with what it is told; an agent at work is stopped when its lease is over. "
    with suppress(SteersmanError):
        state = state or await steersman.loops.state(loop)
        if state.status in CLOSED:
            return
        if state.host is None:
            request = await LoopCalls(steersman.temporal).request(loop)
            await tell_of_unserved_start(steersman, request.get("run"), "loop", f"steer loop stop {loop}")
        else:
            await tell_of_unserved(steersman, state.host, f"{why}`steer loop stop {loop}` ends the loop")


async def tell_of_unserved_start(steersman: "Steersman", run: Any, what: str, stop: str) -> None:
    """The same of the host that the request of a run names, by whose worker alone it is taken. `what` was started;
    `stop`: the command that takes it back. Nothing where the server cannot be asked.
    """
    from steersman.errors import SteersmanError

    host = named_host(run)
    with suppress(SteersmanError):
        await tell_of_unserved(steersman, host, _untaken_start(what, stop))


async def tell_of_unserved_run(steersman: "Steersman", run: str, state: "RunState") -> None:
    """The same of an open run's host, which leads it, or which its request names. Nothing where nobody can be asked."""
    if told := await unserved_run(steersman, run, state):
        remark(told, style="yellow")


async def unserved_run(steersman: "Steersman", run: str, state: "RunState") -> str | None:
    """What `tell_of_unserved_run` says."""
    from steersman._client.run_calls import RunCalls
    from steersman.errors import SteersmanError

    if state.closed_as is not None:
        return None
    host, consequence = state.host, "the run waits for one; an agent at work is stopped when its lease is over"
    with suppress(SteersmanError):
        if host is None:
            host = named_host(await RunCalls(steersman.temporal).request(run))
            consequence = _untaken_start("run", f"steer stop {run}")
        return await _unserved(steersman, host, consequence)
    return None


async def _unserved(steersman: "Steersman", host: str | None, consequence: str) -> str | None:
    from steersman._client.host_workers import is_served

    if not host or await is_served(steersman.temporal, host):
        return None
    return f"no worker of host {host} answers: {consequence}"


def _untaken_start(what: str, stop: str) -> str:
    return f"the {what} waits for one, and fails after 10 minutes. Take it back: {stop}"


@asynccontextmanager
async def untaken_stop_told(steersman: "Steersman", id: str, *, is_loop: bool = False) -> AsyncIterator[None]:
    """Meanwhile a person is told where the stop of the run, or of the loop's run, waits for a worker of its host; at
    Ctrl-C, and without any worker, what becomes of it.
    """
    import asyncio

    from steersman.errors import NoWorker

    telling = asyncio.create_task(_tell_of_untaken(steersman, id, is_loop=is_loop))
    try:
        yield
    except asyncio.CancelledError:
        remark("the stop that was asked for goes on; asked for again, it is hurried")
        raise
    except NoWorker:
        remark("the stop is recorded, and carried out once a worker is there", style="yellow")
        raise
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


async def stopped_loop(steersman: "Steersman", loop: str, reason: str) -> "StopResult":
    """The answer of a loop's stop. A person is told where it waits for a worker of the loop's host."""
    async with untaken_stop_told(steersman, loop, is_loop=True):
        return await steersman.loops.stop(loop, reason=reason)


async def _tell_of_untaken(steersman: "Steersman", id: str, *, is_loop: bool) -> None:
    import asyncio

    from steersman.errors import SteersmanError

    told = None
    while told is None:
        await asyncio.sleep(UNTAKEN_S)
        with suppress(SteersmanError):
            told = await (_untaken_of_loop(steersman, id) if is_loop else _untaken(steersman, id, "the run", 1))
    remark(told, style="yellow")


async def _untaken_of_loop(steersman: "Steersman", loop: str) -> str | None:
    from steersman._client.host_workers import is_served

    state = await steersman.loops.state(loop)
    if state.run:
        return await _untaken(steersman, state.run, "the loop", 4)
    if state.host is None or await is_served(steersman.temporal, state.host):
        return None
    return f"no worker of host {state.host} answers: the loop waits a minute for one, to make its last checkpoint"


async def _untaken(steersman: "Steersman", run: str, what: str, minutes: int) -> str | None:
    """What is said of the stop of a run where it waits for a worker; so many minutes after it `what` has closed."""
    from steersman._client.host_workers import untaken_stop

    if (until := await untaken_stop(steersman.temporal, run)) is None:
        return None
    host = (await steersman.state(run)).host
    return (
        f"no worker of host {host} takes the stop: it waits for one until {until.astimezone():%H:%M:%S}, "
        f"when the agent's lease is over; {what} closes some {minutes} min later"
    )
