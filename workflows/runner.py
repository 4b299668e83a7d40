"""The WorkflowRunner of our workers and of every replay: the SDK's, except for five things.

It gives up a cached workflow that no replay would reach. A query that waits for a worker while something happens to its
run brings that worker the history with events behind the last workflow task that was started. The SDK (temporalio
1.35.0) lets the workflow take them at once, and puts what the workflow commanded into the next workflow task, together
with the commands of that task: the history then has the commands of two activations where a replay has one. Such a run
would be lost with its worker's cache. So the runner fails the next workflow task of that cached workflow, and the
server hands the task out again with the whole history. A query that brings the cached workflow further events fails as
well: two portions of one workflow task make such a history too, and the SDK answers a task that brings nothing new
without asking the runner. A client that asks again is answered.

It leaves no workflow task that an event has brought without a command, but for what only tells of progress. The SDK
takes such a task, where the one before has none either, for a heartbeat, and joins it with the next one where that
follows at once, as one does that an update brings: but only where it reads the history from its beginning, and not
where it finds that the update was accepted there (sdk-rust 1146). So what a worker makes of an update depends on
whether it has the workflow in its cache, and such a history does not replay. A task without a command gets one that
changes nothing: a memo that is not there is removed (where payloads are encrypted, the server cannot tell, and keeps an
encrypted null). It must not go by the task before: one that an update brought which was refused leaves nothing in the
history or, where a signal came meanwhile, a task without a command, and nobody can tell which. Only in workflows that
have asked for the patch NO_EMPTY_TASKS, by which a replay knows. Those that have asked for NO_TWO_EMPTY_TASKS go by the
task before.

It hands a workflow task's updates to the workflow behind its signals. After a reset that offers earlier updates again,
the SDK dispatches them where they came, between the signals; when it reads that history again, it takes each from the
event of its acceptance, behind all signals. What a signal's handler commands, be it a patch alone, would stand on the
other side of an update's answer then, and the run be lost with its worker's cache.

It answers a query of a workflow whose input could not be decoded with why: the SDK has no workflow then that could be
asked, and calls that a bug of its own, or fails the workflow task that the query came with. Commands stay as they are.

It makes a failure of what an activity was completed with and is no result of it. The SDK fails the workflow then,
before any of its code is asked: an agent would be left at work, a cancelled run told as failed.
"""

from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner
from temporalio.workflow import Info, _Definition

from steersman.contracts import names
from steersman.contracts.errors import ASK_AGAIN
from workflows.activity_results import not_readable
from workflows.waiting import NO_EMPTY_TASKS, NO_TWO_EMPTY_TASKS

_NO_MEMO = "steersman_workflow_task"
_NOTHING = Payload(metadata={"encoding": b"binary/null"})
_NOT_OF_HISTORY = ("initialize_workflow", "notify_has_patch", "update_random_seed", "do_update")
"""Jobs that do not come of an event of their own; an accepted update has a command."""


