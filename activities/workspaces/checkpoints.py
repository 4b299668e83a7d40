"""Checkpoints of a workspace on this machine: its files are captured, restored, compared.

Which requests are allowed must not live here, nor git's commands.
"""

import asyncio
import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from activities.store.scratch import scratch_directory
from activities.workspaces.fingerprint import TooManyFiles, fingerprint
from activities.workspaces.git import checkpoint_commits as commits
from activities.workspaces.git.checkpoint_commits import Message
from activities.workspaces.git.kept_commits import Counts, KeptCommit, Pair, count_all, kept_commits
from activities.workspaces.git.runner import GitFailed
from activities.workspaces.git.shadow import Shadow
from activities.workspaces.git.shadows import NoRepository, Shadows
from activities.workspaces.git.trees import Within, ignored
from activities.workspaces.printable_text import printable
from steersman import timeouts
from steersman.contracts.loop_activities import Survey
from steersman.contracts.workspace import Diff

_SCRATCH = "steersman-git-"
MAX_DIFF = 1_000_000
"""A patch is cut at this many bytes of JSON."""
FINGERPRINT_S = 300.0
"""Seconds for the fingerprint of a workspace without git, or of all nested repositories of a work tree."""


class WorkspaceCheckpoints:
    """Checkpoints of the workspaces of this worker's loops. `directory` is always the loop's own (see loop_store).

    `environ` is the worker's environment. Workspaces may lie in `roots`, their repositories also in `git_roots`.
    """

    def __init__(self, environ: Mapping[str, str], roots: Sequence[Path], git_roots: Sequence[Path] = ()) -> None:
        self._shadows = Shadows(environ, roots, git_roots)

    async def capture(
        self, directory: Path, workspace: Path, name: str | None, message: str, maker: str = ""
    ) -> Survey:
        """The fingerprint of the files, HEAD, and a commit of the files under the ref `name`, if given. `maker`: whose
        checkpoints are replaced; those of others are set aside.

        Never raises for what keeps a checkpoint from being made: the survey names it.
        """
        head = None
        try:
            async with self._shadows.open(directory, workspace) as shadow:
                head = shadow.repository.head()
                if name is not None:
                    await commits.set_aside(shadow, name, maker)
                captured = await commits.capture(shadow, name, Message(message, commits.made_by(maker)), head)
                nested = [shadow.repository.top / os.fsdecode(path) for path in sorted(shadow.nested)]
            return Survey(files=await _with_nested(captured.tree, nested), commit=captured.commit, head=head)
        except NoRepository:
            files, problem = await _fingerprint(workspace)
            return Survey(files=files, error=problem)
        except GitFailed as error:
            files, _ = await _fingerprint(workspace)
            return Survey(files=files, head=head, error=printable(f"the files could not be kept: {error}"))

    async def ignored(self, workspace: Path, paths: Iterable[Path]) -> set[Path]:
        """What of these files, and of the files in these directories, no checkpoint has, as git ignores it. `paths`:
        without links; those that are in another repository, or in none, are not judged. Raises NoRepository, GitFailed.
        """
        beside = scratch_directory(Path(tempfile.gettempdir()), _SCRATCH)  # so that it waits for no survey
        async with beside as directory, self._shadows.open(directory, workspace) as shadow:
            top = shadow.repository.top
            inside = [os.fsencode(each.relative_to(top)) for each in paths if each.is_relative_to(top)]
            return {top / os.fsdecode(each) for each in await ignored(shadow, inside)}

    async def commit(self, directory: Path, workspace: Path, name: str, message: str, most: int) -> str:
        """Commit the workspace's files under the ref `name`, and return the commit. Raises NoRepository, GitFailed.

        `most`: bytes of files that the user's index does not have.
        """
        async with self._shadows.open(directory, workspace) as shadow:
            within = _within(shadow, workspace)
            captured = await commits.capture(shadow, name, Message(message), shadow.repository.head(), within, most)
        return captured.commit or ""

    async def keep(self, directory: Path, workspace: Path, name: str, commit: str) -> None:
        """Keep a commit that is there under the ref `name`. Raises NoRepository, GitFailed."""
        async with self._shadows.open(directory, workspace) as shadow:
            await commits.keep(shadow, name, commit)

    async def count(self, directory: Path, workspace: Path, older: str, newer: str) -> tuple[int, int, int]:
        """Files, lines added and lines removed in the workspace between two commits.

        Raises NoRepository, GitFailed, NoCheckpoint.
        """
        async with self._shadows.open(directory, workspace) as shadow:
            return await commits.count(shadow, older, newer, _within(shadow, workspace))

    async def kept(self, directory: Path, workspace: Path) -> tuple[Path, list[KeptCommit]]:
        """The work tree that the workspace lies in, and every ref of ours in its repository.

        Raises NoRepository, GitFailed.
        """
        async with self._shadows.open(directory, workspace) as shadow:
            return shadow.repository.top, await kept_commits(shadow)

    async def count_all(self, directory: Path, workspace: Path, pairs: Iterable[Pair]) -> dict[Pair, Counts]:
        """What differs between two trees, for each pair of which both are there. Raises NoRepository, GitFailed."""
        async with self._shadows.open(directory, workspace) as shadow:
            return await count_all(shadow, pairs)

    async def undo(
        self, directory: Path, workspace: Path, older: str, newer: str, rescue: str, message: str
    ) -> commits.UndoneFiles:
        """Take back what differs in the workspace between two commits, where nothing has changed since the newer one.

        The files as they were are committed under the ref `rescue`. Raises NoRepository, GitFailed, NoCheckpoint.
        """
        async with self._shadows.open(directory, nearest_existing(workspace)) as shadow:
            undone = await commits.undo(shadow, older, newer, rescue, message, _within(shadow, workspace))
        await asyncio.to_thread(make_empty_workspace, workspace)
        return undone

    async def restore(self, directory: Path, workspace: Path, name: str, commit: str | None = None) -> int:
        """Restore the files of a checkpoint, which is `commit`, and return how many changed.

        Raises NoRepository, GitFailed, NoCheckpoint.
        """
        async with self._shadows.open(directory, nearest_existing(workspace)) as shadow:
            changed = await commits.restore(shadow, name, commit)
        await asyncio.to_thread(make_empty_workspace, workspace)
        return changed

    async def drop(self, directory: Path, workspace: Path, loop: str, numbers: set[int] | None) -> list[int]:
        """Remove checkpoints, all with None, and return those that existed. Raises NoRepository, GitFailed."""
        async with self._shadows.open(directory, nearest_existing(workspace)) as shadow:
            return await commits.drop(shadow, loop, numbers)

    async def drop_refs(self, directory: Path, workspace: Path, prefix: str) -> None:
        """Remove the refs whose names begin so. Raises NoRepository, GitFailed."""
        async with self._shadows.open(directory, nearest_existing(workspace)) as shadow:
            await commits.drop_refs(shadow, prefix)

    async def numbers(self, directory: Path, workspace: Path, loop: str) -> list[int]:
        """The numbers of a loop's checkpoints, ascending. Raises NoRepository, GitFailed."""
        async with self._shadows.open(directory, nearest_existing(workspace)) as shadow:
            return await commits.checkpoint_numbers(shadow, loop)

    async def compare(self, directory: Path, workspace: Path, older: str, newer: str | None, limit: int) -> Diff:
        """The difference between two checkpoints, or between one and the files as they are.

        Raises NoRepository, GitFailed, NoCheckpoint.
        """
        async with self._shadows.open(directory, workspace) as shadow:
            before = await commits.tree_at(shadow, older)
            after = await commits.tree_at(shadow, newer) if newer else None
            return await _diff(shadow, before, after, limit)

    async def compare_commits(
        self, directory: Path, workspace: Path, older: str, newer: str | None, limit: int
    ) -> Diff:
        """As `compare`, of commits and in the workspace alone: others may be at work elsewhere in its repository."""
        async with self._shadows.open(directory, workspace) as shadow:
            before, *after = await commits.trees_of(shadow, older, *([newer] if newer else []))
            return await _diff(shadow, before, next(iter(after), None), limit, _within(shadow, workspace))


