"""What the activities of one worker share."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from temporalio.client import Client

from activities.admission.policy import Policy
from activities.ports.agent import Agent
from activities.ports.runtime import Runtime
from activities.run_carry import RunCarry
from activities.run_changes import RunChanges
from activities.run_worktrees import RunWorktrees
from activities.running.starts import Starts
from activities.store.run_directory import RunDirectory
from activities.store.runs import RunStore


async def _no_places(_before: float = 0) -> int:
    return 0


@dataclass(frozen=True)
class ActivityContext:
    """The parts that worker.py has put together. `host`: the name of this worker's host in task queues."""

    client: Client
    host: str
    agents: Mapping[str, Agent]
    runtime: Runtime
    store: RunStore
    policy: Policy
    changes: RunChanges
    carry: RunCarry
    worktrees: RunWorktrees
    sweep_places: Callable[[], Awaitable[int]] = _no_places
    """Removes places that belong to no run any more; how many there were."""
    prune_places: Callable[[float], Awaitable[object]] = _no_places
    """Forgets what is written down of places that were removed before that Unix time. Raises OSError."""
    starts: Starts = field(default_factory=Starts)
    """Of runs, by this worker."""
    left: asyncio.Queue[RunDirectory] = field(default_factory=asyncio.Queue)
    """Runs that have closed with something of theirs at work, as far as anybody knows: see stop_retries."""

    def kept_directory(self, path: str, field_name: str) -> Path:
        """A directory in which a run has worked, with all links followed, whether or not it is there.

        Raises InvalidRequest for what is neither a worktree nor where requests may work.
        """
        return self.worktrees.within(path) or self.policy.within(path, field_name)
