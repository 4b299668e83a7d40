"""What is done about whoever has a workspace that another request wants: it is ended, told, or taken back.

When that is done, and in which order runs come, must not live here: see hold_activities.
"""

import asyncio
import hashlib
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from temporalio.client import WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities.activity_helpers import uncancelled
from activities.context import ActivityContext
from activities.store.event_reader import terminal_event
from activities.store.hold_files import Hold
from activities.workspaces.git.checkpoint_commits import NoCheckpoint
from activities.workspaces.git.runner import GitFailed
from activities.workspaces.git.shadows import NoRepository
from activities.workspaces.printable_text import printable
from steersman import timeouts
from steersman.contracts import names
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import CLOSED_OVER_UPDATE, InvalidRequest, WorkspaceError
from steersman.contracts.loop_messages import Exit, Feedback, LoopReceipt
from steersman.contracts.loop_state import CLOSED
from steersman.contracts.messages import Message, MessageReceipt
from steersman.contracts.model import StrictModel
from steersman.contracts.request import RunRequest
from steersman.contracts.workspace import Undone
from steersman.contracts.workspace_hold import Steered
from steersman.contracts.workspace_holder import FOREIGN

ANSWER_S: Final = 30.0
"""A holder answers within this many seconds; an update does in 5, where a worker is there."""
UPDATE_TIMEOUT: Final = timedelta(seconds=ANSWER_S)
MAX_NAMED: Final = 10
"""At most this many paths are named in an error."""


class Over(Exception):
    """The holder has closed, or is about to: there is nobody to turn to."""


