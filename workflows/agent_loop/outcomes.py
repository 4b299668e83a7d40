"""What the closing of a child workflow says: an iteration's outcome, a verification. Pure; see `decisions`."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from temporalio.exceptions import ApplicationError, CancelledError, ChildWorkflowError, WorkflowAlreadyStartedError

from steersman.contracts.errors import ErrorType
from steersman.contracts.loop import Verify
from steersman.contracts.loop_state import CheckpointKind, Verification
from steersman.contracts.run import Finalize, RunResult, RunState, Usage, own_session

MAX_ERROR = 300
"""Characters of an error's message that are kept."""
MAX_OUTPUT = 4000
"""Characters of a verification's output that are kept: its end."""
MAX_CONFLICTS = 5
"""Paths that are named of those that could not be merged."""
NOT_FOUND_CODES = (126, 127)
"""A shell's exit codes for a command that does not exist or is no program."""
NOTHING = Usage()

ChildResult = RunResult | BaseException
"""The result of a child workflow, or its failure."""


NO_PLACE = (ErrorType.WORKSPACE_ERROR, ErrorType.PLACE_ERROR)
"""Failures of what is around an agent."""


@dataclass(frozen=True)
class IterationOutcome:
    """How the run of an iteration ended, and what it used."""

    how: Literal["finished", "interrupted", "failed", "rate_limited", "stopped_by_hand"]
    run: str | None = None
    text: str = ""
    session_id: str | None = None
    usage: Usage = NOTHING
    cost_usd: float = 0.0
    turns: int = 0
    error: str | None = None
    error_type: str | None = None
    resets_at: datetime | None = None
    took_s: float = 0.0
    left_out: str | None = None
    """What of the agent's work is not in the workspace, and where it is kept."""
    own_turns: int = 0
    """Turns of the agent that the request names, as far as is known: others of `fallback` have theirs, too."""
    another: str | None = None
    """The agent that was at work last, where the run's result names all of them."""
    part: int = 0
    """Which of the request's agents that was, where it does not."""
    is_sessions: bool = True
    """Whether a failure may be of the session that the run went on with."""
    waits_for_place: bool = False
    """Whether it failed because it had no place to work in: that is waited for longer than an agent's failure."""

    @property
    def checkpoint_kind(self) -> CheckpointKind:
        """The kind of the checkpoint that follows."""
        if self.how == "finished":
            return "iteration"
        return "failure" if self.how == "failed" else "pause"

    @property
    def had_no_place(self) -> bool:
        """Whether the run failed for its machine, cluster or workspace."""
        return self.how == "failed" and self.error_type in NO_PLACE

    @property
    def spares_session(self) -> bool:
        """Whether the failure says nothing of the session: the run had no place, or was refused for something else."""
        refused = self.how == "failed" and self.error_type == ErrorType.INVALID_REQUEST
        return self.had_no_place or (refused and "session" not in (self.error or ""))

    @property
    def reached_agent(self) -> bool:
        """Whether the agent has read its prompt, so that its session can be resumed."""
        return self.session_id is not None and self.own_turns > 0


def of_iteration(run: str, child_result: ChildResult) -> IterationOutcome:
    """The outcome of an iteration's run. Where `how` is "stopped_by_hand", the run's state has to be queried."""
    if isinstance(child_result, RunResult):
        interrupted = child_result.stop_reason == "interrupted"
        return _from_result(run, child_result, "interrupted" if interrupted else "finished")
    if isinstance(child_result, WorkflowAlreadyStartedError):
        return IterationOutcome("stopped_by_hand", error=id_taken(run))
    cause = _cause(child_result)
    if isinstance(cause, ApplicationError):
        result, limited = _details(cause), _rate_limit(cause)
        fields = {"error": cause.message[:MAX_ERROR], "error_type": cause.type}
        if limited is not None:
            return _from_result(run, result, "rate_limited", **fields, resets_at=_time(limited.get("resets_at")))
        # A gate is no failure of the agent's: a person decides, and the loop goes on from there.
        return _from_result(run, result, "interrupted" if is_gated(child_result) else "failed", **fields)
    if isinstance(cause, CancelledError):
        return IterationOutcome("stopped_by_hand", run, error="its run was stopped")
    return IterationOutcome("stopped_by_hand", run, error=f"its run was ended: {cause}"[:MAX_ERROR])


def is_gated(child_result: ChildResult) -> bool:
    """Whether changes wait in a copy of the workspace until a person has decided: the child's own, or another run's."""
    result = _result_of_failure(child_result)
    if result is None:
        return False
    return "workspace_gate" in result.facts or (result.finalize is not None and result.finalize.status == "failed")


def has_lost_copy(child_result: ChildResult) -> bool:
    """Whether the child has failed with the copy that it worked in, which is gone: nothing waits in it."""
    result = _result_of_failure(child_result)
    return result is not None and result.finalize is not None and result.finalize.lost


def message_of(child_result: ChildResult) -> str:
    """What a child's failure says; nothing where it has none."""
    if isinstance(child_result, RunResult):
        return ""
    cause = _cause(child_result)
    return cause.message if isinstance(cause, ApplicationError) else str(cause)


def was_stopped(child_result: ChildResult) -> bool:
    """Whether the child was cancelled or terminated."""
    return not isinstance(child_result, RunResult) and not isinstance(_cause(child_result), ApplicationError)


def id_taken(run: str) -> str:
    """Why a run was not started: another open workflow has its id."""
    what = "one of this loop's runs from before a reset, or somebody else's"
    return f"a workflow {run} is open, {what}: end it, then resume"[:MAX_ERROR]


