"""Where the parts of a workspace's repository may lie: within the operator's roots, by their real paths.

A `.git` file, a common directory, alternates and links can name any place of the machine. What lies outside is refused
by its role, whether or not it is there: an answer that differed would tell what is.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from activities.loops.reading import read_regular

MAX_ALTERNATES = 1024 * 1024
MAX_STORES = 100
"""Object directories in all that alternates may name, one by way of another."""
MAX_NAMES = 20_000
"""So many names of a directory are looked at: a directory of a repository has no more."""
_UNREAD = frozenset({"hooks", "logs", "lfs", "annex", "modules", "worktrees", "description"})
"""What neither we nor our git reads."""


class Outside(Exception):
    """A part of the repository lies outside of the roots, in a sentence that names its role."""


@dataclass(frozen=True)
class Confines:
    """`trees`: where work trees may lie; `stores`: where git directories may lie beside them."""

    trees: tuple[Path, ...]
    stores: tuple[Path, ...] = ()

    @classmethod
    def of(cls, roots: Sequence[Path], git_roots: Sequence[Path] = ()) -> "Confines":
        """With the real paths of the operator's directories."""
        return cls(tuple(_real(root) for root in roots), tuple(_real(root) for root in git_roots))

    def hold_tree(self, directory: Path) -> bool:
        """Whether a work tree may have its top here. `directory`: a real path."""
        return any(directory.is_relative_to(root) for root in self.trees)

    def check(self, path: Path, role: str) -> None:
        """Raises Outside where the path, all links followed, may be no part of a repository."""
        if not self.hold(path):
            raise Outside(f"{role} lies outside of this worker's --workspace-root and --git-root")

    def hold(self, path: Path) -> bool:
        """Whether a part of a repository may lie here, all links followed."""
        real = _real(path)
        return any(real.is_relative_to(root) for root in (*self.trees, *self.stores))

    def check_parts(self, git: Path, common: Path) -> None:
        """What git would read or write of a repository. Raises Outside."""
        if any(root == Path(root.anchor) for root in (*self.trees, *self.stores)):
            return  # nothing is outside
        for directory, role in ((git, "git directory"), (common, "common directory"), (common / "info", "info")):
            self._check_links(directory, f"the repository's {role}")
        self._check_links(common / "refs", "the repository's refs")
        self._check_links(common / "refs" / "steersman", "the repository's refs/steersman")
        for store in self._stores(common / "objects"):
            for directory in (store, store / "pack", store / "info"):
                self._check_links(directory, "the repository's objects")

    def _check_links(self, directory: Path, role: str) -> None:
        for entry in _entries(directory):
            if entry.is_symlink() and entry.name not in _UNREAD:
                self.check(Path(entry.path), f"a link in {role}")

    def _stores(self, objects: Path) -> Iterator[Path]:
        """The object directory, and all that alternates name."""
        known, waiting = {_real(objects)}, [_real(objects)]
        while waiting:
            store = waiting.pop()
            yield store
            self.check(store / "info" / "alternates", "the repository's list of alternates")
            for named in _alternates(store):
                self.check(named, "an alternate of the repository's objects")
                if (real := _real(named)) not in known:
                    known.add(real)
                    waiting.append(real)
            if len(known) > MAX_STORES:
                raise Outside(f"the repository has more than {MAX_STORES} alternates")


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _entries(directory: Path) -> Iterator["os.DirEntry[str]"]:
    try:
        with os.scandir(directory) as entries:
            for number, entry in enumerate(entries):
                if number > MAX_NAMES:
                    raise Outside("the repository holds more files in one directory than are looked at")
                yield entry
    except OSError:
        return  # not there, or no directory: git will say so


def _alternates(store: Path) -> list[Path]:
    """As git reads them: a line each, relative to the object directory, quoted as in C where it begins so."""
    try:
        data = read_regular(_real(store / "info" / "alternates"), MAX_ALTERNATES)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Outside(f"the repository's list of alternates cannot be read: {error.strerror}") from error
    found = []
    for line in data.split(b"\n"):
        if not line or line.startswith(b"#"):
            continue
        if line.startswith(b'"'):
            raise Outside("the repository's list of alternates holds a quoted path: those are not followed here")
        found.append(store / os.fsdecode(line))
    return found
