"""What lost shims left of a run on this machine, and the stop report that follows from it.

A shim that was killed proves nothing any more. Shims that live and answer must not live here.
"""

import asyncio
import os
from pathlib import Path
from typing import Literal

from activities.shim import client as shim
from activities.store.run_directory import RunDirectory
from steersman.contracts.run import StopReport

_TRIES = 5
_PAUSE_S = 0.05


def was_used(attempt: Path) -> bool:
    """Whether a shim has begun its work in this directory."""
    return os.path.lexists(attempt / "journal")


def entombed(attempt: Path) -> bool:
    """Whether no shim can start there; False also where the directory is not as a shim leaves it."""
    try:
        return shim.entomb(attempt)
    except OSError:
        return False


def lost(directory: RunDirectory, before: int) -> list[Path]:
    """Attempts before this one whose shim did not live to see its agent's end."""
    attempts = [directory.attempt(number) for number in range(1, before)]
    return [each for each in attempts if was_used(each) and not shim.is_alive(each) and not shim.has_ended(each)]


async def clear(attempt: Path) -> shim.Clearance:
    """Kill what the lost shim of this attempt left. Not proven where another process holds its lock."""
    for _ in range(_TRIES):
        try:
            return await shim.kill_marked(attempt)
        except shim.AlreadyRunning:
            await asyncio.sleep(_PAUSE_S)  # another stop is at it
    return shim.Clearance(0)


def report_of(cleared: shim.Clearance) -> StopReport:
    """The report of a stop that found no shim to ask."""
    nothing = StopReport(outcome="already_finished", phase="running", how="exited" if cleared.proven else None)
    return nothing if cleared.proven and not cleared.processes else with_leftovers(nothing, cleared)


def without_directory(cleared: shim.Clearance) -> StopReport:
    """The report of a stop without the run's directory: the marks told of processes, and others may have no mark."""
    how: Literal["killed"] | None = "killed" if cleared.processes else None
    return StopReport(
        outcome="unverified", phase="running", how=how, processes=cleared.processes, left=cleared.left[:100]
    )


def with_leftovers(report: StopReport, cleared: shim.Clearance) -> StopReport:
    """The report of a stop, and of what was cleared away after a shim that was lost before."""
    outcome = report.outcome
    if not cleared.proven:
        outcome = "unverified"
    elif cleared.processes and outcome == "already_finished":
        outcome = "stopped"
    killed = {"how": "killed", "processes": report.processes + cleared.processes} if cleared.processes else {}
    left = (*report.left, *cleared.left, *cleared.suspects)[:100]
    return report.model_copy(update={**killed, "outcome": outcome, "left": left})
