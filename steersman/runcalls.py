"""Asking a run: the workflow's query and updates, its cancel, and how it closed.

One verb each, with Temporal's errors translated. Reading events is another matter: see following.
"""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, Final, TypeVar

from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from steersman.contracts import names
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import ErrorType, InvalidRequest
from steersman.contracts.model import Answer, Question
from steersman.contracts.run import RunResult, RunState, StopReport
from steersman.errors import (
    AlreadyDecided,
    MessageRefused,
    RunCancelled,
    RunNotRunning,
    RunTerminated,
    ServerRefused,
    ServerUnreachable,
    SteersmanError,
    no_worker,
    translate,
    translated,
)
from steersman.following import PATIENCE_S, Place
from steersman.hostcalls import Patience
from steersman.outcome import Closing, closing_of

QUERY_PATIENCE: Final = timedelta(seconds=5)
"""A worker answers within milliseconds; after this there is none."""
QUERY_TRIES: Final = (timedelta(seconds=3), timedelta(seconds=3.5))
"""A query that the server had given to a worker which died in that moment is lost: it is asked again."""

A = TypeVar("A", bound=Answer)
T = TypeVar("T")


class RunCalls:
    """What can be asked of a run's workflow."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._address = client.service_client.config.target_host

    async def state(self, run_id: str) -> RunState:
        """The `state` query. Raises RunNotFound, NoWorker, ServerUnreachable, ServerRefused."""
        try:
            state = await self._query_state(run_id)
        except WorkflowQueryFailedError as error:
            raise ServerRefused(f"run {run_id} cannot be looked at: {error.message}") from error
        except RPCError as error:
            if error.status in (RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED):
                raise no_worker(names.TASK_QUEUE) from error
            if error.status == RPCStatusCode.FAILED_PRECONDITION and "closed before" in error.message:
                # Terminated before any worker saw it: there is nothing more to tell.
                return RunState(phase="closed")
            raise translate(error, run_id=run_id, address=self._address) from error
        return state

    async def _query_state(self, run_id: str) -> RunState:
        for each in QUERY_TRIES:
            try:
                state: RunState = await self._handle(run_id).query(
                    names.STATE_QUERY, result_type=RunState, rpc_timeout=each
                )
            except RPCError as error:
                late = error.status in (RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED)
                if not late or each is QUERY_TRIES[-1]:
                    raise
            else:
                return state
        raise AssertionError("the last try returns or raises")

    async def place(self, run_id: str) -> Place | None:
        """Where the run's log is, waiting while nobody has claimed the run; None if it closed unclaimed."""
        pause = 0.05
        while True:
            state = await self.state(run_id)
            if state.host is not None and state.execution is not None:
                return Place(RunKey(run=run_id, execution=state.execution), state.host)
            # Asked of the server: a run that closed within its first workflow task may answer as it began.
            if state.phase == "closed" or await self.open_execution(run_id) is None:
                return None
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)

    async def closing(self, run_id: str, execution: str | None = None) -> Closing:
        """Wait until the workflow closes. Raises RunNotFound, ServerUnreachable (after a minute without it)."""
        patience = Patience(PATIENCE_S)
        while True:
            try:
                return await self._handle(run_id, execution).result()
            except WorkflowFailureError as failure:
                closing = closing_of(failure, run_id)
                if isinstance(closing, RunCancelled) and not isinstance(closing, RunTerminated):
                    closing.stop_report = await self.stop_report(run_id)
                return closing
            except RPCError as error:
                meaning = translate(error, run_id=run_id, address=self._address)
                if not isinstance(meaning, ServerUnreachable):
                    raise meaning from error
                await patience.bear(meaning)

    async def stop_report(self, run_id: str) -> StopReport | None:
        """The stop report, as far as anybody can say now."""
        try:
            return (await self.state(run_id)).stop_report
        except SteersmanError:
            return None

    async def open_execution(self, run_id: str) -> str | None:
        """Temporal's run id if the run is open, None if it has closed. Raises RunNotFound, ServerUnreachable."""
        with translated(run_id=run_id, address=self._address):
            description = await self._handle(run_id).describe()
        return description.run_id if description.status == WorkflowExecutionStatus.RUNNING else None

    async def cancel(self, run_id: str, execution: str, reason: str) -> None:
        """Temporal's cancel. Raises RunNotFound, ServerUnreachable."""
        with translated(run_id=run_id, address=self._address):
            await self._handle(run_id, execution).cancel(reason=reason)

    async def update(self, run_id: str, name: str, said: Question, answer: type[A]) -> A:
        """An update and its answer. Raises what steersman.client.Steersman.steer and decide say."""
        update: Coroutine[Any, Any, A] = self._handle(run_id).execute_update(name, said, result_type=answer)
        try:
            return await self.while_worked(run_id, update)
        except WorkflowUpdateFailedError as failure:
            raise _refusal(failure.cause, name, run_id) from failure
        except RPCError as error:
            raise translate(error, run_id=run_id, address=self._address) from error

    async def while_worked(self, run_id: str, answer: Coroutine[Any, Any, T]) -> T:
        """The answer, however long it takes, while there is anybody who could give it: else NoWorker."""
        task = asyncio.ensure_future(answer)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=QUERY_PATIENCE.total_seconds())
                if not task.done():
                    await self.state(run_id)
            return task.result()
        finally:
            task.cancel()

    def _handle(self, run_id: str, execution: str | None = None) -> WorkflowHandle[Any, RunResult]:
        return self._client.get_workflow_handle(run_id, run_id=execution, result_type=RunResult)


def _refusal(cause: BaseException, name: str, run_id: str) -> Exception:
    if not isinstance(cause, ApplicationError):
        return MessageRefused(str(cause))
    if cause.type == ErrorType.INVALID_REQUEST:
        return InvalidRequest(cause.message)
    if cause.type == "AcceptedUpdateCompletedWorkflow":
        return RunNotRunning(f"run {run_id} closed before it could answer")
    return AlreadyDecided(cause.message) if name == names.DECIDE else MessageRefused(cause.message)
