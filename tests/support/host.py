"""The activities of a host, in the test's own process and over a state directory of its own choice."""

from collections.abc import Mapping
from pathlib import Path

from temporalio.client import Client

from activities.admission.policy import Policy
from activities.context import ActivityContext
from activities.host_activities import HostActivities
from activities.host_sweep import Retention
from activities.loops.loop_store import LoopStore
from activities.ports.agent import Agent
from activities.run_backups import RunBackups
from activities.run_carry import RunCarry
from activities.run_changes import RunChanges
from activities.run_sessions import RunSessions
from activities.run_worktrees import RunWorktrees
from activities.runtimes.shim_runtime import ShimRuntime
from activities.store.kept_copies import CopyLocation, KeptCopies
from activities.store.ownership import Ownership
from activities.store.runs import RunStore
from activities.workspaces.carry.carrier import WorkspaceCarrier
from activities.workspaces.carry.copies import WorkspaceCopy
from activities.workspaces.checkpoints import WorkspaceCheckpoints
from activities.workspaces.git.shadows import Shadows


def host_activities(client: Client, state: Path, owner: Ownership, agents: Mapping[str, Agent]) -> HostActivities:
    """As a worker puts them together that allows nothing and carries no workspace."""
    store = RunStore(state, owner)

    async def nowhere(where: CopyLocation) -> WorkspaceCopy:
        raise AssertionError("no run has a copy")

    changes = RunChanges(WorkspaceCheckpoints({}, []), state)
    carrier = WorkspaceCarrier(Shadows({}, []), state / "workspaces")
    runtime = ShimRuntime(store, "host")
    kept = KeptCopies(state, owner)
    sessions = RunSessions({}, kept, nowhere, store, runtime)
    carry = RunCarry(RunBackups(carrier, kept, nowhere, sessions, Policy({}).within), changes, state)
    worktrees = RunWorktrees(Shadows({}, []), state)
    context = ActivityContext(client, "host", agents, runtime, store, Policy({}), changes, carry, worktrees)
    return HostActivities(context, Retention(30, LoopStore(state, owner)))
