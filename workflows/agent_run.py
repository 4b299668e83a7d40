"""AgentRun: one run of one agent, from request to proof of its end.

Decides and remembers; everything that touches the world is an activity. Judgements live in `ending`, messages in
`mailbox`, approvals in `approvals`, texts for the Web UI in `display`.
"""

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any, Literal, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributeKey
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, FailureError

with workflow.unsafe.imports_passed_through():
    from steersman.contracts import names
    from steersman.contracts.activities import (
        ApprovalAsked,
        Claim,
        Delivered,
        DeliverInput,
        FinalizeInput,
        MessagesSettled,
        Progressed,
        RunAgentInput,
        RunKey,
        RunOutcome,
        SessionStarted,
        StopInput,
    )
    from steersman.contracts.agents import CAPABILITIES
    from steersman.contracts.errors import ErrorType, InvalidRequest
    from steersman.contracts.messages import Decision, DecisionReceipt, Message, MessageReceipt, parse_message
    from steersman.contracts.request import RunRequest, parse_request
    from steersman.contracts.run import MessageKind, Phase, RunResult, RunState, StopReport
    from workflows.approvals import Approvals
    from workflows.display import details, one_line
    from workflows.ending import Ending, never_started, unverified
    from workflows.mailbox import MAX_MESSAGES, Mailbox

AGENT_NAME = SearchAttributeKey.for_keyword(names.AGENT_NAME)
RUN_PHASE = SearchAttributeKey.for_keyword(names.RUN_PHASE)
COST_USD = SearchAttributeKey.for_float(names.COST_USD)

PERSISTENT = RetryPolicy(
    initial_interval=timedelta(milliseconds=100), backoff_coefficient=2, maximum_interval=timedelta(seconds=10)
)
HEARTBEAT_TIMEOUT = timedelta(seconds=10)
NO_LIMIT = timedelta(days=3650)
SETTLING_TIME = timedelta(seconds=10)
"""How long a stopped agent's activity may take to report what it knows."""

PATIENCE_HERE = timedelta(seconds=0.25)
PATIENCE_THERE = timedelta(seconds=10)
"""How long a delivery waits for the agent's acknowledgement before it is left to a signal."""

T = TypeVar("T")


