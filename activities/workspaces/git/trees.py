"""A work tree's files as a git tree, byte for byte.

Ignored files are left out unless the user's own index has them. A nested repository is in the tree by its commit, as a
submodule is. Commits and refs must not live here.
"""

import asyncio
import os
import shutil
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from activities.workspaces.git.runner import GitFailed, GitHung, gather_or_cancel
from activities.workspaces.git.shadow import Shadow

MAX_ADDED = 16 * 1024**3
"""No checkpoint is made of more changed bytes than this: each try would take as long."""

Within = tuple[str, ...]
"""The directory of the work tree that is looked at, relative to its top; empty for all of it."""
Kind = Literal["file", "repository", "missing", "other"]


@dataclass
class Changes:
    """Changes to make in the index, by path."""

    update: dict[bytes, None] = field(default_factory=dict)
    size: int = 0
    """Bytes of the files to update."""
    remove: set[bytes] = field(default_factory=set)
    nested: set[bytes] = field(default_factory=set)


async def write_tree(shadow: Shadow, within: Within = (), most: int = MAX_ADDED, *, everything: bool = False) -> str:
    """Write the work tree's files as a git tree, and return its id. Raises GitFailed.

    `within`: only of this directory; a shadow is for one. `most`: bytes of files that the user's index does not have.
    `everything`: also what is ignored.
    """
    fresh = not shadow.index.exists()
    try:
        return await _write_tree(shadow, within, most, everything=everything)
    except GitFailed as error:
        # Objects that only the shadow's index named may be pruned, and an index may be torn: read every file again.
        if fresh or isinstance(error, GitHung) or error.command not in ("ls-files", "write-tree"):
            raise
    shadow.forget_index()
    return await _write_tree(shadow, within, most, everything=everything)


async def _write_tree(shadow: Shadow, within: Within, most: int, *, everything: bool) -> str:
    stale = {path for path in shadow.nested if _kind(shadow, path, {}) != "repository"}
    await remove_from_index(shadow, stale)
    # `git add` would ask each nested repository for its changes, and so run what its configuration names: plumbing
    # does not.
    if everything:
        changed = await shadow.git.run("ls-files", "-z", "-t", "-o", "-m", "--", *within)
        ignored = tracked = b""
    else:
        listing = shadow.with_excludes("ls-files", "-z", "--exclude-standard")
        changed, ignored, tracked = await gather_or_cancel(
            shadow.git.run(*listing, "-t", "-o", "-m", "--", *within),
            shadow.git.run(*listing, "-c", "-i", "--", *within),
            _tracked_and_ignored(shadow, within),
        )
    changes = await asyncio.to_thread(_changes, shadow, _paths(changed), set(_paths(ignored)), set(_paths(tracked)))
    check_room(shadow, changes.size)
    if most < changes.size:
        await _check_new(shadow, changes, within, most)
    shadow.record_nested((shadow.nested - changes.remove - stale) | changes.nested)
    await remove_from_index(shadow, changes.remove)
    if changes.update:
        listed = b"".join(path + b"\0" for path in changes.update)
        await shadow.git.run("update-index", "-z", "--add", "--remove", "--replace", "--stdin", stdin=listed)
    return (await shadow.git.run("write-tree")).decode().strip()


async def ignored(shadow: Shadow, paths: Sequence[bytes]) -> list[bytes]:
    """What of these files, and in these directories, is ignored, and not in the user's own index. Raises GitFailed."""
    if not paths:
        return []
    listing = shadow.with_excludes("ls-files", "-z", "--exclude-standard", "-o", "-i", "--", *map(os.fsdecode, paths))
    if shadow.repository.index.exists():
        return _paths(await _in_user_index(shadow, *listing))
    return _paths(await shadow.git.run(*listing))


async def remove_from_index(shadow: Shadow, paths: Iterable[bytes]) -> None:
    """Remove paths from the index, whatever is in the work tree."""
    listed = b"".join(path + b"\0" for path in paths)
    if listed:
        await shadow.git.run("update-index", "--force-remove", "-z", "--stdin", stdin=listed)


