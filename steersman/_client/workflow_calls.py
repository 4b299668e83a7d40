"""Calls to a workflow of Steersman's: queries, updates, signals, cancel, and how it closed.

What runs and loops have in common. What only one of them has is in run_calls and loop_calls.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

from pydantic import ValidationError
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from steersman._client import host_workers
from steersman._client.backoff import OUTAGE_S, Backoff
from steersman._client.queries import NotBegun, query_workflow
from steersman._client.workflow_outcome import outcome_of
from steersman.contracts import names
from steersman.contracts.errors import CLOSED_OVER_UPDATE, ErrorType, InvalidRequest, RunError
from steersman.contracts.model import StrictModel, TolerantModel
from steersman.contracts.run import MAX_REASON, StopReport
from steersman.errors import (
    AlreadyDecided,
    HostUnreachable,
    MessageRefused,
    RunCancelled,
    RunNotFound,
    RunNotRunning,
    RunTerminated,
    ServerRefused,
    ServerUnreachable,
    translate,
    translated,
)

PAUSED_S: Final = 1.0
"""Of a paused workflow the server is asked this often whether it has closed: it answers no such call late."""
_NOT_CLOSED: Final = "No completion event found"
"""What the SDK says (1.35) where the server tells of a paused workflow something else than its end."""

A = TypeVar("A", bound=TolerantModel)
S = TypeVar("S", bound=TolerantModel)
R = TypeVar("R", bound=TolerantModel)
T = TypeVar("T")


@dataclass(frozen=True)
class WorkflowKind(Generic[S, R]):
    """Runs or loops: the workflow type and its models."""

    noun: str
    workflow: str
    state: type[S]
    result: type[R]
    state_field: str
    """A field that only this kind's states have: the state of a loop must not pass for that of a run."""
    initial: S
    """The state of a workflow that was terminated before any worker saw it."""
    unbegun: S | None = None
    """The state of a workflow that has no task yet; None where it has no word for that."""


OTHER_KINDS: Final = {names.RUN_WORKFLOW: "a run", names.LOOP_WORKFLOW: "a loop: see `steer loop`"}


