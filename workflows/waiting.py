"""Waits that never lose a cancel, or put it off until the work that must not be left half done is done.

A plain `await` of a signal to a child, or of a condition with a timeout, loses a cancel that arrives in the same
workflow task as what is awaited. (An activity does not lose it; the SDK takes care of that.)
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow

T = TypeVar("T")

MIN_TIMER = timedelta(milliseconds=1)
"""A wait of no time at all starts no timer, and a replay must see the same timers."""
SIGNALS_FIRST = "signals-first"
"""The patch of loops that handle signals before updates, and go by timers: see `all_dispatched`. Asked for first in
`AgentLoop.__init__`.
"""
NO_EMPTY_TASKS = "no-empty-tasks-at-all"
"""The patch of runs and loops in whose histories a workflow task that an event has brought has a command: see `runner`,
for which alone `__init__` asks for it.
"""
NO_TWO_EMPTY_TASKS = "no-empty-tasks"
"""That of earlier ones, of which each second such task in a row has one."""
TIMER_SUMMARIES = "timer-summaries"
"""The patch of runs and loops whose timers all say what they are for: such a timer begins one step later."""


async def all_dispatched() -> None:
    """Wait until all signals and updates of this workflow task have been handed to their handlers.

    A reset offers the earlier updates again, between the signals; when that history is replayed, the SDK may dispatch
    the signals first. That must not change the order of the workflow's commands, and an update's answer is a command.
    """
    await workflow.wait_condition(lambda: True)


async def cancellable(work: Awaitable[T]) -> T:
    """Return or raise what `work` does; on a cancel, cancel the work and do not wait for it."""
    task = asyncio.ensure_future(work)
    try:
        await workflow.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        ignore_exception(task)
        raise
    return task.result()


async def wait_condition(condition: Callable[[], bool], timeout: timedelta, summary: str) -> None:
    """`workflow.wait_condition` with a timeout, in the same steps on every Python. Raises TimeoutError.

    The SDK's is asyncio.wait_for, which Python 3.12 has written anew: it ends one step earlier, and its timer with it,
    fails two steps earlier, and loses no cancel. The commands of tasks that go on in the same workflow task came in
    another order there: a run that had begun under 3.11 did not replay under 3.12. This one does as 3.11's does.
    """
    if timeout <= timedelta():  # no timer: it is the same on all of them
        await workflow.wait_condition(condition, timeout=timeout)
        return
    waiting = workflow.wait_condition(condition, timeout_summary=summary)
    met: asyncio.Future[Any] = waiting.send(None)  # begins at once; the future that the SDK sets
    loop = asyncio.get_running_loop()
    released = loop.create_future()
    timer = loop.call_later(timeout.total_seconds(), _release, released)  # its summary is what `waiting` has said
    met.add_done_callback(lambda _: _release(released))
    try:
        await _released(released, met)
    except asyncio.CancelledError:
        waiting.close()
        raise
    finally:
        timer.cancel()
    # The SDK has the last word, as a cancel may have come along.
    if met.cancelled():
        waiting.throw(TimeoutError())
    with contextlib.suppress(StopIteration):
        waiting.send(None)


async def _released(released: "asyncio.Future[None]", met: "asyncio.Future[Any]") -> None:
    """Wait for either; `met` is done then. A cancel that comes together with it is lost."""
    try:
        await released
    except asyncio.CancelledError:
        if met.done():
            return
        met.cancel()
        await workflow.wait([met])
        raise
    if not met.done():
        met.cancel()
        await workflow.wait([met])


def _release(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def ignore_exception(task: "asyncio.Task[Any]") -> None:
    """Nobody may come to look at what the task raises: asyncio would log that as an error."""
    task.add_done_callback(lambda _: task.cancelled() or task.exception())


async def within(timeout: timedelta, condition: Callable[[], bool], summary: str) -> bool:
    """Wait for a condition, at most `timeout`; return whether it became true. `summary`: the timer's, in the Web UI."""
    at_most = max(timeout.total_seconds(), 0.0)
    task = asyncio.ensure_future(workflow.wait_condition(condition))
    if not workflow.patched(TIMER_SUMMARIES):
        try:
            await workflow.wait([task], timeout=at_most)
            return task.done()
        finally:
            task.cancel()
    timer = asyncio.ensure_future(workflow.sleep(at_most, summary=summary))
    try:
        await workflow.wait([task, timer], return_when=asyncio.FIRST_COMPLETED)
        return task.done()
    finally:
        task.cancel()
        timer.cancel()


async def shielded(work: Awaitable[T]) -> T:
    """Finish `work` even if a cancel arrives; return or raise what it does."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await workflow.wait([task])
        except asyncio.CancelledError:
            workflow.logger.info("a cancel came while the workflow was ending already")
    return task.result()
