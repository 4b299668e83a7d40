"""What an iteration changes in a loop's memory: numbers, what was used up, what the agent was told. Pure."""

from collections.abc import Sequence

from steersman.contracts.errors import ErrorType
from steersman.contracts.loop import LoopRequest
from steersman.contracts.loop_state import FeedbackNote, Totals
from workflows.agent_loop.carried_state import Memory
from workflows.agent_loop.outcomes import Ran
from workflows.agent_loop.prompts import promised

MAX_CONSUMED = 50
MAX_CONSUMED_BYTES = 100_000
MAX_ANSWER = 8000


def begun(memory: Memory) -> Memory:
    """An iteration begins, or an unfinished one goes on."""
    if not memory.unfinished:
        totals = memory.totals.model_copy(update={"iterations": memory.totals.iterations + 1})
        numbers = {"iteration": memory.iteration + 1, "totals": totals, "since_decision": memory.since_decision + 1}
        memory = memory.model_copy(update=numbers)
    return memory.model_copy(update={"runs": memory.runs + 1, "promised": False})


def afresh(memory: Memory) -> Memory:
    """The session is left. Of an unfinished iteration the new one is told all again."""
    again = [each for each in memory.consumed if memory.unfinished and each.iteration == memory.iteration]
    return memory.model_copy(
        update={
            "afresh": False,
            "session_id": None,
            "lent": False,
            "forks": False,
            "briefed": False,
            "heard": False,
            "notice": "",
            "feedback": (*(each.model_copy(update={"iteration": None}) for each in again), *memory.feedback),
            "consumed": tuple(each for each in memory.consumed if each not in again),
        }
    )


def resumes(request: LoopRequest, memory: Memory) -> bool:
    """Whether the run goes on with the session that there is."""
    return memory.session_id is not None and (memory.unfinished or request.continues or memory.lent)


def told(memory: Memory) -> Memory:
    """All that waited to be told is in the iteration's prompt."""
    given = tuple(each.model_copy(update={"iteration": memory.iteration}) for each in memory.feedback)
    consumed = _newest((*memory.consumed, *given))
    return memory.model_copy(update={"feedback": (), "consumed": consumed, "notice": "", "revised": False})


def untold(memory: Memory, before: Memory) -> Memory:
    """The agent may not have read it: it is said again rather than lost. `before`: as it was before `told`."""
    again = {each.id for each in before.feedback}
    return memory.model_copy(
        update={
            "feedback": (*before.feedback, *memory.feedback),
            "consumed": tuple(each for each in memory.consumed if each.id not in again),
            "notice": before.notice,
            "revised": before.revised or memory.revised,
        }
    )


def ended(request: LoopRequest, memory: Memory, outcome: Ran, said: str) -> Memory:
    """The run has ended. `said`: its prompt."""
    failed, finished = outcome.how == "failed", outcome.how == "finished"
    failures = memory.failures + 1 if failed else 0 if finished else memory.failures
    # It may be the session that makes the runs fail.
    lost = failed and (outcome.error_type == ErrorType.INVALID_REQUEST or failures > 1)
    promise, known = request.done.promise, f"{said}\n{memory.plan_version.text or ''}"
    totals = Totals(
        iterations=memory.totals.iterations,
        usage=memory.totals.usage + outcome.usage,
        cost_usd=memory.totals.cost_usd + outcome.cost_usd,
        active_s=memory.totals.active_s,
    )
    return memory.model_copy(
        update={
            "totals": totals,
            "usage": outcome.usage,
            "cost_usd": outcome.cost_usd,
            "session_id": None if lost else outcome.session_id or memory.session_id,
            "lent": memory.lent and outcome.session_id is None and not lost,
            "forks": memory.forks and outcome.session_id is None and not lost,
            "unfinished": outcome.how in ("interrupted", "rate_limited", "stopped_by_hand"),
            "briefed": not lost and (outcome.reached_agent or memory.briefed),
            "heard": outcome.reached_agent or (memory.unfinished and memory.heard and not lost),
            "unverified": finished,
            "failures": failures,
            "rate_limits": memory.rate_limits + 1 if outcome.how == "rate_limited" else 0,
            "last_error": outcome.error if failed else memory.last_error if not finished else None,
            "text": outcome.text[-MAX_ANSWER:] or memory.text,
            "promised": finished and promise is not None and promised(outcome.text, known, promise),
        }
    )


def progressed(memory: Memory, mark: str, outcome: Ran) -> Memory:
    """The workspace was looked at after a run. `mark`: HEAD, files and items, equal where nothing changed."""
    idle = memory.no_progress + 1 if outcome.how == "finished" else memory.no_progress
    return memory.model_copy(update={"progress_mark": mark, "no_progress": 0 if mark != memory.progress_mark else idle})


def _newest(notes: Sequence[FeedbackNote]) -> tuple[FeedbackNote, ...]:
    kept: list[FeedbackNote] = []
    room = MAX_CONSUMED_BYTES
    for each in reversed(notes[-MAX_CONSUMED:]):
        room -= len(each.text.encode())
        if room < 0 and kept:
            break
        kept.insert(0, each)
    return tuple(kept)
