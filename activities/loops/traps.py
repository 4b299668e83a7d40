"""Files at which git would hang: pipes and devices in the place of files that it opens by their names, and rules of a
size that it could not hold in memory.

Looked for before a git is started: a stopped one would only hang again at the next look.
"""

import os
import stat
import time
from collections import deque

from activities.loops.facts import MAX_RULES
from activities.loops.repository import Repository
from activities.loops.sentences import printable

NAMES = frozenset({".gitignore", ".gitattributes", ".gitmodules"})
"""What git opens in a work tree, by itself; it opens no pipe that is called otherwise."""


def find_trap(repository: Repository, seconds: float) -> str | None:
    """The path of such a file, relative to the work tree where it lies in it; None where `seconds` have found none."""
    until = time.monotonic() + seconds
    top = str(repository.top)
    stores = {str(repository.git), str(repository.common), os.path.realpath(repository.objects)}
    # The nearest first: git itself opens them in this order.
    waiting = deque([*((store, True) for store in sorted(stores)), (top, False)])
    while waiting and time.monotonic() < until:
        directory, within_git = waiting.popleft()
        try:
            with os.scandir(directory) as entries:
                for number, entry in enumerate(entries):
                    if _is_directory(entry):
                        waiting.append((entry.path, within_git or entry.name == ".git"))
                    elif (within_git or entry.name in NAMES) and _waits(entry, within_git=within_git):
                        return _shown(entry.path, top)
                    if number % 1000 == 0 and time.monotonic() > until:
                        return None
        except OSError:
            continue
    return None


def _is_directory(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _waits(entry: "os.DirEntry[str]", *, within_git: bool) -> bool:
    """Whether an open of it can wait. git follows links in its own directory, and none in a work tree."""
    try:
        if entry.is_file(follow_symlinks=False):
            return not within_git and entry.stat().st_size > MAX_RULES
        if entry.is_symlink() and not within_git:
            return False
        found = entry.stat()
    except OSError:
        return False
    # /dev/null is how people switch a file off; it gives its end at once.
    device = stat.S_ISCHR(found.st_mode) and found.st_rdev != os.stat(os.devnull).st_rdev
    return stat.S_ISFIFO(found.st_mode) or device


def _shown(path: str, top: str) -> str:
    relative = os.path.relpath(path, top)
    return printable(path if relative.startswith("..") else relative)