@workflow.defn(name=names.RUN_WORKFLOW)
class AgentRun:
    """Input: one RunRequest as JSON. Result: RunResult. Query `state`; updates and signals steer, interrupt, decide."""

    @workflow.init
    def __init__(self, *inputs: Any) -> None:
        self._state = RunState()
        self._mailbox = Mailbox()
        self._approvals = Approvals()
        self._session: SessionStarted | None = None
        self._sessions = 0
        self._started_at = workflow.now()
        self._request: RunRequest | None = None
        self._refusal: InvalidRequest | None = None
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
        self._introduce(self._request)
        errands = [asyncio.create_task(self._post()), asyncio.create_task(self._deny_the_unanswered(self._request))]
        ending = await self._lead(self._request)
        for errand in errands:
            errand.cancel()
        return await self._close(ending)

    # The path of a run.

    async def _lead(self, request: RunRequest) -> Ending:
        try:
            claim = await self._claim(request)
        except (asyncio.CancelledError, FailureError) as error:
            # A local activity's failure comes bare, an activity's wrapped in an ActivityError.
            failure = error.cause if isinstance(error, ActivityError) else error
            if not isinstance(failure, asyncio.CancelledError | CancelledError):
                return Ending.failed(error)
            self._set(stop_report=never_started(self._state.phase))
            return Ending("cancelled")
        self._set(host=claim.host)
        agent = self._start_agent(request)
        try:
            await workflow.wait([agent], timeout=request.limits.duration_s)
        except asyncio.CancelledError:
            return await self._uncancelled(self._stopped(request, agent, "cancelled"))
        if not agent.done():
            return await self._uncancelled(self._stopped(request, agent, "duration"))
        return self._result_of(agent)

    async def _claim(self, request: RunRequest) -> Claim:
        # A local activity costs no round trip; only a run that names another machine needs that machine's queue.
        claim: Claim = await workflow.execute_local_activity(
            names.CLAIM_HOST,
            request,
            result_type=Claim,
            start_to_close_timeout=timedelta(seconds=30),
            retry_policy=RetryPolicy(maximum_attempts=3),
        )
        if request.runtime.host in (None, claim.host):
            return claim
        elsewhere: Claim = await workflow.execute_activity(
            names.CLAIM_HOST,
            request,
            task_queue=names.host_queue(request.runtime.host or ""),
            result_type=Claim,
            schedule_to_start_timeout=timedelta(minutes=10),
            start_to_close_timeout=timedelta(seconds=30),
            retry_policy=RetryPolicy(maximum_attempts=3),
        )
        return elsewhere

    def _start_agent(self, request: RunRequest) -> workflow.ActivityHandle[RunOutcome]:
        limit = request.limits.duration_s
        deadline = self._started_at + timedelta(seconds=limit) if limit else None
        return workflow.start_activity(
            names.RUN_AGENT,
            RunAgentInput(key=self._key, request=request, deadline=deadline),
            task_queue=names.runs_queue(self._state.host or ""),
            result_type=RunOutcome,
            start_to_close_timeout=NO_LIMIT,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=PERSISTENT,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=f"{request.agent}: {one_line(request.prompt or ' '.join(request.command or ()))}",
        )

    def _result_of(self, agent: workflow.ActivityHandle[RunOutcome]) -> Ending:
        error = agent.exception()
        if isinstance(error, ActivityError):
            return Ending.failed(error)
        return Ending.of(agent.result())

    async def _stopped(
        self,
        request: RunRequest,
        agent: workflow.ActivityHandle[RunOutcome],
        why: Literal["cancelled", "duration"],
    ) -> Ending:
        phase = self._state.phase
        self._set_phase("stopping")
        agent.cancel()
        report: StopReport | None = None
        if phase == "queued":
            # Not taken by a worker yet: the server withdraws it at once, and no process can exist.
            await workflow.wait([agent], timeout=SETTLING_TIME.total_seconds())
            if agent.done() and _raised(agent) and self._session is None:
                report = never_started(phase)
        if report is None:
            report = await self._stop_agent(request, phase, why)
            await workflow.wait([agent], timeout=SETTLING_TIME.total_seconds())
        self._set(stop_report=report)
        outcome = agent.result() if agent.done() and not _raised(agent) else self._last_known()
        if why == "cancelled":
            return Ending.of(outcome) if outcome.status == "succeeded" else Ending("cancelled", outcome)
        limit = f"limits.duration_s: the run took longer than {request.limits.duration_s:g} s"
        return Ending("failed", outcome, ErrorType.RUN_TIMED_OUT, limit)

    async def _stop_agent(self, request: RunRequest, phase: Phase, reason: str) -> StopReport:
        try:
            report: StopReport = await workflow.execute_activity(
                names.STOP_AGENT,
                StopInput(key=self._key, request=request, phase=phase, reason=reason, asked_at=workflow.now()),
                task_queue=names.host_queue(self._state.host or ""),
                result_type=StopReport,
                # When no worker is left on the host, the shim's lease has ended the agent by then.
                schedule_to_close_timeout=timedelta(seconds=request.lease_s + 120),
                start_to_close_timeout=timedelta(seconds=60),
                retry_policy=PERSISTENT,
                summary="stop the agent and prove it",
            )
        except ActivityError:
            return unverified(phase)
        return report

    def _last_known(self) -> RunOutcome:
        state = self._state
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
        self._set_phase("finalizing")
        self._mailbox.settle(outcome.messages, workflow.now())
        self._mailbox.close(workflow.now())
        self._approvals.close()
        self._set_cost(outcome.cost_usd)
        self._set(
            usage=outcome.usage,
            turns=outcome.turns,
            attempt=outcome.attempts or self._state.attempt,
            session_id=outcome.session_id or self._state.session_id,
            last_event=outcome.last_event or self._state.last_event,
            error=ending.message or None,
        )
        if self._request and self._state.host:
            await self._uncancelled(self._finalize(self._request, ending))
        self._set_phase("closed")
        await self._uncancelled(workflow.wait_condition(workflow.all_handlers_finished))
        result = self._result(ending)
        if ending.status == "succeeded":
            return result
        if ending.status == "cancelled":
            raise CancelledError("the run was cancelled")
        raise ApplicationError(ending.message, result, type=ending.error, non_retryable=True)

    async def _finalize(self, request: RunRequest, ending: Ending) -> None:
        event = ending.terminal_event(workflow.now(), self._state.stop_report)
        try:
            await workflow.execute_activity(
                names.FINALIZE_RUN,
                FinalizeInput(key=self._key, request=request, event=event),
                task_queue=names.host_queue(self._state.host or ""),
                # A host that is gone must not hold the result back; its next sweep closes the log.
                schedule_to_close_timeout=timedelta(seconds=60),
                retry_policy=PERSISTENT,
            )
        except ActivityError as error:
            workflow.logger.warning("the run's log could not be closed: %s", error.cause)

    def _result(self, ending: Ending) -> RunResult:
        outcome, state = ending.outcome, self._state
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
            messages_delivered=self._mailbox.delivered,
            error=ending.message or None,
            facts=outcome.facts,
        )

    # What people say.

    @workflow.query(name=names.STATE_QUERY)
    def state(self) -> RunState:
        """RunState, also after the run has closed."""
        return self._state.model_copy(update={"messages": self._mailbox.records, "approvals": self._approvals.open})

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
        decision = parse_message(Decision, inputs[0] if inputs else None)
        if refusal := self._approvals.refusal(decision):
            # A signal may have answered between the validator and here.
            raise ApplicationError(refusal, type="Refused", non_retryable=True)
        approval = self._approvals.decide(decision)
        return DecisionReceipt(id=decision.id, decision=decision.decision, tool=approval.tool, input=approval.input)

    @decide.validator
    def _check_decide(self, *inputs: Any) -> None:
        decision = _parsed(Decision, inputs)
        if refusal := self._approvals.refusal(decision):
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
        self._approvals.decide(parse_message(Decision, inputs[0]))

    def _check_message(self, kind: MessageKind, inputs: tuple[Any, ...]) -> None:
        message = _parsed(Message, inputs)
        if message.id and message.id in self._mailbox:
            return
        if kind == "steer" and not (message.text or "").strip():
            raise ApplicationError("Message: text is required", type=ErrorType.INVALID_REQUEST, non_retryable=True)
        if reason := self._deaf_to(kind):
            raise ApplicationError(reason, type="Refused", non_retryable=True)

    def _deaf_to(self, kind: MessageKind) -> str | None:
        if self._request is None or self._state.phase in ("stopping", "finalizing", "closed"):
            return f"the run is {self._state.phase}: it takes no more messages"
        can = CAPABILITIES[self._request.agent]
        if not (can.steer if kind == "steer" else can.interrupt):
            return f'agent "{self._request.agent}" cannot {kind}'
        if self._mailbox.full:
            return f"the run has taken {MAX_MESSAGES} messages already"
        return None

    def _hear(self, kind: MessageKind, inputs: tuple[Any, ...]) -> None:
        try:
            self._check_message(kind, inputs)
        except ApplicationError as error:
            workflow.logger.warning("%s refused: %s", kind, error.message)
            return
        self._mailbox.accept(kind, parse_message(Message, inputs[0] if inputs else None), workflow.now())

    async def _say(self, kind: MessageKind, inputs: tuple[Any, ...]) -> MessageReceipt:
        message_id = self._mailbox.accept(kind, parse_message(Message, inputs[0] if inputs else None), workflow.now())
        # A steer may be read much later, at the next tool boundary; an interrupt is answered at once or not at all.
        pending = {"queued"} if kind == "steer" else {"queued", "delivered"}
        await workflow.wait_condition(lambda: self._mailbox[message_id].state not in pending)
        record = self._mailbox[message_id]
        latency = workflow.now() - record.received_at
        return MessageReceipt(
            id=message_id, state=record.state, how=record.how, latency_ms=round(latency / timedelta(milliseconds=1))
        )

    # What run_agent says. Anybody can send a signal, also an empty one: `null` decodes to None.

    @workflow.signal(name=names.SESSION_STARTED)
    def session_started(self, session: SessionStarted | None) -> None:
        """A worker holds the session: say again to it whatever is not acknowledged."""
        if session is None or (self._session and session.epoch < self._session.epoch):
            return
        self._session = session
        self._sessions += 1
        self._mailbox.resend()
        self._approvals.resend()
        if self._state.phase in ("queued", "preparing"):
            self._set_phase("running" if session.handle else "preparing")
        if session.handle:
            self._set(handle=session.handle, attempt=session.attempt)

    @workflow.signal(name=names.PROGRESSED)
    def progressed(self, progress: Progressed | None) -> None:
        """A milestone of the agent's work."""
        if progress is None:
            return
        self._set_cost(progress.cost_usd)
        self._set(
            session_id=progress.session_id or self._state.session_id,
            usage=progress.usage,
            turns=progress.turns,
            attempt=progress.attempt,
            last_event=progress.last_event or self._state.last_event,
        )

    @workflow.signal(name=names.APPROVAL_ASKED)
    def approval_asked(self, asked: ApprovalAsked | None) -> None:
        """The agent waits for a person's word, or no longer does."""
        if asked is None:
            return
        self._approvals.asked(asked)
        self._show()

    @workflow.signal(name=names.MESSAGES_SETTLED)
    def messages_settled(self, settled: MessagesSettled | None) -> None:
        """The agent has taken messages that had been delivered before."""
        if settled is None:
            return
        self._mailbox.settle(settled.messages, workflow.now())
        self._show()

    # Errands beside the path.

    async def _post(self) -> None:
        """Carry messages and decisions to the worker that holds the session; wait for the next one if it is gone."""
        pause = timedelta(seconds=1)
        while True:
            await workflow.wait_condition(
                lambda: (
                    bool(self._session and self._session.handle)
                    and bool(self._mailbox.unsent() or self._approvals.unsent())
                )
            )
            session = self._sessions
            if await self._deliver():
                pause = timedelta(seconds=1)
                continue
            try:
                await workflow.wait_condition(lambda s=session: self._sessions != s, timeout=pause)  # type: ignore[misc]
            except TimeoutError:
                pause *= 2  # a new session wakes this anyway, and each try costs history

    async def _deliver(self) -> bool:
        assert self._session is not None
        session = self._sessions
        parcel = DeliverInput(key=self._key, messages=self._mailbox.unsent(), decisions=self._approvals.unsent())
        try:
            delivered = await self._deliver_here(parcel)
            if not delivered.here:
                delivered = await self._deliver_there(parcel, self._session.worker_queue)
        except ActivityError:
            return False
        if not delivered.here:
            return False
        if session == self._sessions:
            self._mailbox.sent(parcel.messages)
            self._approvals.sent(parcel.decisions)
        self._mailbox.settle(delivered.messages, workflow.now())
        self._show()
        return True

    async def _deliver_here(self, parcel: DeliverInput) -> Delivered:
        # Mostly this very worker holds the session: no round trip, and one event of history. A local activity holds
        # up everything else that comes for this workflow, so it must be short.
        delivered: Delivered = await workflow.execute_local_activity(
            names.DELIVER_MESSAGES,
            parcel.model_copy(update={"patience_s": PATIENCE_HERE.total_seconds()}),
            result_type=Delivered,
            schedule_to_close_timeout=timedelta(seconds=5),
            retry_policy=RetryPolicy(maximum_attempts=1),
        )
        return delivered

    async def _deliver_there(self, parcel: DeliverInput, queue: str) -> Delivered:
        delivered: Delivered = await workflow.execute_activity(
            names.DELIVER_MESSAGES,
            parcel.model_copy(update={"patience_s": PATIENCE_THERE.total_seconds()}),
            task_queue=queue,
            result_type=Delivered,
            schedule_to_start_timeout=timedelta(seconds=5),
            start_to_close_timeout=timedelta(seconds=30),
            retry_policy=RetryPolicy(maximum_attempts=1),
            summary=", ".join(f"{each.kind} {each.id}" for each in parcel.messages) or "decisions",
        )
        return delivered

    async def _deny_the_unanswered(self, request: RunRequest) -> None:
        patience = timedelta(seconds=request.limits.approval_s)
        while True:
            await workflow.wait_condition(lambda: bool(self._approvals.open))
            due = self._approvals.due(patience)
            assert due is not None
            try:
                await workflow.wait_condition(
                    lambda d=due: self._approvals.due(patience) != d,  # type: ignore[misc]
                    timeout=max(due - workflow.now(), timedelta()),
                )
            except TimeoutError:
                for denial in self._approvals.overdue(workflow.now(), patience):
                    self._approvals.decide(denial)

    # State and its display.

    @property
    def _key(self) -> RunKey:
        info = workflow.info()
        return RunKey(run=info.workflow_id, execution=info.first_execution_run_id)

    def _introduce(self, request: RunRequest) -> None:
        self._set(
            agent=request.agent,
            capabilities=CAPABILITIES[request.agent],
            workspace=request.workspace.path,
            labels=request.labels,
            execution=self._key.execution,
        )
        workflow.upsert_memo({"agent": request.agent, "workspace": request.workspace.path, "labels": request.labels})
        workflow.upsert_search_attributes(
            [AGENT_NAME.value_set(request.agent), RUN_PHASE.value_set("queued"), COST_USD.value_set(0.0)]
        )

    def _set(self, **changes: Any) -> None:
        self._state = self._state.model_copy(update=changes)
        self._show()

    def _set_phase(self, phase: Phase) -> None:
        self._set(phase=phase)
        if self._request is not None:
            workflow.upsert_search_attributes([RUN_PHASE.value_set(phase)])

    def _set_cost(self, cost_usd: float) -> None:
        if cost_usd != self._state.cost_usd:
            self._set(cost_usd=cost_usd)
            workflow.upsert_search_attributes([COST_USD.value_set(cost_usd)])

    def _show(self) -> None:
        workflow.set_current_details(details(self.state()))

    async def _uncancelled(self, work: Awaitable[T]) -> T:
        """Finish this even if a cancel comes: it is the part that must not be left half done."""
        task = asyncio.ensure_future(work)
        while not task.done():
            try:
                await workflow.wait([task])
            except asyncio.CancelledError:
                workflow.logger.info("the run is ending already")
        return task.result()


def _parsed(model: type[Any], inputs: tuple[Any, ...]) -> Any:
    try:
        return parse_message(model, inputs[0] if inputs else None)
    except InvalidRequest as error:
        raise ApplicationError(error.message, type=ErrorType.INVALID_REQUEST, non_retryable=True) from error


def _raised(agent: workflow.ActivityHandle[RunOutcome]) -> bool:
    return agent.cancelled() or agent.exception() is not None
