"""AgentRun: one run of one agent, from request to proof of its end.

Decides and remembers; everything that touches the world is an activity. The activities asked for are in `commands`,
judgements in `ending`, the way to the agent in `courier`, what is shown in `board`.
"""

import asyncio
import contextlib
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
    from steersman.contracts.agents import CAPABILITIES
    from steersman.contracts.errors import ErrorType, InvalidRequest
    from steersman.contracts.messages import Decision, DecisionReceipt, Message, MessageReceipt, parse_message
    from steersman.contracts.request import RunRequest, parse_request
    from steersman.contracts.run import MessageKind, Phase, RunResult, RunState, StopReport
    from workflows import commands
    from workflows.board import Board
    from workflows.courier import Courier
    from workflows.ending import Ending, never_started, unverified
    from workflows.mailbox import MAX_MESSAGES, wrong
    from workflows.waiting import uncancelled

SETTLING_TIME = timedelta(seconds=10)
"""How long a stopped agent's activity may take to report what it knows."""
Why = Literal["cancelled", "duration", "ended"]


@workflow.defn(name=names.RUN_WORKFLOW)
class AgentRun:
    """Input: one RunRequest as JSON. Result: RunResult. Query `state`; updates and signals steer, interrupt, decide."""

    @workflow.init
    def __init__(self, *inputs: Any) -> None:
        self._board = Board()
        self._courier = Courier(self._board)
        self._started_at = workflow.now()
        self._request: RunRequest | None = None
        self._refusal: InvalidRequest | None = None
        self._hurried = False
        try:
            if len(inputs) != 1:
                raise InvalidRequest(f"RunRequest: the input must be one JSON object, not {len(inputs)} values")
            self._request = parse_request(inputs[0])
        except InvalidRequest as error:
            self._refusal = error

    @workflow.run
    async def run(self, *inputs: Any) -> RunResult:
        """Lead the run to its end and close as Temporal shows it: Completed, Failed or Canceled."""
        if self._request is None:
            assert self._refusal is not None
            return await self._close(Ending.failed(self._refusal))
        self._board.introduce(self._request)
        patience = timedelta(seconds=self._request.limits.approval_s)
        errands = [
            asyncio.create_task(self._courier.carry()),
            asyncio.create_task(self._courier.deny_the_unanswered(patience)),
        ]
        ending = await self._lead(self._request)
        for errand in errands:
            errand.cancel()
        return await self._close(ending)

    # The path of a run.

    async def _lead(self, request: RunRequest) -> Ending:
        try:
            claim = await commands.claim_host(request)
        except (asyncio.CancelledError, FailureError) as error:
            # A local activity's failure comes bare, an activity's wrapped in an ActivityError.
            failure = error.cause if isinstance(error, ActivityError) else error
            if not isinstance(failure, asyncio.CancelledError | CancelledError):
                return Ending.failed(error)
            self._board.set(stop_report=never_started(self._board.state.phase))
            return Ending("cancelled")
        request = self._request = claim.caps.held(request)
        self._board.set(host=claim.host)
        agent = commands.run_agent(claim.host, request)
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
        return Ending.failed(raised) if raised else Ending.of(agent.result())

    def _ended_unstarted(self) -> bool:
        """A person ended the run before a worker had taken it: there is no turn to interrupt."""
        return self._board.at("queued") and self._courier.mailbox.ending

    async def _stopped(self, request: RunRequest, agent: workflow.ActivityHandle[RunOutcome], why: Why) -> Ending:
        phase = self._board.state.phase
        self._board.set(phase="stopping")
        agent.cancel()
        report: StopReport | None = None
        if phase == "queued":
            # Not taken by a worker yet: the server withdraws it at once, and no process can exist.
            await workflow.wait([agent], timeout=SETTLING_TIME.total_seconds())
            if agent.done() and _raised(agent) and self._courier.session is None:
                report = never_started(phase)
        if report is None:
            report = await self._stop_agent(request, phase, why)
            await workflow.wait([agent], timeout=SETTLING_TIME.total_seconds())
        self._board.set(stop_report=report)
        outcome = agent.result() if agent.done() and not _raised(agent) else self._last_known()
        if why == "cancelled":
            return Ending.of(outcome) if outcome.status == "succeeded" else Ending("cancelled", outcome)
        if why == "ended":
            return Ending.of(outcome) if outcome.status == "succeeded" else Ending.interrupted(outcome)
        limit = f"limits.duration_s: the run took longer than {request.limits.duration_s:g} s"
        return Ending("failed", outcome, ErrorType.RUN_TIMED_OUT, limit)

    async def _stop_agent(self, request: RunRequest, phase: Phase, reason: str) -> StopReport:
        host = self._board.state.host or ""
        stopping = commands.stop_agent(host, request, phase, reason)
        hurried = asyncio.ensure_future(workflow.wait_condition(lambda: self._hurried))
        try:
            await workflow.wait([stopping, hurried], return_when=asyncio.FIRST_COMPLETED)
            if not stopping.done():
                with contextlib.suppress(ActivityError):
                    await commands.stop_agent(host, request, phase, reason, hurried=True)
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
        outcome = ending.outcome
        self._courier.close(outcome.messages, interrupted=ending.was_interrupted)
        state = self._board.state
        self._board.set(
            phase="finalizing",
            usage=outcome.usage,
            cost_usd=outcome.cost_usd,
            turns=outcome.turns,
            attempt=outcome.attempts or state.attempt,
            session_id=outcome.session_id or state.session_id,
            last_event=outcome.last_event or state.last_event,
            error=ending.message or None,
        )
        if self._request and state.host:
            await uncancelled(self._finalize(state.host, self._request, ending))
        self._board.set(phase="closed")
        await uncancelled(workflow.wait_condition(workflow.all_handlers_finished))
        result = self._result(ending)
        if ending.status == "succeeded":
            return result
        if ending.status == "cancelled":
            raise CancelledError("the run was cancelled")
        raise ApplicationError(ending.message, result, type=ending.error, non_retryable=True)

    async def _finalize(self, host: str, request: RunRequest, ending: Ending) -> None:
        event = ending.terminal_event(workflow.now(), self._board.state.stop_report)
        try:
            await commands.finalize_run(host, request, event)
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
        return await self._courier.say("steer", _parsed(Message, inputs))

    @steer.validator
    def _check_steer(self, *inputs: Any) -> None:
        self._check_message("steer", inputs)

    @workflow.update(name=names.INTERRUPT)
    async def interrupt(self, *inputs: Any) -> MessageReceipt:
        """Message -> MessageReceipt: ends the turn, keeps the session; with a text, goes on with it."""
        return await self._courier.say("interrupt", _parsed(Message, inputs))

    @interrupt.validator
    def _check_interrupt(self, *inputs: Any) -> None:
        self._check_message("interrupt", inputs)

    @workflow.update(name=names.DECIDE)
    async def decide(self, *inputs: Any) -> DecisionReceipt:
        """Decision -> DecisionReceipt. The first answer to an approval wins."""
        self._check_decide(*inputs)  # a signal may have answered since the validator looked
        return self._courier.decide(_parsed(Decision, inputs))

    @decide.validator
    def _check_decide(self, *inputs: Any) -> None:
        decision = _parsed(Decision, inputs)
        if refusal := self._courier.approvals.refusal(decision):
            raise ApplicationError(refusal, type="Refused", non_retryable=True)

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

    def _check_message(self, kind: MessageKind, inputs: tuple[Any, ...]) -> None:
        message = _parsed(Message, inputs)
        if message.id and message.id in self._courier.mailbox:
            return
        if refusal := wrong(kind, message):
            raise ApplicationError(refusal, type=ErrorType.INVALID_REQUEST, non_retryable=True)
        if reason := self._deaf_to(kind, message):
            raise ApplicationError(reason, type="Refused", non_retryable=True)

    def _deaf_to(self, kind: MessageKind, message: Message) -> str | None:
        if self._request is None or self._board.at("stopping", "finalizing", "closed"):
            return f"the run is {self._board.state.phase}: it takes no more messages"
        if self._courier.mailbox.ending and not message.end:
            return "the run is ending: it takes no more messages"
        can = CAPABILITIES[self._request.agent]
        if not (can.steer if kind == "steer" else can.interrupt):
            return f'agent "{self._request.agent}" cannot {kind}'
        if self._courier.mailbox.full:
            return f"the run has taken {MAX_MESSAGES} messages already"
        return None

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


def _raised(agent: workflow.ActivityHandle[RunOutcome]) -> bool:
    return agent.cancelled() or agent.exception() is not None
