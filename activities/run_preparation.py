"""What run_agent does before a run is led: how far the run has come, its directory, its controller."""

import asyncio
import logging
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ValidationError
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.admission.control import LockSession, PolicyAdmissionControl
from activities.admission.schemas import admit_schema
from activities.context import ActivityContext
from activities.ports.backup import Backup
from activities.ports.runtime import CLEANUP, Unreachable
from activities.returned_sessions import AgentEnvironments
from activities.run_backups import moment
from activities.run_carry import WorkspaceGated
from activities.run_changes import RunBaseline
from activities.run_failures import retry_later
from activities.running.completion import OLDER_SERVER
from activities.running.controller import RunController
from activities.running.heartbeat import HeartbeatDetails
from activities.running.launch import RunContext, further
from activities.shim.client import MachineUnreachable
from activities.store.event_reader import is_ended, terminal_event
from activities.store.notes import note, noted
from activities.store.run_directory import RunDirectory
from activities.temporal.execution import QUERY_ERRORS, is_current, state_of
from activities.temporal.notifier import WorkflowNotifier
from activities.workspace_holds import WorkspaceHolds
from steersman.contracts.activities import RunAgentInput, RunKey
from steersman.contracts.errors import ActivityErrorType, AgentFailed, InvalidRequest, WorkspaceError
from steersman.contracts.events import TerminalEvent
from steersman.contracts.kubernetes import KubernetesRuntime
from steersman.contracts.request import RunRequest
from steersman.contracts.run import RunState, Worktree
from steersman.contracts.runtime import Runtime

log = logging.getLogger("steersman.running")

_SET_ASIDE = "set-aside.json"
RELEASE_TRIES = 60
"""The shims of a closed run are looked for this many times, 50 ms apart, before the run is refused."""


async def progress_before(context: ActivityContext, run: RunAgentInput, told: HeartbeatDetails) -> HeartbeatDetails:
    """How far the run had come before this attempt of the activity. Raises StoreGone."""
    info = activity.info()
    await asyncio.to_thread(context.store.check, told.store)
    first = info.attempt == 1 and info.workflow_run_id == run.key.execution
    if first or told.attempt or context.runtime.attempts(run.key):
        return told
    # An earlier worker may have died before its heartbeat told of a process, and the directory be gone since.
    if context.store.directory(run.key).tag in await context.store.strays():
        return told.with_attempts(1)
    return told.with_attempts(await _attempts_of_workflow(context, run.key)) if info.attempt > 1 else told


class _SetAside(BaseModel):
    """Left in a directory that was set aside. `by`: the execution that begins the run anew; `process`: the last one of
    the run that its workflow had been told of by then.
    """

    by: str
    process: tuple[str, int, int] | None


async def end_before(context: ActivityContext, run: RunAgentInput, before: HeartbeatDetails) -> TerminalEvent | None:
    """How the run has ended, where its workflow knows nothing of that: the server has an older state of it. None where
    it has not ended, or was reset since, and begins anew.

    Raises ApplicationError where the server counts on another attempt, WorkspaceError.
    """
    directory = context.store.directory(run.key)
    event = await asyncio.to_thread(_terminal_event, directory)
    if event is None or not _began_here(directory, is_anew=before.begins_anew):
        return None
    await _check_current(context)
    await _clear_closed(context, run.key)
    facts = {"run": run.key.run, "execution": run.key.execution, "ended": event.type}
    log.warning("a run has ended, and its server does not know", extra={"action": "ended_before", "facts": facts})
    return event


def _terminal_event(directory: RunDirectory) -> TerminalEvent | None:
    try:
        return terminal_event(directory.events)
    except ValueError:
        return None  # an agent may have written there


def _began_here(directory: RunDirectory, *, is_anew: bool = False) -> bool:
    """Whether the execution that has called this activity began in this directory, and is no reset that begins anew.

    `is_anew`: it has ended the log itself, in order to begin anew.
    """
    by = activity.info().workflow_run_id
    if by == directory.key.execution:
        return True
    asides = directory.path.parent.glob(f"{directory.path.name}.*/{_SET_ASIDE}")
    return not is_anew and any(aside.by == by for aside in (noted(each, _SetAside) for each in asides) if aside)


