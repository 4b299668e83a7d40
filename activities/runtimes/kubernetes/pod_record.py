"""What is written down of the pod of a copy, in the state directory: which it is, and what has become of it.

    pods/<copy>.json

Written before anything is asked of the cluster: whoever goes on knows what may be there. An agent of this machine can
have written it.
"""

import asyncio
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from activities.store import disk
from activities.store.directory_lock import exclusively
from activities.store.notes import note, noted
from steersman.contracts.model import JsonObject

_ID: Final = re.compile(r"[0-9a-f]{32}")


class PodRecord(BaseModel):
    """`runtime`: the request's. `job_uid`, `pod`, `pod_uid`: None before the cluster has told."""

    runtime: JsonObject
    run: str
    job_uid: str | None = None
    old_job: str | None = None
    """The uid of a Job whose pod was lost: it has to go before there is another."""
    refused: bool = False
    """The cluster has refused to make the Job, or could not be asked for it."""
    restarts: int = 0
    """How often the container had been started again when it was looked at last."""
    pod: str | None = None
    pod_uid: str | None = None
    pooled: bool = False
    """It was taken from a pool, so there is no Job."""
    has_copy: bool = True
    """The copy is in it, or will be."""
    runs: tuple[str, ...] = ()
    """Runs (RunDirectory.id) whose processes live in it, or have: their journals are there."""
    attempts: tuple[str, ...] = ()
    """RUN/ATTEMPT of the processes that were started in it, or were to be."""
    used: tuple[str, ...] = ()
    """The uids of the pods of this copy that processes of some run have been in."""
    barred: tuple[str, ...] = ()
    """Runs that were stopped before any process of theirs was started in it."""
    deleting: bool = False
    """Somebody was seen to delete the pod, in a way in which its processes end before it does."""
    lost: str | None = None
    """Why the pod is gone, with all that was in it."""
    proven: bool = False
    """Of a pod that is gone: the cluster has seen its processes end."""
    removed: bool = False
    """We have removed it, and the cluster says that it is gone."""


class PodRecords:
    """`state`: the state directory."""

    def __init__(self, state: Path) -> None:
        self._place = state / "pods"

    def read(self, copy: str) -> PodRecord | None:
        """Blocks."""
        return noted(self._place / f"{copy}.json", PodRecord)

    async def change(self, copy: str, change: Callable[[PodRecord | None], PodRecord]) -> PodRecord:
        """Change it, alone among the workers of this host. Raises OSError."""

        def changed() -> PodRecord:
            before = self.read(copy)
            return self._note(copy, before, change(before))

        return await exclusively(self._place, changed)

    async def update(self, copy: str, *, seen: PodRecord | None = None, **fields: object) -> PodRecord | None:
        """Change some fields of one that is there. None where there is none, or no longer the one of the pod that was
        `seen`: between a look at the cluster and this another worker may have prepared the next pod. Raises OSError.
        """

        def changed() -> PodRecord | None:
            before = self.read(copy)
            if before is None or (seen and (before.job_uid, before.pod_uid) != (seen.job_uid, seen.pod_uid)):
                return None
            return self._note(copy, before, before.model_copy(update=fields))

        return await exclusively(self._place, changed)

    def _note(self, copy: str, before: PodRecord | None, after: PodRecord) -> PodRecord:
        if after != before:
            note(self._place / f"{copy}.json", after)
        return after

    async def forget(self, copy: str) -> None:
        """Raises OSError."""
        await asyncio.to_thread((self._place / f"{copy}.json").unlink, missing_ok=True)

    async def prune(self, before: float) -> list[str]:
        """Forget the pods that were removed, and of which nothing was written down since that Unix time; their copies.
        Raises OSError.
        """
        old = await asyncio.to_thread(lambda: [copy for copy, _ in self.all() if self._is_old(copy, before)])
        # Still: a loop's next run may be having another one made.
        return [copy for copy in old if await exclusively(self._place, partial(self._forget_old, copy, before))]

    def _forget_old(self, copy: str, before: float) -> bool:
        if is_old := self._is_old(copy, before):
            (self._place / f"{copy}.json").unlink()
        return is_old

    def _is_old(self, copy: str, before: float) -> bool:
        record = self.read(copy)
        return record is not None and record.removed and (self._place / f"{copy}.json").lstat().st_mtime < before

    def all(self) -> Iterator[tuple[str, PodRecord]]:
        """Copy and record of every pod that there was. Blocks."""
        for name in disk.names(self._place):
            copy = name.removesuffix(".json")
            if name.endswith(".json") and _ID.fullmatch(copy) and (record := self.read(copy)):
                yield copy, record
