"""What lost shims left of a run, and the stop report that follows from it.

A shim that was killed proves nothing any more. Shims that live and answer must not live here.
"""

from typing import Literal

from activities.shim import client as shim
from steersman.contracts.run import StopReport


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
