"""The copy of a workspace in a pod of its own: the pod is made for it, and removed with it."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from activities.runtimes.kubernetes.pod_errors import PodGone, PodMissing
from activities.runtimes.kubernetes.pods import PodMachine
from activities.workspaces.carry import copies
from activities.workspaces.carry.copies import WorkspaceCopy


@dataclass(frozen=True, kw_only=True)
class PodCopy(WorkspaceCopy):
    """See WorkspaceCopy."""

    pod: PodMachine

    @property
    def outlives_machine(self) -> bool:
        """See WorkspaceCopy."""
        return self.pod.pod.has_claim

    async def prepare(self, run: str, tell: Callable[[str], None] = lambda _: None) -> None:
        """See WorkspaceCopy."""
        await self.pod.prepare(run, tell)

    async def remove(self) -> None:
        """The pod goes with it, unless a run is in there."""
        has_claim = self.pod.pod.has_claim
        if has_claim:
            with contextlib.suppress(PodGone, PodMissing):
                await super().remove()
        if not await self.pod.pod.leave(copy=True) and not has_claim:
            with contextlib.suppress(PodGone, PodMissing):
                await super().remove()

    async def _program(self) -> str:
        return await self.pod.machine.access.bring(copies.PROGRAM)
