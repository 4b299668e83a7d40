"""Checkpoints of a loop: made from a survey of the workspace, gone back to, deleted."""

from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError

from steersman.contracts.loop_activities import Survey
from steersman.contracts.loop_messages import Cleanup, CleanupReceipt, LoopReceipt, Restart, Rollback
from steersman.contracts.loop_state import Checkpoint, CheckpointKind, ItemList
from steersman.contracts.model import TolerantModel
from workflows.agent_loop import activities, plans, room
from workflows.agent_loop.carried_state import WaitReason
from workflows.agent_loop.outcomes import IterationOutcome
from workflows.agent_loop.prompts import current_phase
from workflows.agent_loop.requests import QueuedRequest, refused
from workflows.agent_loop.state import LoopContext

A = TypeVar("A", bound=TolerantModel)

END_TIMEOUT, SECOND_END_TIMEOUT = timedelta(minutes=1), timedelta(seconds=10)
"""How long a loop that ends waits for its last checkpoint; the second, where it has given up another survey."""
KEEPS_UNFINISHED = "keeps-unfinished"
"""The patch of loops that go on from a checkpoint in the middle of an iteration only where it was made there."""
MAX_NOTE = 300
"""Characters of a checkpoint's note."""
MAX_LISTED_BYTES = 60_000
"""Bytes of the items, and of the phases, that continue-as-new carries."""


# Making one.


async def make(
    loop: LoopContext,
    kind: CheckpointKind,
    outcome: IterationOutcome | None = None,
    note: str | None = None,
    feedback: tuple[str, ...] = (),
) -> Checkpoint:
    """Survey the workspace, keep its files, add the checkpoint. `feedback`: ids of what the prompt contained.

    Raises ActivityError if the workspace is gone, or nobody answers at the loop's end.
    """
    return (await _make(loop, kind, outcome, note, feedback))[0]


async def rescue(loop: LoopContext, note: str) -> tuple[Checkpoint, str | None]:
    """The checkpoint of what is there before other files come in its place; and why it has no files, if so."""
    made, found = await _make(loop, "rescue", None, note, ())
    return made, None if made.commit else found.error or "the workspace is in no git repository"


async def _make(
    loop: LoopContext,
    kind: CheckpointKind,
    outcome: IterationOutcome | None,
    note: str | None,
    feedback: tuple[str, ...],
) -> tuple[Checkpoint, Survey]:
    state, carried = loop.state, loop.state.carried
    number, version = carried.next_checkpoint, carried.plan_version
    end_timeout = END_TIMEOUT if state.unfinished_checkpoint is None else SECOND_END_TIMEOUT
    state.update(next_checkpoint=number + 1)
    state.unfinished_checkpoint = number
    message = f"{kind} {carried.iteration}" + (f": {note}" if note else "")
    timeout = end_timeout if kind == "end" else None
    found = await activities.survey(carried.host, loop.request, version, number, message, timeout)
    _record_survey(loop, found, version.number)
    checkpoint = _checkpoint(loop, number, kind, found, outcome, _noted(note, found.error), feedback)
    state.archive.add(checkpoint)
    state.unfinished_checkpoint = None
    state.publish()
    return checkpoint, found


def add_note(loop: LoopContext, note: str) -> None:
    """To the newest checkpoint; one without files still says why it has none."""
    number = loop.state.carried.next_checkpoint - 1
    if newest := loop.state.archive.get(number):
        loop.state.archive.amend(number, note=_noted(note, None if newest.commit else newest.note))


