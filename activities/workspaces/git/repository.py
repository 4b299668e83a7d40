"""The git repository that a workspace lies in, found by its files alone.

Its configuration belongs to whoever may write in the workspace: no git is run here, and none of its hooks, filters or
monitors ever. Where its parts may lie must not live here (see allowed_roots), nor what is stored in it.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from activities.workspaces.files import read_regular
from activities.workspaces.git.allowed_roots import AllowedRoots, OutsideRoots

COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(r"refs/[^\0\s\\~^:?*\[]+")
_MAX_POINTER = 8 * 1024
"""HEAD, a loose ref, `.git` and `commondir` may have this many bytes."""
_MAX_PACKED = 64 * 1024 * 1024
_MAX_SYMBOLIC = 5
"""HEAD is followed by way of this many symbolic refs."""


class BrokenRepository(Exception):
    """There is a repository, and it cannot be used. The message is a sentence."""


@dataclass(frozen=True)
class Repository:
    """A work tree and its repository. `common` is the git directory that all work trees of the repository share."""

    top: Path
    git: Path
    common: Path
    allowed_roots: AllowedRoots

    @property
    def objects(self) -> Path:
        return self.common / "objects"

    @property
    def index(self) -> Path:
        return self.git / "index"

    def head(self) -> str | None:
        """The commit that is checked out; None on a branch without commits."""
        return head(self.git, self.common)

    def branch(self) -> str | None:
        """The branch that is checked out, as `refs/heads/...`; None where none is."""
        value = _read(self.git / "HEAD").strip()
        name = value.removeprefix("ref:").strip()
        return name if value.startswith("ref:") and name.startswith("refs/heads/") and _REF.fullmatch(name) else None

    def commit_of(self, path: bytes) -> str | None:
        """The commit of a repository nested in the work tree, e.g. a submodule; None where there is none."""
        try:
            git = git_directory(self.top / os.fsdecode(path), self.allowed_roots)
            return head(git, common_directory(git, self.allowed_roots)) if git else None
        except (BrokenRepository, OutsideRoots):
            return None


def find_repository(workspace: Path, allowed_roots: AllowedRoots) -> Repository | None:
    """The repository whose work tree the workspace lies in, if the tree is within a root.

    Raises BrokenRepository, OutsideRoots.
    """
    real = Path(os.path.realpath(workspace))
    if ".git" in real.parts:
        return None
    for directory in (real, *real.parents):
        if not allowed_roots.allows_work_tree(directory):
            return None
        git = git_directory(directory, allowed_roots)
        if git is not None:
            common = common_directory(git, allowed_roots)
            allowed_roots.check_repository(git, common)
            return Repository(directory, git, common, allowed_roots)
    return None


def git_directory(top: Path, allowed_roots: AllowedRoots) -> Path | None:
    """The git directory of a work tree with this top; None if there is none. Raises BrokenRepository, OutsideRoots."""
    dot = top / ".git"
    # Checked before it is opened: whether something exists outside must not show in the answer.
    allowed_roots.check(dot, "the workspace's .git")
    if dot.is_dir():
        return dot if _is_git(dot, allowed_roots) else None
    if not dot.is_file():
        return None
    text = _pointer(dot)
    if not text.startswith("gitdir: "):
        raise BrokenRepository(f"{dot} does not say where its repository is")
    git = top / text.removeprefix("gitdir: ").rstrip("\r\n")
    allowed_roots.check(git, "the git directory that the workspace's .git names")
    if not _is_git(git, allowed_roots):
        raise BrokenRepository(f"{dot} names {git}, which is no git directory")
    return Path(os.path.realpath(git))


def common_directory(git: Path, allowed_roots: AllowedRoots) -> Path:
    """The git directory that a linked work tree shares with the others; `git` itself for an unlinked one.

    Raises BrokenRepository, OutsideRoots.
    """
    path = _pointer(git / "commondir").strip()
    if not path:
        return git
    allowed_roots.check(git / path, "the repository's common directory")
    return Path(os.path.realpath(git / path))


def head(git: Path, common: Path) -> str | None:
    """The commit that HEAD names, directly or by way of other refs; None where it names none."""
    value = _read(git / "HEAD").strip()
    for _ in range(_MAX_SYMBOLIC):
        if COMMIT.fullmatch(value):
            return value
        name = value.removeprefix("ref:").strip()
        if not value.startswith("ref:") or not _REF.fullmatch(name) or ".." in name:
            return None
        value = _read(common / name).strip() or _packed_ref(common, name)
    return None


def _is_git(git: Path, allowed_roots: AllowedRoots) -> bool:
    common = common_directory(git, allowed_roots)
    for part in ("objects", "refs"):
        allowed_roots.check(common / part, f"the repository's {part}")
    return os.path.lexists(git / "HEAD") and (common / "objects").is_dir() and (common / "refs").is_dir()


def _packed_ref(common: Path, name: str) -> str:
    try:
        data = read_regular(common / "packed-refs", _MAX_PACKED)
    except OSError:
        return ""
    end = data.find(f" {name}\n".encode())
    return data[data.rfind(b"\n", 0, end) + 1 : end].decode("ascii", "replace") if end >= 0 else ""


def _pointer(path: Path) -> str:
    """A small file that names a path, empty where it is missing. Raises BrokenRepository for a NUL in it."""
    text = _read(path)
    if "\0" in text:
        raise BrokenRepository(f"the repository's {path.name} holds a NUL")
    return text


def _read(path: Path) -> str:
    """A small file, empty where it is missing or not a regular file."""
    try:
        return read_regular(path, _MAX_POINTER).decode("utf-8", "surrogateescape")
    except OSError:
        return ""
