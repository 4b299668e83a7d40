"""The stop of one attempt's process, with or without an answer of its shim; afterwards none can start there.

Which attempts a run has must not live here.
"""

import asyncio
import logging
import time
from contextlib import suppress
from datetime import timedelta

from activities.ports.runtime import StopTimes
from activities.runtimes.leftovers import report_of
from activities.runtimes.shim_handle import ShimHandle
from activities.shim import client as shim
from steersman.contracts.run import StopReport

log = logging.getLogger("steersman.runtime")

QUICK = timedelta(seconds=1)
PATIENT = timedelta(seconds=3)
"""A shim that does not answer within QUICK is woken; if it then does not within PATIENT, a stop does without it."""
_DISK_S = 30.0
"""A shim that waits for its disk is waited for this many seconds longer than the stop's own times."""
_ROUNDS = 20
_PAUSE_S = 0.05


async def stop_attempt(
    attempt: ShimHandle, times: StopTimes, reason: str, *, began: bool = False
) -> tuple[StopReport | None, bool]:
    """Stop what lives or was left there. Raises MachineUnreachable.

    Args:
        attempt: the process.
        times: when the stop becomes rougher.
        reason: what the shim is told.
        began: a process began there, so a look whether one lives is saved.

    Returns:
        The report, None where there was nothing; and whether nothing can start there any more.
    """
    for number in range(_ROUNDS):
        if (number or not began) and not await attempt.is_alive() and await attempt.entomb():
            return await _left(attempt), True
        report = await _stop_living(attempt, times, reason)
        if report is not None:
            return report, True
        # Another stop was at the lock, or a shim did not come to life, or the directory cannot be made: look again.
        await asyncio.sleep(_PAUSE_S)
    return await _left(attempt), False


async def stop_through(connection: shim.Connection, times: StopTimes, reason: str) -> StopReport:
    """Let this shim stop its agent."""
    return _report(await _stop(connection, times, reason))


async def _recorded(connection: shim.Connection, report: StopReport) -> StopReport:
    """The report of a stop; unverified where its shim could not write down the agent's end."""
    with suppress(shim.ShimGone):  # it leaves once it has written all
        for _ in range(40):
            status = await connection.status()
            if status.unwritten:
                return unsealed(report)
            if status.exit is not None:
                break
            await asyncio.sleep(0.05)  # its last record is being written
    return report


def unsealed(report: StopReport | None) -> StopReport:
    """The report of a stop that could not keep a further process from being started."""
    found = report or StopReport(outcome="unverified", phase="running")
    return found.model_copy(update={"outcome": "unverified"})


async def _left(attempt: ShimHandle) -> StopReport | None:
    state = await attempt.state()
    if state.used:
        return report_of(await attempt.clear())
    return report_of(await attempt.kill()) if state.stray else None


async def _stop_living(attempt: ShimHandle, times: StopTimes, reason: str) -> StopReport | None:
    patience, until = QUICK, time.monotonic() + times.kill_after_s + _DISK_S
    while True:
        try:
            async with await attempt.connect(None, patience) as connection:
                report = await _stop(connection, times, reason)
                if report.outcome == "already_finished":
                    # Perhaps another hand was quicker, for the same cancel: then its report is the answer.
                    report = await _report_of_end(connection) or report
                return await _recorded(connection, _report(report))
        except shim.ShimGone:
            return report_of(await attempt.clear()) if (await attempt.state()).used else None
        except shim.NotAdmitted as error:
            # We descend from an agent ourselves: what shims refuse to such is not to be had by force.
            log.warning(
                "a shim does not admit this worker", extra={"action": "not_admitted", "facts": {"error": str(error)}}
            )
            return StopReport(outcome="unverified", phase="running")
        except shim.ShimUnresponsive:
            waits_for_disk = await attempt.thaw()  # its agent may have frozen it, or stands in its place
            if patience == PATIENT and (time.monotonic() > until or not waits_for_disk):
                return report_of(await attempt.kill())
            patience = PATIENT


async def _stop(connection: shim.Connection, times: StopTimes, reason: str) -> shim.StopReport:
    return await connection.stop(
        terminate_after=timedelta(seconds=times.terminate_after_s),
        kill_after=timedelta(seconds=times.kill_after_s),
        reason=reason,
    )


async def _report_of_end(connection: shim.Connection) -> shim.StopReport | None:
    """What the stop took that ended the agent; None where it ended by itself."""
    for _ in range(40):
        ended = (await connection.status()).exit
        if ended is not None:
            return ended.stop if ended.reason == "stopped" else None
        await asyncio.sleep(0.05)  # its last record is being written
    return None


def _report(report: shim.StopReport) -> StopReport:
    return StopReport(
        outcome=report.outcome,
        phase="running",
        how=report.how,
        processes=report.processes,
        took_ms=report.took_ms,
        left=report.left,
    )
