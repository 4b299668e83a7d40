"""What a worker logs of a run: one line for each step, on the worker that takes it. Nothing that anybody said.

Actions: agent_started, agent_adopted, message_delivered, stop_asked, not_backed_up, agent_gone, run_closed. See
docs/operations.md.
"""

import logging
import time
from collections.abc import Awaitable

from activities.ports.agent import ExitFact
from activities.store.run_directory import RunDirectory
from steersman.contracts.activities import RunKey, Settlement
from steersman.contracts.events import CancelledEvent, FailedEvent, TerminalEvent
from steersman.contracts.run import Handle, StopReport

log = logging.getLogger("steersman.runs")


def agent_started(key: RunKey, attempt: int, handle: Handle | None) -> None:
    """A process of the agent began; None: it has ended already."""
    _write("agent_started", "the agent's process was started", key, attempt=attempt, pid=_pid(handle))


def agent_adopted(key: RunKey, attempt: int, handle: Handle | None) -> None:
    """This worker goes on with a process that another worker, or an earlier controller of its own, has led."""
    _write("agent_adopted", "the agent's process was taken over", key, attempt=attempt, pid=_pid(handle))


def message_delivered(key: RunKey, attempt: int, kind: str, settlement: Settlement) -> None:
    """The agent has a message."""
    facts = {"attempt": attempt, "id": settlement.id, "kind": kind, "state": settlement.state, "how": settlement.how}
    _write("message_delivered", "the agent was given a message", key, **facts)


def stop_asked(key: RunKey, reason: str, *, hurried: bool = False) -> None:
    """`reason`: one of our own words, never a person's."""
    _write("stop_asked", "the agent is to be stopped", key, reason=reason, hurried=hurried)


def not_backed_up(key: RunKey, error: str) -> None:
    """What the run has done so far could not be kept here, and would be lost with its machine."""
    _write("not_backed_up", "the run's copy could not be backed up", key, error=error)


def agent_gone(
    directory: RunDirectory, attempt: int, handle: Handle | None, exit_fact: ExitFact, took_s: float
) -> None:
    """A process of the agent ended, and the worker that leads the run has seen it."""
    if directory.tell_gone(attempt):
        return
    # From the journal's file, which an agent may forge.
    code, signal = (each if isinstance(each, int) else None for each in (exit_fact.code, exit_fact.signal))
    facts = {"attempt": attempt, "pid": _pid(handle), "reason": _bounded(exit_fact.reason), "exit_code": code}
    facts |= {"signal": signal, "stopped_for": _bounded(exit_fact.why) if exit_fact.why else None}
    _write("agent_gone", "the agent's process has ended", directory.key, **facts, took_s=round(took_s, 3))


async def logged_stop(directory: RunDirectory, reason: str, stop: Awaitable[StopReport]) -> StopReport:
    """Carry out the stop of an agent that nobody leads, and log it, unless its process is known to be gone."""
    attempt = directory.attempts()
    if not attempt or directory.is_told_gone(attempt):
        return await stop
    stop_asked(directory.key, reason)
    report = await stop
    if not directory.tell_gone(attempt):
        _write("agent_gone", "an agent that nobody led was stopped", directory.key, attempt=attempt, **_proof(report))
    return report


def run_closed(directory: RunDirectory, event: TerminalEvent) -> None:
    """The run's log has got its end."""
    facts: dict[str, object] = {"status": {"done": "succeeded"}.get(event.type, event.type)}
    if isinstance(event, FailedEvent):
        facts["error"] = event.error
    if isinstance(event, CancelledEvent) and event.stop_report:
        facts |= _proof(event.stop_report)
    if directory.created:
        facts["took_s"] = round(time.time() - directory.created, 3)
    _write("run_closed", "the run has closed", directory.key, **facts)


def _pid(handle: Handle | None) -> int | None:
    return handle.pid if handle else None


def _bounded(said: object) -> str:
    return str(said)[:200]


def _proof(report: StopReport) -> dict[str, object]:
    return {"outcome": report.outcome, "how": report.how, "processes": report.processes, "stop_ms": report.took_ms}


def _write(action: str, message: str, key: RunKey, **facts: object) -> None:
    log.info(message, extra={"action": action, "facts": {"run": key.run, "execution": key.execution, **facts}})
