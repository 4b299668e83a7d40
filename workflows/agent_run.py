"""AgentRun: one run of one agent, from request to proof of its end.

Decides and remembers; everything that touches the world is an activity. The activities asked for are in `commands`,
judgements in `ending`, the way to the agent in `courier`, what is shown in `board`.
"""

import asyncio
import contextlib
import hashlib
from datetime import timedelta
from typing import Any, Literal

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, FailureError

with workflow.unsafe.imports_passed_through():
    from steersman.contracts import names
    from steersman.contracts.activities import (
        ApprovalAsked,
        MessagesSettled,
        Progressed,
        RunOutcome,
        SessionStarted,
    )
    from steersman.contracts.agents import CAPABILITIES, cannot
    from steersman.contracts.errors import REFUSED, ErrorType, InvalidRequest
    from steersman.contracts.messages import (
        MESSAGE_ID,
        Decision,
        DecisionReceipt,
        Message,
        MessageReceipt,
        parse_message,
    )
    from steersman.contracts.request import RunRequest, oversized, parse_request
    from steersman.contracts.run import MAX_REASON, MessageKind, Phase, RunResult, RunState, StopReport
    from workflows import commands
    from workflows.board import Board
    from workflows.courier import Courier
    from workflows.ending import Ending, never_started, unverified
    from workflows.mailbox import wrong
    from workflows.waiting import all_heard, uncancelled

SETTLING_TIME = timedelta(seconds=10)
"""How long a stopped agent's activity may take to report what it knows."""
Why = Literal["cancelled", "duration", "ended"]


