"""Who may read files: what git's trees do not say, and a checkpoint's message does.

    Mode: 700 secrets/       of each file in it: nobody but its user may read it
    Mode: 770 conf%20file    nor anybody beyond its group

So a file that is put back is readable by nobody who could not read it before. Of files that everybody may read nothing
is said. Paths are percent-encoded; `./` is the work tree.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote_to_bytes

MAX_NOTES = 16 * 1024
"""Where more characters would be needed, whole directories are as closed as the most closed file in them."""
ANYBODY = 0o777
NOBODY_ELSE = 0o700
_TOP = b"./"
_NOTE = re.compile(rb"^Mode: (7[07][07]) (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class FileModes:
    """`limits`: by file, and by directory for all that is in it, the permissions that a file has at most."""

    limits: Mapping[bytes, int] = field(default_factory=dict)

    def limit(self, path: bytes) -> int:
        """The permissions that a file at this path has at most."""
        limit = ANYBODY
        for each in (*_above(path), path):
            limit &= self.limits.get(each, ANYBODY)
        return limit


def looked_at(top: bytes, paths: Iterable[bytes]) -> dict[bytes, int]:
    """The permissions that these files, relative to `top`, have at most: all of whoever can read them, by the
    directories on the way, too. What is no file is left out.
    """
    directories: dict[bytes, int] = {b"": ANYBODY}
    found = {}
    for path in paths:
        try:
            mode = os.lstat(os.path.join(top, path)).st_mode
        except OSError:
            continue
        if stat.S_ISREG(mode):
            found[path] = _limit(mode, 0o4) & _passed(top, os.path.dirname(path), directories)
    return found


def notes(limits: Mapping[bytes, int]) -> str:
    """What a message says of files, of which these are all: lines, or nothing."""
    closed = {path: limit for path, limit in limits.items() if limit != ANYBODY}
    if not closed:
        return ""
    inside: dict[bytes, set[int]] = {}
    for path, limit in limits.items():
        for directory in _above(path):
            inside.setdefault(directory, set()).add(limit)
    said = {next((each for each in _above(path) if len(inside[each]) == 1), path): limit
            for path, limit in closed.items()}  # fmt: skip
    while len(text := _lines(said)) > MAX_NOTES:
        said = _coarser(said)
    return text


def noted(message: bytes) -> FileModes:
    """What a message says, which anybody may have written."""
    limits: dict[bytes, int] = {}
    for mode, text in _NOTE.findall(message):
        path = unquote_to_bytes(text)
        limits[path] = limits.get(path, ANYBODY) & int(mode, 8)
    return FileModes(limits)


def _limit(mode: int, right: int) -> int:
    """All permissions of those who have this right."""
    return NOBODY_ELSE | (0o070 if mode & right << 3 else 0) | (0o007 if mode & right else 0)


def _passed(top: bytes, directory: bytes, known: dict[bytes, int]) -> int:
    """All permissions of those who come into a directory below `top`."""
    unknown = []
    while directory not in known:
        unknown.append(directory)
        directory = os.path.dirname(directory)
    limit = known[directory]
    for each in reversed(unknown):
        try:
            limit &= _limit(os.lstat(os.path.join(top, each)).st_mode, 0o1)
        except OSError:
            limit = NOBODY_ELSE
        known[each] = limit
    return limit


def _above(path: bytes) -> Iterator[bytes]:
    """The directories that a path lies in, from the work tree down."""
    yield _TOP
    at = path.find(b"/")
    while at >= 0:
        yield path[: at + 1]
        at = path.find(b"/", at + 1)


def _lines(limits: Mapping[bytes, int]) -> str:
    return "".join(f"Mode: {limit:o} {quote(path)}\n" for path, limit in sorted(limits.items()))


def _coarser(limits: Mapping[bytes, int]) -> dict[bytes, int]:
    above: dict[bytes, int] = {}
    for path, limit in limits.items():
        parent, slash, _ = path.rstrip(b"/").rpartition(b"/")
        directory = parent + slash or _TOP
        above[directory] = above.get(directory, ANYBODY) & limit
    return above