class WorkflowCalls(Generic[S, R]):
    """Calls to the workflows of one kind, by workflow id. Temporal's errors come out as steersman.errors."""

    def __init__(self, client: Client, kind: WorkflowKind[S, R]) -> None:
        self._client = client
        self._address = client.service_client.config.target_host
        self._kind = kind

    # Queries.

    async def state(self, id: str, execution: str | None = None) -> S:
        """The answer of the query `state`; by default of the newest execution.

        Raises RunNotFound, NoWorker, ServerUnreachable, ServerRefused.
        """
        try:
            data = await self._query(id, names.STATE_QUERY, execution=execution)
        except NotBegun:
            if self._kind.unbegun is None:
                raise
            await self._check_kind(id, execution)
            return self._kind.unbegun
        if data is None:
            return self._kind.initial
        if not isinstance(data, dict) or self._kind.state_field not in data:
            raise self._other_kind(id, await self._type(id, execution))
        return self._validated(self._kind.state, data, id)

    async def _check_kind(self, id: str, execution: str | None) -> None:
        if (found := await self._type(id, execution)) != self._kind.workflow:
            raise self._other_kind(id, found)

    async def _type(self, id: str, execution: str | None) -> str:
        with translated(of=self._of(id), address=self._address):
            return str((await self._handle(id, execution).describe()).workflow_type)

    async def query(self, id: str, query: str, argument: StrictModel, result: type[A]) -> A:
        """The answer of a query with an argument. Raises as `state`."""
        return self._validated(result, await self._query(id, query, argument) or {}, id)

    async def _query(self, id: str, query: str, *arguments: Any, execution: str | None = None) -> Any:
        handle = self._handle(id, execution)
        return await query_workflow(self._client, handle, query, arguments, of=self._of(id), address=self._address)

    async def request(self, id: str, execution: str | None = None) -> dict[str, Any]:
        """The request that the workflow was started with, as JSON.

        Raises RunNotFound, ServerUnreachable, ServerRefused.
        """
        with translated(of=self._of(id), address=self._address):
            # Each execution is given the request as its first input, and the server keeps the newest history longest.
            async for event in self._handle(id, execution).fetch_history_events(page_size=1):
                started = event.workflow_execution_started_event_attributes
                if started.workflow_type.name != self._kind.workflow:
                    raise self._other_kind(id, started.workflow_type.name)
                inputs: list[Any] = await self._client.data_converter.decode(started.input.payloads[:1], [object])
                if inputs and isinstance(inputs[0], dict):
                    return dict(inputs[0])
                break
        raise ServerRefused(f"{self._of(id)} was not started with a request that can be read")

    def _validated(self, model: type[A], data: object, id: str) -> A:
        try:
            return model.model_validate(data)
        except ValidationError as error:
            raise ServerRefused(f"{self._of(id)} answers in a way that this version does not understand") from error

    # The end.

    async def outcome(self, id: str, execution: str | None = None) -> R | RunError | RunCancelled:
        """Wait until the workflow closes. `execution`: Temporal's run id; by default the newest execution.

        Raises: RunNotFound; ServerUnreachable after OUTAGE_S.
        """
        backoff = Backoff(OUTAGE_S)
        while True:
            try:
                return await self._handle(id, execution).result()
            except WorkflowFailureError as failure:
                outcome = outcome_of(failure, self._of(id), self._kind.result)
                if isinstance(outcome, RunTerminated) and (successor := await self._reset_successor(id, execution)):
                    execution = successor
                    continue
                if isinstance(outcome, RunCancelled) and not isinstance(outcome, RunTerminated):
                    outcome.stop_report = await self.stop_report(id, execution)
                    outcome.reason = await self.reason(id, outcome.stop_report, execution) or ""
                return outcome
            except RPCError as error:
                translation = self._translated(error, id)
                if not isinstance(translation, ServerUnreachable):
                    raise translation from error
                await backoff.pause_after(translation)
            except RuntimeError as error:
                if _NOT_CLOSED not in str(error):
                    raise
                await asyncio.sleep(PAUSED_S)

    async def _reset_successor(self, id: str, terminated: str | None) -> str | None:
        """The execution with which a reset replaced a terminated one; None where there was no reset."""
        with translated(of=self._of(id), address=self._address):
            newest = await self._handle(id).describe()
            if terminated is None:
                return None if newest.status == WorkflowExecutionStatus.TERMINATED else newest.run_id
            if newest.run_id == terminated:
                return None
            before = await self._handle(id, terminated).describe()
        same = _first_execution(newest) == _first_execution(before)
        return newest.run_id if same else None

    async def stop_report(self, id: str, execution: str | None = None) -> StopReport | None:
        """What stopping the agent found; None where it cannot be had now. `execution`: as of `outcome`."""
        raise NotImplementedError

    async def reason(self, id: str, report: StopReport | None, execution: str | None = None) -> str | None:
        """Why the workflow was cancelled; None where it cannot be had now, or nothing was said. `report`: of its own,
        None where no worker could be asked for it; then the server is, which was told the reason.
        """
        return report.reason if report else await self._cancel_reason(id, execution)

    async def _cancel_reason(self, id: str, execution: str | None) -> str | None:
        with suppress(RPCError):
            async for event in self._handle(id, execution).fetch_history_events():
                if event.HasField("workflow_execution_cancel_requested_event_attributes"):
                    return event.workflow_execution_cancel_requested_event_attributes.cause or None
        return None

    # Cancel and signals.

    async def open_execution(self, id: str, execution: str | None = None) -> str | None:
        """Temporal's run id of the open execution; None if it, or the one that is named, has closed.

        Raises RunNotFound, ServerUnreachable.
        """
        with translated(of=self._of(id), address=self._address):
            description = await self._handle(id, execution).describe()
        if description.workflow_type != self._kind.workflow:
            raise self._other_kind(id, description.workflow_type)
        return description.run_id if description.status == WorkflowExecutionStatus.RUNNING else None

    def _other_kind(self, id: str, workflow: str) -> RunNotFound:
        return RunNotFound(f"{id} is no {self._kind.noun}, but {OTHER_KINDS.get(workflow, 'another workflow')}")

    async def cancel(self, id: str, execution: str | None, reason: str) -> None:
        """Request Temporal's cancel, by default of the newest execution. Raises RunNotFound, ServerUnreachable.

        Temporal keeps the reason unencrypted: with a codec it is not sent. Of a longer one MAX_REASON characters are.
        """
        reason = "" if self._client.data_converter.payload_codec else _sendable(reason)
        with translated(of=self._of(id), address=self._address):
            await self._handle(id, execution).cancel(reason=reason)

    async def is_cancel_requested(self, id: str, execution: str) -> bool:
        """Whether a cancel was requested: a second one would not reach the workflow."""
        with translated(of=self._of(id), address=self._address):
            description = await self._handle(id, execution).describe()
        return description.raw_description.workflow_extended_info.cancel_requested

    async def signal(self, id: str, execution: str | None, name: str) -> None:
        """Send a signal without an argument. Raises RunNotFound, ServerUnreachable."""
        with translated(of=self._of(id), address=self._address):
            await self._handle(id, execution).signal(name)

    # Updates.

    async def update(self, id: str, name: str, argument: StrictModel | None, result: type[A]) -> A:
        """Execute an update. Raises what the public method that sends it documents."""
        # Unset fields are left out: a worker of a version before a field was added refuses that field.
        arguments = [] if argument is None else [argument.model_dump(mode="json", by_alias=True, exclude_unset=True)]
        update: Coroutine[Any, Any, A] = self._handle(id).execute_update(name, args=arguments, result_type=result)
        try:
            return await self.while_worker_lives(id, update, partial(self._check_answerable, name))
        except WorkflowUpdateFailedError as failure:
            raise self._update_error(failure.cause, name, id) from failure
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            unanswered = f"the Temporal server at {self._address} went away over the answer of {self._of(id)}"
            raise ServerUnreachable(unanswered, self._address) from error
        except RPCError as error:
            raise self._translated(error, id) from error

    async def _check_answerable(self, name: str, state: S) -> None:
        """Raises HostUnreachable where the answer of the update waits for a host that has no worker."""

    async def while_worker_lives(
        self, id: str, answer: Coroutine[Any, Any, T], check: Callable[[S], Awaitable[None]] | None = None
    ) -> T:
        """The answer, however long it takes. Raises NoWorker where no worker is there to give it, and what `check` does
        by the state meanwhile.
        """
        task, unserved = asyncio.ensure_future(answer), 0
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=host_workers.WORKER_CHECK_S)
                if task.done():
                    break
                state = await self.state(id)
                try:
                    if check:
                        await check(state)
                    unserved = 0
                except HostUnreachable:
                    unserved += 1
                    if unserved == host_workers.UNSERVED_LOOKS:
                        raise
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not log it where `state` has raised

    def _update_error(self, cause: BaseException, name: str, id: str) -> Exception:
        if not isinstance(cause, ApplicationError):
            return MessageRefused(str(cause))
        if cause.type == ErrorType.INVALID_REQUEST:
            return InvalidRequest(cause.message)
        if cause.type == CLOSED_OVER_UPDATE:
            return RunNotRunning(f"{self._of(id)} closed before it could answer")
        return AlreadyDecided(cause.message) if name == names.DECIDE else MessageRefused(cause.message)

    def _translated(self, error: RPCError, id: str) -> Exception:
        return translate(error, of=self._of(id), address=self._address)

    def _of(self, id: str) -> str:
        return f"{self._kind.noun} {id}"

    def _handle(self, id: str, execution: str | None = None) -> WorkflowHandle[Any, R]:
        return self._client.get_workflow_handle(id, run_id=execution, result_type=self._kind.result)


def _sendable(reason: str) -> str:
    """What of a reason can be sent: a lone surrogate cannot."""
    return reason[:MAX_REASON].encode("utf-8", "replace").decode()


def _first_execution(description: WorkflowExecutionDescription) -> str:
    return description.raw_description.workflow_execution_info.first_run_id
