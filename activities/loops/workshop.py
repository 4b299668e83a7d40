"""A loop's workspace on this machine: its repository, and what is done with its files.

Which requests are allowed must not live here, nor how git is asked.
"""

import asyncio
import hashlib
import json
import os
import shutil
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from activities.loops import snapshots
from activities.loops.confines import Confines, Outside
from activities.loops.facts import FactBook
from activities.loops.fingerprint import TooMany, fingerprint
from activities.loops.git import GitFailed
from activities.loops.hangs import Hangs
from activities.loops.repository import Broken, Repository, find
from activities.loops.sentences import printable
from activities.loops.shadow import Shadow, opened
from steersman.contracts.loop_activities import Diff, Survey

MAX_DIFF = 1_000_000
LOOK_S = 300.0
"""How long the files of a workspace without git, or of the repositories within one, are looked at."""


class NoRepository(Exception):
    """The workspace is in no git repository: no files are kept there."""


class Workshop:
    """What this worker does with git. `environ`: its own environment; `roots`: where workspaces may lie; `git_roots`:
    where their repositories may lie beside them.
    """

    def __init__(self, environ: Mapping[str, str], roots: Sequence[Path], git_roots: Sequence[Path] = ()) -> None:
        self._environ, self._roots, self._git_roots = environ, roots, git_roots
        self._book, self._hangs = FactBook(), Hangs()

    async def look(self, place: Path, workspace: Path, name: str | None, message: str) -> Survey:
        """Files and HEAD as they are, the files kept under this ref. Never raises for what stands in the way."""
        head = None
        try:
            async with self._opened(place, workspace) as shadow:
                head = shadow.repository.head()
                taken = await snapshots.take(shadow, name, message, head)
                inside = [shadow.repository.top / os.fsdecode(path) for path in sorted(shadow.nested)]
            return Survey(files=await _with_nested(taken.tree, inside), commit=taken.commit, head=head)
        except NoRepository:
            files, problem = await _looked_at(workspace)
            return Survey(files=files, error=problem)
        except GitFailed as error:
            files, _ = await _looked_at(workspace)
            return Survey(files=files, head=head, error=printable(f"the files could not be kept: {error}"))

    async def restore(self, place: Path, workspace: Path, name: str, commit: str | None = None) -> int:
        """Make the files those of a checkpoint, kept as `commit`; how many that changed.

        Raises NoRepository, GitFailed, NoCheckpoint.
        """
        async with self._opened(place, standing(workspace)) as shadow:
            changed = await snapshots.restore(shadow, name, commit)
        await asyncio.to_thread(_put_back, workspace)
        return changed

    async def drop(self, place: Path, workspace: Path, loop: str, numbers: set[int] | None) -> list[int]:
        """Remove checkpoints, all with None; those that were there. Raises NoRepository, GitFailed."""
        async with self._opened(place, standing(workspace)) as shadow:
            return await snapshots.drop(shadow, loop, numbers)

    async def kept(self, place: Path, workspace: Path, loop: str) -> list[int]:
        """The checkpoints that are there. Raises NoRepository, GitFailed."""
        async with self._opened(place, standing(workspace)) as shadow:
            return await snapshots.kept(shadow, loop)

    async def compare(self, place: Path, workspace: Path, older: str, newer: str | None, limit: int) -> Diff:
        """What changed from one to the other, or until now. Raises NoRepository, GitFailed, NoCheckpoint."""
        limit = max(0, min(limit, MAX_DIFF))
        async with self._opened(place, workspace) as shadow:
            stat, patch = await snapshots.compare(shadow, older, newer, limit)
        whole = patch.output.decode("utf-8", "replace")
        text = _fitting(whole, limit)
        return Diff(stat=stat, patch=text, truncated=patch.cut or len(text) < len(whole))

    @asynccontextmanager
    async def _opened(self, place: Path, workspace: Path) -> AsyncIterator[Shadow]:
        repository = await asyncio.to_thread(self._repository, workspace)
        program = shutil.which("git", path=self._environ.get("PATH"))
        if program is None:
            raise GitFailed("git is not on this host")
        await self._hangs.check(repository)
        with self._hangs.watched(repository):
            async with opened(place, repository, program, self._environ, self._book) as shadow:
                yield shadow

    def _repository(self, workspace: Path) -> Repository:
        try:
            repository = find(workspace, Confines.of(self._roots, self._git_roots))
        except (Broken, Outside) as error:
            raise GitFailed(str(error)) from error
        if repository is None:
            raise NoRepository(f"{workspace} is in no git repository")
        return repository


async def _with_nested(tree: str, inside: Sequence[Path]) -> str:
    """The fingerprint. A tree knows a repository within by its commit alone: what is not committed counts, too."""
    if not inside:
        return tree
    try:
        async with asyncio.timeout(LOOK_S):
            seen = [(await _looked_at(directory, contents=False))[0] for directory in inside]
    except TimeoutError:
        return tree
    return hashlib.sha256("\n".join([tree, *seen]).encode()).hexdigest()[:40]


async def _looked_at(directory: Path, *, contents: bool = True) -> tuple[str, str | None]:
    """The fingerprint of a directory's files, and why it is not of all of them."""
    left = threading.Event()
    try:
        async with asyncio.timeout(LOOK_S):
            return await asyncio.to_thread(fingerprint, directory, left.is_set, contents=contents), None
    except TooMany as error:
        return error.digest, str(error)
    except TimeoutError:
        return "", f"looking at the files took longer than {LOOK_S:g} s and was given up"
    finally:
        left.set()


def standing(workspace: Path) -> Path:
    """The workspace, or what is left of the way to it where it is gone."""
    while not workspace.exists() and workspace != workspace.parent:
        workspace = workspace.parent
    return workspace


def _put_back(workspace: Path) -> None:
    """A workspace that was empty in the checkpoint: git keeps no empty directory."""
    if not workspace.exists() and workspace == Path(os.path.realpath(workspace)):
        workspace.mkdir(parents=True)


def _fitting(text: str, limit: int) -> str:
    """As much of the text as is no longer than this on the wire."""
    while (size := len(json.dumps(text, ensure_ascii=False).encode())) > max(limit, 2):
        text = text[: min(len(text) * limit // size, len(text) - 1)]
    return text
