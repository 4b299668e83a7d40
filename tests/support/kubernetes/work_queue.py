"""Keys that a controller has to look at: each once, however often it is added before its turn.

What a controller does with one must not live here.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")


class WorkQueue(Generic[K]):
    """`work` looks at one key; what it returns are seconds after which the key has its turn again."""

    def __init__(self, work: Callable[[K], float | None]) -> None:
        self._work = work
        self._keys: dict[K, None] = {}
        self._filled = asyncio.Event()
        self._later: set[asyncio.TimerHandle] = set()

    def add(self, key: K) -> None:
        self._keys[key] = None
        self._filled.set()

    def add_later(self, key: K, seconds: float) -> None:
        handle = asyncio.get_running_loop().call_later(seconds, self.add, key)
        self._later = {each for each in self._later if not each.cancelled() and each.when() > handle.when() - seconds}
        self._later.add(handle)

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                await self._filled.wait()
                self._filled.clear()
                while self._keys:
                    key = next(iter(self._keys))
                    del self._keys[key]
                    again = self._work(key)
                    if again is not None:
                        self.add_later(key, again)
                await asyncio.sleep(0)
        finally:
            for each in self._later:
                each.cancel()
