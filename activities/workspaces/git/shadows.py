"""Shadows of the repositories that workspaces on this machine lie in, one at a time for each directory of ours.

What is read or written through one must not live here.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from activities.workspaces.git.allowed_roots import AllowedRoots, OutsideRoots
from activities.workspaces.git.config import GitConfigCache
from activities.workspaces.git.hung_repositories import HungRepositories
from activities.workspaces.git.repository import BrokenRepository, Repository, find_repository
from activities.workspaces.git.runner import GitFailed
from activities.workspaces.git.shadow import Shadow, open_shadow


class NoRepository(Exception):
    """The workspace is in no git repository."""


class Shadows:
    """`environ` is the worker's environment. Workspaces may lie in `roots`, their repositories also in `git_roots`."""

    def __init__(self, environ: Mapping[str, str], roots: Sequence[Path], git_roots: Sequence[Path] = ()) -> None:
        self._environ, self._roots, self._git_roots = environ, roots, git_roots
        self._configs, self._hung = GitConfigCache(), HungRepositories()

    @property
    def allowed_roots(self) -> AllowedRoots:
        """Where the parts of a repository may lie."""
        return AllowedRoots.of(self._roots, self._git_roots)

    @property
    def program(self) -> str:
        """The git of this machine. Raises GitFailed."""
        program = shutil.which("git", path=self._environ.get("PATH"))
        if program is None:
            raise GitFailed("git is not on this host")
        return program

    def repository(self, workspace: Path) -> Repository:
        """The repository whose work tree this is, or lies in. Raises NoRepository, GitFailed."""
        try:
            repository = find_repository(workspace, self.allowed_roots)
        except (BrokenRepository, OutsideRoots) as error:
            raise GitFailed(str(error)) from error
        if repository is None:
            raise NoRepository(f"{workspace} is in no git repository")
        return repository

    @asynccontextmanager
    async def open(self, directory: Path, workspace: Path) -> AsyncIterator[Shadow]:
        """The shadow of the workspace's repository in a directory of ours, locked. Raises NoRepository, GitFailed."""
        async with self.open_repository(directory, await asyncio.to_thread(self.repository, workspace)) as shadow:
            yield shadow

    @asynccontextmanager
    async def open_repository(self, directory: Path, repository: Repository) -> AsyncIterator[Shadow]:
        """As `open`, of a repository that was found already."""
        program = self.program
        await self._hung.check(repository)
        with self._hung.recorded(repository):
            async with open_shadow(directory, repository, program, self._environ, self._configs) as shadow:
                yield shadow