def _noted(note: str | None, error: str | None) -> str | None:
    """Both, bounded; the error has room whatever the note says."""
    if not (note and error):
        return (note or error or "")[:MAX_NOTE] or None
    error = error[: MAX_NOTE // 2]
    return f"{note[: MAX_NOTE - len(error) - 2]}: {error}"


async def survey_again(loop: LoopContext, *, returned: bool = False) -> None:
    """Survey the workspace as it is now, without keeping its files. `returned`: it was taken back to a checkpoint."""
    version = loop.state.carried.plan_version
    found = await activities.survey(loop.state.carried.host, loop.request, version, None)
    _record_survey(loop, found, version.number, returned=returned)


def _checkpoint(
    loop: LoopContext,
    number: int,
    kind: CheckpointKind,
    found: Survey,
    outcome: IterationOutcome | None,
    note: str | None,
    feedback: tuple[str, ...],
) -> Checkpoint:
    state, carried = loop.state, loop.state.carried
    of_run: dict[str, Any] = {}
    if outcome is not None:
        state.update(last_kept=number)
        of_run = {
            "run": outcome.run,
            "usage": outcome.usage,
            "cost_usd": outcome.cost_usd,
            "took_s": round(outcome.took_s, 3),
            "error": outcome.error,
        }
    if carried.unfinished != (kind == "pause") and workflow.patched(KEEPS_UNFINISHED):
        of_run["unfinished"] = carried.unfinished
    return Checkpoint(
        number=number,
        kind=kind,
        time=workflow.now(),
        iteration=carried.iteration,
        session_id=carried.session_id,
        plan_version=carried.plan,
        plan_hash=carried.plan_version.hash,
        phase=current_phase(carried),
        commit=found.commit,
        head=found.head,
        files=found.files,
        items=found.items.known if found.items else None,
        totals=carried.totals.model_copy(update={"active_s": round(state.active_s(), 3)}),
        feedback=feedback,
        note=note,
        **of_run,
    )


def _record_survey(loop: LoopContext, found: Survey, version: int, *, returned: bool = False) -> None:
    """Take plan, items and phases from a survey that was asked for with this plan version."""
    state = loop.state
    state.workspace_mark = f"{found.head or ''} {found.files} {found.items.digest if found.items else ''}"
    state.update(items=_bounded_items(found.items))
    if state.carried.plan != version:
        return  # revised since then: the survey is of another plan
    state.update(phases=_bounded(found.phases))
    state.carried = plans.with_survey(state.carried, version, found.plan_hash, workflow.now(), returned=returned)


def _bounded_items(items: ItemList | None) -> ItemList | None:
    return items and items.model_copy(update={"items": _bounded(items.items)})


def _bounded(listed: tuple[A, ...]) -> tuple[A, ...]:
    """As many as continue-as-new can carry."""
    size, kept = 0, []
    for each in listed:
        size += len(each.model_dump_json().encode())
        if size > MAX_LISTED_BYTES:
            break
        kept.append(each)
    return tuple(kept)


# Going back to one. A rescue checkpoint is made first.


async def go_back(loop: LoopContext, queued: QueuedRequest) -> None:
    """Carry out a rollback or restart; set its receipt, or why it could not be done."""
    try:
        if isinstance(queued.request, Rollback):
            await _roll_back(loop, queued, queued.request)
        else:
            await _restart(loop, queued, queued.request)
    finally:
        queued.done = True


async def _roll_back(loop: LoopContext, queued: QueuedRequest, request: Rollback) -> None:
    state = loop.state
    target = state.archive.get(request.checkpoint)
    if target is None:
        queued.refusal = f"there is no checkpoint {request.checkpoint}"
        return
    before, unkept = await rescue(loop, f"before going back to checkpoint {target.number}")
    if not await _restore(loop, queued, target, before, unkept):
        return
    _reset_state(loop, target, session=target.session_id, unfinished=target.is_unfinished, files=True)
    state.carried = plans.with_version(state.carried, target.plan_version)
    state.wait_for(WaitReason(kind="paused", reason=f"taken back to checkpoint {target.number}"))
    await _survey_returned(loop)
    queued.receipt = _receipt(loop, target, before, f"the loop is paused at checkpoint {target.number}", files=True)


async def _restart(loop: LoopContext, queued: QueuedRequest, request: Restart) -> None:
    state = loop.state
    target = state.archive.baseline() if request.number is None else state.archive.after_iteration(request.number - 1)
    if target is None:
        queued.refusal = "there is no checkpoint to start from"
        return
    where = "the beginning" if request.number is None else f"the beginning of iteration {request.number}"
    before, unkept = await rescue(loop, f"before starting over from {where}")
    if request.files and not await _restore(loop, queued, target, before, unkept):
        return
    # From the beginning: with the session of the request if that was only ever forked. The loop's own session
    # remembers what it said.
    given = loop.request.run.session if loop.request.run.fork_session else None
    session = given if request.number is None else target.session_id
    _reset_state(loop, target, session=session, unfinished=False, files=request.files)
    state.wait_for(None)
    await _survey_returned(loop)
    queued.receipt = _receipt(loop, target, before, f"starts over from {where}", files=request.files)


async def _restore(
    loop: LoopContext, queued: QueuedRequest, target: Checkpoint, before: Checkpoint, unkept: str | None
) -> bool:
    """Whether the checkpoint's files are restored; if not, pause the loop and refuse the request."""
    if target.commit is None:
        return True  # no files were kept with it: only the state goes back
    problem = await restore_files(loop, activities.loop_key().loop, target.number, target.commit, unkept)
    if problem is None:
        return True
    queued.refusal = f"the files of checkpoint {target.number} cannot be restored: {problem}"
    if before.commit:  # a part of them may be restored
        queued.refusal += f"; checkpoint {before.number} has the files as they were before that"
    loop.state.wait_for(WaitReason(kind="paused", reason=queued.refusal))
    return False


async def restore_files(loop: LoopContext, source: str, number: int, commit: str, unkept: str | None) -> str | None:
    """Restore the files of a checkpoint of loop `source`; return why they could not be restored. `unkept`: see
    `rescue`.
    """
    host = loop.state.carried.host
    try:
        return (await activities.restore(host, loop.request, source, number, commit, unkept)).error
    except ActivityError as error:
        return activities.reason_of(error)


def _reset_state(loop: LoopContext, target: Checkpoint, *, session: str | None, unfinished: bool, files: bool) -> None:
    given = session is not None and session == loop.request.run.session
    loop.state.update(
        iteration=target.iteration,
        session_id=session,
        afresh=False,
        lent=given,
        briefed=session is not None and not given,
        forks=given and loop.request.run.fork_session,
        unfinished=unfinished,
        heard=unfinished and session is not None,
        unverified=False,
        verification=None,
        missing=0,
        unverifiable=0,
        text="",
        promised=False,
        no_progress=0,
        failures=0,
        rate_limits=0,
        since_decision=0,
        last_error=None,
        notice=notice_of(target) if session and not given and files else "",
    )


def notice_of(target: Checkpoint) -> str:
    """What a session is told that may remember more than there is now. Nothing where no files were kept."""
    if target.commit is None:
        return ""
    when = f"{'in' if target.is_unfinished else 'after'} iteration {target.iteration}"
    return f"The workspace was taken back to how it was {when}: what you remember of it since then no longer holds."


async def _survey_returned(loop: LoopContext) -> None:
    await survey_again(loop, returned=True)
    loop.state.update(progress_mark=loop.state.workspace_mark)


def _receipt(loop: LoopContext, target: Checkpoint, before: Checkpoint, note: str, *, files: bool) -> LoopReceipt:
    if files and target.commit is None:
        note += "; no files were kept with that checkpoint: they are as they were"
    return loop.state.receipt(note, checkpoint=target.number, rescue=before.number)


# Deleting.


async def clean(loop: LoopContext, request: Cleanup) -> CleanupReceipt:
    """Delete the checkpoints that a cleanup names. Raises ApplicationError if the host does not answer."""
    state = loop.state
    numbers = state.archive.matching(request, workflow.now())
    if numbers:
        try:
            await activities.drop(state.carried.host, loop.request, numbers)
        except ActivityError as error:
            raise refused(f"the checkpoints could not be deleted: {activities.reason_of(error)}") from error
        state.archive.delete(numbers)
        state.publish()
    return CleanupReceipt(deleted=numbers, kept=len(state.archive))


async def make_room(loop: LoopContext) -> None:
    """Delete the oldest checkpoints if there is more than continue-as-new can carry."""
    while numbers := room.excess_checkpoints(loop):
        workflow.logger.warning("checkpoints %d to %d are forgotten: there are too many", numbers[0], numbers[-1])
        await drop_files(loop, numbers)
        loop.state.archive.delete(numbers)


async def drop_files(loop: LoopContext, numbers: tuple[int, ...]) -> None:
    """Remove the files of checkpoints if the host answers."""
    try:
        await activities.drop(loop.state.carried.host, loop.request, numbers)
    except ActivityError as error:
        workflow.logger.warning("their files stay: %s", activities.reason_of(error))
