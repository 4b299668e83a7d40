"""A pod out of a warm pool: one that waits with nothing in it becomes a copy's own, by a patch that only one can make.

What is done where there is none must not live here.
"""

import random
from typing import Any, Final

from activities.runtimes.kubernetes import manifest
from activities.runtimes.kubernetes.api import ApiRefused
from activities.runtimes.kubernetes.objects import CopyObjects, is_of_job
from activities.runtimes.kubernetes.pod_state import state_of_pod

_LISTINGS: Final = 3
"""The pool is looked at this often while others are quicker with every pod of it."""
_GONE: Final = (404, 409)
"""Somebody was quicker, or the pod has ended."""


class PoolClaim:
    """`take` it."""

    def __init__(self, objects: CopyObjects) -> None:
        self._objects = objects

    async def take(self, run: str) -> tuple[dict[str, Any] | None, str]:
        """A pod that runs and is this copy's alone; or None, and why. Twice is once: one that a worker took that died
        then is found again.

        Raises ApiRefused, MachineUnreachable.
        """
        for pod in await self._objects.pods():
            if not is_of_job(pod) and _runs(pod):
                return pod, ""
        why = ""
        for _ in range(_LISTINGS):
            fitting, why = await self._waiting()
            random.shuffle(fitting)  # so that many who look at once do not all want the same one
            for pod in fitting:
                if taken := await self._taken(pod, run):
                    return taken, ""
            if not fitting:
                break
        return None, why

    async def _waiting(self) -> tuple[list[dict[str, Any]], str]:
        """Those that may be taken, and what is to be said where there is none."""
        selector = f"{manifest.POOL}={self._objects.runtime.pool},!{manifest.COPY}"
        answer = await self._objects.api.get(self._objects.pods_path, labelSelector=selector)
        running = [each for each in answer.get("items") or [] if _runs(each)]
        digest = manifest.pod_digest(self._objects.runtime)
        fitting = [each for each in running if (each["metadata"].get("annotations") or {}).get(manifest.SPEC) == digest]
        if running and not fitting:
            return [], f"its pods, {len(running)} of them, are made of another request or by another version"
        return fitting, "none is free" if not fitting else "others were quicker"

    async def _taken(self, pod: dict[str, Any], run: str) -> dict[str, Any] | None:
        """The pod as it is now; None where it cannot be had."""
        objects = self._objects
        patch = manifest.taken(pod, objects.runtime, objects.copy, objects.owner, run)
        try:
            return await objects.api.patch(objects.pod_path(pod), patch)
        except ApiRefused as error:
            if error.status not in _GONE:
                raise
            return None


def _runs(pod: dict[str, Any]) -> bool:
    state = state_of_pod(pod)
    return state.stage == "running" and not state.is_lost_node
