"""AgentRun: one run of one agent, from request to proof of its end.

Decides and keeps state; everything that touches the world is an activity. The updates and signals are in `handlers`,
the activities in `activities`, what an end means in `ending`.
"""

import asyncio
import contextlib
import re
from datetime import timedelta
from typing import Any, Literal

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, FailureError

with workflow.unsafe.imports_passed_through():
    from steersman.contracts import names
    from steersman.contracts.activities import CarriedBack, Claim, RunOutcome
    from steersman.contracts.agents import at_most
    from steersman.contracts.descriptions import OF_RUN
    from steersman.contracts.errors import ErrorType, InvalidRequest
    from steersman.contracts.request import RunRequest, not_one, oversized, parse_request
    from steersman.contracts.run import (
        MAX_REASON,
        CarriedWorkspace,
        Finalize,
        Phase,
        RunPart,
        RunResult,
        RunState,
        StopReport,
    )
    from workflows import workspace_hold
    from workflows.agent_run import activities
    from workflows.agent_run.delivery import MessageDelivery
    from workflows.agent_run.ending import NOTHING, Ending, never_started, told, unverified
    from workflows.agent_run.handlers import RunHandlers
    from workflows.agent_run.notices import Notices
    from workflows.agent_run.visibility import RunVisibility
    from workflows.host_claim import claim_host
    from workflows.waiting import MIN_TIMER, NO_EMPTY_TASKS, NO_TWO_EMPTY_TASKS, ignore_exception, shielded
    from workflows.workspace_hold import WORKSPACE_HOLDS

REPORT_TIMEOUT = timedelta(seconds=10)
"""How long a stopped agent's `run_agent` may take to report what it knows."""
STOP_AFTER_RESET = "stop-after-reset"
STOP_UNTOLD = "stop-untold"
"""The patch of runs that ask their host before they say that nothing was started."""
CONSUMPTION_KEPT = "consumption-kept"
"""The patch of runs whose end tells of less than they had told of before, and which keep to that."""
STOP_AFTER_FAILURE = "stop-after-failure"
"""The patch of runs that stop their agent where somebody else has failed `run_agent`."""
DURATION_OF_COPY = "duration-of-copy"
"""The patch of runs whose limit of duration holds while their workspace is copied, too."""
_SENT_BY_WORKFLOW = re.compile(r"^Cancel requested by workflow with run id [0-9a-f-]+( with reason: )?")
"""What the server puts before the reason of a cancel that another workflow has sent, as a loop does."""
StopCause = Literal["cancelled", "duration", "ended", "failed"]
Asking = Literal["nobody", "host", "host_if_there"]
"""Who is asked for the proof of a stop."""


