"""How a worker runs the workflows: as the SDK does, but for a memory of a run that no replay would come to.

A query that waits for a worker while something happens to its run brings that worker the history with events behind the
last workflow task that was started. The SDK (temporalio 1.35.0) lets the workflow take them at once, and takes what it
commanded into the next workflow task, together with what that one brings: so that the history has what two activations
commanded where a replay has one. Such a run would be lost with the memory of its worker. Here that memory is given up:
the workflow task fails that comes to it next, and the server hands it out again with the whole history. A query that
brings it further events fails as well, as two portions of what one workflow task has make such a history, and the SDK
answers a task that brings nothing new without asking. Whoever asks again is answered.
"""

from typing import Any

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner
from temporalio.workflow import Info, _Definition

from steersman.contracts.errors import ASK_AGAIN


class Careful(WorkflowRunner):
    """Runs workflows by another runner."""

    def __init__(self, runner: WorkflowRunner) -> None:
        self._runner = runner

    def prepare_workflow(self, defn: _Definition) -> None:
        """See WorkflowRunner."""
        self._runner.prepare_workflow(defn)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See WorkflowRunner."""
        return _Instance(self._runner.create_instance(det))

    def set_worker_level_failure_exception_types(self, types: Any) -> None:
        """See WorkflowRunner."""
        self._runner.set_worker_level_failure_exception_types(types)


class _Instance(WorkflowInstance):
    """The clock tells what came ahead: it stands at the start of the workflow task, and such events come before any."""

    def __init__(self, instance: WorkflowInstance) -> None:
        self._instance = instance
        self._time: tuple[int, int] | None = None
        self._same = self._ahead = False

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        kinds = {job.WhichOneof("variant") for job in act.jobs}
        if kinds == {"query_workflow"}:
            self._ahead = self._ahead or self._same
        elif "remove_from_cache" not in kinds:
            if self._ahead:
                completion = WorkflowActivationCompletion(run_id=act.run_id)
                completion.failed.failure.message = ASK_AGAIN
                return completion
            time = (act.timestamp.seconds, act.timestamp.nanos)
            self._same, self._time = time == self._time, time
        return self._instance.activate(act)

    def get_serialization_context(self, command_info: Any) -> Any:
        return self._instance.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> Any:
        return self._instance.get_external_store_context(command_info)

    def get_info(self) -> Info:
        return self._instance.get_info()

    def get_thread_id(self) -> int | None:
        return self._instance.get_thread_id()
