"""What a run has done is kept elsewhere from time to time, while its agent works on a machine that can be lost.

Which attempt is at work, and how a backup is made, must not live here.
"""

import asyncio
import time

from activities.ports.backup import Backup
from activities.running import run_log
from activities.running.monitor import RunMonitor
from steersman import timeouts
from steersman.contracts.activities import RunKey

SHARE = 20
"""A backup takes at most one part of so many of the time."""
AFTER_MESSAGE_S = 2.0
"""One follows so many seconds after a message has reached the agent: it may be remembered nowhere else."""

LAST_S = 60.0
"""What is not there after so many seconds, once a machine is to go down, is given up."""


async def back_up(key: RunKey, backup: Backup, monitor: RunMonitor) -> None:
    """Until cancelled. Nothing is kept twice: an agent that waits, and of which nothing has come since, is left."""
    told: str | None = None
    before: tuple[int, int] | None = None
    took_s = 0.0
    while True:
        await _until_due(max(backup.interval_s, took_s * SHARE), took_s * SHARE, monitor)
        attempt = monitor.attempt
        if attempt is None or attempt.is_over:
            continue
        now = (attempt.number, attempt.fed)
        if now == before and not attempt.transcript.working:
            continue
        began = time.monotonic()
        problem = await _taken(backup)
        took_s = time.monotonic() - began
        if problem is None:
            before = now
        elif problem != told:
            run_log.not_backed_up(key, problem)
        told = problem


async def _taken(backup: Backup) -> str | None:
    """Why there is none; None where there is one. One that fails in a way that no code expects ends no others."""
    try:
        return await backup.take()
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"


async def back_up_last(key: RunKey, backup: Backup) -> None:
    """The agent was stopped because its machine is to go down: what it has done is there for a moment yet."""
    try:
        async with timeouts.timeout(LAST_S):
            problem = await _taken(backup)
    except TimeoutError:
        problem = f"it was not there within {LAST_S:.0f} s"
    if problem:
        run_log.not_backed_up(key, problem)


async def _until_due(interval_s: float, least_s: float, monitor: RunMonitor) -> None:
    began = time.monotonic()
    try:
        async with timeouts.timeout(interval_s):
            await monitor.message_heard.wait()
            monitor.message_heard.clear()
            await asyncio.sleep(max(AFTER_MESSAGE_S, least_s - (time.monotonic() - began)))
    except TimeoutError:
        return
