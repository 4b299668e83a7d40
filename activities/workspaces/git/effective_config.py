"""The settings that git goes by in a work tree: the system's, the user's and the repository's, with all includes.

Hostile input: nothing that it names is run, and what the repository's own files include lies within the operator's
roots. What a setting is for must not live here.
"""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from activities.workspaces.files import read_regular
from activities.workspaces.git.config import MAX_CONFIG
from activities.workspaces.git.repository import Repository
from activities.workspaces.git.runner import GitFailed, GitHung, GitRunner
from activities.workspaces.printable_text import printable

MAX_INCLUDES = 100
"""A repository's configuration may be in this many files."""

_INCLUDE = r"^include(if\..*)?\.path$"


async def effective_config(repository: Repository, git: GitRunner, pattern: str) -> dict[str, str]:
    """The settings whose names match, as git finds them in the work tree. `git` works in no repository, as the user.

    Raises GitFailed, also where an include of the repository's leads out of the roots.
    """
    await _check_includes(repository, git)
    place = {"GIT_DIR": str(repository.git), "GIT_WORK_TREE": str(repository.top)}
    return await unconditional_config(replace(git, environment={**git.environment, **place}), pattern)


async def unconditional_config(git: GitRunner, pattern: str) -> dict[str, str]:
    """The settings whose names match, as `git` finds them where it works: in no repository, those of the user's and the
    system's that hold everywhere. Raises GitFailed.
    """
    return dict(await _settings(git, "--includes", "-z", "--get-regexp", pattern))


async def file_config(path: Path, git: GitRunner, pattern: str) -> list[tuple[str, str]]:
    """The settings of one file whose names match, without includes; nothing where it is missing.

    Raises GitFailed, also where it is no regular file.
    """
    try:
        # On stdin: git would block at a pipe.
        text = await asyncio.to_thread(_content, path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        shown = printable(str(path), 500)
        raise GitFailed(f"{shown}, of the repository's configuration, cannot be read: {error.strerror}") from error
    return await _settings(git, "--file", "-", "--no-includes", "-z", "--get-regexp", pattern, stdin=text)


def _content(path: Path) -> bytes:
    return read_regular(Path(os.path.realpath(path)), MAX_CONFIG)


async def _settings(git: GitRunner, *arguments: str, stdin: bytes = b"") -> list[tuple[str, str]]:
    try:
        output = await git.run("config", *arguments, stdin=stdin, ok_codes=(0, 1))
    except GitHung:
        raise
    except GitFailed:  # git's own words may have in them what is in a file
        raise GitFailed("git cannot read the repository's configuration: `git config --list` there says why") from None
    lines = (line.partition("\n") for line in output.decode("utf-8", "replace").split("\0") if line)
    return [(name, value) for name, _, value in lines]


async def _check_includes(repository: Repository, git: GitRunner) -> None:
    """Whatever their conditions are, so that no file outside the roots is read, and none that git would block at."""
    waiting = [repository.common / "config", repository.git / "config.worktree"]
    known: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in known:
            continue
        known.add(path)
        if len(known) > MAX_INCLUDES:
            raise GitFailed(f"the repository's configuration includes more than {MAX_INCLUDES} files")
        for _, named in await file_config(path, git, _INCLUDE):
            included = _included(path.parent, named, git.environment)
            if included is None or not repository.allowed_roots.allows(included):
                raise GitFailed(
                    "the repository's configuration includes a file that lies outside of this worker's "
                    "--workspace-root and --git-root"
                )
            waiting.append(included)


def _included(directory: Path, named: str, environ: Mapping[str, str]) -> Path | None:
    """The file that an include names, as git finds it; None for one of git's own installation."""
    if named.startswith(("%(", ":(")):
        return None
    home = environ.get("HOME")
    return directory / (f"{home}{named[1:]}" if home and named.startswith("~/") else os.path.expanduser(named))
