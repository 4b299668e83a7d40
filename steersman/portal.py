"""An event loop in a thread of its own, from which code without one has coroutines run to their end."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

R = TypeVar("R")

LEAVE_S = 15.0
"""Whoever is interrupted is kept for this long for what is to be stopped with them; the stop of a run takes 10 s."""


class PortalClosed(RuntimeError):
    """The portal is closed, or was closed while the work was under way."""

    def __init__(self) -> None:
        super().__init__("the client is closed")


class Portal:
    """Safe to use from many threads. `close`, or the end of the program, ends it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._awaited: set[Future[Any]] = set()
        """What threads are waiting for."""
        self._is_closing = False
        """Written and read in the loop's thread: what comes to it from then on is refused."""
        self._closer = threading.Lock()
        self._closing: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="steersman", daemon=True)
        self._thread.start()
        self._process = os.getpid()

    def call(self, work: Coroutine[Any, Any, R]) -> R:
        """Run the coroutine to its end; its result, or its exception. Ctrl-C cancels it, waits for it, and is raised.

        Raises PortalClosed where the portal is closed, or is closed meanwhile; RuntimeError where it is called from a
        coroutine that it runs, or was made before a fork, which takes no thread along.
        """
        if self._process != os.getpid():
            work.close()
            raise RuntimeError("the client was made in another process: connect in this one")
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("this would wait for itself")
        done: Future[R] = Future()
        tasks: list[asyncio.Task[R]] = []
        # Before it is handed over: `close` looks there once the loop takes nothing any more.
        self._awaited.add(done)
        try:
            self._hand_over(work, done, tasks)
            return done.result()
        except CancelledError:
            work.close()  # it may never have begun
            raise PortalClosed from None
        except KeyboardInterrupt:
            with suppress(BaseException):
                self._loop.call_soon_threadsafe(lambda: [each.cancel() for each in tasks])
                done.result(LEAVE_S)
            raise
        finally:
            self._awaited.discard(done)

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
            else:
                with suppress(PortalClosed):  # then it was closed with all that the portal ran
                    self.call(items.aclose())

    def close(self) -> None:
        """End the thread. What it runs is cancelled, and whoever waits for that gets PortalClosed."""
        if self._process != os.getpid():
            return
        with self._closer:
            if self._loop.is_closed():
                return
            self.call(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            for each in list(self._awaited):
                each.cancel()

    def _hand_over(self, work: Coroutine[Any, Any, R], done: "Future[R]", tasks: list[asyncio.Task[R]]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._begin, work, done, tasks)
        except RuntimeError:  # the loop is closed
            work.close()
            raise PortalClosed from None

    def _begin(self, work: Coroutine[Any, Any, R], done: "Future[R]", tasks: list[asyncio.Task[R]]) -> None:
        if self._is_closing:
            work.close()
            done.cancel()
            return
        task = self._loop.create_task(work)
        tasks.append(task)
        task.add_done_callback(lambda ended: _pass_on(ended, done))

    async def _end(self) -> None:
        self._is_closing = True
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_asyncgens()


def _pass_on(ended: asyncio.Task[R], done: "Future[R]") -> None:
    if ended.cancelled():
        done.cancel()
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
