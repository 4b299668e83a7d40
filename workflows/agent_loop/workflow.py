"""AgentLoop: one agent on one plan, iteration after iteration, until it is proved done or a person ends it.

The path is in `loops/journey`, what people say in `loops/verbs`, what is remembered in `loops/memory`.
"""

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError, CancelledError

with workflow.unsafe.imports_passed_through():
    from steersman.contracts import names
    from steersman.contracts.errors import ErrorType, InvalidRequest
    from steersman.contracts.loop import LoopRequest, parse_loop_request
    from steersman.contracts.loop_activities import ForkPoint
    from steersman.contracts.loop_messages import CheckpointPage, CheckpointQuery
    from steersman.contracts.loop_state import LoopResult, LoopState
    from steersman.contracts.messages import parse_message
    from steersman.contracts.request import oversized
    from steersman.contracts.run import MAX_REASON
    from workflows.agent_loop import plans
    from workflows.agent_loop.carried_state import Memory
    from workflows.agent_loop.ending import Ending
    from workflows.agent_loop.handlers import Told, signal_of, update_of
    from workflows.agent_loop.iterations import Journey
    from workflows.agent_loop.requests import Desk
    from workflows.agent_loop.state import Book
    from workflows.agent_loop.verbs import Verbs
    from workflows.waiting import SIGNALS_FIRST, uncancelled

MAX_ID = 180
"""The ids of its runs are longer, and become names of files."""


