"""Files at which git would block: pipes and devices under names that it opens, and rule files too large for its memory.

They are searched for before git is started: a git that was stopped would only block again the next time.
"""

import os
import stat
import time
from collections import deque

from activities.workspaces.git.config import MAX_RULES
from activities.workspaces.git.repository import Repository
from activities.workspaces.printable_text import printable

OPENED_NAMES = frozenset({".gitignore", ".gitattributes", ".gitmodules"})
"""Files of a work tree that git opens by name, whatever they are; it opens no pipe of another name."""


def find_blocking_file(repository: Repository, seconds: float) -> str | None:
    """The path of a blocking file, relative to the work tree if it lies there; None if `seconds` found none."""
    until = time.monotonic() + seconds
    top = str(repository.top)
    git_directories = {str(repository.git), str(repository.common), os.path.realpath(repository.objects)}
    # Breadth first: git itself opens the files in this order.
    waiting = deque([*((directory, True) for directory in sorted(git_directories)), (top, False)])
    while waiting and time.monotonic() < until:
        directory, within_git = waiting.popleft()
        try:
            with os.scandir(directory) as entries:
                for number, entry in enumerate(entries):
                    if _is_directory(entry):
                        waiting.append((entry.path, within_git or entry.name == ".git"))
                    elif (within_git or entry.name in OPENED_NAMES) and _blocks(entry, within_git=within_git):
                        return _relative(entry.path, top)
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


def _blocks(entry: "os.DirEntry[str]", *, within_git: bool) -> bool:
    """Whether git can block at this file. It follows links in its own directory, and none in a work tree."""
    try:
        if entry.is_file(follow_symlinks=False):
            return not within_git and entry.stat().st_size > MAX_RULES
        if entry.is_symlink() and not within_git:
            return False
        found = entry.stat()
    except OSError:
        return False
    # A link to /dev/null is how people disable a file: reading it ends at once.
    device = stat.S_ISCHR(found.st_mode) and found.st_rdev != os.stat(os.devnull).st_rdev
    return stat.S_ISFIFO(found.st_mode) or device


def _relative(path: str, top: str) -> str:
    relative = os.path.relpath(path, top)
    return printable(path if relative.startswith("..") else relative)