@workflow.defn(name=names.RUN_WORKFLOW)
class AgentRun:
    """Input: one RunRequest as JSON. Result: RunResult. Query `state`; updates and signals steer, interrupt, decide."""

    @workflow.init
    def __init__(self, *inputs: Any) -> None:
        # Runs that were begun before there were bounds go on as their histories say.
        self._bounded = workflow.patched("bounded-messages")
        self._board = Board(at_once=not self._bounded)
        self._courier = Courier(self._board, bounded=self._bounded)
        self._started_at = workflow.now()
        self._request: RunRequest | None = None
        self._refusal: InvalidRequest | None = None
        self._hurried = False
        self._end_seen = False
        try:
            if len(inputs) != 1:
                raise InvalidRequest(f"RunRequest: the input must be one JSON object, not {len(inputs)} values")
            request = parse_request(inputs[0])
            if (wrong_size := oversized(inputs[0], "RunRequest")) and workflow.patched("request-size"):
                raise InvalidRequest(wrong_size)
            self._request = request
            waits_s = request.limits.approval_s
            self._courier.patience = None if waits_s is None else timedelta(seconds=waits_s)
        except InvalidRequest as error:
            self._refusal = error

    @workflow.run
    async def run(self, *inputs: Any) -> RunResult:
        """Lead the run to its end and close as Temporal shows it: Completed, Failed or Canceled."""
        if self._request is None:
            assert self._refusal is not None
            return await self._close(Ending.failed(self._refusal))
        self._board.introduce(self._request)
        publishing = asyncio.create_task(self._board.publish())
        errands = [asyncio.create_task(self._courier.carry())]
        if self._courier.patience is not None:
            errands.append(asyncio.create_task(self._courier.deny_the_unanswered(self._courier.patience)))
        ending = await self._lead(self._request)
        for errand in errands:
            errand.cancel()
        try:
            return await self._close(ending)
        finally:
            publishing.cancel()

    # The path of a run.

    async def _lead(self, request: RunRequest) -> Ending:
        try:
            claim = await commands.claim_host(request, locally=not self._bounded)
        except (asyncio.CancelledError, FailureError) as error:
            # A local activity's failure comes bare, an activity's wrapped in an ActivityError.
            failure = error.cause if isinstance(error, ActivityError) else error
            if not isinstance(failure, asyncio.CancelledError | CancelledError):
                return Ending.failed(error)
            self._board.set(stop_report=never_started(self._board.state.phase, self._reason("cancelled")))
            return Ending("cancelled")
        request = self._request = claim.caps.held(request)
        self._board.set(host=claim.host, store=claim.store)
        agent = commands.run_agent(claim.host, request, claim.store)
        unstarted = asyncio.create_task(workflow.wait_condition(self._ended_unstarted))
        try:
            await workflow.wait(
                [agent, unstarted], timeout=request.limits.duration_s, return_when=asyncio.FIRST_COMPLETED
            )
        except asyncio.CancelledError:
            return await uncancelled(self._stopped(request, agent, "cancelled"))
        finally:
            unstarted.cancel()
        if not agent.done():
            why: Why = "ended" if self._ended_unstarted() else "duration"
            return await uncancelled(self._stopped(request, agent, why))
        raised = agent.exception()
        self._end_seen = raised is None
        return Ending.failed(raised) if raised else Ending.of(agent.result())

    def _ended_unstarted(self) -> bool:
        """A person ended the run before a worker had taken it: there is no turn to interrupt."""
        return self._board.at("queued") and self._courier.mailbox.ending

    def _reason(self, why: Why) -> str | None:
        """In whose words the run is stopped."""
        if why == "cancelled":
            return (workflow.cancellation_reason() or "")[:MAX_REASON] or None
        if why == "ended":
            return self._courier.mailbox.end_reason
        limit_s = self._request.limits.duration_s if self._request else None
        return f"limits.duration_s: the run took longer than {limit_s:g} s"

    async def _stopped(self, request: RunRequest, agent: workflow.ActivityHandle[RunOutcome], why: Why) -> Ending:
        phase = self._board.state.phase
        self._board.set(phase="stopping")
        agent.cancel()
        report: StopReport | None = None
        if phase == "queued":
            # Not taken by a worker yet: the server withdraws it at once, and no process can exist.
            await workflow.wait([agent], timeout=SETTLING_TIME.total_seconds())
            if agent.done() and _withdrawn(agent) and self._courier.session is None:
                report = never_started(phase)
        if report is None:
            report = await self._stop_agent(request, phase, why)
            await workflow.wait([agent], timeout=SETTLING_TIME.total_seconds())
        reason = self._reason(why)
        self._board.set(stop_report=report.model_copy(update={"reason": reason}))
        self._end_seen = agent.done() and not _raised(agent)
        outcome = agent.result() if self._end_seen else self._last_known()
        if why == "cancelled":
            return Ending.of(outcome) if outcome.status == "succeeded" else Ending("cancelled", outcome)
        if why == "ended":
            return Ending.of(outcome) if outcome.status == "succeeded" else Ending.interrupted(outcome)
        return Ending("failed", outcome, ErrorType.RUN_TIMED_OUT, reason or "")

    async def _stop_agent(self, request: RunRequest, phase: Phase, reason: str) -> StopReport:
        state = self._board.state
        stopping = commands.stop_agent(state, request, phase, reason)
        hurried = asyncio.ensure_future(workflow.wait_condition(lambda: self._hurried))
        try:
            await workflow.wait([stopping, hurried], return_when=asyncio.FIRST_COMPLETED)
            if not stopping.done():
                with contextlib.suppress(ActivityError):
                    await commands.stop_agent(state, request, phase, reason, hurried=True)
            return await stopping
        except ActivityError:
            return unverified(phase)
        finally:
            hurried.cancel()

    def _last_known(self) -> RunOutcome:
        state = self._board.state
        return RunOutcome(
            status="stopped",
            session_id=state.session_id,
            usage=state.usage,
            cost_usd=state.cost_usd,
            turns=state.turns,
            attempts=state.attempt,
            last_event=state.last_event,
        )

    async def _close(self, ending: Ending) -> RunResult:
        outcome, state = ending.outcome, self._board.state
        self._board.set(
            phase="finalizing",
            usage=outcome.usage,
            cost_usd=outcome.cost_usd,
            turns=outcome.turns,
            attempt=outcome.attempts or state.attempt,
            session_id=outcome.session_id or state.session_id,
            last_event=outcome.last_event or state.last_event,
            error=ending.message or None,
            stop_report=self._report(outcome),
        )
        self._courier.close(outcome.messages, interrupted=ending.was_interrupted, certain=outcome.journal_read)
        if self._request and state.host:
            await uncancelled(self._finalize(self._request, ending))
        self._board.set(phase="closed", closed_as=ending.status)
        await uncancelled(workflow.wait_condition(workflow.all_handlers_finished))
        self._board.show()
        result = self._result(ending)
        if ending.status == "succeeded":
            return result
        if ending.status == "cancelled":
            raise CancelledError("the run was cancelled")
        raise ApplicationError(ending.message, result, type=ending.error, non_retryable=True)

    def _report(self, outcome: RunOutcome) -> StopReport | None:
        """How the agent was stopped, by the workflow or by its session, and why."""
        report, mailbox = self._board.state.stop_report or outcome.stop_report, self._courier.mailbox
        if report is None or report.reason is not None or not mailbox.ending:
            return report
        return report.model_copy(update={"reason": mailbox.end_reason})

    def _code(self, ending: Ending) -> str | None:
        return ending.code(ended=self._courier.mailbox.ending)

    async def _finalize(self, request: RunRequest, ending: Ending) -> None:
        event = ending.terminal_event(workflow.now(), self._board.state.stop_report, self._code(ending))
        try:
            await commands.finalize_run(self._board.state, request, event, unseen=not self._end_seen)
        except ActivityError as error:
            workflow.logger.warning("the run's log could not be closed: %s", error.cause)

    def _result(self, ending: Ending) -> RunResult:
        outcome, state = ending.outcome, self._board.state
        return RunResult(
            status=ending.status,
            text=outcome.text,
            structured=outcome.structured,
            session_id=state.session_id,
            usage=state.usage,
            cost_usd=state.cost_usd,
            turns=state.turns,
            stop_reason=outcome.stop_reason,
            started_at=self._started_at,
            ended_at=workflow.now(),
            attempts=state.attempt,
            messages_delivered=self._courier.mailbox.delivered,
            error=ending.message or None,
            code=self._code(ending),
            stop_report=state.stop_report,
            facts=outcome.facts,
        )

    # What people say.

    @workflow.query(name=names.STATE_QUERY)
    def state(self) -> RunState:
        """RunState, also after the run has closed."""
        return self._board.state

    @workflow.update(name=names.STEER)
    async def steer(self, *inputs: Any) -> MessageReceipt:
        """Message -> MessageReceipt: into the running turn, without stopping it."""
        return await self._say("steer", inputs)

    @steer.validator
    def _check_steer(self, *inputs: Any) -> None:
        self._check_message("steer", inputs)

    @workflow.update(name=names.INTERRUPT)
    async def interrupt(self, *inputs: Any) -> MessageReceipt:
        """Message -> MessageReceipt: ends the turn, keeps the session; with a text, goes on with it."""
        return await self._say("interrupt", inputs)

    @interrupt.validator
    def _check_interrupt(self, *inputs: Any) -> None:
        self._check_message("interrupt", inputs)

    @workflow.update(name=names.DECIDE)
    async def decide(self, *inputs: Any) -> DecisionReceipt:
        """Decision -> DecisionReceipt. The first answer to an approval wins."""
        await self._signals_first()
        self._check_decide(*inputs)  # a signal may have answered since the validator looked
        return self._courier.decide(_parsed(Decision, inputs))

    @decide.validator
    def _check_decide(self, *inputs: Any) -> None:
        decision = _parsed(Decision, inputs)
        if refusal := self._courier.approvals.refusal(decision):
            raise ApplicationError(refusal, type=REFUSED, non_retryable=True)

    @workflow.signal(name=names.STEER)
    def steer_signal(self, *inputs: Any) -> None:
        """As the update, without an answer."""
        self._hear("steer", inputs)

    @workflow.signal(name=names.INTERRUPT)
    def interrupt_signal(self, *inputs: Any) -> None:
        """As the update, without an answer."""
        self._hear("interrupt", inputs)

    @workflow.signal(name=names.DECIDE)
    def decide_signal(self, *inputs: Any) -> None:
        """As the update, without an answer; a second decision changes nothing."""
        try:
            self._check_decide(*inputs)
        except ApplicationError as error:
            workflow.logger.warning("decision refused: %s", error.message)
            return
        self._courier.decide(_parsed(Decision, inputs))

    @workflow.signal(name=names.HURRY)
    def hurry(self, *inputs: Any) -> None:
        """The stop that is at work, or the next one, becomes as quick as it can be."""
        self._hurried = True

    async def _say(self, kind: MessageKind, inputs: tuple[Any, ...]) -> MessageReceipt:
        await self._signals_first()
        if self._bounded:
            self._check_message(kind, inputs)  # something else may have been said since the validator looked
        return await self._courier.say(kind, _parsed(Message, inputs), _update_id())

    async def _signals_first(self) -> None:
        """What an update finds does not depend on the signals that it came between."""
        if self._bounded:
            await all_heard()

    def _check_message(self, kind: MessageKind, inputs: tuple[Any, ...]) -> None:
        message = _parsed(Message, inputs)
        if (message.id or _update_id()) in self._courier.mailbox:
            return
        if refusal := wrong(kind, message):
            raise ApplicationError(refusal, type=ErrorType.INVALID_REQUEST, non_retryable=True)
        if reason := self._deaf_to(kind, message):
            raise ApplicationError(reason, type=REFUSED, non_retryable=True)

    def _deaf_to(self, kind: MessageKind, message: Message) -> str | None:
        if self._request is None or self._board.at("stopping", "finalizing", "closed"):
            return f"the run is {self._board.state.phase}: it takes no more messages"
        if self._courier.mailbox.ending and not message.end:
            return "the run is ending: it takes no more messages"
        if refusal := cannot(self._request.agent, CAPABILITIES[self._request.agent], kind):
            return refusal
        return self._courier.mailbox.refusal(message)

    def _hear(self, kind: MessageKind, inputs: tuple[Any, ...]) -> None:
        try:
            self._check_message(kind, inputs)
        except ApplicationError as error:
            workflow.logger.warning("%s refused: %s", kind, error.message)
            return
        self._courier.hear(kind, _parsed(Message, inputs))

    # What run_agent says. Anybody can send a signal, also an empty one: `null` decodes to None.

    @workflow.signal(name=names.SESSION_STARTED)
    def session_started(self, session: SessionStarted | None) -> None:
        """A worker holds the session."""
        if session is None or not self._courier.meet(session):
            return
        if self._board.at("queued", "preparing"):
            self._board.set(phase="running" if session.handle else "preparing")
        if session.handle:
            self._board.set(handle=session.handle, attempt=session.attempt)

    @workflow.signal(name=names.PROGRESSED)
    def progressed(self, progress: Progressed | None) -> None:
        """A milestone of the agent's work."""
        if progress is None:
            return
        state = self._board.state
        self._board.set(
            session_id=progress.session_id or state.session_id,
            usage=progress.usage,
            cost_usd=progress.cost_usd,
            turns=progress.turns,
            attempt=progress.attempt,
            last_event=progress.last_event or state.last_event,
        )

    @workflow.signal(name=names.APPROVAL_ASKED)
    def approval_asked(self, asked: ApprovalAsked | None) -> None:
        """The agent waits for a person's word, or no longer does."""
        if asked is not None:
            self._courier.asked(asked)

    @workflow.signal(name=names.MESSAGES_SETTLED)
    def messages_settled(self, settled: MessagesSettled | None) -> None:
        """The agent has taken messages that had been delivered before."""
        if settled is not None:
            self._courier.settled(settled)


def _parsed(model: type[Any], inputs: tuple[Any, ...]) -> Any:
    try:
        return parse_message(model, inputs[0] if inputs else None)
    except InvalidRequest as error:
        raise ApplicationError(error.message, type=ErrorType.INVALID_REQUEST, non_retryable=True) from error


def _update_id() -> str:
    """What a message is called that comes by the update that is handled now; empty for a signal."""
    info = workflow.current_update_info()
    if info is None or MESSAGE_ID.fullmatch(info.id):
        return info.id if info else ""
    return f"update-{hashlib.sha256(info.id.encode()).hexdigest()[:24]}"


def _withdrawn(agent: workflow.ActivityHandle[RunOutcome]) -> bool:
    """Whether no worker had it. One that has fallen may have had it, and started a process, before it could tell."""
    if not _raised(agent):
        return False
    failure = agent.exception()
    cause = failure.cause if isinstance(failure, ActivityError) else failure
    # Before 0.2 every failure counted: the branch may go when no run from then is open.
    return isinstance(cause, CancelledError) or not workflow.patched("withdrawn-is-cancelled")


def _raised(agent: workflow.ActivityHandle[RunOutcome]) -> bool:
    return agent.cancelled() or agent.exception() is not None
