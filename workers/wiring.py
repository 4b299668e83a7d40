"""Which workflows and activities this process takes from which task queue, and what they are made of."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from temporalio.client import Client
from temporalio.worker import FixedSizeSlotSupplier, UnsandboxedWorkflowRunner, Worker, WorkerTuner, WorkflowRunner

from activities.agents.agent_kind import Finding
from activities.agents.agents import Agents
from activities.carry_activities import CarryActivities
from activities.checkpoint_activities import CheckpointActivities
from activities.context import ActivityContext
from activities.hold_activities import HoldActivities
from activities.host_activities import HostActivities
from activities.host_sweep import Retention
from activities.loop_activities import LoopActivities
from activities.loops.loop_store import LoopStore
from activities.notice_activities import NoticeActivities
from activities.ports.agent import Agent
from activities.ports.machine import Machine
from activities.run_activities import RunActivities
from activities.run_archives import RunArchives
from activities.run_backups import RunBackups
from activities.run_carry import RunCarry
from activities.run_changes import RunChanges
from activities.run_sessions import RunSessions
from activities.run_worktrees import RunWorktrees
from activities.runtimes.kubernetes.pods import KubernetesPods
from activities.runtimes.machine import ChildMachine
from activities.runtimes.place import MachinePlace
from activities.runtimes.shim_runtime import PlaceOf, ShimRuntime, local_place
from activities.runtimes.ssh_machines import SshMachines
from activities.shim import client as shim
from activities.store.identity import StoreIdentity
from activities.store.kept_copies import CopyLocation, KeptCopies
from activities.store.ownership import Ownership
from activities.store.runs import RunStore
from activities.takeover.registry import Registry
from activities.takeover.run_slots import RunSlots
from activities.workspace_holds import WorkspaceHolds
from activities.workspaces.carry import copies
from activities.workspaces.carry.carrier import WorkspaceCarrier
from activities.workspaces.carry.copies import WorkspaceCopy
from activities.workspaces.checkpoints import WorkspaceCheckpoints
from activities.workspaces.git.shadows import Shadows
from steersman.contracts import names
from workers.build import build_id
from workers.pod_copy import PodCopy
from workers.settings import Settings
from workers.succession import OnlyUnlessSucceeded, Succession
from workflows.agent_loop import AgentLoop
from workflows.agent_run import AgentRun
from workflows.host_sweep import SweepHost
from workflows.run_notice import RunNotice
from workflows.runner import ReplaySafeRunner

WORKFLOWS = [AgentRun, AgentLoop, SweepHost, RunNotice]


@dataclass(frozen=True)
class Parts:
    """What the workers of this process share. `polls`: a client for calls that wait."""

    client: Client
    polls: Client
    owner: Ownership
    identity: StoreIdentity
    registry: Registry
    forks: shim.ForkServer
    machines: SshMachines
    pods: KubernetesPods
    succession: Succession
    slots: RunSlots


@dataclass(frozen=True)
class Activities:
    """The activities of this process, by what they are about, and the agents that may run here."""

    agents: Sequence[Agent]
    problems: Sequence[Finding]
    """Why agents of other packages cannot run here."""
    host: HostActivities
    hold: HoldActivities
    run: RunActivities
    loop: LoopActivities
    carry: CarryActivities
    checkpoint: CheckpointActivities
    notice: NoticeActivities


def workflow_runner() -> WorkflowRunner:
    """What runs the workflows of a worker.

    Without the SDK's sandbox, which is there to find code that is not deterministic: tests and `steer replay` have it.
    Here it would be a third of what a run's workflow tasks take, and would swap `sys.modules` beside the other threads;
    and it would load the workflows' files anew for each run: a checkout that changes under a living worker must not mix
    old and new code.
    """
    return ReplaySafeRunner(UnsandboxedWorkflowRunner())


def activities_of(settings: Settings, parts: Parts) -> Activities:
    """The activities, put together."""
    client, policy = parts.client, settings.policy
    store = RunStore(settings.state, parts.owner, parts.identity)
    loops = LoopStore(settings.state, parts.owner, parts.identity)
    machines, pods = parts.machines, parts.pods
    kept = KeptCopies(settings.state, parts.owner)
    places: dict[str, PlaceOf] = {
        "local": partial(local_place, forks=parts.forks),
        "ssh": lambda run: MachinePlace(run, machines.of(run.placement)),
        "kubernetes": lambda run: pods.place(run, kept.location(run).id),
    }
    runtime = ShimRuntime(store, settings.host, places)
    agents, problems = _agents(settings)
    shadows = Shadows(policy.environ, policy.workspace_roots, policy.git_roots)
    worktrees = RunWorktrees(shadows, settings.state)
    roots = (*policy.workspace_roots, worktrees.root)
    checkpoints = WorkspaceCheckpoints(policy.environ, roots, policy.git_roots)
    changes = RunChanges(checkpoints, settings.state)
    carrier = WorkspaceCarrier(shadows, settings.state / "workspaces")
    here = ChildMachine(settings.state, {"PATH": policy.environ.get("PATH", os.defpath)})
    copy_at = partial(_copy_at, here, machines, pods)
    archives = RunArchives(agents, here, kept, copy_at, store, runtime)
    sessions = RunSessions(agents, kept, copy_at, store, runtime, archives)
    backups = RunBackups(carrier, kept, copy_at, sessions, policy.within)
    carry = RunCarry(backups, changes, settings.state)
    context = ActivityContext(
        client, settings.host, agents, runtime, store, policy, changes, carry, worktrees, pods.sweep, pods.prune
    )
    host = HostActivities(
        context, Retention(settings.keep_days, loops), settings.webhook.on if settings.webhook else ()
    )
    run = RunActivities(context, parts.registry, host.lock_session, parts.polls, parts.slots)
    allowed = [agent for name, agent in agents.items() if name in policy.agents]
    loop = LoopActivities(client, agents, loops, policy, WorkspaceHolds(context).admit_restore, host.consumption)
    checkpoint = CheckpointActivities(context, loops, checkpoints)
    notice = NoticeActivities(client, policy, settings.webhook)
    hold = HoldActivities(context, parts.registry)
    return Activities(allowed, problems, host, hold, run, loop, CarryActivities(context), checkpoint, notice)


def workers_of(settings: Settings, parts: Parts, activities: Activities) -> list[Worker]:
    """One worker for each of the four task queues; see ARCHITECTURE.md."""
    client, host, run, loop = parts.client, activities.host, activities.run, activities.loop
    hold, carry = activities.hold, activities.carry
    build = build_id()
    interceptors = [OnlyUnlessSucceeded(parts.succession)]
    deciding = Worker(
        client,
        task_queue=names.TASK_QUEUE,
        workflows=WORKFLOWS,
        activities=[host.claim_host, run.deliver_messages],
        workflow_runner=workflow_runner(),
        # How long the runs of a worker that was killed wait for it before another answers for them.
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
        build_id=build,
        interceptors=interceptors,
    )
    of_host = Worker(
        client,
        task_queue=names.host_queue(settings.host),
        activities=[
            host.claim_host,
            run.deliver_messages,
            host.stop_agent,
            host.finalize_run,
            host.read_events,
            host.check_agents,
            host.end_run,
            host.diff_run,
            host.undo_run,
            carry.carry_out,
            carry.carry_back,
            carry.describe_workspace,
            carry.retry_workspace,
            carry.discard_workspace,
            host.sweep_host,
            host.prune_host,
            hold.hold_workspace,
            hold.release_workspace,
            hold.list_workspaces,
            activities.checkpoint.list_workspace_checkpoints,
            loop.admit_loop,
            loop.survey_workspace,
            loop.restore_checkpoint,
            loop.drop_checkpoints,
            loop.diff_checkpoints,
            loop.list_checkpoints,
            loop.read_fork_point,
            loop.look_at_run,
            activities.notice.send_notice,
        ],
        max_concurrent_activities=1000,
        build_id=build,
        interceptors=interceptors,
    )
    of_runs = Worker(
        client,
        task_queue=names.runs_queue(settings.host),
        activities=[run.run_agent],
        tuner=_tuner(parts.slots),
        max_heartbeat_throttle_interval=timedelta(seconds=1),
        build_id=build,
        interceptors=interceptors,
    )
    own = Worker(
        client,
        task_queue=parts.registry.queue,
        activities=[run.deliver_messages],
        max_concurrent_activities=1000,
        build_id=build,
        interceptors=interceptors,
    )
    return [deciding, of_host, of_runs, own]


def _tuner(slots: RunSlots) -> WorkerTuner:
    none = FixedSizeSlotSupplier(1)  # this worker has no workflows, so nothing else
    return WorkerTuner.create_composite(
        workflow_supplier=none, activity_supplier=slots, local_activity_supplier=none, nexus_supplier=none
    )


async def _copy_at(here: Machine, machines: SshMachines, pods: KubernetesPods, where: CopyLocation) -> WorkspaceCopy:
    """The copy of a run's workspace, where its processes are. Raises MachineUnreachable."""
    placement = where.placement
    if placement.get("kind") == "local":
        return WorkspaceCopy(here, str(where.path), sys.executable)
    if placement.get("kind") == "kubernetes":
        return await _copy_in_pod(pods, where)
    if placement.get("kind") != "ssh":
        raise shim.MachineUnusable("where the run's copy is was lost with its run.json")
    machine = machines.of(placement)
    directory = await machine.directory()
    return WorkspaceCopy(
        machines.bulk(placement),
        str(directory / "copies" / where.id),
        machines.python(placement),
        await machine.access.bring(copies.PROGRAM),
        name=machine.name,
        is_here=False,
        stores=str(directory / "objects"),
    )


async def _copy_in_pod(pods: KubernetesPods, where: CopyLocation) -> WorkspaceCopy:
    """The copy, with a pod of its own, which is made where `prepare` is awaited. Raises MachineUnreachable."""
    found = pods.of(where.placement, where.id)
    return PodCopy(
        found.bulk,
        str(found.directory / "copies" / where.id),
        found.pod.python,
        name=found.pod.name,
        is_here=False,
        stores=str(found.directory / "objects"),
        pod=found,
    )


def _agents(settings: Settings) -> tuple[Agents, Sequence[Finding]]:
    policy, catalog = settings.policy, settings.catalog
    read = (kind.own_variables | kind.private_variables for kind in catalog.kinds.values())
    allowed = frozenset({"HOME"}).union(*read) | policy.allow_env
    environ = {name: value for name, value in policy.environ.items() if name in allowed}
    made, problems = catalog.make(environ, policy.allow_env)
    return Agents(made, policy.agents), (*catalog.problems, *problems)
