"""What the processes of a run came to, taken together. Pure decisions; which process follows is the controller's."""

import json
from collections.abc import Iterable

from activities.ports.agent import ExitFact, Progress
from activities.ports.runtime import Record
from steersman.contracts.activities import RunOutcome
from steersman.contracts.errors import InvalidRequest, RunError
from steersman.contracts.request import RunRequest
from steersman.contracts.run import StopReport

MAX_RESULT = 600_000
"""The text of an outcome has at most this many bytes as JSON. The event log has it as it came."""


def total_of(attempts: Iterable[Progress]) -> Progress:
    """The sum of all processes, with the last one's answer."""
    total = Progress()
    for each in attempts:
        total.session_id = each.session_id or total.session_id
        total.usage += each.usage
        total.cost_usd += each.cost_usd
        total.turns += each.turns
        total.text, total.structured, total.stop_reason = each.text, each.structured, each.stop_reason
        total.said = each.said or total.said
    return total


def outcome(status: str, total: Progress, error: RunError | None = None, **facts: object) -> RunOutcome:
    """How the run ended; `facts`: the fields that only the controller knows."""
    return RunOutcome.model_validate(
        {
            "status": status,
            "text": _fitting(total.text),
            "structured": total.structured,
            "session_id": total.session_id,
            "usage": total.usage,
            "cost_usd": total.cost_usd,
            "turns": total.turns,
            "stop_reason": total.stop_reason if status == "succeeded" else status,
            "error": error.type if error else None,
            "message": error.message if error else None,
            "facts": error.facts if error else {},
            **facts,
        }
    )


def _fitting(text: str) -> str:
    """The text, its end cut off where it is too long for an activity's result."""
    while (size := len(json.dumps(text, ensure_ascii=False).encode("utf-8", "replace"))) > MAX_RESULT:
        text = text[: len(text) * MAX_RESULT // size - 1]
    return text


def interrupted(ended: RunOutcome, total: Progress, request: RunRequest, error: RunError | None) -> RunOutcome:
    """The outcome of a run that a person ended with its turn: no failure, whatever `error` its last process died of.

    Its session is one that can be resumed: the one that `init` named, else the one that was asked for.
    """
    given = None if request.fork_session or isinstance(error, InvalidRequest) else request.session
    told = {"text": _fitting(total.said), "stop_reason": "interrupted", "session_id": total.session_id or given}
    return ended.model_copy(update=told)


def proof(
    exit_fact: ExitFact, reason: str | None = None, asked_ms: float | None = None, *, proven: bool = True
) -> StopReport:
    """The stop report of a process that was to end, by what its shim saw.

    Args:
        exit_fact: how it ended.
        reason: the limit that it was stopped for.
        asked_ms: when a person ended the run with its turn, in ms since 1970; None where a limit ended it.
        proven: False where the agent works on elsewhere, for all that the end of its process says.
    """
    if not proven:
        return proof(exit_fact, reason, asked_ms).model_copy(update={"outcome": "unverified"})
    if exit_fact.stop is not None:
        return exit_fact.stop.model_copy(update={"reason": reason})
    if exit_fact.lost:
        return StopReport(outcome="unverified", phase="running", reason=reason)
    if asked_ms is None:
        return StopReport(outcome="already_finished", phase="running", how="exited", reason=reason)
    took_ms = max(round(exit_fact.time_ms - asked_ms), 0)
    return StopReport(outcome="stopped", phase="running", how="exited", processes=1, took_ms=took_ms, reason=reason)


def exit_fact_of(record: Record | None, stderr: tuple[str, ...]) -> ExitFact:
    """How the process ended, by its journal's last record; None where its shim was lost."""
    if record is None:
        return ExitFact(reason="lost", lost=True, stderr=stderr)
    facts = json.loads(record.data)
    return ExitFact(
        code=facts["code"],
        signal=facts["signal"],
        reason=facts["reason"],
        why=(facts["stop"] or {}).get("reason"),
        stderr=stderr,
        time_ms=record.time_ms,
        stop=StopReport.model_validate({"phase": "running", **facts["stop"]}) if facts["stop"] else None,
    )
