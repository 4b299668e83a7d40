"""The WorkflowRunner of our workers: the SDK's, except that it gives up a cached workflow that no replay would reach.

A query that waits for a worker while something happens to its run brings that worker the history with events behind the
last workflow task that was started. The SDK (temporalio 1.35.0) lets the workflow take them at once, and puts what the
workflow commanded into the next workflow task, together with the commands of that task: the history then has the
commands of two activations where a replay has one. Such a run would be lost with its worker's cache. So the runner
fails the next workflow task of that cached workflow, and the server hands the task out again with the whole history. A
query that brings the cached workflow further events fails as well: two portions of one workflow task make such a
history too, and the SDK answers a task that brings nothing new without asking the runner. A client that asks again is
answered.

For each payload the SDK asks the sandbox for its context, which is a sixth of what a worker does as it starts runs.
Only codecs that go by contexts need them.
"""

from typing import Any

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.converter import StorageDriverStoreContext
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner
from temporalio.workflow import Info, _Definition

from steersman.contracts.errors import ASK_AGAIN


class ReplaySafeRunner(WorkflowRunner):
    """Wraps another runner. `contexts`: the worker's codec goes by what its payloads are for."""

    def __init__(self, runner: WorkflowRunner, *, contexts: bool = True) -> None:
        self._runner, self._contexts = runner, contexts

    def prepare_workflow(self, defn: _Definition) -> None:
        """See WorkflowRunner."""
        self._runner.prepare_workflow(defn)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See WorkflowRunner."""
        return _ReplaySafeInstance(self._runner.create_instance(det), contexts=self._contexts)

    def set_worker_level_failure_exception_types(self, types: Any) -> None:
        """See WorkflowRunner."""
        self._runner.set_worker_level_failure_exception_types(types)


class _ReplaySafeInstance(WorkflowInstance):
    """Notices events that came ahead of their workflow task: the activation's clock does not move for them."""

    def __init__(self, instance: WorkflowInstance, *, contexts: bool) -> None:
        self._instance, self._contexts = instance, contexts
        self._time: tuple[int, int] | None = None
        self._same_time = self._took_ahead = False

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        kinds = {job.WhichOneof("variant") for job in act.jobs}
        if kinds == {"query_workflow"}:
            self._took_ahead = self._took_ahead or self._same_time
        elif "remove_from_cache" not in kinds:
            if self._took_ahead:
                completion = WorkflowActivationCompletion(run_id=act.run_id)
                completion.failed.failure.message = ASK_AGAIN
                return completion
            time = (act.timestamp.seconds, act.timestamp.nanos)
            self._same_time, self._time = time == self._time, time
        return self._instance.activate(act)

    def get_serialization_context(self, command_info: Any) -> Any:
        return self._instance.get_serialization_context(command_info) if self._contexts else None

    def get_external_store_context(self, command_info: Any) -> Any:
        if self._contexts:
            return self._instance.get_external_store_context(command_info)
        return StorageDriverStoreContext(target=None)

    def get_info(self) -> Info:
        return self._instance.get_info()

    def get_thread_id(self) -> int | None:
        return self._instance.get_thread_id()