@workflow.defn(name=names.RUN_WORKFLOW)
class AgentRun(RunHandlers):
    """Input: one RunRequest as JSON. Result: RunResult. Query `state`; updates and signals steer, interrupt, decide."""

    @workflow.init
    def __init__(self, *inputs: Any) -> None:
        # The latest patch stands for the earlier ones: each costs two events.
        self.bounded = (
            workflow.patched(NO_EMPTY_TASKS)
            or workflow.patched(NO_TWO_EMPTY_TASKS)
            or workflow.patched("bounded-messages")
        )
        self.visibility = RunVisibility(immediate=not self.bounded)
        self.delivery = MessageDelivery(self.visibility, bounded=self.bounded)
        self.notices = Notices(self.visibility, self.delivery)
        self.request = None
        self.claimed = None
        self._started_at = workflow.now()
        self._invalid: InvalidRequest | None = None
        self._waited_s = 0.0
        """Seconds that the run has waited for its workspace, or a copy of it."""
        self._end_reported = False
        """Whether `run_agent` returned what the agent came to."""
        try:
            if len(inputs) != 1:
                raise InvalidRequest(not_one("RunRequest", len(inputs)))
            request = parse_request(inputs[0])
            if (wrong_size := oversized(inputs[0], "RunRequest")) and workflow.patched("request-size"):
                raise InvalidRequest(wrong_size)
            # Older versions knew all agents by name, and refused others here.
            if request.is_of_workers_alone and not workflow.patched("agents-of-workers"):
                raise InvalidRequest(f'RunRequest: agent: there is no "{request.agent}"')
            self.request = request
            timeout_s = request.limits.approval_s
            self.delivery.approval_timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
        except InvalidRequest as error:
            self._invalid = error

    @workflow.run
    async def run(self, *inputs: Any) -> RunResult:
        """Run the agent to its end and close as Temporal shows it: Completed, Failed or Canceled."""
        if self.request is None:
            assert self._invalid is not None
            return await self._close(Ending.failed(self._invalid))
        self.visibility.publish_initial(self.request)
        publishing = asyncio.create_task(self.visibility.publish_changes())
        background = [asyncio.create_task(self.delivery.run()), asyncio.create_task(self.notices.run())]
        if self.delivery.approval_timeout is not None:
            denying = self.delivery.deny_overdue_approvals(self.delivery.approval_timeout)
            background.append(asyncio.create_task(denying))
        ending = await self._run_agent(self.request)
        for task in background:
            task.cancel()
        try:
            return await self._close(ending)
        finally:
            publishing.cancel()

    async def _run_agent(self, request: RunRequest) -> Ending:
        try:
            claim = await claim_host(request, locally=not self.bounded)
        except (asyncio.CancelledError, FailureError) as error:
            # A local activity's failure comes bare, an activity's wrapped in an ActivityError.
            failure = error.cause if isinstance(error, ActivityError) else error
            if not isinstance(failure, asyncio.CancelledError | CancelledError):
                return Ending.failed(error)
            report = await shielded(self._stop_unclaimed(request))
            self.visibility.update(stop_report=report.model_copy(update={"reason": self._stop_reason("cancelled")}))
            return Ending("cancelled")
        can = self.claimed = claim.capabilities or at_most(request.agent)
        request = self.request = claim.caps.held(request, can)
        self.visibility.update(host=claim.host, store=claim.store, capabilities=can, worktree=claim.worktree)
        self.delivery.on_claimed(request.agent, can)
        self.notices.on_claimed(request, claim.notices)
        if ending := await self._settle_workspace(request, claim):
            return ending
        left_s = self._left_s(request)
        self.notices.on_begun(left_s)
        agent = activities.run_agent(self.visibility.state, request)
        ignore_exception(agent)  # a stop waits for it no longer than REPORT_TIMEOUT
        ended_while_queued = asyncio.create_task(workflow.wait_condition(self._ended_while_queued))
        try:
            await workflow.wait([agent, ended_while_queued], timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            return await shielded(self._stop(request, agent, "cancelled"))
        finally:
            ended_while_queued.cancel()
        if not agent.done():
            cause: StopCause = "ended" if self._ended_while_queued() else "duration"
            return await shielded(self._stop(request, agent, cause))
        return await self._come_to(request, agent)

    async def _come_to(self, request: RunRequest, agent: workflow.ActivityHandle[RunOutcome]) -> Ending:
        """How a run ends whose `run_agent` has."""
        if raised := agent.exception():
            return await shielded(self._stop_unled(request, raised))
        self._end_reported = True
        return Ending.of(agent.result())

    def _left_s(self, request: RunRequest) -> float | None:
        """What is left of the limit of duration, in seconds."""
        limit_s = request.limits.duration_s
        if limit_s is None or not self._waited_s:
            return limit_s
        return max(limit_s - self._waited_s, MIN_TIMER.total_seconds())

    async def _settle_workspace(self, request: RunRequest, claim: Claim) -> Ending | None:
        """Take or copy the workspace; how the run ends, where it does not come to work."""
        if claim.workspace_held_by and workflow.patched(WORKSPACE_HOLDS):
            self.visibility.update(workspace_held_by=claim.workspace_held_by)
            began = workflow.now()
            if ending := await self._take_workspace(request, claim.host):
                return ending
            self.visibility.update(workspace_held_by=())
            self._waited_s = (workflow.now() - began).total_seconds()
        return await self._carry_out(request) if request.is_carried else None

    async def _take_workspace(self, request: RunRequest, host: str) -> Ending | None:
        """Wait until the run has its workspace; how it ends, where that is not to be."""
        taking = workspace_hold.take(host, request)
        ignore_exception(taking)
        ended = asyncio.create_task(workflow.wait_condition(self._ended_while_queued))
        cause: StopCause = "cancelled"
        try:
            await workflow.wait([taking, ended], timeout=request.limits.duration_s, return_when=asyncio.FIRST_COMPLETED)
            if taking.done():
                if raised := taking.exception():
                    return Ending.failed(raised)
                steered = taking.result().steered
                return None if steered is None else Ending.steered(steered)
            cause = "ended" if self._ended_while_queued() else "duration"
        except asyncio.CancelledError:
            pass
        finally:
            ended.cancel()
        await workspace_hold.give_up(taking)
        reason = self._stop_reason(cause)
        report = await shielded(self._stop_unstarted(request, self.visibility.state.phase, cause))
        self.visibility.update(stop_report=report.model_copy(update={"reason": reason}))
        if cause == "duration":
            return self._timed_out(NOTHING)
        return Ending.interrupted(NOTHING) if cause == "ended" else Ending("cancelled")

    async def _carry_out(self, request: RunRequest) -> Ending | None:
        """Copy the workspace; how the run ends where that cannot be done, or a person does not want it any more."""
        state, began = self.visibility.state, workflow.now()
        is_limited = request.limits.duration_s is not None and workflow.patched(DURATION_OF_COPY)
        self.visibility.update(phase="carrying_out")
        carrying = asyncio.create_task(activities.carry_out(state.host or "", request, state.store))
        ended = asyncio.create_task(workflow.wait_condition(lambda: self.delivery.mailbox.end_requested))
        try:
            left_s = self._left_s(request) if is_limited else None
            await workflow.wait([carrying, ended], timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if not carrying.done():
                cause: StopCause = "ended" if ended.done() else "duration"
                await self._stop_copying(request, carrying, cause)
                return Ending.interrupted(NOTHING) if cause == "ended" else self._timed_out(NOTHING)
            self.visibility.update(carried=await carrying)
        except (asyncio.CancelledError, ActivityError) as error:
            failure = error.cause if isinstance(error, ActivityError) else error
            if not isinstance(failure, asyncio.CancelledError | CancelledError):
                return Ending.failed(error)
            await shielded(self._stop_copying(request, carrying, "cancelled"))
            return Ending("cancelled")
        finally:
            ended.cancel()
        if is_limited:
            self._waited_s += (workflow.now() - began).total_seconds()
        # As a run in a workspace of its own it is queued until a worker has taken it.
        self.visibility.update(phase="queued")
        return None

    def _timed_out(self, outcome: RunOutcome) -> Ending:
        return Ending("failed", outcome, ErrorType.RUN_TIMED_OUT, self._stop_reason("duration") or "")

    async def _stop_copying(
        self, request: RunRequest, carrying: asyncio.Task[CarriedWorkspace], cause: StopCause
    ) -> None:
        carrying.cancel()
        await workflow.wait([carrying])
        if not carrying.cancelled():
            carrying.exception()  # which it has, mostly, of the cancel
        report = await self._stop_unstarted(request, "carrying_out", cause, asking="host")
        self.visibility.update(stop_report=report.model_copy(update={"reason": self._stop_reason(cause)}))

    def _ended_while_queued(self) -> bool:
        """Whether a person ended the run before a worker had taken it: there is no turn to interrupt."""
        return self.visibility.in_phase("queued") and self.delivery.mailbox.end_requested

    # A stop.

    async def _stop_unclaimed(self, request: RunRequest) -> StopReport:
        """The report of a cancel before a host was named. After a reset one may have an agent at work."""
        phase = self.visibility.state.phase
        if not _was_reset():
            return never_started(phase)
        claiming = asyncio.create_task(claim_host(request, locally=not self.bounded))
        ignore_exception(claiming)
        await workflow.wait([claiming], timeout=REPORT_TIMEOUT.total_seconds())
        if not claiming.done() or claiming.exception():
            claiming.cancel()
            return unverified(phase)
        claim = claiming.result()
        self.visibility.update(host=claim.host, store=claim.store, worktree=claim.worktree)
        return await self._stop_unstarted(request, phase, "cancelled")

    async def _stop_unstarted(
        self, request: RunRequest, phase: Phase, cause: StopCause, *, asking: Asking = "nobody"
    ) -> StopReport:
        """The report of a stop for which this execution was told of no process.

        `asking`: the host where one may have been started all the same, "host_if_there" only as long as a worker of it
        is there. After a reset one may have been in any case.
        """
        if _was_reset():
            asking = "host"
        elif asking == "host_if_there" and not workflow.patched(STOP_UNTOLD):
            asking = "nobody"
        if asking == "nobody":
            return never_started(phase)
        report = await self._stop_agent(request, phase, cause, at_once=asking == "host_if_there")
        return never_started(phase) if report.outcome == "already_finished" else report

    async def _stop(self, request: RunRequest, agent: workflow.ActivityHandle[RunOutcome], cause: StopCause) -> Ending:
        phase = self.visibility.state.phase
        self.visibility.update(phase="stopping")
        agent.cancel()
        report: StopReport | None = None
        if phase == "queued":
            # Where no worker has it, the server withdraws it at once.
            await workflow.wait([agent], timeout=REPORT_TIMEOUT.total_seconds())
            if agent.done() and _was_withdrawn(agent) and self.delivery.leader is None:
                # One may have had it, started a process, and died before it could tell.
                report = await self._stop_unstarted(request, phase, cause, asking="host_if_there")
        if report is None:
            report = await self._stop_agent(request, phase, cause)
            await workflow.wait([agent], timeout=REPORT_TIMEOUT.total_seconds())
        reason = self._stop_reason(cause)
        self.visibility.update(stop_report=report.model_copy(update={"reason": reason}))
        self._end_reported = agent.done() and not _has_failed(agent)
        outcome = agent.result() if self._end_reported else self._last_known_outcome()
        if cause == "cancelled":
            return Ending.of(outcome) if outcome.status == "succeeded" else Ending("cancelled", outcome)
        if cause == "ended":
            return Ending.of(outcome) if outcome.status == "succeeded" else Ending.interrupted(outcome)
        return self._timed_out(outcome)

    async def _stop_unled(self, request: RunRequest, raised: BaseException) -> Ending:
        """How a run ends whose `run_agent` has failed. No worker lets it fail so: a person did, or the server for
        options that a person gave it. The agent may be at work.
        """
        if told(raised) or not workflow.patched(STOP_AFTER_FAILURE):
            return Ending.failed(raised)
        phase = self.visibility.state.phase
        self.visibility.update(phase="stopping")
        if phase == "queued" and self.delivery.leader is None:
            report = await self._stop_unstarted(request, phase, "failed", asking="host_if_there")
        else:
            report = await self._stop_agent(request, phase, "failed")
        if report.outcome != "already_finished":
            self.visibility.update(stop_report=report)
        return Ending.failed(raised, self._last_known_outcome())

    async def _stop_agent(
        self, request: RunRequest, phase: Phase, cause: StopCause, *, at_once: bool = False
    ) -> StopReport:
        state = self.visibility.state
        stop = activities.stop_agent(state, request, phase, cause, at_once=at_once)
        hurry = asyncio.ensure_future(workflow.wait_condition(lambda: self.hurry_requested))
        try:
            await workflow.wait([stop, hurry], return_when=asyncio.FIRST_COMPLETED)
            if not stop.done():
                with contextlib.suppress(ActivityError):
                    await activities.stop_agent(state, request, phase, cause, hurried=True)
            return await stop
        except ActivityError:
            return unverified(phase)
        finally:
            hurry.cancel()

    def _stop_reason(self, cause: StopCause) -> str | None:
        """Why the run is stopped: a person's words, or the limit."""
        if cause == "cancelled":
            said = _SENT_BY_WORKFLOW.sub("", workflow.cancellation_reason() or "")
            return said[:MAX_REASON] or None
        if cause == "ended":
            return self.delivery.mailbox.end_reason
        limit_s = self.request.limits.duration_s if self.request else None
        return f"limits.duration_s: the run took longer than {limit_s:g} s"

    def _last_known_outcome(self) -> RunOutcome:
        state = self.visibility.state
        return RunOutcome(
            status="stopped",
            session_id=state.session_id,
            own_session_id=state.own_session_id,
            usage=state.usage,
            cost_usd=state.cost_usd,
            turns=state.turns,
            attempts=state.attempt,
            last_event=state.last_event,
        )

    # The end.

    async def _close(self, ending: Ending) -> RunResult:
        state = self.visibility.state
        known = ending.at_least(state)
        if known != ending and workflow.patched(CONSUMPTION_KEPT):
            ending = known
        outcome = ending.outcome
        back: CarriedBack | None = None
        if self.request and state.carried:
            self.visibility.update(phase="carrying_back")
            report = self._stop_report(outcome)
            is_proven = report is None or report.outcome != "unverified"
            back = await shielded(self._carry_back(self.request, is_proven=is_proven))
            ending = ending.carried_back(back.finalize)
            state = self.visibility.state
        self.visibility.update(
            phase="finalizing",
            usage=outcome.usage,
            cost_usd=outcome.cost_usd,
            turns=outcome.turns,
            attempt=outcome.attempts or state.attempt,
            session_id=_session_id(outcome.session_id or state.session_id, back),
            own_session_id=_session_id(outcome.own_session_id or state.own_session_id, back),
            last_event=outcome.last_event or state.last_event,
            error=ending.message or None,
            stop_report=self._stop_report(outcome),
            baseline=state.baseline or outcome.baseline,
        )
        self.delivery.close(outcome.messages, interrupted=ending.was_interrupted, journal_read=outcome.journal_read)
        if self.request and state.host:
            await shielded(self._finalize(self.request, ending, back))
        self.visibility.update(phase="closed", closed_as=ending.status)
        await shielded(workflow.wait_condition(workflow.all_handlers_finished))
        self.visibility.publish()
        result = self._result(ending)
        await shielded(self.notices.tell_end(result))
        if ending.status == "succeeded":
            return result
        if ending.status == "cancelled":
            raise CancelledError("the run was cancelled")
        raise ApplicationError(ending.message, result, type=ending.error, non_retryable=True)

    def _stop_report(self, outcome: RunOutcome) -> StopReport | None:
        """The report of the workflow's stop or of the session's, with a person's reason if there is one."""
        report, mailbox = self.visibility.state.stop_report or outcome.stop_report, self.delivery.mailbox
        if report is None or report.reason is not None or not mailbox.end_requested:
            return report
        return report.model_copy(update={"reason": mailbox.end_reason})

    def _error_code(self, ending: Ending) -> str | None:
        return ending.code(ended=self.delivery.mailbox.end_requested)

    async def _carry_back(self, request: RunRequest, *, is_proven: bool) -> CarriedBack:
        state = self.visibility.state
        assert state.carried is not None
        try:
            of_agent = request.of_part(state.part) if state.part else request
            back = await activities.carry_back(state, of_agent, state.carried, is_proven=is_proven)
        except ActivityError as error:
            back = CarriedBack(finalize=Finalize(status="failed", error=f"no worker of the host did it: {error.cause}"))
        baseline = back.changes.before if back.changes else None
        self.visibility.update(finalize=back.finalize, changes=back.changes, baseline=baseline)
        return back

    async def _finalize(self, request: RunRequest, ending: Ending, back: CarriedBack | None) -> None:
        state = self.visibility.state
        event = ending.terminal_event(workflow.now(), state.stop_report, self._error_code(ending))
        event = event.model_copy(update={"worktree": state.worktree})
        try:
            unseen = ending.outcome.unread or not self._end_reported
            finalized = await activities.finalize_run(state, request, event, back, unseen=unseen)
        except ActivityError as error:
            workflow.logger.warning("the run's log could not be closed: %s", error.cause)
            return
        if finalized and finalized.changes:
            self.visibility.update(changes=finalized.changes)
        if finalized and (read := finalized.progress):
            known = ending.outcome.at_least(read)
            session = state.session_id or _session_id(read.session_id, back)
            own = state.own_session_id or _session_id(read.own_session_id, back)
            self.visibility.update(usage=known.usage, cost_usd=known.cost_usd, turns=known.turns)
            self.visibility.update(session_id=session, own_session_id=own)

    def _result(self, ending: Ending) -> RunResult:
        outcome, state = ending.outcome, self.visibility.state
        return RunResult(
            status=ending.status,
            text=outcome.text,
            structured=outcome.structured,
            session_id=state.session_id,
            own_session_id=state.own_session_id,
            part=max(state.part, len(outcome.parts) - 1),
            usage=state.usage,
            cost_usd=state.cost_usd,
            turns=state.turns,
            stop_reason=outcome.stop_reason,
            started_at=self._started_at,
            ended_at=workflow.now(),
            attempts=state.attempt,
            messages_delivered=self.delivery.mailbox.delivered,
            error=ending.message or None,
            code=self._error_code(ending),
            stop_report=state.stop_report,
            changes=state.changes,
            finalize=state.finalize,
            worktree=state.worktree,
            parts=tuple(_as_kept(each, state.finalize) for each in outcome.parts),
            facts=outcome.facts,
        )

    @workflow.query(name=names.STATE_QUERY, description=OF_RUN[names.STATE_QUERY])
    def state(self) -> RunState:
        """RunState, also after the run has closed."""
        return self.visibility.state


def _session_id(session: str | None, back: CarriedBack | None) -> str | None:
    """The id under which the session can be gone on with."""
    return back.finalize.sessions.get(session, session) if back and session else session


def _as_kept(part: RunPart, back: Finalize | None) -> RunPart:
    if back is None or part.session_id not in back.sessions:
        return part
    return part.model_copy(update={"session_id": back.sessions[part.session_id]})


def _was_reset() -> bool:
    """Whether a process of the execution that a reset replaced may be at work.

    The marker says what was found when it was asked: a replay may have another run id, and of what was decided before
    the reset, it repeats.
    """
    info = workflow.info()
    is_asked_anew = not workflow.unsafe.is_replaying()
    if is_asked_anew and info.run_id == info.first_execution_run_id:
        return False
    return workflow.patched(STOP_AFTER_RESET)


def _was_withdrawn(agent: workflow.ActivityHandle[RunOutcome]) -> bool:
    """Whether no worker had taken it. A worker that died may have started a process before it could tell."""
    if not _has_failed(agent):
        return False
    failure = agent.exception()
    cause = failure.cause if isinstance(failure, ActivityError) else failure
    # Before 0.2 every failure counted: the branch may go when no run from then is open.
    return isinstance(cause, CancelledError) or not workflow.patched("withdrawn-is-cancelled")


def _has_failed(agent: workflow.ActivityHandle[RunOutcome]) -> bool:
    return agent.cancelled() or agent.exception() is not None
