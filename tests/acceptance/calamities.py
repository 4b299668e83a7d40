"""What may befall runs in the middle of their work, all runs of a test at the same moment."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from steersman.client import Steersman
from tests.acceptance.site import Site, leader
from tests.support.processes import stopped, until
from tests.support.temporal import connect


class Calamity(ABC):
    """Strikes once all runs are ready for it, and is mended once all have seen what they wanted of it.

    Mended means: whoever is to lead the runs leads them.
    """

    server_there = True

    def __init__(self, site: Site, steersman: Steersman, runs: int) -> None:
        self.site, self.steersman = site, steersman
        self._meeting = asyncio.Barrier(runs)

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[None]:
        """The block is run in the middle of it."""
        first = await self._meeting.wait() == 0
        if first:
            await self.strike()
        await self._meeting.wait()
        yield
        await self._meeting.wait()
        if first:
            await self.mend()
        await self._meeting.wait()

    @abstractmethod
    async def strike(self) -> None: ...

    async def mend(self) -> None:
        """Another worker starts and takes every run over."""
        before = self.site.workers[-1].pid
        await self.site.worker().ready()
        for run in await self.steersman.list('ExecutionStatus="Running"'):
            await until(partial(self._left, run.id, before), 40)

    async def _left(self, run: str, gone: int) -> bool:
        return await leader(self.steersman, run) not in (None, gone)


class WorkerKilled(Calamity):
    async def strike(self) -> None:
        self.site.workers[-1].kill()


class WorkerDeployed(Calamity):
    async def strike(self) -> None:
        assert await self.site.workers[-1].terminate() == 0


class WorkerFrozen(Calamity):
    """For longer than heartbeats may take; it thaws when another has its runs, and believes that it has them still."""

    async def strike(self) -> None:
        self.frozen = self.site.workers[-1]
        self.frozen.freeze()
        await until(lambda: stopped(self.frozen.pid))

    async def mend(self) -> None:
        await super().mend()
        self.frozen.thaw()


class ServerKilled(Calamity):
    """Temporal itself dies and comes back with the same database."""

    server_there = False

    async def strike(self) -> None:
        self.site.server.kill()

    async def mend(self) -> None:
        await asyncio.to_thread(self.site.server.start)
        await connect(self.site.server.address)