def with_run_state(before: IterationOutcome, found: RunState) -> IterationOutcome:
    """The outcome of a run that closed without a result, completed from the run's state."""
    return IterationOutcome(
        before.how,
        before.run,
        session_id=own_session(found),
        usage=found.usage,
        cost_usd=found.cost_usd,
        turns=found.turns,
        error=before.error,
        took_s=before.took_s,
        left_out=_left_out(found.finalize) if found.finalize else None,
        own_turns=0 if found.part else found.turns,
        part=found.part,
    )


def unverifiable(child_result: ChildResult) -> str | None:
    """Why nobody could verify: the machine or the cluster was away, or ended the command; None where somebody has."""
    cause = None if isinstance(child_result, RunResult) else _cause(child_result)
    if not isinstance(cause, ApplicationError):
        return None
    if cause.type in NO_PLACE:
        return cause.message[:MAX_ERROR]
    result = _details(cause)
    if cause.type != ErrorType.AGENT_CRASHED or result is None or result.facts.get("exit_code") is not None:
        return None
    by_place = result.facts.get("signal") is None or "cause" in result.facts  # else by itself, or by a person
    return cause.message[:MAX_ERROR] if by_place else None


def of_verification(verify: Verify, child_result: ChildResult, iteration: int, run: str, now: datetime) -> Verification:
    """What the run of a verification says."""
    fields: dict[str, Any] = {"command": verify.shown()[:500], "iteration": iteration, "run": run, "time": now}
    if isinstance(child_result, RunResult):
        return Verification(status="passed", exit_code=0, output=child_result.text[-MAX_OUTPUT:], **fields)
    cause = _cause(child_result)
    result = _details(cause) if isinstance(cause, ApplicationError) else None
    kind = cause.type if isinstance(cause, ApplicationError) else None
    message = cause.message if isinstance(cause, ApplicationError) else str(cause)
    output = (result.text if result else "")[-MAX_OUTPUT:] or message[:MAX_ERROR]
    code = result.facts.get("exit_code") if result else None
    exit_code = code if isinstance(code, int) else None
    if kind == ErrorType.RUN_TIMED_OUT:
        return Verification(status="timed_out", output=output, **fields)
    # Only a program that ran and exited with an error is a failure; all else means that nobody could verify.
    missing = kind != ErrorType.AGENT_CRASHED or exit_code in NOT_FOUND_CODES
    return Verification(status="missing" if missing else "failed", exit_code=exit_code, output=output, **fields)


def _from_result(run: str, result: RunResult | None, how: Any, **more: Any) -> IterationOutcome:
    if result is None:
        return IterationOutcome(how, run, **more)
    return IterationOutcome(
        how,
        run,
        text=result.text,
        session_id=_own_session(result) if _has_come_back(result.finalize) else None,
        usage=result.usage,
        cost_usd=result.cost_usd,
        turns=result.turns,
        took_s=(result.ended_at - result.started_at).total_seconds(),
        left_out=_left_out(result.finalize) if result.finalize else None,
        own_turns=_own_turns(result),
        another=next((each.agent for each in reversed(result.parts) if each.attempts), None),
        part=0 if result.parts else result.part,
        **more,
    )


def _has_come_back(back: Finalize | None) -> bool:
    """Whether the session is where the next run looks for it: with a copy that is lost before anybody had kept anything
    of it, it is gone. One that the run went on with is there as it was before.
    """
    return back is None or not back.lost or back.ref is not None


def _left_out(back: Finalize) -> str | None:
    if back.lost and back.ref:
        return f"its copy is lost, what the newest backup has is kept in {back.ref}"
    if back.status != "conflicted":
        return None
    total = len(back.conflicts) + back.unnamed_conflicts
    names = ", ".join(" ".join(each.split()) for each in back.conflicts[:MAX_CONFLICTS])
    more = f" and {total - MAX_CONFLICTS} more" if total > MAX_CONFLICTS else ""
    what = f"{names}{more}, changed there as well" if total else "commits, which do not fit those made there"
    return (f"not carried back, kept in {back.ref}: " if back.ref else "not carried back: ") + what


def _own_session(result: RunResult) -> str | None:
    """The session of the agent that the request names: the next run begins with that one again."""
    if result.own_session_id or not result.parts or result.part:
        return own_session(result)
    # Of a version whose results do not say which part was the last.
    return result.session_id if result.parts[-1].agent == result.parts[0].agent else result.parts[0].session_id


def _own_turns(result: RunResult) -> int:
    own = 0 if result.part else result.turns
    if result.parts:
        own = sum(each.turns for each in result.parts if each.agent == result.parts[0].agent)
    finished = result.status == "succeeded" and result.stop_reason != "interrupted"
    # Not every agent counts them.
    return max(own, 1) if finished and not result.part else own


def _cause(error: BaseException) -> BaseException | None:
    return error.cause if isinstance(error, ChildWorkflowError) else error


def _result_of_failure(child_result: ChildResult) -> RunResult | None:
    cause = None if isinstance(child_result, RunResult) else _cause(child_result)
    return _details(cause) if isinstance(cause, ApplicationError) else None


def _details(error: ApplicationError) -> RunResult | None:
    try:
        return RunResult.model_validate(error.details[0]) if error.details else None
    except ValueError:  # pydantic's error is one
        return None


def _rate_limit(error: ApplicationError) -> dict[str, Any] | None:
    result = _details(error)
    found = result.facts.get("rate_limit") if result else None
    return found if isinstance(found, dict) else None


def _time(value: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return found if found and found.tzinfo else None
