"""What becomes of a run that cannot be led: refused, failed with its agent stopped, or tried again later."""

import asyncio
import errno
import logging
from datetime import timedelta
from typing import Final

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.context import ActivityContext
from activities.ports.runtime import CLEANUP, Unreachable
from activities.running import run_log
from activities.running.controller import RunController
from activities.running.heartbeat import HeartbeatDetails
from activities.store import disk
from activities.store.identity import StoreGone
from activities.store.run_directory import RunGone
from steersman.contracts.activities import RunKey, RunOutcome
from steersman.contracts.errors import ActivityErrorType, AgentFailed, RunError

log = logging.getLogger("steersman.running")

RETRY_DELAY = timedelta(seconds=5)
"""The time between two attempts to lead a run whose state is out of reach."""
TRIES_TO_REACH = 3
"""A run whose machine could not be reached this many times, before it had a process that anybody knows of, fails."""
MAX_FAILURES = 3
"""A run fails when leading it has failed this many times for reasons that no code expects."""

LACKS: Final = {
    errno.EMFILE: (
        "this worker has no file descriptors left",
        "raise its limit (LimitNOFILE= of its unit, or ulimit -n) and restart it, or have fewer runs at once",
    ),
    errno.ENFILE: ("this machine has no file descriptors left", "raise fs.file-max, or end what has them open"),
    errno.ENOMEM: ("no memory is left", "free some, or raise the worker's limit (MemoryMax= of its unit)"),
    errno.EAGAIN: (
        "no more processes or threads can be started",
        "end some, or raise the limit (TasksMax= of the worker's unit, or ulimit -u)",
    ),
}
"""What lacks, by errno, and what a person can do about it."""


async def refuse(context: ActivityContext, key: RunKey, error: RunError) -> RunOutcome:
    """The run may not go on here. An agent of it that an earlier worker left at work is stopped with it.

    Raises ApplicationError, for another attempt, where what refuses it is a lack of descriptors and the like.
    """
    retry_if_exhausted(error)
    outcome = _failed(error)
    if context.runtime.attempts(key) == 0:
        return outcome
    facts = {"run": key.run, "execution": key.execution, "error": error.type, "why": error.message}
    message = "this worker may not go on with a run: its agent is stopped"
    log.warning(message, extra={"action": "run_refused", "facts": facts})
    stop = context.runtime.stop(key, CLEANUP, "refused")
    report = await run_log.logged_stop(context.store.directory(key), "refused", stop)
    message = f"{error.message}; its agent was stopped ({report.outcome})"
    return outcome.model_copy(update={"message": message, "stop_report": report, "unread": True})


async def end_or_retry(
    context: ActivityContext, key: RunKey, progress: HeartbeatDetails, error: Exception
) -> RunOutcome:
    """Leading a run failed in a way that is none of the agent's: the run's outcome, or raises for another attempt."""
    retry_if_exhausted(error)
    try:
        await asyncio.to_thread(context.store.check, progress.store)
        await asyncio.to_thread(context.store.directory(key).require, progress.attempt)
    except StoreGone as gone:
        raise retry_later(ActivityErrorType.STORE_GONE, str(gone)) from error
    except RunGone as gone:
        return await _fail_lost(context, key, progress, gone)
    except OSError as unseen:
        retry_if_exhausted(unseen)
        raise retry_later(ActivityErrorType.STATE_UNWRITABLE, f"state directory: {unseen}") from error
    if isinstance(error, StoreGone | RunGone):
        raise retry_later(ActivityErrorType.STORE_GONE, f"{error}; it is back by now") from error
    if isinstance(error, Unreachable):
        if progress.attempt == 0 and context.runtime.attempts(key) == 0 and activity.info().attempt >= TRIES_TO_REACH:
            return await _fail_unreached(context, key, error)
        raise retry_later(ActivityErrorType.UNREACHABLE, str(error)) from error
    if disk.is_unwritable(error):
        text = f"state directory: {error}; free some space, or make it writable"
        if progress.attempt == 0 and context.runtime.attempts(key) == 0:
            return _failed(AgentFailed(text))
        raise retry_later(ActivityErrorType.STATE_UNWRITABLE, f"{text}; until then nobody leads the agent") from error
    if await asyncio.to_thread(context.store.count_failure, key) < MAX_FAILURES:
        raise error
    # What fails again and again will not mend itself: end the run rather than try for ever.
    await context.runtime.stop(key, CLEANUP, "Steersman failed", known=progress.attempt)
    outcome = _failed(AgentFailed(f"the agent could not be led: {type(error).__name__}: {error}"[:2000]))
    return outcome.model_copy(update={"unread": True})


async def fail_seized(key: RunKey, controller: RunController, error: Exception) -> RunOutcome:
    """Temporal knows of no other worker that fenced this one off, so nobody enforces the run's limits any more."""
    report = await controller.stop("seized")
    message = (
        "something on this host that is no worker took hold of the run, by the agent's shim or the event log, or the "
        f"server's clock was set back ({error}); the agent was stopped ({report.outcome})"
    )
    facts = {"run": key.run, "outcome": report.outcome, "left": report.left}
    log.error(message, extra={"action": "run_seized", "facts": facts})
    return controller.failed(AgentFailed(message))


def retry_later(kind: str, message: str) -> ApplicationError:
    """A failure by which nothing is lost: the server retries it until somebody has mended the cause, or cancels."""
    log.error(message, extra={"action": "not_led", "facts": {"run": activity.info().workflow_id}})
    return ApplicationError(message, type=kind, next_retry_delay=RETRY_DELAY)


def retry_if_exhausted(error: BaseException) -> None:
    """Raises ApplicationError, for another attempt, where the worker or its machine has no descriptors, memory or
    processes left: that says nothing about the run, and its agent works on.
    """
    if (lack := disk.exhaustion(error)) is None:
        return
    lacks, advice = LACKS[lack.errno or errno.EAGAIN]
    message = f"{lacks} ({error}): {advice}; until then nobody leads the agent"
    raise retry_later(ActivityErrorType.EXHAUSTED, message) from error


async def _fail_lost(context: ActivityContext, key: RunKey, progress: HeartbeatDetails, gone: RunGone) -> RunOutcome:
    """The run's files are gone, and a second agent must not begin its work anew."""
    report = await context.runtime.stop(key, CLEANUP, "its directory is gone", known=progress.attempt)
    message = f"{gone}; its agent was stopped ({report.outcome})"
    log.error(message, extra={"action": "run_gone", "facts": {"run": key.run, "left": report.left}})
    outcome = _failed(AgentFailed(message))
    return outcome.model_copy(update={"attempts": progress.attempt, "stop_report": report})


async def _fail_unreached(context: ActivityContext, key: RunKey, error: Exception) -> RunOutcome:
    """The run's machine is gone. A process may have begun there all the same: a sweep stops it."""
    report = await context.runtime.stop(key, CLEANUP, "its machine cannot be reached")
    outcome = _failed(AgentFailed(f"the agent could not be started: {error}"))
    return outcome.model_copy(update={"stop_report": report})


def _failed(error: RunError) -> RunOutcome:
    return RunOutcome(status="failed", error=error.type, message=error.message, facts=error.facts)