async def _check_current(context: ActivityContext) -> None:
    """Raises ApplicationError where the server counts on another attempt than this one."""
    if not await is_current(context.client):
        raise ApplicationError(
            "the run has ended", type=ActivityErrorType.DETACHED, category=ApplicationErrorCategory.BENIGN
        )


async def _attempts_of_workflow(context: ActivityContext, key: RunKey) -> int:
    """How many processes the workflow has been told of, since this execution began. Raises ApplicationError where it
    cannot be asked now.
    """
    state = await _state(context)
    told = _SetAside(by=activity.info().workflow_run_id or "", process=state.handle.process if state.handle else None)
    directory = context.store.directory(key).path
    for each in directory.parent.glob(f"{directory.name}.*/{_SET_ASIDE}"):
        if await asyncio.to_thread(noted, each, _SetAside) == told:
            return 0  # a reset keeps what its workflow was told before
    return state.attempt


async def _state(context: ActivityContext) -> RunState:
    """What the workflow says. Raises ApplicationError where it cannot be asked now."""
    workflow = context.client.get_workflow_handle(activity.info().workflow_id or "")
    try:
        return await state_of(workflow)
    except QUERY_ERRORS as error:
        raise retry_later(
            ActivityErrorType.STATE_UNKNOWN, f"nobody says whether the run has begun already: {error}"
        ) from error


async def prepare(
    context: ActivityContext,
    lock_session: LockSession,
    run: RunAgentInput,
    before: HeartbeatDetails,
    notifier: WorkflowNotifier,
) -> RunController:
    """The run's controller, with its directory made. Raises RunError, RunGone, StoreGone, OSError, ApplicationError."""
    store, policy = context.store, context.policy
    await asyncio.to_thread(store.directory(run.key).require, before.attempt)
    if run.request.agent not in context.agents:
        # The host had it when the run was claimed: its package is broken or gone, and may come back.
        why = f'this worker has no agent "{run.request.agent}": its package cannot be used here (see steer doctor)'
        raise retry_later(ActivityErrorType.AGENT_UNKNOWN, why)
    agent = context.agents[run.request.agent]
    # Checked here too: the run may have waited long in the queue, or another operator's worker claimed it.
    request = policy.capped(run.request)
    worktree = await asyncio.to_thread(admitted_place, context, request)
    if worktree != run.worktree:
        raise WorkspaceError("workspace.worktree: the repository lies elsewhere than when the run was claimed")
    place = Path(worktree.directory) if worktree else None
    workspace, _ = await asyncio.to_thread(policy.check_all, request, context.agents, place, is_capped=True)
    await admit_schema(request)
    await WorkspaceHolds(context).keep(run.key, request, place or workspace)
    directory = await directory_of(context, run.key, request.runtime, is_anew=before.begins_anew)
    copy = _copy(run)
    if request.session and not request.fork_session and context.runtime.attempts(run.key) == 0:
        await lock_session(request.agent, request.session, directory)
    wanted = run.keeps_baseline and request.permissions.mode != "read_only" and copy is None
    if copy is None and context.runtime.attempts(run.key) == 0:
        await check_gates(context, request)
    lost = await _remake_place(context, directory, run, workspace) if copy is not None else None
    if copy is not None and (lost is not None or context.runtime.attempts(run.key) == 0):
        if request.home == "user":
            await _carry_sessions(context, directory, request, workspace, copy)
        await asyncio.to_thread(context.carry.forget_loss, directory)
    if worktree:
        place = await context.worktrees.make(worktree, workspace)
    baseline = RunBaseline(context.changes, directory, place or workspace, workspace, wanted=wanted)
    notifier.baseline = baseline
    of_first = policy.part(request, 0)
    leads = RunContext(
        key=run.key,
        agent_key=directory.agent_key,
        request=of_first,
        agent=agent,
        runtime=context.runtime,
        directory=directory,
        admission=PolicyAdmissionControl(policy, agent, of_first, directory, lock_session, copy or place),
        baseline=baseline,
        epoch=notifier.epoch,
        backup=_backup(context, directory, run),
        lost=lost,
        starts=context.starts,
    )
    further_agents = _fallback(context, leads, request, lock_session, copy or place)
    return RunController(replace(leads, fallback=further_agents), notifier)


