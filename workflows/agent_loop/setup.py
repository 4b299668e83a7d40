"""How a loop begins: its host, another loop's checkpoint where it forks one, and the baseline."""

import posixpath

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType
from temporalio.exceptions import TimeoutError as TemporalTimeout

from steersman.contracts.errors import ErrorType, InvalidRequest
from steersman.contracts.loop import LoopRequest
from steersman.contracts.loop_activities import ForkPoint
from steersman.contracts.request import RunRequest
from workflows.agent_loop import activities as commands
from workflows.agent_loop.checkpoints import Keeper
from workflows.agent_loop.state import Book
from workflows.agent_run.activities import claim_host
from workflows.waiting import outcome


async def open_loop(request: LoopRequest, book: Book, keeper: Keeper) -> None:
    """Find the host, ask it whether it may be, make the first checkpoint. Raises FailureError or InvalidRequest."""
    host, point, note = await _claim(request.run), None, None
    if request.from_checkpoint is not None:
        point = await commands.fork_point(host, request.from_checkpoint.loop, request.from_checkpoint.number)
        host = await _host_of(request, point, host)
    admitted = await _admitted(host, request, forks=point is not None)
    book.set(host=host)
    if point is not None:
        note = await _take_over(request, book, keeper, point)
    if not admitted:
        await commands.admit(host, request)
    await keeper.checkpoint("baseline", note=note)
    book.set(progress_mark=keeper.mark)


async def _claim(run: RunRequest) -> str:
    try:
        return (await outcome(claim_host(run, locally=not workflow.patched("claim-by-activity")))).host
    except ActivityError as error:
        cause = error.cause
        if isinstance(cause, TemporalTimeout) and cause.type == TimeoutType.SCHEDULE_TO_START:
            raise InvalidRequest("run.runtime.host: no worker of that host took the loop") from error
        raise


async def _admitted(host: str, request: LoopRequest, *, forks: bool) -> bool:
    """False: what the host misses may be among the files that a fork takes over."""
    try:
        await commands.admit(host, request)
    except ActivityError as error:
        missing = isinstance(error.cause, ApplicationError) and error.cause.type == ErrorType.INVALID_REQUEST
        if not (forks and missing):
            raise
        return False
    return True


async def _host_of(request: LoopRequest, point: ForkPoint, host: str) -> str:
    """The files of a checkpoint are on one machine."""
    if point.host == host:
        return host
    if request.run.runtime.host is not None:
        raise InvalidRequest(f"run.runtime.host: the files of the checkpoint are on host {point.host}")
    runtime = request.run.runtime.model_copy(update={"host": point.host})
    return await _claim(request.run.model_copy(update={"runtime": runtime}))


async def _take_over(request: LoopRequest, book: Book, keeper: Keeper, point: ForkPoint) -> str:
    """Begin as the other loop was; what to note. Raises InvalidRequest where its files cannot be had."""
    assert request.from_checkpoint is not None
    source, workspace = request.from_checkpoint, request.run.workspace.path
    if point.open and posixpath.normpath(point.workspace) == posixpath.normpath(workspace):
        raise InvalidRequest(
            f"from_checkpoint: loop {source.loop} is still open in {workspace}: end it, or give another workspace"
        )
    checkpoint = point.checkpoint
    name = f"checkpoint {source.number} of {source.loop}"
    await keeper.checkpoint("rescue", note=f"before taking over {name}")
    if checkpoint.commit is not None:
        try:
            found = await commands.restore(book.memory.host, request, source.loop, source.number, checkpoint.commit)
            problem = found.error
        except ActivityError as error:
            raise InvalidRequest(f"from_checkpoint: {commands.reason_of(error)}") from error
        if problem:
            raise InvalidRequest(f"from_checkpoint: {problem}")
    session, unfinished = checkpoint.session_id, checkpoint.kind == "pause"
    mine = book.memory.plan_version
    theirs = (point.plan.text, point.plan.path, point.plan.phase)
    book.set(
        iteration=checkpoint.iteration,
        session_id=session,
        forks=session is not None,
        briefed=session is not None,
        unfinished=unfinished,
        heard=unfinished and session is not None,
        revised=session is not None and theirs != (mine.text, mine.path, mine.phase),
        totals=checkpoint.totals,
    )
    book.resume_clock(checkpoint.totals.active_s)
    return f"from {name}" + ("" if checkpoint.commit else "; no files were kept with it: they are as they were")
