"""Git worktrees in which runs work: one for each repository and branch, which stays, and in which the next run goes on.

    worktrees/<repository>-<hash>/<branch>/    the work tree; see workspaces.git.linked_trees
    workspaces/<hash>/                         our git directory for making those of a repository

What an agent leaves there, its users remove: nothing here does.
"""

import asyncio
import hashlib
import os
import re
from pathlib import Path

from activities.workspaces.git.checkpoint_commits import hashed
from activities.workspaces.git.linked_trees import link_tree
from activities.workspaces.git.repository import Repository
from activities.workspaces.git.runner import GitFailed
from activities.workspaces.git.shadows import NoRepository, Shadows
from activities.workspaces.printable_text import printable
from steersman.contracts.errors import InvalidRequest, WorkspaceError
from steersman.contracts.request import RunRequest
from steersman.contracts.run import Worktree

MAX_NAME = 60
"""Characters of a repository's or branch's name in a directory's."""


class RunWorktrees:
    """`shadows`: of the workspaces of this worker's runs. `state`: the state directory."""

    def __init__(self, shadows: Shadows, state: Path) -> None:
        self._shadows, self._git = shadows, state / "workspaces"
        self.root = Path(os.path.realpath(state)) / "worktrees"

    def place(self, request: RunRequest, workspace: Path) -> Worktree | None:
        """Where the run works, whether or not that is there yet; None for one that works in its workspace.

        `workspace`: its real path. Raises InvalidRequest where it is in no repository, WorkspaceError.
        """
        branch = request.workspace.worktree
        if branch is None:
            return None
        repository = self._repository(workspace)
        common = Path(os.path.realpath(repository.common))
        name = (common.parent if common.name == ".git" else common).name
        top = self.root / f"{_plain(name)}-{_hash(os.fsencode(common))}" / _named(branch)
        directory = str(top / workspace.relative_to(repository.top))
        try:
            directory.encode()
        except UnicodeEncodeError:
            raise WorkspaceError("workspace.worktree: the directory's name is no UTF-8") from None
        return Worktree(branch=branch, top=str(top), directory=directory)

    def directory(self, request: RunRequest, workspace: Path) -> Path:
        """The directory that the run has for itself: that, or the workspace. Raises as `place`."""
        place = self.place(request, workspace)
        return Path(place.directory) if place else workspace

    async def make(self, worktree: Worktree, workspace: Path) -> Path:
        """The directory that the run works in, made where it is not there. Twice is once.

        Raises InvalidRequest, WorkspaceError.
        """
        repository = await asyncio.to_thread(self._repository, workspace)
        top, directory = Path(worktree.top), Path(worktree.directory)
        git = self._git / hashed(b"worktrees\0" + os.fsencode(repository.common))
        try:
            for each in (self._git, git, self.root, top.parent):
                each.mkdir(mode=0o700, exist_ok=True)
            os.utime(git)
            async with self._shadows.open_repository(git, repository) as shadow:
                await link_tree(shadow, top, worktree.branch)
        except (GitFailed, OSError) as error:
            raise WorkspaceError(f"workspace.worktree: {printable(str(error))}") from error
        if not await asyncio.to_thread(self._is_directory, directory):
            inside = printable(str(directory.relative_to(top)))
            raise WorkspaceError(f"workspace.worktree: branch {worktree.branch} has no directory {inside}")
        return directory

    def _is_directory(self, directory: Path) -> bool:
        """Whether it is there, and no link leads to elsewhere on the way."""
        return self.within(str(directory)) == directory and directory.is_dir()

    def within(self, path: str) -> Path | None:
        """The path with all links followed, where it leads into one of these work trees."""
        real = Path(os.path.realpath(path))
        return real if real.is_relative_to(self.root) and real != self.root else None

    def _repository(self, workspace: Path) -> Repository:
        try:
            return self._shadows.repository(workspace)
        except NoRepository as error:
            raise InvalidRequest(f"workspace.worktree: {printable(str(error))}") from error
        except GitFailed as error:
            raise WorkspaceError(f"workspace.worktree: {printable(str(error))}") from error


def _named(branch: str) -> str:
    """The name of a branch's directory: the branch's own, or one of which no other branch has the same."""
    plain = _plain(branch)
    return plain if plain == branch else f"{plain}-{_hash(branch.encode())}"


def _plain(name: str) -> str:
    """As much of a name as a file's can have, without what a shell or a program might take for something else."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", name).strip(".-")[:MAX_NAME] or "tree"


def _hash(name: bytes) -> str:
    return hashlib.sha256(name).hexdigest()[:10]