def _fallback(
    context: ActivityContext, run: RunContext, whole: RunRequest, lock_session: LockSession, place: Path | None
) -> tuple[RunContext, ...]:
    """The run as each of its further agents has it. `whole`: what was asked of all of them."""
    found = []
    for number in range(1, len(whole.fallback) + 1):
        request = context.policy.part(whole, number)
        agent = context.agents[request.agent]
        admission = PolicyAdmissionControl(context.policy, agent, request, run.directory, lock_session, place)
        can = context.policy.kinds[request.agent].capabilities(request)
        found.append(further(run, number, request, agent, admission=admission, capabilities=can))
    return tuple(found)


async def _remake_place(
    context: ActivityContext, directory: RunDirectory, run: RunAgentInput, workspace: Path
) -> str | None:
    """Make the place of the run's processes anew, if it was lost; what a person is told of that. What its processes
    have changed there since the last backup is lost with it. Raises RunError, Unreachable, OSError.
    """
    why = await context.runtime.loss(run.key)
    if why is not None:
        await asyncio.to_thread(context.carry.note_loss, directory, why)
    if (why := await asyncio.to_thread(context.carry.loss, directory)) is None:
        return None
    assert run.carried
    try:
        time = await context.carry.again(directory, run.carried, workspace, run.request.workspace.include)
    except MachineUnreachable as error:
        raise Unreachable(str(error)) from error
    if not why:
        return ""
    return f"{why}: the run goes on with {_left(run.request, time)}"


def _left(request: RunRequest, backup: datetime | None) -> str:
    if backup:
        return f"its files and its session as they were at {moment(backup)}; what was done and said since is lost"
    if isinstance(request.runtime, KubernetesRuntime) and request.runtime.has_claim:
        return "what is in its claim"
    return "the workspace as it was carried out; what was done and said since is lost"


def _backup(context: ActivityContext, directory: RunDirectory, run: RunAgentInput) -> Backup | None:
    """What is kept of a run whose machine can be lost for good."""
    runtime = run.request.runtime
    if run.carried is None or not isinstance(runtime, KubernetesRuntime) or runtime.has_claim or not runtime.backup_s:
        return None
    return context.carry.backups.of(directory, run.carried, runtime.backup_s)


async def _carry_sessions(
    context: ActivityContext,
    directory: RunDirectory,
    request: RunRequest,
    workspace: Path,
    copy: Path,
) -> None:
    """Bring the run's session to its copy, and note of each of its agents where its sessions will be. Raises RunError,
    Unreachable.
    """
    backup = await asyncio.to_thread(context.carry.backups.sessions_of, directory)
    parts: dict[str, tuple[int, ...]] = {}
    for number, agent in enumerate((request.agent, *(each.agent for each in request.fallback))):
        parts[agent] = (*parts.get(agent, ()), number)
    for agent, its in parts.items():
        of_agent = request.of_part(its[0])
        place = await context.runtime.info(directory.key, context.agents[agent].executables(of_agent))
        here = await asyncio.to_thread(context.policy.environment, of_agent)
        there = await asyncio.to_thread(context.policy.environment, of_agent, place)
        both = AgentEnvironments(of_agent, here, there, its)
        try:
            await context.carry.sessions.out(directory, both, workspace, str(copy), backup)
        except MachineUnreachable as error:
            raise Unreachable(str(error)) from error


def admitted_place(context: ActivityContext, request: RunRequest) -> Worktree | None:
    """Where a run that asks for a worktree works, whether or not that is there yet. Raises InvalidRequest,
    WorkspaceError.
    """
    if request.workspace.worktree is None:
        return None
    if context.policy.max_permission == "read_only":  # a branch and a worktree are written into the repository
        raise InvalidRequest("workspace.worktree: this worker allows nobody to change a workspace")
    return context.worktrees.place(request, context.policy.workspace(request.workspace.path))


