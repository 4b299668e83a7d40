"""Deploys that go on and on: one worker follows another every second or two, whatever it is at."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tests.support.workers import OTHER_PYTHON, WorkerProcess

WAYS = ("rolling", "beside", "late", "killed")
PAUSE_S = 0.5 if OTHER_PYTHON in os.environ else 2.5  # none is forked there, and each takes two seconds more to begin


class Deploys:
    """How a worker follows another one. "rolling": once it polls the other one is told to end; "beside": it begins as
    the other one is told to; "late": once the other one has ended; "killed": so, and the other one was not told.
    """

    def __init__(self, start: Callable[[], WorkerProcess], way: str) -> None:
        """`start`: begins a further worker."""
        self._start = start
        self._way, self._chance = way, random.Random(way)
        self._worker = self._start()
        self.count = 0

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        await self._worker.ready()
        deploying = asyncio.create_task(self._deploy())
        try:
            yield
        finally:
            deploying.cancel()
            await asyncio.wait({deploying})
        if not deploying.cancelled():
            deploying.result()

    async def _deploy(self) -> None:
        while True:
            await asyncio.sleep(self._chance.uniform(0, PAUSE_S))
            before = self._worker
            if self._way == "rolling":
                after = self._start()
                await after.ready()
                assert await before.terminate() == 0
            elif self._way == "beside":
                ending = asyncio.create_task(before.terminate())
                after = self._start()
                assert await ending == 0
            else:
                if self._way == "killed":
                    before.kill()
                else:
                    assert await before.terminate() == 0
                await asyncio.sleep(self._chance.uniform(0, 1.5))
                after = self._start()
            await after.ready()
            self._worker = after
            self.count += 1
