"""The copy of a workspace in a pod of its own: the pod is made for it, and removed with it."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from activities.runtimes.kubernetes.pod import PodGone, PodMissing
from activities.runtimes.kubernetes.pods import PodMachine
from activities.workspaces.carry import copies
from activities.workspaces.carry.copies import CopyFailed, WorkspaceCopy


@dataclass(frozen=True, kw_only=True)
class PodCopy(WorkspaceCopy):
    """See WorkspaceCopy."""

    pod: PodMachine

    async def prepare(self, run: str) -> None:
        """See WorkspaceCopy."""
        await self.pod.prepare(run)

    async def send(self, header: dict[str, Any], pack: Path) -> str:
        """See WorkspaceCopy."""
        try:
            return await super().send(header, pack)
        except PodGone as error:
            raise CopyFailed(f"the copy is lost: {error}") from error

    async def remove(self) -> None:
        """The pod goes with it, unless a run is in there."""
        with contextlib.suppress(PodGone, PodMissing):
            await super().remove()
        await self.pod.release()

    async def _program(self) -> str:
        return await self.pod.machine.access.bring(copies.PROGRAM)
