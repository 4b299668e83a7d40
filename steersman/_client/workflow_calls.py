"""Asking a workflow of Steersman's: queries, updates, cancel, and how it closed, with Temporal's errors translated.

One verb each, for runs and loops alike; what only one of them has is in runcalls and loopcalls.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar

from pydantic import ValidationError
from temporalio.api.enums.v1 import PendingWorkflowTaskState
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from steersman._client.event_log import PATIENCE_S
from steersman._client.host_calls import Patience
from steersman._client.workflow_outcome import closing_of
from steersman.contracts import names
from steersman.contracts.errors import ASK_AGAIN, ErrorType, InvalidRequest, RunError
from steersman.contracts.model import StrictModel, TolerantModel
from steersman.contracts.run import StopReport
from steersman.errors import (
    AlreadyDecided,
    MessageRefused,
    RunCancelled,
    RunNotFound,
    RunNotRunning,
    RunTerminated,
    ServerRefused,
    ServerUnreachable,
    no_worker,
    translate,
    translated,
)

QUERY_PATIENCE: Final = timedelta(seconds=5)
"""A worker answers within milliseconds; after this there is none."""
FIRST_TRY: Final = timedelta(seconds=1.5)
SECOND_TRY: Final = timedelta(seconds=3.5)
"""A query that the server had given to a worker which died in that moment is lost: it is asked again."""
STALE: Final = 5
"""How many workers may have to give up what they remember of a workflow, one after another, until one answers."""
STUCK: Final = (
    "cannot be looked at: its workflow task fails again and again. The worker's log says why; where runs are "
    "encrypted, `steer doctor` tells whether it has the key"
)
_LATE: Final = (RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED)

A = TypeVar("A", bound=TolerantModel)
S = TypeVar("S", bound=TolerantModel)
R = TypeVar("R", bound=TolerantModel)
T = TypeVar("T")


class _Unanswered(Exception):
    """Nobody answered a query in time."""


@dataclass(frozen=True)
class Kind(Generic[S, R]):
    """What is asked: runs or loops."""

    noun: str
    workflow: str
    state: type[S]
    result: type[R]
    mark: str
    """A field that the states of this kind alone have: a loop's id where a run's is wanted must not pass for one."""
    unseen: S
    """The state of one that was ended before any worker saw it."""


OTHERS: Final = {names.RUN_WORKFLOW: "a run", names.LOOP_WORKFLOW: "a loop: see `steer loop`"}


class WorkflowCalls(Generic[S, R]):
    """What can be asked of a workflow of one kind."""

    def __init__(self, client: Client, kind: Kind[S, R]) -> None:
        self._client = client
        self._address = client.service_client.config.target_host
        self._kind = kind

    # Queries.

    async def state(self, id: str) -> S:
        """The `state` query. Raises RunNotFound, NoWorker, ServerUnreachable, ServerRefused."""
        data = await self._query(id, names.STATE_QUERY)
        if data is None:
            return self._kind.unseen
        if not isinstance(data, dict) or self._kind.mark not in data:
            raise await self._no_such(id)
        try:
            return self._kind.state.model_validate(data)
        except ValidationError as error:
            raise ServerRefused(f"{self._of(id)} answers in a way that this version does not understand") from error

    async def ask(self, id: str, query: str, question: StrictModel, answer: type[A]) -> A:
        """A query with an input. Raises as `state`."""
        data = await self._query(id, query, question)
        try:
            return answer.model_validate(data or {})
        except ValidationError as error:
            raise ServerRefused(f"{self._of(id)} answers in a way that this version does not understand") from error

    async def _query(self, id: str, name: str, *arguments: Any) -> Any:
        """The decoded answer; None of a workflow that was ended before any worker saw it."""
        try:
            return await self._query_once(id, name, arguments, FIRST_TRY)
        except _Unanswered:
            patience = SECOND_TRY + await self._taken_for(id)
        try:
            return await self._query_once(id, name, arguments, patience)
        except _Unanswered as error:
            raise no_worker(names.TASK_QUEUE) from error

    async def _query_once(
        self, id: str, name: str, arguments: tuple[Any, ...], patience: timedelta, again: int = STALE
    ) -> Any:
        try:
            return await self._handle(id).query(name, args=arguments, result_type=object, rpc_timeout=patience)
        except WorkflowQueryFailedError as error:
            if error.message == ASK_AGAIN and again:
                return await self._query_once(id, name, arguments, patience, again - 1)
            raise ServerRefused(f"{self._of(id)} cannot be looked at: {error.message}") from error
        except RPCError as error:
            unmet = error.status == RPCStatusCode.FAILED_PRECONDITION
            if unmet and "closed before" in error.message:
                return None
            if error.status in _LATE or (unmet and "no poller" in error.message):
                raise _Unanswered from error
            if unmet and "failed state" in error.message:
                raise ServerRefused(f"{self._of(id)} {STUCK}") from error
            raise self._meaning(error, id) from error

    async def _taken_for(self, id: str) -> timedelta:
        """How long a workflow task that a worker has taken may stay with it. Until then no other worker is asked.

        The worker may be busy, or dead, or the server may have lost the task on its way: under load it does.
        """
        with translated(of=self._of(id), address=self._address):
            description = (await self._handle(id).describe()).raw_description
        taken = PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_STARTED
        if description.pending_workflow_task.state != taken:
            return timedelta()
        return description.execution_config.default_workflow_task_timeout.ToTimedelta()

    # The end.

    async def closing(self, id: str, execution: str | None = None) -> R | RunError | RunCancelled:
        """Wait until the workflow closes. Raises RunNotFound, ServerUnreachable (after a minute without it)."""
        patience = Patience(PATIENCE_S)
        while True:
            try:
                return await self._handle(id, execution).result()
            except WorkflowFailureError as failure:
                closing = closing_of(failure, self._of(id), self._kind.result)
                if isinstance(closing, RunTerminated) and (goes_on_as := await self._reset_as(id, execution)):
                    execution = goes_on_as
                    continue
                if isinstance(closing, RunCancelled) and not isinstance(closing, RunTerminated):
                    closing.stop_report = await self.stop_report(id)
                    closing.reason = await self.reason(id, closing.stop_report) or ""
                return closing
            except RPCError as error:
                meaning = self._meaning(error, id)
                if not isinstance(meaning, ServerUnreachable):
                    raise meaning from error
                await patience.bear(meaning)

    async def _reset_as(self, id: str, terminated: str | None) -> str | None:
        """The execution that a reset put in the place of a terminated one; None where nobody reset it."""
        with translated(of=self._of(id), address=self._address):
            newest = await self._handle(id).describe()
            if terminated is None:
                return None if newest.status == WorkflowExecutionStatus.TERMINATED else newest.run_id
            if newest.run_id == terminated:
                return None
            before = await self._handle(id, terminated).describe()
        same = _first(newest) == _first(before)
        return newest.run_id if same else None

    async def stop_report(self, id: str) -> StopReport | None:
        """What a stop found, as far as anybody can say now."""
        raise NotImplementedError

    async def reason(self, id: str, report: StopReport | None) -> str | None:
        """Why it was cancelled, as far as anybody can say now."""
        return report.reason if report else None

    async def open_execution(self, id: str) -> str | None:
        """Temporal's run id if it is open, None if it has closed. Raises RunNotFound, ServerUnreachable."""
        with translated(of=self._of(id), address=self._address):
            description = await self._handle(id).describe()
        if description.workflow_type != self._kind.workflow:
            raise self._another(id, description.workflow_type)
        return description.run_id if description.status == WorkflowExecutionStatus.RUNNING else None

    async def _no_such(self, id: str) -> RunNotFound:
        with translated(of=self._of(id), address=self._address):
            return self._another(id, (await self._handle(id).describe()).workflow_type)

    def _another(self, id: str, workflow: str) -> RunNotFound:
        return RunNotFound(f"{id} is no {self._kind.noun}, but {OTHERS.get(workflow, 'another workflow')}")

    async def cancel(self, id: str, execution: str | None, reason: str) -> None:
        """Temporal's cancel; of the newest execution where none is given. Raises RunNotFound, ServerUnreachable.

        Temporal keeps the reason in the clear: where a codec is set, it stays here.
        """
        reason = "" if self._client.data_converter.payload_codec else reason
        with translated(of=self._of(id), address=self._address):
            await self._handle(id, execution).cancel(reason=reason)

    async def is_cancelling(self, id: str, execution: str) -> bool:
        """Whether a cancel was asked for already: a second one would never reach the workflow."""
        with translated(of=self._of(id), address=self._address):
            description = await self._handle(id, execution).describe()
        return description.raw_description.workflow_extended_info.cancel_requested

    async def signal(self, id: str, execution: str | None, name: str) -> None:
        """A signal without data. Raises RunNotFound, ServerUnreachable."""
        with translated(of=self._of(id), address=self._address):
            await self._handle(id, execution).signal(name)

    # Updates.

    async def update(self, id: str, name: str, said: StrictModel | None, answer: type[A]) -> A:
        """An update and its answer. Raises what the client's verbs say."""
        # What was not said is left out: workers of before there was a field refuse it.
        arguments = [] if said is None else [said.model_dump(mode="json", by_alias=True, exclude_unset=True)]
        update: Coroutine[Any, Any, A] = self._handle(id).execute_update(name, args=arguments, result_type=answer)
        try:
            return await self.while_worked(id, update)
        except WorkflowUpdateFailedError as failure:
            raise self._refusal(failure.cause, name, id) from failure
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            unanswered = f"the Temporal server at {self._address} went away over the answer of {self._of(id)}"
            raise ServerUnreachable(unanswered, self._address) from error
        except RPCError as error:
            raise self._meaning(error, id) from error

    async def while_worked(self, id: str, answer: Coroutine[Any, Any, T]) -> T:
        """The answer, however long it takes, while there is anybody who could give it: else NoWorker."""
        task = asyncio.ensure_future(answer)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=QUERY_PATIENCE.total_seconds())
                if not task.done():
                    await self.state(id)
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # looked at, so that nobody is told of it who did not wait for it

    def _refusal(self, cause: BaseException, name: str, id: str) -> Exception:
        if not isinstance(cause, ApplicationError):
            return MessageRefused(str(cause))
        if cause.type == ErrorType.INVALID_REQUEST:
            return InvalidRequest(cause.message)
        if cause.type == "AcceptedUpdateCompletedWorkflow":
            return RunNotRunning(f"{self._of(id)} closed before it could answer")
        return AlreadyDecided(cause.message) if name == names.DECIDE else MessageRefused(cause.message)

    def _meaning(self, error: RPCError, id: str) -> Exception:
        return translate(error, of=self._of(id), address=self._address)

    def _of(self, id: str) -> str:
        return f"{self._kind.noun} {id}"

    def _handle(self, id: str, execution: str | None = None) -> WorkflowHandle[Any, R]:
        return self._client.get_workflow_handle(id, run_id=execution, result_type=self._kind.result)


def _first(description: WorkflowExecutionDescription) -> str:
    return description.raw_description.workflow_execution_info.first_run_id