class ReplaySafeRunner(WorkflowRunner):
    """Wraps another runner, the SDK's full sandbox by default."""

    def __init__(self, runner: WorkflowRunner | None = None) -> None:
        self._runner = runner or SandboxedWorkflowRunner()

    def prepare_workflow(self, defn: _Definition) -> None:
        """See WorkflowRunner."""
        self._runner.prepare_workflow(defn)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See WorkflowRunner."""
        return _ReplaySafeInstance(self._runner.create_instance(det))

    def set_worker_level_failure_exception_types(self, types: Any) -> None:
        """See WorkflowRunner."""
        self._runner.set_worker_level_failure_exception_types(types)


class _ReplaySafeInstance(WorkflowInstance):
    """Notices events that came ahead of their workflow task: the activation's clock does not move for them."""

    def __init__(self, instance: WorkflowInstance) -> None:
        self._instance = instance
        self._time: tuple[int, int] | None = None
        self._same_time = self._took_ahead = False
        self._patches: set[str] = set()
        self._was_empty = False
        self._undecoded: Failure | None = None
        """Why the workflow has no input."""
        self._activities: dict[int, str] = {}
        """The activities that are under way, by the SDK's number: their types."""

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        kinds = {job.WhichOneof("variant") for job in act.jobs}
        if kinds == {"query_workflow"}:
            if self._undecoded is not None:
                return _refused(act, self._undecoded)
            self._took_ahead = self._took_ahead or self._same_time
        elif "remove_from_cache" not in kinds:
            if self._took_ahead:
                completion = WorkflowActivationCompletion(run_id=act.run_id)
                completion.failed.failure.message = ASK_AGAIN
                return completion
            time = (act.timestamp.seconds, act.timestamp.nanos)
            self._same_time, self._time = time == self._time, time
            # The SDK takes signals and updates in their order, and each of the other kinds by itself.
            act.jobs.sort(key=lambda job: job.HasField("do_update"))
            self._look_at_results(act)
            completion = self._instance.activate(act)
            self._note_activities(completion)
            self._fill(act, completion)
            if "initialize_workflow" in kinds:
                self._undecoded = _undecoded(completion)
            return completion
        return self._instance.activate(act)

    def _look_at_results(self, act: WorkflowActivation) -> None:
        for job in act.jobs:
            if not job.HasField("resolve_activity"):
                continue
            activity, result = self._activities.pop(job.resolve_activity.seq, ""), job.resolve_activity.result
            if not result.HasField("completed"):
                continue
            failure = not_readable(activity, result.completed.result)
            if failure is not None:
                result.failed.failure.CopyFrom(failure)

    def _note_activities(self, completion: WorkflowActivationCompletion) -> None:
        for command in completion.successful.commands:
            for scheduled in (command.schedule_activity, command.schedule_local_activity):
                if scheduled.activity_type:
                    self._activities[scheduled.seq] = scheduled.activity_type

    def _fill(self, act: WorkflowActivation, completion: WorkflowActivationCompletion) -> None:
        """See the module. An activation of the same workflow task as the one before has nothing to add."""
        if not completion.HasField("successful"):
            return
        commands = completion.successful.commands
        self._patches.update(each.set_patch_marker.patch_id for each in commands)
        is_empty = not any(map(_makes_event, commands))
        if self._same_time:
            self._was_empty = self._was_empty and is_empty
        elif not is_empty:
            self._was_empty = False
        elif any(map(_counts, act.jobs)):
            if NO_EMPTY_TASKS in self._patches or (NO_TWO_EMPTY_TASKS in self._patches and self._was_empty):
                commands.add().modify_workflow_properties.upserted_memo.fields[_NO_MEMO].CopyFrom(_NOTHING)
                is_empty = False
            self._was_empty = is_empty

    def get_serialization_context(self, command_info: Any) -> Any:
        return self._instance.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> Any:
        return self._instance.get_external_store_context(command_info)

    def get_info(self) -> Info:
        return self._instance.get_info()

    def get_thread_id(self) -> int | None:
        return self._instance.get_thread_id()


def _undecoded(completion: WorkflowActivationCompletion) -> Failure | None:
    """Why the workflow's input could not be decoded: then it fails before it is there, with no other command. Ours ask
    for a patch first of all.
    """
    commands = completion.successful.commands
    if [each.WhichOneof("variant") for each in commands] != ["fail_workflow_execution"]:
        return None
    return commands[0].fail_workflow_execution.failure


def _refused(act: WorkflowActivation, why: Failure) -> WorkflowActivationCompletion:
    """The answer to queries that no workflow is there for."""
    completion = WorkflowActivationCompletion(run_id=act.run_id)
    completion.successful.SetInParent()
    for job in act.jobs:
        answer = completion.successful.commands.add().respond_to_query
        answer.query_id = job.query_workflow.query_id
        answer.failed.CopyFrom(why)
    return completion


def _counts(job: WorkflowActivationJob) -> bool:
    """Whether a job tells of an event that the workflow may go by. A workflow task of refused updates alone is not in
    the history; what a run's worker says of its progress can be told with the next one.
    """
    if job.HasField("signal_workflow"):
        return job.signal_workflow.signal_name != names.PROGRESSED
    return job.WhichOneof("variant") not in _NOT_OF_HISTORY


def _makes_event(command: WorkflowCommand) -> bool:
    """Whether the history shows it: a refused update leaves nothing there."""
    return not command.update_response.HasField("rejected")
