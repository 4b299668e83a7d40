"""How an iteration changes the carried state: counters, usage, session, what the prompt contained. Pure."""

from collections.abc import Sequence

from steersman.contracts.errors import ErrorType
from steersman.contracts.loop import LoopRequest
from steersman.contracts.loop_state import FeedbackNote, Totals
from workflows.agent_loop.carried_state import CarriedState
from workflows.agent_loop.outcomes import IterationOutcome
from workflows.agent_loop.prompts import ends_with_promise

MAX_CONSUMED = 50
"""Notes of consumed feedback that are kept."""
MAX_CONSUMED_BYTES = 100_000
MAX_ANSWER = 8000
"""Characters of the agent's last answer that are kept."""


def iteration_started(carried: CarriedState) -> CarriedState:
    """An iteration begins, or an unfinished one is continued."""
    if not carried.unfinished:
        totals = carried.totals.model_copy(update={"iterations": carried.totals.iterations + 1})
        numbers = {"iteration": carried.iteration + 1, "totals": totals, "since_decision": carried.since_decision + 1}
        carried = carried.model_copy(update=numbers)
    return carried.model_copy(update={"runs": carried.runs + 1, "promised": False})


def session_dropped(carried: CarriedState) -> CarriedState:
    """The session is given up. The new one gets the feedback of an unfinished iteration again."""
    again = [each for each in carried.consumed if carried.unfinished and each.iteration == carried.iteration]
    return carried.model_copy(
        update={
            "afresh": False,
            "session_id": None,
            "lent": False,
            "forks": False,
            "briefed": False,
            "heard": False,
            "notice": "",
            "feedback": (*(each.model_copy(update={"iteration": None}) for each in again), *carried.feedback),
            "consumed": tuple(each for each in carried.consumed if each not in again),
        }
    )


def resumes_session(request: LoopRequest, carried: CarriedState) -> bool:
    """Whether the next run resumes the known session."""
    continues = request.continues(carried.capabilities)
    return carried.session_id is not None and (carried.unfinished or continues or carried.lent)


def input_consumed(carried: CarriedState) -> CarriedState:
    """The prompt contains the waiting feedback, the notice and the revised plan."""
    included = tuple(each.model_copy(update={"iteration": carried.iteration}) for each in carried.feedback)
    consumed = _newest((*carried.consumed, *included))
    return carried.model_copy(update={"feedback": (), "consumed": consumed, "notice": "", "revised": False})


def input_restored(carried: CarriedState, before: CarriedState) -> CarriedState:
    """The agent may not have read its prompt: the next one repeats it. `before`: the state before `input_consumed`."""
    again = {each.id for each in before.feedback}
    return carried.model_copy(
        update={
            "feedback": (*before.feedback, *carried.feedback),
            "consumed": tuple(each for each in carried.consumed if each.id not in again),
            "notice": before.notice,
            "revised": before.revised or carried.revised,
        }
    )


def run_ended(request: LoopRequest, carried: CarriedState, outcome: IterationOutcome, prompt: str) -> CarriedState:
    """The run of an iteration has ended. `prompt`: its prompt."""
    failed, finished = outcome.how == "failed", outcome.how == "finished"
    failures = carried.failures + 1 if failed else 0 if finished else carried.failures
    # It may be the session that makes the runs fail.
    lost = failed and outcome.is_sessions and (outcome.error_type == ErrorType.INVALID_REQUEST or failures > 1)
    promise, known = request.done.promise, f"{prompt}\n{carried.plan_version.text or ''}"
    totals = Totals(
        iterations=carried.totals.iterations,
        usage=carried.totals.usage + outcome.usage,
        cost_usd=carried.totals.cost_usd + outcome.cost_usd,
        active_s=carried.totals.active_s,
    )
    return carried.model_copy(
        update={
            "totals": totals,
            "usage": outcome.usage,
            "cost_usd": outcome.cost_usd,
            "session_id": None if lost else outcome.session_id or carried.session_id,
            "lent": carried.lent and outcome.session_id is None and not lost,
            "forks": carried.forks and outcome.session_id is None and not lost,
            "unfinished": outcome.how in ("interrupted", "rate_limited", "stopped_by_hand"),
            "briefed": not lost and (outcome.reached_agent or carried.briefed),
            "heard": outcome.reached_agent or (carried.unfinished and carried.heard and not lost),
            "unverified": finished,
            "failures": failures,
            "rate_limits": carried.rate_limits + 1 if outcome.how == "rate_limited" else 0,
            "last_error": outcome.error if failed else carried.last_error if not finished else None,
            "text": outcome.text[-MAX_ANSWER:] or carried.text,
            "promised": finished and promise is not None and ends_with_promise(outcome.text, known, promise),
        }
    )


def workspace_surveyed(carried: CarriedState, mark: str, outcome: IterationOutcome) -> CarriedState:
    """The workspace was surveyed after a run. `mark`: of HEAD, files and items; equal if nothing changed."""
    idle = carried.no_progress + 1 if outcome.how == "finished" else carried.no_progress
    return carried.model_copy(
        update={"progress_mark": mark, "no_progress": 0 if mark != carried.progress_mark else idle}
    )


def _newest(notes: Sequence[FeedbackNote]) -> tuple[FeedbackNote, ...]:
    kept: list[FeedbackNote] = []
    room = MAX_CONSUMED_BYTES
    for each in reversed(notes[-MAX_CONSUMED:]):
        room -= len(each.text.encode())
        if room < 0 and kept:
            break
        kept.insert(0, each)
    return tuple(kept)
