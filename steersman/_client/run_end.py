"""A run's end, awaited or brought about. `execution` is Temporal's run id of it; by default the newest of that id.

What a workflow's end means is in workflow_outcome.
"""

from contextlib import suppress

from steersman._client.run_calls import RunCalls
from steersman.contracts import names
from steersman.contracts.run import RunResult
from steersman.errors import RunCancelled, RunNotFound, RunNotRunning, RunTerminated
from steersman.reports import StopResult


async def run_result(calls: RunCalls, run_id: str, execution: str | None = None) -> RunResult:
    """Wait for the run's result. Raises what `Steersman.result` documents."""
    outcome = await calls.outcome(run_id, execution)
    if isinstance(outcome, RunResult):
        return outcome
    if isinstance(outcome, RunTerminated):
        outcome.stop_report = await calls.host_stop_report(run_id, outcome, execution)
    raise outcome


async def request_stop(calls: RunCalls, run_id: str, execution: str, reason: str, *, hurries: bool) -> None:
    """Cancel the run; one that was cancelled before is hurried, if so wanted. Raises RunNotFound, ServerUnreachable."""
    with suppress(RunNotRunning):  # it has ended by itself
        if not await calls.is_cancel_requested(run_id, execution):
            await calls.cancel(run_id, execution, reason)
        elif hurries:
            await calls.signal(run_id, execution, names.HURRY)


async def stop_run(
    calls: RunCalls, run_id: str, execution: str | None = None, *, reason: str = "", hurries: bool = True
) -> StopResult:
    """Cancel the run, wait until it has closed, and return what the stop found. See `Steersman.stop`."""
    try:
        execution = await calls.open_execution(run_id, execution)
    except RunNotFound:
        return StopResult(run=run_id, outcome="not_found")
    if execution is None:
        return StopResult(run=run_id, outcome="already_finished", phase="closed")
    await request_stop(calls, run_id, execution, reason, hurries=hurries)
    outcome = await calls.while_worker_lives(run_id, calls.outcome(run_id, execution))
    if isinstance(outcome, RunTerminated):
        report = await calls.host_stop_report(run_id, outcome, execution)
    elif isinstance(outcome, RunCancelled):
        report = outcome.stop_report
    else:
        report = await calls.stop_report(run_id, execution)
    if report is not None:
        return StopResult.of(run_id, report)
    lost = isinstance(outcome, RunCancelled)
    return StopResult(run=run_id, outcome="unverified" if lost else "already_finished", phase="closed")
