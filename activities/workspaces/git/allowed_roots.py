"""Where the parts of a workspace's repository may lie: within the operator's roots, by their real paths.

A `.git` file, a common directory, alternates and links can name any path of the machine. A part outside the roots is
refused, and named by its role alone, whether or not it exists: another answer would tell the requester what exists.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from activities.workspaces.files import read_regular

MAX_ALTERNATES = 1024 * 1024
MAX_OBJECT_DIRECTORIES = 100
"""A repository may have this many object directories, counting alternates of alternates."""
MAX_NAMES = 20_000
"""A directory of a repository that holds more names is refused."""
_UNREAD = frozenset({"hooks", "logs", "lfs", "annex", "modules", "worktrees", "description"})
"""Entries of a git directory that neither Steersman nor its git reads."""


class OutsideRoots(Exception):
    """A part of the repository lies outside the roots. The message is a sentence that names the part's role."""


@dataclass(frozen=True)
class AllowedRoots:
    """Directories of the operator's: work trees may lie in `work_trees`, git directories in these and in
    `git_directories`.
    """

    work_trees: tuple[Path, ...]
    git_directories: tuple[Path, ...] = ()

    @classmethod
    def of(cls, roots: Sequence[Path], git_roots: Sequence[Path] = ()) -> "AllowedRoots":
        """The roots with all their links resolved."""
        return cls(tuple(_real(root) for root in roots), tuple(_real(root) for root in git_roots))

    def allows_work_tree(self, directory: Path) -> bool:
        """Whether a work tree may have its top here. `directory` is a real path."""
        return any(directory.is_relative_to(root) for root in self.work_trees)

    def check(self, path: Path, role: str) -> None:
        """Raises OutsideRoots for a path that, with all links resolved, may not be part of a repository."""
        if not self.allows(path):
            raise OutsideRoots(f"{role} lies outside of this worker's --workspace-root and --git-root")

    def allows(self, path: Path) -> bool:
        """Whether a part of a repository may lie here, with all links resolved."""
        real = _real(path)
        return any(real.is_relative_to(root) for root in (*self.work_trees, *self.git_directories))

    def check_repository(self, git: Path, common: Path) -> None:
        """Check every part that git would read or write. Raises OutsideRoots."""
        if any(root == Path(root.anchor) for root in (*self.work_trees, *self.git_directories)):
            return  # the root is /: nothing lies outside
        for directory, role in ((git, "git directory"), (common, "common directory"), (common / "info", "info")):
            self._check_links(directory, f"the repository's {role}")
        self._check_links(common / "refs", "the repository's refs")
        self._check_links(common / "refs" / "steersman", "the repository's refs/steersman")
        for objects in self._object_directories(common / "objects"):
            for directory in (objects, objects / "pack", objects / "info"):
                self._check_links(directory, "the repository's objects")

    def _check_links(self, directory: Path, role: str) -> None:
        for entry in _entries(directory):
            if entry.is_symlink() and entry.name not in _UNREAD:
                self.check(Path(entry.path), f"a link in {role}")

    def _object_directories(self, objects: Path) -> Iterator[Path]:
        """The object directory and all alternates. Raises OutsideRoots."""
        known, waiting = {_real(objects)}, [_real(objects)]
        while waiting:
            directory = waiting.pop()
            yield directory
            self.check(directory / "info" / "alternates", "the repository's list of alternates")
            for named in _alternates(directory):
                self.check(named, "an alternate of the repository's objects")
                if (real := _real(named)) not in known:
                    known.add(real)
                    waiting.append(real)
            if len(known) > MAX_OBJECT_DIRECTORIES:
                raise OutsideRoots(f"the repository has more than {MAX_OBJECT_DIRECTORIES} alternates")


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _entries(directory: Path) -> Iterator["os.DirEntry[str]"]:
    try:
        with os.scandir(directory) as entries:
            for number, entry in enumerate(entries):
                if number > MAX_NAMES:
                    raise OutsideRoots("the repository holds more files in one directory than are looked at")
                yield entry
    except OSError:
        return  # git reports a missing directory itself


def _alternates(objects: Path) -> list[Path]:
    """The alternates that the list names, read as git does: one a line, relative to the object directory."""
    try:
        data = read_regular(_real(objects / "info" / "alternates"), MAX_ALTERNATES)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise OutsideRoots(f"the repository's list of alternates cannot be read: {error.strerror}") from error
    found = []
    for line in data.split(b"\n"):
        if not line or line.startswith(b"#"):
            continue
        if line.startswith(b'"'):  # git reads it as a C string
            raise OutsideRoots("the repository's list of alternates holds a quoted path: those are not followed here")
        found.append(objects / os.fsdecode(line))
    return found