async def _with_nested(tree: str, nested: Sequence[Path]) -> str:
    """The fingerprint of a tree and of nested repositories, of which the tree holds only the commits."""
    if not nested:
        return tree
    try:
        async with timeouts.timeout(FINGERPRINT_S):
            found = [(await _fingerprint(directory, contents=False))[0] for directory in nested]
    except TimeoutError:
        return tree
    return hashlib.sha256("\n".join([tree, *found]).encode()).hexdigest()[:40]


async def _fingerprint(directory: Path, *, contents: bool = True) -> tuple[str, str | None]:
    """The fingerprint of a directory's files, and the reason if it is not of all of them."""
    given_up = threading.Event()
    try:
        async with timeouts.timeout(FINGERPRINT_S):
            return await asyncio.to_thread(fingerprint, directory, given_up.is_set, contents=contents), None
    except TooManyFiles as error:
        return error.digest, str(error)
    except TimeoutError:
        return "", f"looking at the files took longer than {FINGERPRINT_S:g} s and was given up"
    finally:
        given_up.set()


def nearest_existing(workspace: Path) -> Path:
    """The workspace, or its nearest ancestor that exists."""
    while not workspace.exists() and workspace != workspace.parent:
        workspace = workspace.parent
    return workspace


def make_empty_workspace(workspace: Path) -> None:
    """Make the directory of a workspace that was empty in the checkpoint: git stores no empty directory."""
    if not workspace.exists() and workspace == Path(os.path.realpath(workspace)):
        workspace.mkdir(parents=True)


def _within(shadow: Shadow, workspace: Path) -> Within:
    relative = os.path.relpath(workspace, shadow.repository.top)
    return () if relative == "." else (relative,)


async def _diff(shadow: Shadow, before: str, after: str | None, limit: int, within: Within = ()) -> Diff:
    limit = max(0, min(limit, MAX_DIFF))
    stat, patch = await commits.compare(shadow, before, after, limit, within)
    whole = patch.output.decode("utf-8", "replace")
    text = _cut(whole, limit)
    return Diff(stat=stat, patch=text, truncated=patch.cut or len(text) < len(whole))


def _cut(text: str, limit: int) -> str:
    """The text, cut to `limit` bytes of JSON."""
    while (size := len(json.dumps(text, ensure_ascii=False).encode())) > max(limit, 2):
        text = text[: min(len(text) * limit // size, len(text) - 1)]
    return text
