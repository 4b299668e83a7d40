"""AgentLoop: one agent on one plan, iteration after iteration, until it is proved done or a person ends it.

The course of the loop is in `iterations` and `waits`, the updates and signals in `handlers`, what continue-as-new
carries in `carried_state`.
"""

import asyncio
import contextlib
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError, CancelledError

with workflow.unsafe.imports_passed_through():
    from steersman.contracts import names
    from steersman.contracts.descriptions import OF_LOOP
    from steersman.contracts.errors import ErrorType, InvalidRequest
    from steersman.contracts.loop import LoopRequest, parse_loop_request
    from steersman.contracts.loop_activities import ForkPoint
    from steersman.contracts.loop_messages import CheckpointPage, CheckpointQuery
    from steersman.contracts.loop_state import LoopResult, LoopState
    from steersman.contracts.messages import parse_message
    from steersman.contracts.request import not_one, oversized
    from steersman.contracts.run import MAX_REASON
    from workflows.agent_loop import iterations, notices, plans
    from workflows.agent_loop.carried_state import CarriedState
    from workflows.agent_loop.decisions import Ending
    from workflows.agent_loop.handlers import LoopHandlers
    from workflows.agent_loop.requests import PendingRequests
    from workflows.agent_loop.state import LiveState, LoopContext
    from workflows.waiting import NO_EMPTY_TASKS, NO_TWO_EMPTY_TASKS, SIGNALS_FIRST, shielded

MAX_ID = 180
"""Characters of a loop's workflow id: the ids of its runs are longer, and become names of files."""


