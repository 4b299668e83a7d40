"""Finding the git repository that a workspace lies in, by its files alone.

Its configuration belongs to whoever may write in the workspace: no git is run in it here, and none of its hooks,
filters or monitors is ever. What is kept in it must not live here.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from activities.loops.reading import read_regular

_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(r"refs/[^\0\s\\~^:?*\[]+")
_SMALL = 8 * 1024
_PACKED = 64 * 1024 * 1024
_DEPTH = 5


class Broken(Exception):
    """There is a repository, and it cannot be used, in a sentence."""


@dataclass(frozen=True)
class Repository:
    """A work tree and its repository. `common` is the git directory that all its work trees share."""

    top: Path
    git: Path
    common: Path

    @property
    def objects(self) -> Path:
        return self.common / "objects"

    @property
    def index(self) -> Path:
        return self.git / "index"

    def head(self) -> str | None:
        """The commit that is checked out; None on a branch without any."""
        return head(self.git, self.common)


def find(workspace: Path, roots: Sequence[Path]) -> Repository | None:
    """The repository whose work tree the workspace lies in, if that is within one of the roots. Raises Broken."""
    real = Path(os.path.realpath(workspace))
    if ".git" in real.parts:
        return None
    within = [Path(os.path.realpath(root)) for root in roots]
    for directory in (real, *real.parents):
        if not any(directory.is_relative_to(root) for root in within):
            return None
        git = git_directory(directory)
        if git is not None:
            return Repository(directory, git, common_directory(git))
    return None


def git_directory(top: Path) -> Path | None:
    """The git directory of a work tree with this top; None where there is none. Raises Broken."""
    dot = top / ".git"
    if dot.is_dir():
        return dot if _is_git(dot) else None
    if not dot.is_file():
        return None
    said = _read(dot)
    if not said.startswith("gitdir: "):
        raise Broken(f"{dot} does not say where its repository is")
    git = top / said.removeprefix("gitdir: ").rstrip("\r\n")
    if not _is_git(git):
        raise Broken(f"{dot} names {git}, which is no git directory")
    return Path(os.path.realpath(git))


def common_directory(git: Path) -> Path:
    """What a linked work tree's git directory shares with the others; itself where it is none's."""
    said = _read(git / "commondir").strip()
    return Path(os.path.realpath(git / said)) if said else git


def head(git: Path, common: Path) -> str | None:
    """The commit that HEAD names, however often by way of another ref."""
    said = _read(git / "HEAD").strip()
    for _ in range(_DEPTH):
        if _COMMIT.fullmatch(said):
            return said
        name = said.removeprefix("ref:").strip()
        if not said.startswith("ref:") or not _REF.fullmatch(name) or ".." in name:
            return None
        said = _read(common / name).strip() or _packed(common, name)
    return None


def commit_of(top: Path) -> str | None:
    """The commit of a repository of its own at this place, e.g. a submodule; None where there is none."""
    try:
        git = git_directory(top)
    except Broken:
        return None
    return head(git, common_directory(git)) if git else None


def _is_git(git: Path) -> bool:
    common = common_directory(git)
    return os.path.lexists(git / "HEAD") and (common / "objects").is_dir() and (common / "refs").is_dir()


def _packed(common: Path, name: str) -> str:
    try:
        data = read_regular(common / "packed-refs", _PACKED)
    except OSError:
        return ""
    end = data.find(f" {name}\n".encode())
    return data[data.rfind(b"\n", 0, end) + 1 : end].decode("ascii", "replace") if end >= 0 else ""


def _read(path: Path) -> str:
    """A small file, empty where it is not there or is something else."""
    try:
        return read_regular(path, _SMALL).decode("utf-8", "surrogateescape")
    except OSError:
        return ""