async def _check_new(shadow: Shadow, changes: Changes, within: Within, most: int) -> None:
    """Raises GitFailed where files that the user's index does not have are of more than `most` bytes.

    Of those that it has, the repository mostly holds the content already.
    """
    known = set(_paths(await _in_user_index(shadow, "ls-files", "-z", "-c", "--", *within)))
    size = sum(_size(shadow, path) for path in changes.update if path not in known)
    if size > most:
        raise GitFailed(f"{size / 1024**2:.0f} MiB of files are in no index; name in .gitignore what need not be kept")


async def _tracked_and_ignored(shadow: Shadow, within: Within) -> bytes:
    """Ignored paths that the user's own index has."""
    listing = shadow.with_excludes("ls-files", "-z", "--exclude-standard", "-c", "-i", "--", *within)
    return await _in_user_index(shadow, *listing)


async def _in_user_index(shadow: Shadow, *command: str) -> bytes:
    """What a command prints of the user's own index; nothing without one."""
    index = shadow.repository.index
    try:
        if not stat.S_ISREG(index.lstat().st_mode):
            return b""
    except FileNotFoundError:
        return b""
    return await shadow.with_variables(GIT_INDEX_FILE=str(index)).run(*command)


def _changes(shadow: Shadow, changed: list[bytes], ignored: set[bytes], tracked: set[bytes]) -> Changes:
    changes = Changes(remove=ignored - tracked)
    known: dict[bytes, bool] = {}
    for line in changed:
        tag, path = line[:2], line[2:]
        if tag == b"? " and path.endswith(b"/"):
            path = path.rstrip(b"/")
            if _kind(shadow, path, known) == "repository":
                changes.nested.add(path)
                changes.update[path] = None
        elif tag == b"? ":
            changes.update[path] = None
        elif path not in changes.remove:
            _add_change(shadow, path, changes, known)
    for path in tracked - ignored:
        if _kind(shadow, path, known) == "file":
            changes.update[path] = None
    for path in tracked & ignored:
        if _kind(shadow, path, known) == "other":
            changes.remove.add(path)
    changes.size = sum(_size(shadow, path) for path in changes.update)
    return changes


def check_room(shadow: Shadow, size: int) -> None:
    """Raises GitFailed before anything is written: a git that is stopped leaves behind what it wrote."""
    if size > MAX_ADDED:
        raise GitFailed(f"{size / 1024**3:.0f} GiB would have to be read; name what need not be kept in .gitignore")
    free = shutil.disk_usage(shadow.repository.objects).free
    if size > free:
        raise GitFailed(f"{size / 1024**3:.1f} GiB may have to be kept, and {free / 1024**3:.1f} GiB are free")


def _size(shadow: Shadow, path: bytes) -> int:
    try:
        return os.lstat(os.path.join(os.fsencode(shadow.repository.top), path)).st_size
    except OSError:
        return 0


def _add_change(shadow: Shadow, path: bytes, changes: Changes, known: dict[bytes, bool]) -> None:
    """Add a path of the index that has changed."""
    kind = _kind(shadow, path, known)
    if kind == "repository" and path not in shadow.nested:
        changes.nested.add(path)
        changes.remove.add(path)  # the file it was: git puts no repository in its place
    if kind == "other":
        changes.remove.add(path)
    else:
        changes.update[path] = None


def _kind(shadow: Shadow, path: bytes, known: dict[bytes, bool]) -> Kind:
    """What lies at the path: `other` for what lies behind a link, as for everything that git cannot store."""
    top = os.fsencode(shadow.repository.top)
    if _behind_link(top, path, known):
        return "other"
    try:
        mode = os.lstat(os.path.join(top, path)).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    except OSError as error:  # else it would be taken for removed
        raise GitFailed(f"{os.fsdecode(path)!r} cannot be looked at: {error.strerror}") from error
    if stat.S_ISREG(mode) or stat.S_ISLNK(mode):
        return "file"
    if stat.S_ISDIR(mode) and shadow.repository.commit_of(path):
        return "repository"
    return "other"


def _behind_link(top: bytes, path: bytes, known: dict[bytes, bool]) -> bool:
    parts = path.split(b"/")[:-1]
    parent, behind = b"", False
    for part in parts:
        parent = os.path.join(parent, part)
        if parent not in known:
            known[parent] = behind or os.path.islink(os.path.join(top, parent))
        behind = known[parent]
    return behind


def _paths(output: bytes) -> list[bytes]:
    return output.split(b"\0")[:-1]
