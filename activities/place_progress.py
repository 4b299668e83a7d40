"""What a run waits for before it is led, told in its log: so whoever follows it sees why nothing happens yet."""

import asyncio
import logging
import time
from contextlib import suppress
from datetime import UTC, datetime

from activities.ports.runtime import Fenced
from activities.store.eventlog import EventLog
from activities.store.run_directory import RunDirectory
from steersman.contracts.events import ProgressEvent

log = logging.getLogger("steersman.hosting")


class PlaceProgress:
    """`tell` may be called by whoever waits; nothing waits for it. `epoch`: the activity's."""

    def __init__(self, directory: RunDirectory, epoch: int) -> None:
        self._directory, self._epoch = directory, epoch
        self._tasks: set[asyncio.Task[None]] = set()

    def tell(self, text: str) -> None:
        """Add a sentence to the log, unless another worker leads the run by now."""
        facts = {"run": self._directory.key.run, "waits": text}
        log.info("a run waits for its place", extra={"action": "place_waits", "facts": facts})
        task = asyncio.create_task(asyncio.to_thread(self._write, text))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Wait until all is written."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _write(self, text: str) -> None:
        with suppress(Fenced, OSError):
            events = EventLog.take_over(self._directory.events, self._epoch)
            try:
                # Before the first record of the first process; each later than the one before.
                events.append(0, time.time_ns() // 1_000_000, [ProgressEvent(time=datetime.now(UTC), text=text)])
            finally:
                events.close()
