"""An event loop in a thread of its own, from which code without one has coroutines run to their end."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

R = TypeVar("R")

LEAVE_S = 15.0
"""Whoever is interrupted is kept for this long for what is to be stopped with them; the stop of a run takes 10 s."""


class Portal:
    """Safe to use from many threads. `close`, or the end of the program, ends it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._closing: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="steersman", daemon=True)
        self._thread.start()
        self._process = os.getpid()

    def call(self, work: Coroutine[Any, Any, R]) -> R:
        """Run the coroutine to its end; its result, or its exception. Ctrl-C cancels it, waits for it, and is raised.

        Raises RuntimeError where the portal is closed, is called from a coroutine that it runs, or was made before a
        fork, which takes no thread along.
        """
        if self._process != os.getpid():
            work.close()
            raise RuntimeError("the client was made in another process: connect in this one")
        if self._loop.is_closed() or threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("the client is closed" if self._loop.is_closed() else "this would wait for itself")
        done: Future[R] = Future()
        tasks: list[asyncio.Task[R]] = []
        self._loop.call_soon_threadsafe(self._begin, work, done, tasks)
        try:
            return done.result()
        except KeyboardInterrupt:
            self._loop.call_soon_threadsafe(lambda: [each.cancel() for each in tasks])
            with suppress(BaseException):
                done.result(LEAVE_S)
            raise

    def iterate(self, items: AsyncGenerator[R, None]) -> Generator[R, None, None]:
        """The items, one by one. Whoever leaves before their end closes the generator: at once by `contextlib.closing`,
        otherwise when Python finds that nobody has it any more.
        """
        try:
            while True:
                found = self.call(_next(items))
                if found is None:
                    return
                yield found[0]
        finally:
            if threading.current_thread() is self._thread:
                # Found abandoned by a garbage collection that happened to run here.
                self._closing.add(closing := self._loop.create_task(_close(items)))
                closing.add_done_callback(self._closing.discard)
            elif not self._loop.is_closed():
                self.call(items.aclose())

    def close(self) -> None:
        """End the thread. What it runs is cancelled."""
        if self._loop.is_closed() or self._process != os.getpid():
            return
        self.call(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _begin(self, work: Coroutine[Any, Any, R], done: "Future[R]", tasks: list[asyncio.Task[R]]) -> None:
        task = self._loop.create_task(work)
        tasks.append(task)
        task.add_done_callback(lambda ended: _pass_on(ended, done))


def _pass_on(ended: asyncio.Task[R], done: "Future[R]") -> None:
    if ended.cancelled():
        done.cancel()
        done.set_running_or_notify_cancel()
    elif error := ended.exception():
        done.set_exception(error)
    else:
        done.set_result(ended.result())


async def _close(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()


async def _next(items: AsyncGenerator[R, None]) -> tuple[R] | None:
    # A coroutine cannot raise StopAsyncIteration.
    async for item in items:
        return (item,)
    return None


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for each in others:
        each.cancel()
    await asyncio.gather(*others, return_exceptions=True)
