"""The shims of one run in a pod; where that is gone, or was never there, what its end says of them.

A pod that is gone is no machine that cannot be reached: nothing lives in it any more. How pods are asked must not live
here.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path, PurePath
from typing import Any, TypeVar

from activities.runtimes.exec_access import ExecAccess
from activities.runtimes.kubernetes.pod import CopyPod
from activities.runtimes.kubernetes.pod_errors import PodGone, PodMissing
from activities.runtimes.kubernetes.pod_record import PodRecord
from activities.runtimes.mirror import has_end
from activities.shim import client as shim
from activities.shim.client.access import Dialed, Directory, Stored
from activities.shim.client.dialing import DIAL_TIMEOUT
from activities.store.run_directory import RunDirectory

T = TypeVar("T")


class PodAccess:
    """See ShimAccess. `inner`: of the pod that is there; `directory`: the run's, which has the copies of journals."""

    def __init__(self, inner: ExecAccess, pod: CopyPod, directory: RunDirectory) -> None:
        self._inner, self._pod, self._directory = inner, pod, directory

    async def start(self, directory: Directory, spec: shim.Spec) -> shim.Status:
        """See ShimAccess."""
        await self._pod.enter(self._directory.id, PurePath(directory).name)
        return await self._inner.start(directory, spec)

    async def dial(self, directory: Directory, epoch: int | None, timeout: timedelta = DIAL_TIMEOUT) -> Dialed:
        """See ShimAccess."""
        return await _gone(lambda: self._inner.dial(directory, epoch, timeout))

    async def stored(self, directory: Directory, after: int, offset: int) -> Stored:
        """See ShimAccess. Of a process in a pod that is gone there is no more than its copy here."""
        try:
            return await _gone(lambda: self._inner.stored(directory, after, offset))
        except shim.ShimGone:
            if not await self._was_elsewhere(directory):
                raise
        return Stored(0, _nothing())

    async def _was_elsewhere(self, directory: Directory) -> bool:
        """Whether this attempt's process was in a pod that is gone by now."""
        journal, record = self._journal(directory), await self._pod.known()
        if journal is None or not journal.exists() or record is None:
            return False
        is_of_this = f"{self._directory.id}/{PurePath(directory).name}" in record.attempts
        return not is_of_this or record.lost is not None or record.removed

    async def ask(self, command: str, *words: Directory) -> dict[str, Any]:
        """See ShimAccess."""
        if not await self._is_there(bar=command == "entomb"):
            return self._answer(words, None)
        try:
            return await self._inner.ask(command, *words)
        except PodGone as gone:
            if command == "entomb":
                await self._pod.bar(self._directory.id)
            return self._answer(words, gone.record)
        except PodMissing:
            return self._answer(words, None)

    async def _is_there(self, *, bar: bool) -> bool:
        """Whether the run has, or had, a process in the pod. `bar`: if not, it never will."""
        if bar:
            return not await self._pod.bar(self._directory.id)
        record = await self._pod.known()
        return record is not None and self._directory.id in record.runs

    def _answer(self, words: tuple[Directory, ...], record: PodRecord | None) -> dict[str, Any]:
        """What every command that looks at a shim or clears up after one would say of a pod that is not there."""
        journal = self._journal(words[0]) if words else None
        used = bool(journal and journal.exists() and record and not record.removed)
        return {
            "alive": False,
            "used": used,
            "ended": bool(used and journal and has_end(journal)),
            "stopped": True,
            "stray": False,
            "entombed": True,
            "waits_for_disk": False,
            "processes": 0,
            "left": [],
            "suspects": [],
            "proven": record is None or record.proven or record.removed,
        }

    def _journal(self, directory: Directory) -> Path | None:
        """The copy of the journal of this attempt's directory in the pod."""
        name = PurePath(directory).name
        return self._directory.attempt(int(name)) / "journal" if name.isdigit() else None


async def _nothing() -> AsyncGenerator[bytes]:
    nothing: tuple[bytes, ...] = ()
    for chunk in nothing:
        yield chunk


async def _gone(ask: Callable[[], Awaitable[T]]) -> T:
    try:
        return await ask()
    except (PodGone, PodMissing) as error:
        raise shim.ShimGone(str(error)) from error
