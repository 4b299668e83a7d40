"""The path of a loop: iterations, their proof, and what lies between them. Judgements are in `judging`."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    FailureError,
    is_cancelled_exception,
)

from steersman.contracts import names
from steersman.contracts.agents import CAPABILITIES
from steersman.contracts.errors import ErrorType, RunError
from steersman.contracts.loop import LoopRequest
from steersman.contracts.loop_state import StopReason, Totals
from steersman.contracts.messages import Message
from steersman.contracts.run import RunResult
from workflows.commands import claim_host
from workflows.loops import commands, judging
from workflows.loops.book import Book
from workflows.loops.desk import Desk
from workflows.loops.judging import Ran
from workflows.loops.keeper import Keeper, first_version
from workflows.loops.memory import MAX_CONSUMED, Hold
from workflows.loops.prompts import promised, prompt

TURN_PATIENCE = timedelta(seconds=30)
"""How long an interrupted run may take to close by itself before it is cancelled."""
MAX_EVENTS = 5000

Child = workflow.ChildWorkflowHandle[Any, RunResult]


@dataclass(frozen=True)
class Ending:
    """How the loop ends."""

    status: Literal["completed", "stopped", "failed", "cancelled"]
    reason: StopReason | None = None
    message: str = ""
    error: ErrorType | None = None


class Journey:
    """Leads one loop."""

    def __init__(self, request: LoopRequest, book: Book, desk: Desk) -> None:
        self._request, self._book, self._desk = request, book, desk
        self._keeper = Keeper(request, book)
        self._starting: asyncio.Future[Child] | None = None
        """The run at work, or about to be."""

    async def lead(self) -> Ending | None:
        """Until the loop ends; None: it is to go on in a new execution."""
        try:
            if not self._book.memory.host:
                await self._open()
            while True:
                if ending := await self._attend():
                    return ending
                if self._outgrown():
                    return None
                if not self._book.memory.unverified and (ending := self._limit()):
                    return ending
                if ending := await self._iterate():
                    return ending
        except (FailureError, RunError) as error:
            return _failure(error)

    def _outgrown(self) -> bool:
        info = workflow.info()
        grown = info.is_continue_as_new_suggested() or info.get_current_history_length() > MAX_EVENTS
        return grown and self._desk.quiet

    async def _open(self) -> None:
        request, book = self._request, self._book
        host = (await claim_host(request.run)).host
        point = None
        if request.from_checkpoint:
            point = await commands.fork_point(host, request.from_checkpoint.loop, request.from_checkpoint.number)
            if point.host != host:
                there = request.run.runtime.model_copy(update={"host": point.host})
                host = (await claim_host(request.run.model_copy(update={"runtime": there}))).host
        await commands.admit(host, request)
        book.set(
            host=host,
            mode=request.mode,
            limits=request.limits,
            plans=(first_version(request),),
            session_id=request.run.session,
            started_at=workflow.now(),
        )
        if point is not None:
            await self._keeper.take_over(point)
        await self._keeper.checkpoint("baseline")
        book.set(progress_mark=self._keeper.mark)

    # Between iterations.

    async def _attend(self) -> Ending | None:
        """See to what people asked, and wait as long as there is a reason to."""
        desk, book = self._desk, self._book
        while True:
            hold = book.memory.hold
            if desk.exit is not None:
                return Ending("stopped", StopReason.EXIT, desk.exit)
            if desk.orders:
                await self._keeper.carry_out(desk.orders[0])
                del desk.orders[0]
            elif desk.pause:
                await self._pause(desk.pause.reason or "a person paused it")
            elif desk.resume:
                book.set(mode=desk.resume.mode or book.memory.mode, since_decision=0)
                book.hold(None)
                desk.resume = None
            elif hold is None:
                desk.nudged = False
                return None
            elif self._outgrown():
                return None
            elif await self._wait(hold) and (ending := self._limit()):
                return ending

    async def _pause(self, reason: str) -> None:
        book = self._book
        if book.memory.hold is None or book.memory.hold.kind != "paused":
            await self._keeper.checkpoint("pause", note=reason)
        book.hold(Hold(kind="paused", reason=reason))
        self._desk.pause = None

    async def _wait(self, hold: Hold) -> bool:
        """Until the time has come or a person wakes the loop; whether time has passed that counts."""
        book, desk = self._book, self._desk
        if not hold.timed:
            await workflow.wait_condition(lambda: not desk.quiet or self._outgrown())
            desk.nudged = False
            return False
        assert hold.until is not None
        patience = (hold.until - workflow.now()).total_seconds()
        if book.memory.limits.duration_s is not None:
            patience = min(patience, book.memory.limits.duration_s - book.active_s())
        try:
            await workflow.wait_condition(lambda: not desk.quiet, timeout=max(patience, 0))
        except TimeoutError:
            book.hold(None)
        else:
            if desk.nudged:
                book.hold(None)
                desk.nudged = False
        return True

    def _limit(self) -> Ending | None:
        found = judging.reached(self._book.memory, self._book.active_s())
        if found is None:
            return None
        reason, message = found
        if reason == StopReason.FAILURES:
            return Ending("failed", reason, message, ErrorType.LOOP_FAILED)
        return Ending("stopped", reason, message)

    # One iteration.

    async def _iterate(self) -> Ending | None:
        book, request = self._book, self._request
        if not book.memory.unverified:
            outcome = await self._work()
            if outcome.how != "finished":
                return self._cut_short(outcome)
        if judging.wants_verification(request, book.memory) and not await self._verify():
            return None
        book.set(unverified=False)
        if ending := self._judged():
            return ending
        book.hold(judging.hold_after(request, book.memory, Ran("finished"), workflow.now()))
        return None

    def _cut_short(self, outcome: Ran) -> Ending | None:
        if outcome.how == "rate_limited" and self._request.rate_limit == "stop":
            return Ending("stopped", StopReason.RATE_LIMIT, outcome.error or "")
        if outcome.how == "failed" and (ending := self._limit()):
            return ending
        self._book.hold(judging.hold_after(self._request, self._book.memory, outcome, workflow.now()))
        return None

    def _judged(self) -> Ending | None:
        memory, verify = self._book.memory, self._request.done.verify
        if judging.is_done(self._request, memory):
            return Ending("completed", StopReason.DONE)
        if verify and memory.missing >= judging.MAX_MISSING:
            message = f"done.verify: there is no such command: {verify.shown()[:500]}"
            return Ending("failed", StopReason.VERIFICATION_MISSING, message, ErrorType.LOOP_FAILED)
        return self._limit()

    async def _work(self) -> Ran:
        """The agent's part, and the checkpoint after it."""
        book, request = self._book, self._request
        memory = book.memory
        if not memory.unfinished:
            totals = memory.totals.model_copy(update={"iterations": memory.totals.iterations + 1})
            book.set(iteration=memory.iteration + 1, totals=totals, since_decision=memory.since_decision + 1)
        book.set(runs=memory.runs + 1, promised=False)
        memory = book.memory
        resumes = memory.session_id is not None and (
            memory.unfinished or request.continues or (memory.runs == 1 and request.run.session is not None)
        )
        said = prompt(request, memory, resumes=resumes)
        waiting, notice = memory.feedback, memory.notice
        given = tuple(each.model_copy(update={"iteration": memory.iteration}) for each in waiting)
        book.set(feedback=(), consumed=(*memory.consumed, *given)[-MAX_CONSUMED:], notice="")
        limits = judging.limits_left(request, memory, book.active_s())
        run = commands.iteration_run(request, memory, said, limits, resumes=resumes)
        outcome = await self._run(f"{commands.loop_key().loop}-{memory.runs}", run, f"iteration {memory.iteration}")
        if outcome.how in ("failed", "rate_limited") or (not outcome.turns and outcome.how != "finished"):
            # The agent may not have read it: it is said again rather than lost.
            kept = tuple(each for each in book.memory.consumed if each.id not in {note.id for note in waiting})
            book.set(feedback=(*waiting, *book.memory.feedback), consumed=kept, notice=notice)
        self._count(outcome, said)
        await self._keeper.checkpoint(outcome.checkpoint_kind, outcome, given=tuple(each.id for each in waiting))
        changed, idle = self._keeper.mark != book.memory.progress_mark, book.memory.no_progress
        idle = 0 if changed else idle + 1 if outcome.how == "finished" else idle
        book.set(progress_mark=self._keeper.mark, no_progress=idle)
        return outcome

    def _count(self, outcome: Ran, said: str) -> None:
        book, memory = self._book, self._book.memory
        failed, finished = outcome.how == "failed", outcome.how == "finished"
        failures = memory.failures + 1 if failed else 0 if finished else memory.failures
        session = outcome.session_id or memory.session_id
        lost = failed and (outcome.error_type == ErrorType.INVALID_REQUEST or failures > 1)
        promise = self._request.done.promise
        book.set(
            totals=Totals(
                iterations=memory.totals.iterations,
                usage=memory.totals.usage + outcome.usage,
                cost_usd=memory.totals.cost_usd + outcome.cost_usd,
                active_s=memory.totals.active_s,
            ),
            usage=outcome.usage,
            cost_usd=outcome.cost_usd,
            session_id=None if lost else session,
            forks=memory.forks and outcome.session_id is None,
            unfinished=outcome.how in ("interrupted", "rate_limited", "stopped_by_hand"),
            heard=outcome.session_id is not None and outcome.turns > 0,
            unverified=finished,
            failures=failures,
            rate_limits=memory.rate_limits + 1 if outcome.how == "rate_limited" else 0,
            last_error=outcome.error if failed else memory.last_error if not finished else None,
            text=outcome.text,
            promised=finished and promise is not None and promised(outcome.text, said, promise),
        )

    async def _verify(self) -> bool:
        """Whether the verification came to an end; a person's hurry is none."""
        book, memory, verify = self._book, self._book.memory, self._request.done.verify
        assert verify is not None
        run_id = f"{commands.loop_key().loop}-{memory.runs}-verify"
        ended = await self._child(run_id, commands.verification_run(self._request, memory), "verifying", "verification")
        if self._desk.hurries and not isinstance(ended, RunResult):
            book.show("running")
            return False
        found = judging.verified(verify, ended, memory.iteration, run_id, workflow.now())
        book.set(verification=found, missing=memory.missing + 1 if found.status == "missing" else 0)
        book.archive.amend(verification=found.status)
        book.show("running")
        return True

    # Runs.

    async def _run(self, run_id: str, run: Any, summary: str) -> Ran:
        ended = await self._child(run_id, run, "running", f"{summary}: {run.agent}")
        if isinstance(ended, RunResult):
            return judging.ran(ended)
        outcome = judging.did_not_run(ended)
        if outcome.how != "stopped_by_hand":
            return outcome
        if self._desk.hurries:
            outcome = Ran("interrupted")
        return await self._as_far_as_known(run_id, outcome)

    async def _as_far_as_known(self, run_id: str, outcome: Ran) -> Ran:
        try:
            return judging.as_far_as_known(await commands.look_at_run(self._book.memory.host, run_id), outcome)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            return outcome

    async def _child(self, run_id: str, run: Any, status: Any, summary: str) -> RunResult | BaseException:
        """Run it to its end, which a person may hurry."""
        self._book.show(status, run_id)
        self._starting = asyncio.ensure_future(commands.start_run(run_id, run, summary))
        try:
            # Shielded: a cancel of the loop must find the run, not lose it in the moment of its start.
            child = await asyncio.shield(self._starting)
        except FailureError as error:
            return error
        await workflow.wait_condition(lambda: child.done() or self._desk.hurries)
        if not child.done():
            await self._end_turn(child, interrupts=CAPABILITIES[run.agent].interrupt)
        self._starting = None
        return outcome_of(child)

    async def _end_turn(self, child: Child, *, interrupts: bool) -> None:
        if interrupts:
            reason = self._desk.pause.reason if self._desk.pause else None
            try:
                await child.signal(names.INTERRUPT, Message(end=True, reason=reason))
                await workflow.wait_condition(child.done, timeout=TURN_PATIENCE)
            except (ApplicationError, TimeoutError):
                workflow.logger.info("the run did not end its turn: it is cancelled")
        child.cancel()
        await workflow.wait_condition(child.done)

    async def cut_off(self) -> None:
        """The loop was cancelled: end the run at work, and keep what there is."""
        book, outcome = self._book, None
        if self._starting is not None:
            outcome = await self._cancel_run(self._starting)
        if not book.memory.plans:
            return
        try:
            await self._keeper.checkpoint("end", outcome)
        except ActivityError as error:
            workflow.logger.warning("no last checkpoint: %s", error.cause)

    async def _cancel_run(self, starting: "asyncio.Future[Child]") -> Ran | None:
        try:
            child = await starting
        except FailureError:
            return None
        child.cancel()
        await workflow.wait_condition(child.done)
        if self._book.status == "verifying":
            return None
        ended = outcome_of(child)
        outcome = judging.ran(ended) if isinstance(ended, RunResult) else judging.did_not_run(ended)
        if outcome.how == "stopped_by_hand":
            outcome = await self._as_far_as_known(self._book.run or "", Ran("interrupted"))
        self._count(outcome, "")
        return outcome


def outcome_of(child: Child) -> RunResult | BaseException:
    """What a run that has closed came to."""
    if child.cancelled():
        return CancelledError("the run was cancelled")
    error = child.exception()
    return error if error is not None else child.result()


def _failure(error: FailureError | RunError) -> Ending:
    """Something raised that the loop cannot go on after."""
    if isinstance(error, RunError):
        return Ending("failed", None, error.message, error.type)
    cause = error.cause if isinstance(error, ActivityError) else error
    if isinstance(cause, ApplicationError) and cause.type in set(ErrorType):
        return Ending("failed", None, cause.message, ErrorType(cause.type))
    return Ending("failed", None, f"{error}: {cause}" if cause is not error else str(error), ErrorType.LOOP_FAILED)
