"""The user's own work tree, as a merge changes it: files, index, HEAD, branches. Each only where it is as it was seen.

git's own locks are held meanwhile, so that no git of the user's works in between. What is to be written must not live
here.
"""

import asyncio
import contextlib
import fcntl
import itertools
import os
import shutil
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from activities.workspaces.carry.copy_program import as_bytes
from activities.workspaces.files import read_regular
from activities.workspaces.git.linked_trees import has_main_tree
from activities.workspaces.git.repository import Repository
from activities.workspaces.git.runner import GitFailed
from activities.workspaces.git.shadow import Shadow
from activities.workspaces.printable_text import printable
from activities.workspaces.put_back import LINK, Replacement, make_directory, remove_directory

LOCK_S = 10.0
"""Another git of the user's may hold the index for this many seconds."""
MANY_REFS = 20
"""A process for each takes 4 ms."""
_OURS = "steersman-index"
_WHO = "Steersman <steersman@localhost>"
_IGNORABLE = dict.fromkeys([0x200C, 0x200D, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])


Moves = Mapping[str, tuple[str | None, str]]
"""By the name of a branch or a tag: what it was, None where there was none, and what it becomes."""


class Moved(Exception):
    """Something is no longer as it was seen."""


@asynccontextmanager
async def index_lock(repository: Repository) -> AsyncIterator[None]:
    """Hold the lock by which git's own commands keep others from the index. Raises GitFailed.

    One that a killed worker of ours left is taken over: it is a link to a file of ours, which a living one has locked.
    """
    ours, lock = repository.git / _OURS, repository.git / "index.lock"
    deadline = asyncio.get_running_loop().time() + LOCK_S
    while (descriptor := _locked(ours, lock)) is None:
        if asyncio.get_running_loop().time() > deadline:
            raise GitFailed(f"another git is at work in the workspace: {lock} is there")
        await asyncio.sleep(0.05)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        ours.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(ours: Path, lock: Path) -> int | None:
    """An open file of ours, which `lock` is a link to; None where somebody else has the one or the other."""
    descriptor = os.open(ours, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(FileExistsError):
            os.link(ours, lock)
        if os.path.samestat(os.fstat(descriptor), lock.lstat()):
            return descriptor
        ours.unlink()
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


async def wait_for_locks(repository: Repository, refs: Iterable[str], *, head: bool) -> None:
    """Wait until no git holds these refs, what has many of them, and HEAD, if it is asked for: what is written before
    they are moved could not be taken back. Raises GitFailed, which names the lock.
    """
    locks = [repository.common / f"{name}.lock" for name in (*sorted(refs), "packed-refs")]
    if head:
        locks.append(repository.git / "HEAD.lock")
    deadline = asyncio.get_running_loop().time() + LOCK_S
    while lock := next((each for each in locks if _is_held(each)), None):
        if asyncio.get_running_loop().time() > deadline:
            raise GitFailed(f"another git is at work in the workspace, or was killed there: {lock} is there")
        await asyncio.sleep(0.05)


def _is_held(lock: Path) -> bool:
    """Whether another one has the lock: `set_head` takes over what a killed worker of ours left."""
    if not os.path.lexists(lock):
        return False
    with contextlib.suppress(OSError):
        return not lock.samefile(lock.with_name("steersman-head"))
    return True


async def write_index(shadow: Shadow, due: Mapping[bytes, Replacement], object_format: str) -> None:
    """Change entries of the user's index, whose lock is held. Raises GitFailed, OSError."""
    if not due:
        return
    index, new = shadow.repository.index, shadow.repository.git / f"{_OURS}.new"
    for each in (new, new.with_name(f"{new.name}.lock")):
        each.unlink(missing_ok=True)  # left by a worker that was killed: we have the index's lock
    try:
        with contextlib.suppress(FileNotFoundError):
            # With its time: by that git tells which files may have changed since without looking changed.
            await asyncio.to_thread(shutil.copy2, index, new, follow_symlinks=False)
        git = shadow.with_variables(GIT_INDEX_FILE=str(new))
        null = b"0" * (64 if object_format == "sha256" else 40)
        # All that goes before all that comes: a file may come in a directory's place.
        lines = [b"0 " + null + b"\t" + path + b"\0" for path, each in due.items() if each.wanted is None]
        lines += [each.wanted.mode + b" " + each.wanted.object_id + b"\t" + path + b"\0"
                  for path, each in due.items() if each.wanted]  # fmt: skip
        await git.run("update-index", "-z", "--index-info", stdin=b"".join(lines))
        new.replace(index)
    finally:
        new.unlink(missing_ok=True)
        new.with_name(f"{new.name}.lock").unlink(missing_ok=True)


async def set_refs(shadow: Shadow, due: Moves, why: str) -> None:
    """As `set_ref` of each, by one process where there are many."""
    if len(due) > MANY_REFS:
        with contextlib.suppress(GitFailed):  # which one, and why, is said below
            due = await _set_many(shadow, due, why)
    for name, (was, value) in sorted(due.items()):
        await set_ref(shadow, name, was, value, why)


async def _set_many(shadow: Shadow, due: Moves, why: str) -> Moves:
    """Those that could not be set, and what comes after the first of them. Raises GitFailed."""
    moves = await _unset(shadow, due)
    # Each in a transaction of its own, by a git of 2.30 and later: a crash leaves no more than one of them locked.
    said = [f"start\nupdate {name} {value} {was or '0' * len(value)}\ncommit\n" for name, (was, value) in moves.items()]
    left: Moves = {}
    try:
        await shadow.git.run("update-ref", "--no-deref", "--stdin", stdin=os.fsencode("".join(said)))
    except GitFailed:
        left = await _unset(shadow, moves)
    is_set = {name: move for name, move in moves.items() if name not in left}
    await asyncio.to_thread(_log_all, shadow.repository.common, is_set, why)
    return left


async def _unset(shadow: Shadow, due: Moves) -> Moves:
    listed = await shadow.git.run("for-each-ref", "--format=%(objectname) %(refname)", "refs/heads", "refs/tags")
    lines = (line.split(" ", 1) for line in listed.decode("utf-8", "surrogateescape").splitlines())
    now = {name: value for value, name in lines}
    return {name: move for name, move in sorted(due.items()) if now.get(name) != move[1]}


def _log_all(git: Path, moves: Moves, why: str) -> None:
    for name, (was, value) in moves.items():
        _log(git, name, was or "0" * len(value), value, why)


async def set_ref(shadow: Shadow, name: str, was: str | None, value: str, why: str) -> None:
    """Move a branch or a tag of the user's from what it was. Raises Moved where it is not that.

    Nothing is done where it is there already.
    """
    null = "0" * len(value)
    if await commit_of(shadow, name) == value:
        return
    try:
        await shadow.git.run("update-ref", "--no-deref", name, value, was or null)
    except GitFailed as error:
        # The refs are the user's, by a link in our own git directory.
        why = str(error).replace(str(shadow.path), str(shadow.repository.common))
        raise Moved(f"{name} could not be set: {why}") from error
    _log(shadow.repository.common, name, was or null, value, why)


def set_head(repository: Repository, was: tuple[str | None, str | None], now: tuple[str | None, str], why: str) -> None:
    """Check out another branch, or none: HEAD alone. Raises Moved where it is not what it was, or is locked."""
    if _checked_out(repository.branch(), repository.head()) == _checked_out(*now):
        return
    head, lock, new = (repository.git / name for name in ("HEAD", "HEAD.lock", "steersman-head"))
    branch, commit = now
    if new.exists() and lock.exists() and new.samefile(lock):
        lock.unlink()  # left by a worker of ours that was killed here
    new.unlink(missing_ok=True)
    new.write_text(f"ref: {branch}\n" if branch else f"{commit}\n")
    try:
        os.link(new, lock)
    except FileExistsError:
        new.unlink()
        raise Moved(f"{lock} is there: another git is at work") from None
    try:
        if _checked_out(repository.branch(), repository.head()) != _checked_out(*was):
            raise Moved("another branch was checked out")
        lock.replace(head)
    finally:
        lock.unlink(missing_ok=True)
        new.unlink(missing_ok=True)
    _log(repository.git, "HEAD", was[1] or "0" * len(commit), commit, why)


def _checked_out(branch: str | None, commit: str | None) -> str | None:
    """What HEAD says."""
    return branch or commit


async def commit_of(shadow: Shadow, name: str) -> str | None:
    """The object that a ref names; None where there is none."""
    with contextlib.suppress(GitFailed):
        return (await shadow.git.run("rev-parse", "--verify", "--quiet", name)).decode().strip()
    return None


def log_head(repository: Repository, was: str | None, now: str, why: str) -> None:
    """Add to the log of HEAD that its branch was moved."""
    _log(repository.git, "HEAD", was or "0" * len(now), now, why)


async def checked_out_elsewhere(shadow: Shadow) -> set[str]:
    """Branches that other work trees of the repository have checked out, or that are being rebased in any of them.

    Raises GitFailed.
    """
    repository = shadow.repository
    main = [repository.common] if await has_main_tree(shadow) else []
    return await asyncio.to_thread(_checked_out_elsewhere, repository, main)


def _checked_out_elsewhere(repository: Repository, main: list[Path]) -> set[str]:
    common = repository.common
    others = [*main, *(common / "worktrees").glob("*")]
    found = set()
    for git in {*others, repository.git}:
        for name in ("rebase-merge/head-name", "rebase-apply/head-name"):
            with contextlib.suppress(OSError, ValueError):
                found.add(read_regular(git / name, 4096).decode().strip())
        if os.path.realpath(git) != os.path.realpath(repository.git):
            branch = Repository(repository.top, git, common, repository.allowed_roots).branch()
            found |= {branch} if branch else set()
    return found


def symbolic_refs(repository: Repository) -> set[str]:
    """Branches and tags that are other names of refs, also of none: git itself does not list those."""
    found, waiting = set(), ["refs/heads", "refs/tags"]
    while waiting:
        directory = waiting.pop()
        with contextlib.suppress(OSError), os.scandir(repository.common / directory) as entries:
            for entry in entries:
                name = f"{directory}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(name)
                elif entry.is_symlink() or _says_ref(Path(entry.path)):
                    found.add(name)
    return found


def _says_ref(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return read_regular(path, 4096).startswith(b"ref:")
    return False


def in_progress(repository: Repository) -> bool:
    """Whether the person is in the middle of a merge, a rebase, a cherry-pick or a revert."""
    names = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply", "sequencer")
    return any(os.path.lexists(repository.git / name) for name in names)


def is_safe(path: bytes) -> bool:
    """Whether a path can be meant: it leads neither out of the work tree nor into a repository."""
    for part in path.split(b"/"):
        name = part.decode("utf-8", "replace").translate(_IGNORABLE).rstrip(" .").lower()
        if part in (b"", b".", b"..") or b"\0" in part or name in (".git", "git~1"):
            return False
    return True


def leads_out(path: bytes, target: bytes) -> bool:
    """Whether a link at this path leads out of the work tree, or into its repository. What it leads through may be a
    link itself, after which `..` leads anywhere.
    """
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    up = len(list(itertools.takewhile(lambda part: part == b"..", parts)))
    down = parts[up:]
    outside = up > path.count(b"/")
    return target.startswith(b"/") or outside or bool(down and not is_safe(b"/".join(down)))


def links_out(due: Mapping[bytes, Replacement], staged: Mapping[bytes, Path]) -> set[bytes]:
    """The links among what is to be written that lead out."""
    found = set()
    for path, each in due.items():
        is_link = each.wanted is not None and each.wanted.mode == LINK and path in staged
        if is_link and leads_out(path, os.fsencode(os.readlink(staged[path]))):
            found.add(path)
    return found


def make_empty(top: Path, directories: Iterable[str]) -> None:
    """Make directories without entries, where nothing is in the way."""
    for path in sorted(map(as_bytes, directories)):
        if is_safe(path):
            make_directory(top, path)


def remove_empty(top: Path, directories: Iterable[str]) -> None:
    """Remove directories that have no entry."""
    for path in sorted(map(as_bytes, directories), reverse=True):
        if is_safe(path):
            remove_directory(top, path)


def _log(git: Path, name: str, old: str, new: str, why: str) -> None:
    """Add a line to a log that git keeps; none where there is none."""
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(git / "logs" / name, flags), "ab") as file:
            file.write(f"{old} {new} {_WHO} {int(time.time())} +0000\t{printable(why)}\n".encode())