class WorkspaceHolders:
    """Calls to the workflows of those who have workspaces of this host, and the undoing of what runs changed."""

    def __init__(self, context: ActivityContext) -> None:
        self._context = context

    def check(self, holder: Hold, answer: str) -> None:
        """Raises InvalidRequest, by the holder's name, where this cannot be done about it."""
        if holder.owner != self._context.store.owner:
            raise _cannot(answer, FOREIGN, "it cannot be reached from here")
        if answer == "steer" and holder.kind == "workflow":
            raise _cannot(answer, _name(holder), "it is neither a run nor a loop")
        if answer == "rollback":
            self._check_rollback(holder)

    def _check_rollback(self, holder: Hold) -> None:
        if holder.kind == "loop":
            raise _cannot("rollback", _name(holder), "a loop goes back by its own checkpoints (steer loop rollback)")
        directory = self._context.store.directory(holder.key)
        if holder.kind != "run" or (self._context.runtime.attempts(holder.key) and not directory.baseline):
            why = "nothing was kept of the files as they were before it (no git repository, or a loop's run)"
            raise _cannot("rollback", _name(holder), why)

    async def end(self, holder: Hold, by: Hold) -> None:
        """Ask it to end with its turn, kindly, or cancel it where it cannot. Raises RPCError."""
        reason = f"{_name(by)} takes its workspace (workspace.on_overlap: {by.on_overlap})"
        try:
            if holder.kind == "loop":
                await self._update(holder, names.EXIT, Exit(reason=reason), LoopReceipt)
            elif holder.kind == "run":
                message = Message(end=True, id=_message_id(by), reason=reason)
                await self._update(holder, names.INTERRUPT, message, MessageReceipt)
            else:
                await self.cancel(holder, by)
        except Over:
            return
        except (ApplicationError, TimeoutError):
            await self.cancel(holder, by)

    async def cancel(self, holder: Hold, by: Hold) -> None:
        """Request Temporal's cancel. Raises RPCError."""
        reason = f"{_name(by)} takes its workspace (workspace.on_overlap: {by.on_overlap})"
        try:
            await self._context.client.get_workflow_handle(holder.key.run).cancel(reason=reason)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise

    async def steer(self, holder: Hold, by: Hold, request: RunRequest) -> Steered:
        """Give it the prompt: a run as a steer message, a loop as feedback. Twice is once.

        Raises Over, InvalidRequest where it does not take it, TimeoutError, RPCError.
        """
        try:
            if holder.kind == "loop":
                told = request.as_told()
                if told.attachments:
                    raise InvalidRequest("attachments: a loop has the workspace, and its feedback is text alone")
                note = await self._update(holder, names.FEEDBACK, _parsed(Feedback, by, text=told.prompt), LoopReceipt)
                if note.status in CLOSED:
                    raise Over
                return Steered(kind="loop", id=holder.key.run, state="queued", how=note.note or None)
            message = _parsed(Message, by, text=request.prompt, attachments=request.attachments)
            receipt = await self._update(holder, names.STEER, message, MessageReceipt)
        except ApplicationError as error:
            raise _cannot("steer", _name(holder), error.message) from error
        if receipt.state in ("rejected", "too_late"):
            raise Over
        return Steered(kind="run", id=holder.key.run, state=receipt.state, how=receipt.how)

    async def take_back(self, key: RunKey) -> None:
        """Undo what a closed run changed in its workspace. Twice is fine.

        Raises WorkspaceError where that is not known, or not all of it could be undone: what is in the way is left.
        """
        directory = self._context.store.directory(key)
        baseline = directory.baseline
        if not self._context.runtime.attempts(key) and not baseline:
            return  # it had not begun
        event = await asyncio.to_thread(terminal_event, directory.events)
        changes = event.changes if event else None
        if changes is None or changes.after is None or changes.before != baseline.get("commit"):
            why = changes.error if changes else None
            raise WorkspaceError(f"{_before(key)}; what it changed is not known{f': {why}' if why else ''}, and stays")
        workspace = self._context.kept_directory(baseline.get("workspace", ""), "workspace.path")
        undone = await self._undone(key, workspace, changes.before, changes.after)
        if undone.conflicts:
            raise WorkspaceError(_conflicts(key, undone))

    async def _undone(self, key: RunKey, workspace: Path, before: str, after: str) -> Undone:
        directory = self._context.store.directory(key)
        try:
            # Not broken off by a cancel: half an undo would be nobody's.
            return await uncancelled(self._context.changes.undo(directory, workspace, before, after))
        except (NoRepository, NoCheckpoint, GitFailed, OSError) as error:
            raise WorkspaceError(
                f"{_before(key)}; what it changed could not be undone: {printable(str(error))}"
            ) from error

    async def _update(self, holder: Hold, name: str, argument: StrictModel, result: type[Any]) -> Any:
        """The answer of an update. Raises Over, ApplicationError where it is refused, TimeoutError, RPCError."""
        handle = self._context.client.get_workflow_handle(holder.key.run)
        fields = argument.model_dump(mode="json", exclude_unset=True)
        try:
            async with timeouts.timeout(ANSWER_S):
                return await handle.execute_update(name, fields, result_type=result, rpc_timeout=UPDATE_TIMEOUT)
        except WorkflowUpdateFailedError as failure:
            cause = failure.cause
            if isinstance(cause, ApplicationError) and cause.type != CLOSED_OVER_UPDATE:
                raise cause from None  # of which it is the cause: no chain of causes may be a ring
            raise Over from failure
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            raise TimeoutError(f"{_name(holder)} does not answer") from error
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                raise Over from error
            raise


def _parsed(model: type[Any], by: Hold, **fields: Any) -> Any:
    """Raises InvalidRequest for a text that the message cannot have."""
    try:
        return model(id=_message_id(by), **fields)
    except ValueError as error:
        raise InvalidRequest(
            f"prompt: it is too long to be given to another (workspace.on_overlap: steer): {error}"
        ) from error


def _message_id(by: Hold) -> str:
    """The same for each try of the same run."""
    return f"overlap-{hashlib.sha256(f'{by.key.run}/{by.key.execution}'.encode()).hexdigest()[:24]}"


def _name(hold: Hold) -> str:
    return f"{hold.kind} {hold.key.run}"


def _cannot(answer: str, name: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"workspace.on_overlap: {answer}: {name} has the workspace, and {why}")


def _before(key: RunKey) -> str:
    return f"workspace.on_overlap: rollback: run {key.run} was stopped"


def _conflicts(key: RunKey, undone: Undone) -> str:
    named = ", ".join(undone.conflicts[:MAX_NAMED])
    count = len(undone.conflicts) + undone.unnamed_conflicts
    more = f" and {count - MAX_NAMED} more" if count > MAX_NAMED else ""
    kept = f". The files as they were before are in {undone.ref}" if undone.ref else ""
    return (
        f"{_before(key)}, and {undone.files} of its files were taken back; {named}{more} were left: somebody has "
        f"changed them since, or something is in the way there{kept}"
    )