@workflow.defn(name=names.LOOP_WORKFLOW)
class AgentLoop(LoopHandlers):
    """Input: one LoopRequest as JSON. Result: LoopResult. Queries `state`, `checkpoints`, `fork_point`."""

    @workflow.init
    def __init__(self, *inputs: Any) -> None:
        _ = workflow.patched(NO_EMPTY_TASKS) or workflow.patched(NO_TWO_EMPTY_TASKS)
        self.signals_first = workflow.patched(SIGNALS_FIRST)
        request: LoopRequest | None = None
        carried = CarriedState()
        self._invalid: InvalidRequest | None = None
        try:
            request, carried = _parse(inputs)
        except InvalidRequest as error:
            self._invalid = error
        self._state = LiveState(request, carried, workflow.now())
        if request is not None:
            self.loop = LoopContext(request, self._state, PendingRequests())

    @workflow.run
    async def run(self, *inputs: Any) -> LoopResult:
        """Run the loop to its end; closes Completed (completed, exited), Failed or Canceled."""
        if self.loop is None:
            assert self._invalid is not None
            return await self._close(Ending("failed", None, self._invalid.message, ErrorType.INVALID_REQUEST))
        if not self._state.carried.host:
            self._state.publish_initial()
        running = asyncio.ensure_future(self._run(self.loop, inputs[0]))
        telling = asyncio.ensure_future(notices.run(self.loop))
        try:
            await workflow.wait([running])
        except asyncio.CancelledError:
            # A loop that has just ended keeps its end; one that was about to continue as new does not.
            if not running.done() or running.exception():
                running.cancel()
                await shielded(workflow.wait([running]))
                reason = (workflow.cancellation_reason() or "")[:MAX_REASON]
                await shielded(iterations.cancel(self.loop, reason))
                return await self._close(Ending("cancelled", given_reason=reason))
        finally:
            telling.cancel()
        return await self._close(running.result())

    async def _run(self, loop: LoopContext, request: Any) -> Ending:
        pending = loop.pending
        while True:
            ending = await iterations.run(loop)
            if ending is not None:
                return ending
            # A request that arrives while others are still being answered is carried out first.
            await workflow.wait_condition(lambda: workflow.all_handlers_finished() or not pending.idle)
            if pending.idle and workflow.all_handlers_finished():
                workflow.continue_as_new(args=[request, loop.state.to_carry()])

    async def _close(self, ending: Ending) -> LoopResult:
        state = self._state
        state.active_time.stop(workflow.now())
        failed = ending.message if ending.status == "failed" else state.carried.last_error
        state.update(stop_reason=ending.reason, last_error=failed, hold=None)
        state.end_reason = ending.exited_because
        state.set_status(ending.status)
        await shielded(workflow.wait_condition(workflow.all_handlers_finished))
        result = self._result(ending)
        if self.loop is not None:
            await shielded(notices.tell_end(self.loop, result))
        if ending.status in ("completed", "exited"):
            return result
        if ending.status == "cancelled":
            raise CancelledError("the loop was cancelled")
        raise ApplicationError(ending.message, result, type=ending.error, non_retryable=True)

    def _result(self, ending: Ending) -> LoopResult:
        carried, archive, now = self._state.carried, self._state.archive, workflow.now()
        return LoopResult(
            status=ending.status,
            stop_reason=ending.reason,
            iterations=carried.totals.iterations,
            checkpoints=len(archive),
            last_checkpoint=archive.recent[-1] if archive.recent else None,
            usage=carried.totals.usage,
            cost_usd=carried.totals.cost_usd,
            verification=carried.verification,
            items=carried.items.known if carried.items else None,
            session_id=carried.session_id,
            text=carried.text,
            started_at=carried.started_at or now,
            ended_at=now,
            error=ending.message or None,
            reason=ending.exited_because,
        )

    @workflow.query(name=names.STATE_QUERY, description=OF_LOOP[names.STATE_QUERY])
    def state(self) -> LoopState:
        """LoopState, also after the loop has closed."""
        return self._state.snapshot()

    @workflow.query(name=names.CHECKPOINTS, description=OF_LOOP[names.CHECKPOINTS])
    def checkpoints(self, *inputs: Any) -> CheckpointPage:
        """CheckpointQuery -> CheckpointPage, oldest first."""
        query = parse_message(CheckpointQuery, inputs[0] if inputs else None)
        return self._state.archive.page(query.after, query.limit)

    @workflow.query(name=names.FORK_POINT, description=OF_LOOP[names.FORK_POINT])
    def fork_point(self, number: int) -> ForkPoint | None:
        """What a fork needs of one checkpoint; None if there is no such checkpoint."""
        checkpoint, carried = self._state.archive.get(number), self._state.carried
        if checkpoint is None or self.loop is None:
            return None
        then = plans.with_version(carried, checkpoint.plan_version)
        return ForkPoint(
            checkpoint=checkpoint,
            plan=then.plan_version.model_copy(update={"prompt": then.template}),
            workspace=self.loop.request.run.workspace.path,
            host=carried.host,
            open=not self._state.closed,
            limits=carried.limits,
        )


def _parse(inputs: tuple[Any, ...]) -> tuple[LoopRequest, CarriedState]:
    """The request, and the state that the execution before this one carried. Raises InvalidRequest."""
    info = workflow.info()
    # Only this workflow itself can give a second input: a client sends a request alone.
    continued = info.continued_run_id is not None and len(inputs) == 2
    if len(inputs) != 1 and not continued:
        raise InvalidRequest(not_one("LoopRequest", len(inputs)))
    if len(info.workflow_id) > MAX_ID:
        raise InvalidRequest(f"LoopRequest: the workflow id is longer than {MAX_ID} characters")
    request = parse_loop_request(inputs[0])
    if (wrong_size := oversized(inputs[0], "LoopRequest")) and workflow.patched("request-size"):
        raise InvalidRequest(wrong_size)
    if request.run.is_of_workers_alone and not workflow.patched("agents-of-workers"):  # as in AgentRun
        raise InvalidRequest(f'LoopRequest: run.agent: there is no "{request.run.agent}"')
    if not continued:
        return request, plans.initial_state(request, workflow.now())
    # What a client gave a retry policy or a cron schedule to looks like a continuation, too.
    with contextlib.suppress(ValueError):
        carried = CarriedState.model_validate(inputs[1])
        if carried.host and carried.plans:
            return request, carried
    raise InvalidRequest(not_one("LoopRequest", 2))