def directory_of_run(context: ActivityContext, request: RunRequest, worktree: Worktree | None) -> Path:
    """The directory that a run has worked in. Raises InvalidRequest, WorkspaceError."""
    if worktree is None:
        return context.policy.workspace(request.workspace.path)
    if (directory := context.worktrees.within(worktree.directory)) is None:
        raise InvalidRequest("workspace.worktree: that is none of this host's")
    return directory


def _copy(run: RunAgentInput) -> Path | None:
    """The copy of the workspace that the run works in. Raises WorkspaceError where it is gone."""
    if run.carried is None:
        return None
    copy = Path(run.carried.directory)
    if run.request.runtime.kind == "local" and not copy.is_dir():
        raise WorkspaceError(f"workspace: the copy that the run works in is gone: {copy}")
    return copy


async def check_gates(context: ActivityContext, request: RunRequest) -> None:
    """Raises WorkspaceGated where another run's changes wait to be merged into the workspace, or ApplicationError where
    the request is to wait for that.
    """
    workspace = await asyncio.to_thread(context.policy.workspace, request.workspace.path)
    workspace = await asyncio.to_thread(context.worktrees.directory, request, workspace)
    try:
        await asyncio.to_thread(context.carry.check_gates, workspace)
    except WorkspaceGated as gated:
        if request.workspace.on_gate == "wait":
            raise retry_later(ActivityErrorType.WORKSPACE_GATED, gated.message) from gated
        raise


async def directory_of(
    context: ActivityContext, key: RunKey, runtime: Runtime, *, is_anew: bool = False
) -> RunDirectory:
    """The run's directory; a new one for a closed run that was reset, which begins anew. `is_anew`: see _began_here.

    Raises AgentFailed where the directory says that its processes live elsewhere than the request does, or that the run
    has ended and its server does not know.
    """
    store = context.store
    placement = runtime.model_dump(mode="json")
    directory = store.create(key, placement)
    if not await asyncio.to_thread(is_ended, directory.events):
        # Where it was lost, the runtime refuses.
        if directory.placement and not _is_at(directory, runtime):
            raise AgentFailed(f"{directory.path}/run.json was changed: the run's processes do not live where it says")
        return directory
    # What was is kept beside the new beginning until it is pruned. Nothing of it may be left at work: in a directory of
    # another name nobody would find it. Without a reset this attempt is one that came too late, as after a reset of
    # the activity: the server counts on it no more.
    await _check_current(context)
    await _clear_closed(context, key)
    if await asyncio.to_thread(_began_here, directory, is_anew=is_anew):
        raise AgentFailed(f"the run had ended before: {OLDER_SERVER}")
    if await asyncio.to_thread(context.carry.is_gate, directory):
        raise WorkspaceGated(key.run, "it waits in the copy")
    handle = (await _state(context)).handle
    if await asyncio.to_thread(is_ended, directory.events):  # a worker that thaws here finds the new beginning
        by = activity.info().workflow_run_id or ""
        note(directory.path / _SET_ASIDE, _SetAside(by=by, process=handle.process if handle else None))
        store.set_aside(directory)
    return store.create(key, placement)


def _is_at(directory: RunDirectory, runtime: Runtime) -> bool:
    try:
        return type(runtime).model_validate(directory.placement) == runtime
    except ValidationError:
        return False


async def _clear_closed(context: ActivityContext, key: RunKey) -> None:
    """Stop what a closed run left at work, and let its shims go. Raises WorkspaceError where one stays."""
    report = await context.runtime.stop(key, CLEANUP, "the run had closed")
    await context.runtime.release(key)
    for _ in range(RELEASE_TRIES):
        if not context.runtime.has_living(key):
            return
        await asyncio.sleep(0.05)
    raise WorkspaceError(f"workspace: processes of the closed run are still there: {report.left}")
