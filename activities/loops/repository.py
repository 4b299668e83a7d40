"""Finding the git repository that a workspace lies in, by its files alone.

Its configuration belongs to whoever may write in the workspace: no git is run in it here, and none of its hooks,
filters or monitors is ever. Where its parts may lie is judged in `confines`, what is kept in it must not live here.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from activities.loops.confines import Confines, Outside
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
    confines: Confines

    @property
    def objects(self) -> Path:
        return self.common / "objects"

    @property
    def index(self) -> Path:
        return self.git / "index"

    def head(self) -> str | None:
        """The commit that is checked out; None on a branch without any."""
        return head(self.git, self.common)

    def commit_of(self, path: bytes) -> str | None:
        """The commit of a repository of its own in the work tree, e.g. a submodule; None where there is none."""
        try:
            git = git_directory(self.top / os.fsdecode(path), self.confines)
            return head(git, common_directory(git, self.confines)) if git else None
        except (Broken, Outside):
            return None


def find(workspace: Path, confines: Confines) -> Repository | None:
    """The repository whose work tree the workspace lies in, if that is within a root. Raises Broken, Outside."""
    real = Path(os.path.realpath(workspace))
    if ".git" in real.parts:
        return None
    for directory in (real, *real.parents):
        if not confines.hold_tree(directory):
            return None
        git = git_directory(directory, confines)
        if git is not None:
            common = common_directory(git, confines)
            confines.check_parts(git, common)
            return Repository(directory, git, common, confines)
    return None


def git_directory(top: Path, confines: Confines) -> Path | None:
    """The git directory of a work tree with this top; None where there is none. Raises Broken, Outside."""
    dot = top / ".git"
    # Judged before it is looked at: whether something is there must not show in the answer.
    confines.check(dot, "the workspace's .git")
    if dot.is_dir():
        return dot if _is_git(dot, confines) else None
    if not dot.is_file():
        return None
    said = _pointer(dot)
    if not said.startswith("gitdir: "):
        raise Broken(f"{dot} does not say where its repository is")
    git = top / said.removeprefix("gitdir: ").rstrip("\r\n")
    confines.check(git, "the git directory that the workspace's .git names")
    if not _is_git(git, confines):
        raise Broken(f"{dot} names {git}, which is no git directory")
    return Path(os.path.realpath(git))


def common_directory(git: Path, confines: Confines) -> Path:
    """What a linked work tree's git directory shares with the others; itself where it is none's. Raises Outside."""
    said = _pointer(git / "commondir").strip()
    if not said:
        return git
    confines.check(git / said, "the repository's common directory")
    return Path(os.path.realpath(git / said))


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


def _is_git(git: Path, confines: Confines) -> bool:
    common = common_directory(git, confines)
    for part in ("objects", "refs"):
        confines.check(common / part, f"the repository's {part}")
    return os.path.lexists(git / "HEAD") and (common / "objects").is_dir() and (common / "refs").is_dir()


def _packed(common: Path, name: str) -> str:
    try:
        data = read_regular(common / "packed-refs", _PACKED)
    except OSError:
        return ""
    end = data.find(f" {name}\n".encode())
    return data[data.rfind(b"\n", 0, end) + 1 : end].decode("ascii", "replace") if end >= 0 else ""


def _pointer(path: Path) -> str:
    """A small file that names a path, empty where it is not there. Raises Broken for what no path can hold."""
    said = _read(path)
    if "\0" in said:
        raise Broken(f"the repository's {path.name} holds a NUL")
    return said


def _read(path: Path) -> str:
    """A small file, empty where it is not there or is something else."""
    try:
        return read_regular(path, _SMALL).decode("utf-8", "surrogateescape")
    except OSError:
        return ""
