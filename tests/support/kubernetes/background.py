"""A server in a thread of its own, for tests whose clients block or are other processes.

What the server does must not live here.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.support.kubernetes.containers import let_go
from tests.support.kubernetes.server import ApiServer
from tests.support.kubernetes.settings import Settings

T = TypeVar("T")


class BackgroundServer:
    """`server` belongs to the thread's event loop: what touches more than its settings goes through `call`."""

    def __init__(self, directory: Path, settings: Settings | None = None, *, tls: bool = False) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kubernetes", daemon=True)
        self._thread.start()
        self.server = self.call(lambda: ApiServer(directory, settings, tls=tls))
        self.wait(self.server.start())

    def call(self, function: Callable[[], T]) -> T:
        """What a function says in the server's thread."""

        async def run() -> T:
            return function()

        return self.wait(run())

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What a coroutine comes to in the server's thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def close(self) -> None:
        """Raises what the cluster did not foresee."""
        try:
            self.wait(self.server.aclose())
        finally:
            self.wait(let_go())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


@contextmanager
def background_server(
    directory: Path, settings: Settings | None = None, *, tls: bool = False
) -> Iterator[BackgroundServer]:
    """A server for as long as the context is."""
    running = BackgroundServer(directory, settings, tls=tls)
    try:
        yield running
    finally:
        running.close()
