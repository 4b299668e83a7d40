"""The fingerprint of a directory: a hash that changes when its files do, for files that are in no git repository.

Follows no link.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from activities.workspaces.files import read_regular

MAX_ENTRIES = 200_000
"""Only this many files and directories are fingerprinted."""
MAX_CONTENT = 256 * 1024
"""A file of more bytes is fingerprinted by its size and modification time."""
MAX_READ = 512 * 1024 * 1024
"""Once this many bytes were read, further files are fingerprinted by size and modification time, too."""
SKIPPED = frozenset({b".git", b".hg", b".svn", b".bzr", b".jj", b".sl", b".pijul", b"_darcs", b"CVS"})


class TooManyFiles(Exception):
    """There are more than MAX_ENTRIES files or directories; `digest` is of the first ones."""

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
    """The hash, 40 hex digits. Without `contents` it is of sizes and modification times alone, as it is of files that
    cannot be read. The walk ends early once `stop` returns True. Raises TooManyFiles.
    """
    look = _Look(stop, contents, limit)
    for path, found in _walk(os.fsencode(directory), b"", look):
        look.digest.update(b"%d:%s" % (len(path), path))
        look.digest.update(_described(os.path.join(os.fsencode(directory), path), found, look))
    if look.entries > limit:
        raise TooManyFiles(limit, look.digest.hexdigest()[:40])
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
