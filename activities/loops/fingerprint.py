"""A hash that changes when files of a directory do, for workspaces that no git repository keeps. Follows no link."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from activities.loops.reading import read_regular

MAX_ENTRIES = 200_000
MAX_CONTENT = 256 * 1024
"""Larger files count by size and time of change."""
MAX_READ = 512 * 1024 * 1024
"""So much is read in all; what comes later counts by size and time, too."""
SKIPPED = frozenset({b".git", b".hg", b".svn", b".bzr", b".jj", b".sl", b".pijul", b"_darcs", b"CVS"})


class TooMany(Exception):
    """There are more entries than are looked at; `digest` is of the first ones."""

    def __init__(self, limit: int, digest: str) -> None:
        super().__init__(f"there are more than {limit} files, and only the first ones were looked at")
        self.digest = digest


@dataclass
class _Look:
    stop: Callable[[], bool]
    contents: bool
    limit: int
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    entries: int = 0
    directories: int = 0
    room: int = MAX_READ


def fingerprint(
    directory: Path, stop: Callable[[], bool] = lambda: False, *, contents: bool = True, limit: int = MAX_ENTRIES
) -> str:
    """The hash, 40 hex digits. Without `contents` files count by size and time of change alone.

    What cannot be read counts as it is seen from outside. `stop` is asked now and then whether nobody waits any more.
    Raises TooMany.
    """
    look = _Look(stop, contents, limit)
    for path, found in _walk(os.fsencode(directory), b"", look):
        look.digest.update(b"%d:%s" % (len(path), path))
        look.digest.update(_described(os.path.join(os.fsencode(directory), path), found, look))
    if look.entries > limit:
        raise TooMany(limit, look.digest.hexdigest()[:40])
    return look.digest.hexdigest()[:40]


def _walk(top: bytes, inner: bytes, look: _Look) -> Iterator[tuple[bytes, os.stat_result]]:
    waiting = [inner]
    while waiting and not look.stop():
        directory = waiting.pop()
        look.directories += 1
        if look.directories > look.limit:
            look.entries = look.limit + 1
            return
        try:
            with os.scandir(os.path.join(top, directory)) as entries:
                names = sorted(entry.name for entry in entries)
        except OSError:
            continue
        inside = []
        for name in names:
            if look.stop():
                return
            path = os.path.join(directory, name)
            try:
                found = os.lstat(os.path.join(top, path))
            except OSError:
                continue  # gone since
            if stat.S_ISDIR(found.st_mode):
                if name not in SKIPPED:
                    inside.append(path)
                continue
            look.entries += 1
            if look.entries > look.limit:
                return
            yield path, found
        waiting += reversed(inside)


def _described(path: bytes, found: os.stat_result, look: _Look) -> bytes:
    mode = found.st_mode
    kind, size = stat.S_IFMT(mode), found.st_size
    if stat.S_ISLNK(mode):
        return b"link %s\n" % _target(path)
    facts = b"%o %o %d" % (kind, mode & 0o111, size)
    if not stat.S_ISREG(mode):
        return facts + b"\n"
    if look.contents and size <= min(MAX_CONTENT, look.room):
        look.room -= size
        try:
            content = read_regular(Path(os.fsdecode(path)), MAX_CONTENT)
            return b"%s %s\n" % (facts, hashlib.sha256(content).digest())
        except OSError:
            pass
    return b"%s %d\n" % (facts, found.st_mtime_ns)


def _target(path: bytes) -> bytes:
    try:
        return os.readlink(path)
    except OSError:
        return b""
