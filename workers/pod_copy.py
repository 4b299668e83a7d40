"""The copy of a workspace in a pod of its own: the pod is made for it, and removed with it."""

import contextlib
from dataclasses import dataclass

from activities.runtimes.kubernetes.pod import PodGone, PodMissing
from activities.runtimes.kubernetes.pods import PodMachine
from activities.workspaces.carry import copies
from activities.workspaces.carry.copies import WorkspaceCopy


@dataclass(frozen=True, kw_only=True)
class PodCopy(WorkspaceCopy):
    """See WorkspaceCopy."""

    pod: PodMachine

    async def prepare(self, run: str) -> None:
        """See WorkspaceCopy."""
        await self.pod.prepare(run)

    async def remove(self) -> None:
        """The pod goes with it, unless a run is in there."""
        if not await self.pod.pod.leave(copy=True):
            with contextlib.suppress(PodGone, PodMissing):
                await super().remove()

    async def _program(self) -> str:
        return await self.pod.machine.access.bring(copies.PROGRAM)
