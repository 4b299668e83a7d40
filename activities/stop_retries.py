"""Stops that nobody could prove, tried again: an agent must not work on until the next sweep."""

import asyncio
from collections.abc import Iterator
from typing import Final

from activities.context import ActivityContext
from activities.host_sweep import AT_ONCE, logged, sweep_run
from activities.store.run_directory import RunDirectory
from activities.temporal.closed_runs import ClosedRuns
from steersman.contracts.activities import RunKey

FIRST_PAUSE_S: Final = 5.0
LAST_PAUSE_S: Final = 320.0
"""Each pause is twice the one before it, so that the last try comes some ten minutes after the run's end: then sweeps
go on.
"""


class StopRetries:
    """Sees to the runs of `ActivityContext.left`."""

    def __init__(self, context: ActivityContext, closed_runs: ClosedRuns) -> None:
        self._context, self._closed_runs = context, closed_runs
        self._tried: set[RunKey] = set()
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        """Try again until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                directory = await self._context.left.get()
                if directory.key not in self._tried:
                    self._tried.add(directory.key)
                    group.create_task(self._retry(directory))

    async def _retry(self, directory: RunDirectory) -> None:
        for pause_s in _pauses():
            await asyncio.sleep(pause_s)
            async with self._slots:
                await sweep_run(self._context, self._closed_runs, directory)
            with logged("sweep_failed", directory):
                if not await asyncio.to_thread(self._context.runtime.has_living, directory.key):
                    break
        self._tried.discard(directory.key)


def _pauses() -> Iterator[float]:
    pause_s = FIRST_PAUSE_S
    while pause_s <= LAST_PAUSE_S:
        yield pause_s
        pause_s *= 2
