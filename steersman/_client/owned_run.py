"""A run that belongs to whoever awaits it: it is stopped when they are cancelled or leave, or when a signal says so.

Who only looks on (attach, result) owns nothing: those leave the run alone.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from steersman._client.backoff import OUTAGE_S, while_unreachable
from steersman._client.futures import retrieve_exception
from steersman._client.run_calls import RunCalls
from steersman._client.run_end import request_stop, stop_run
from steersman.abort import AbortSignal, Signal, reason_of
from steersman.contracts.run import MAX_REASON, StopReport
from steersman.errors import RunInterrupted, RunNotFound
from steersman.reports import StopResult

T = TypeVar("T")

LEAVE_S: Final = 10.0
"""Whoever is cancelled while they await a run is kept for the stop for at most this many seconds; it goes on beside."""
LEFT: Final = "whoever awaited it was cancelled, or left"
_stops: Final[set[asyncio.Task[Any]]] = set()
"""Stops that go on beside: the event loop alone would not keep them."""


class OwnedRun:
    """One run, from the wish for it to its end, as an asynchronous context: whoever leaves it early stops the run."""

    def __init__(self, calls: RunCalls, run_id: str, signal: Signal | None = None) -> None:
        """`signal`: stops the run, or keeps it from being started."""
        self._calls, self._run = calls, run_id
        self._signal = signal
        self._unwanted = AbortSignal()
        self._watches: list[asyncio.Task[None]] = []
        self._begun: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self.execution: str | None = None
        """Temporal's run id, once it was started."""
        self.has_ended = False
        """Set by whoever has seen its end."""
        if signal is not None and signal.is_set():
            self.abort(reason_of(signal))

    async def __aenter__(self) -> Self:
        if self._signal is not None:
            self._watches.append(asyncio.create_task(self._heed(self._signal)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for watch in self._watches:
            watch.cancel()
        self._settle(self.execution)
        is_left = isinstance(error, asyncio.CancelledError | GeneratorExit)
        if is_left and self.execution and not self.has_ended:
            await _carry_on(self._stop_left(self.execution))

    def abort(self, reason: str) -> None:
        """Have it not started, or else stopped. Said twice, the first reason stays."""
        self._unwanted.abort(reason[:MAX_REASON])

    async def stopped(self, reason: str) -> StopResult:
        """What became of a run that is aborted, once that is clear. Raises as `stop_run`."""
        self.abort(reason)
        execution = await asyncio.shield(self._begun)
        if execution is None:
            return StopResult.of(self._run, self._never_started())
        return await stop_run(self._calls, self._run, execution, reason=reason, hurries=False)

    async def unless_aborted(self, preparing: Coroutine[Any, Any, T]) -> T:
        """What comes before the start; given up as soon as the run is unwanted.

        Raises RunInterrupted then.
        """
        work = asyncio.create_task(preparing)
        unwanted = asyncio.create_task(self._unwanted.wait())
        try:
            if not self._unwanted.is_set():
                await asyncio.wait({work, unwanted}, return_when=asyncio.FIRST_COMPLETED)
            if self._unwanted.is_set():
                self._settle(None)
                raise RunInterrupted(f"run {self._run}", self._unwanted.reason, self._never_started())
            return work.result()
        finally:
            unwanted.cancel()
            work.cancel()
            await asyncio.wait({work})
            _forget(work)

    async def start(self, start: Coroutine[Any, Any, str]) -> str:
        """Start the run by `start`, which returns the execution: to the end, also where the caller is cancelled."""
        starting = asyncio.create_task(self._start(start))
        _keep(starting)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # What is under way may have reached the server.
            await _carry_on(self._stop_started(starting))
            self.has_ended = True
            raise

    async def _start(self, start: Coroutine[Any, Any, str]) -> str:
        execution = self.execution = await start
        if not self._begun.done():  # else nobody awaits the run any more
            self._settle(execution)
            self._watches.append(asyncio.create_task(self._stop_when_unwanted(execution)))
        return execution

    def _settle(self, execution: str | None) -> None:
        """Whether the run has been started is clear."""
        if not self._begun.done():
            self._begun.set_result(execution)

    async def _stop_started(self, starting: asyncio.Future[str]) -> None:
        await self._stop_left(await starting)

    async def _stop_left(self, execution: str) -> None:
        """Nobody would ask again: a server that is away for a while is waited for."""
        stop = partial(stop_run, self._calls, self._run, execution, reason=LEFT, hurries=False)
        await while_unreachable(stop, OUTAGE_S)

    async def _heed(self, signal: Signal) -> None:
        await signal.wait()
        self.abort(reason_of(signal))

    async def _stop_when_unwanted(self, execution: str) -> None:
        """Cancel the run once it is unwanted. Whoever awaits it hears of the end by itself."""
        await self._unwanted.wait()
        reason = self._unwanted.reason
        with suppress(RunNotFound):
            await while_unreachable(partial(request_stop, self._calls, self._run, execution, reason, hurries=False))

    def _never_started(self) -> StopReport:
        return StopReport(outcome="stopped", phase="queued", how="exited", reason=self._unwanted.reason or None)


async def _carry_on(work: Coroutine[Any, Any, object]) -> None:
    """Wait for the work for at most LEAVE_S, or until the caller is cancelled again; it goes on beside."""
    task = asyncio.create_task(work)
    _keep(task)
    await asyncio.wait({task}, timeout=LEAVE_S)


def _keep(task: asyncio.Task[Any]) -> None:
    _stops.add(task)
    task.add_done_callback(_forget)


def _forget(task: asyncio.Task[Any]) -> None:
    _stops.discard(task)
    retrieve_exception(task)  # whoever it would have been told has left