@workflow.defn(name=names.LOOP_WORKFLOW)
class AgentLoop(Told):
    """Input: one LoopRequest as JSON. Result: LoopResult. Queries `state`, `checkpoints`, `fork_point`."""

    @workflow.init
    def __init__(self, *inputs: Any) -> None:
        self.signals_first = workflow.patched(SIGNALS_FIRST)
        self._request: LoopRequest | None = None
        self._refusal: InvalidRequest | None = None
        memory = Memory()
        try:
            self._request, memory = _read(inputs)
        except InvalidRequest as error:
            self._refusal = error
        self._desk = Desk()
        self._book = Book(self._request, memory, workflow.now())
        if self._request is not None:
            self.verbs = Verbs(self._request, self._book, self._desk)

    @workflow.run
    async def run(self, *inputs: Any) -> LoopResult:
        """Lead the loop to its end; closes Completed (completed, stopped), Failed or Canceled."""
        if self._request is None:
            assert self._refusal is not None
            return await self._close(Ending("failed", None, self._refusal.message, ErrorType.INVALID_REQUEST))
        if not self._book.memory.host:
            self._book.introduce()
        journey = Journey(self._request, self._book, self._desk)
        leading = asyncio.ensure_future(self._lead(journey, inputs[0]))
        try:
            await workflow.wait([leading])
        except asyncio.CancelledError:
            # A loop that has just ended keeps its end; one that was about to go on in a new execution does not.
            if not leading.done() or leading.exception():
                leading.cancel()
                await uncancelled(workflow.wait([leading]))
                reason = (workflow.cancellation_reason() or "")[:MAX_REASON]
                await uncancelled(journey.cut_off(reason))
                return await self._close(Ending("cancelled", said=reason))
        return await self._close(leading.result())

    async def _lead(self, journey: Journey, request: Any) -> Ending:
        while True:
            ending = await journey.lead()
            if ending is not None:
                return ending
            # What somebody says while others are still being answered is seen to first.
            await workflow.wait_condition(lambda: workflow.all_handlers_finished() or not self._desk.quiet)
            if self._desk.quiet and workflow.all_handlers_finished():
                workflow.continue_as_new(args=[request, self._book.carried()])

    async def _close(self, ending: Ending) -> LoopResult:
        book = self._book
        book.clock.rest(workflow.now())
        failed = ending.message if ending.status == "failed" else book.memory.last_error
        book.set(stop_reason=ending.reason, last_error=failed, hold=None)
        book.reason = ending.why
        book.show(ending.status)
        await uncancelled(workflow.wait_condition(workflow.all_handlers_finished))
        result = self._result(ending)
        if ending.status in ("completed", "stopped"):
            return result
        if ending.status == "cancelled":
            raise CancelledError("the loop was cancelled")
        raise ApplicationError(ending.message, result, type=ending.error, non_retryable=True)

    def _result(self, ending: Ending) -> LoopResult:
        memory, recent, now = self._book.memory, self._book.archive.recent, workflow.now()
        return LoopResult(
            status=ending.status,
            stop_reason=ending.reason,
            iterations=memory.totals.iterations,
            checkpoints=len(self._book.archive),
            last_checkpoint=recent[-1] if recent else None,
            usage=memory.totals.usage,
            cost_usd=memory.totals.cost_usd,
            verification=memory.verification,
            items=memory.items.count if memory.items else None,
            session_id=memory.session_id,
            text=memory.text,
            started_at=memory.started_at or now,
            ended_at=now,
            error=ending.message or None,
            reason=ending.why,
        )

    @workflow.query(name=names.STATE_QUERY)
    def state(self) -> LoopState:
        """LoopState, also after the loop has closed."""
        return self._book.state()

    @workflow.query(name=names.CHECKPOINTS)
    def checkpoints(self, *inputs: Any) -> CheckpointPage:
        """CheckpointQuery -> CheckpointPage, oldest first."""
        wanted = parse_message(CheckpointQuery, inputs[0] if inputs else None)
        return self._book.archive.page(wanted.after, wanted.limit)

    @workflow.query(name=names.FORK_POINT)
    def fork_point(self, number: int) -> ForkPoint | None:
        """What a fork needs of one checkpoint; None where there is no such checkpoint."""
        checkpoint, memory = self._book.archive.get(number), self._book.memory
        if checkpoint is None or self._request is None:
            return None
        then = plans.returned_to(memory, checkpoint.plan_version)
        return ForkPoint(
            checkpoint=checkpoint,
            plan=then.plan_version.model_copy(update={"prompt": then.template}),
            workspace=self._request.run.workspace.path,
            host=memory.host,
            open=not self._book.closed,
            limits=memory.limits,
        )

    pause, pause_signal = update_of(names.PAUSE), signal_of(names.PAUSE)
    resume, resume_signal = update_of(names.RESUME), signal_of(names.RESUME)
    feedback, feedback_signal = update_of(names.FEEDBACK), signal_of(names.FEEDBACK)
    remove_feedback, remove_feedback_signal = update_of(names.REMOVE_FEEDBACK), signal_of(names.REMOVE_FEEDBACK)
    revise, revise_signal = update_of(names.REVISE), signal_of(names.REVISE)
    restart, restart_signal = update_of(names.RESTART), signal_of(names.RESTART)
    skip_wait, skip_wait_signal = update_of(names.SKIP_WAIT), signal_of(names.SKIP_WAIT)
    set_limits, set_limits_signal = update_of(names.SET_LIMITS), signal_of(names.SET_LIMITS)
    exit, exit_signal = update_of(names.EXIT), signal_of(names.EXIT)
    rollback, rollback_signal = update_of(names.ROLLBACK), signal_of(names.ROLLBACK)
    clean, clean_signal = update_of(names.CHECKPOINTS), signal_of(names.CHECKPOINTS)


def _read(inputs: tuple[Any, ...]) -> tuple[LoopRequest, Memory]:
    """The request, and what an execution before this one remembered. Raises InvalidRequest."""
    info = workflow.info()
    # Only this workflow itself can give a second input: what a client sends is a request alone.
    continued = info.continued_run_id is not None and len(inputs) == 2
    if len(inputs) != 1 and not continued:
        raise InvalidRequest(f"LoopRequest: the input must be one JSON object, not {len(inputs)} values")
    if len(info.workflow_id) > MAX_ID:
        raise InvalidRequest(f"LoopRequest: the workflow id is longer than {MAX_ID} characters")
    request = parse_loop_request(inputs[0])
    if (wrong_size := oversized(inputs[0], "LoopRequest")) and workflow.patched("request-size"):
        raise InvalidRequest(wrong_size)
    try:
        return request, Memory.model_validate(inputs[1]) if continued else plans.opened(request, workflow.now())
    except ValueError as error:  # a client's retry looks like a continuation, too
        raise InvalidRequest("LoopRequest: the input must be one JSON object, not 2 values") from error
