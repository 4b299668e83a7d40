"""A linked work tree of a user's repository, as `git worktree add` makes one, but by plumbing: no hook, filter or
monitor of the repository runs, and files are written byte for byte.

    COMMON/worktrees/steersman-ID/    HEAD, commondir, gitdir, index: what git keeps of it
    TOP/.git                          names that directory

It is made under another name and renamed when it is whole, so what is there is never filled again. Where it lies must
not live here.
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from activities.store import disk
from activities.workspaces.files import read_regular
from activities.workspaces.git.checkpoint_commits import check_ref_path, hashed
from activities.workspaces.git.effective_config import file_config
from activities.workspaces.git.filters import filtered_file
from activities.workspaces.git.repository import Repository
from activities.workspaces.git.runner import GitFailed
from activities.workspaces.git.shadow import Shadow
from activities.workspaces.printable_text import printable

BRANCHES = "refs/heads/"
_MAX_POINTER = 8 * 1024
_BARE = r"^(core\.bare|extensions\.worktreeconfig)$"


async def link_tree(shadow: Shadow, top: Path, branch: str) -> None:
    """Have a work tree at `top` that has the branch checked out; the branch is made of HEAD where it is not there.

    One that is there stays as it is. Raises GitFailed, also where the branch is checked out elsewhere, and where git
    would put a file through a filter; OSError.
    """
    repository = shadow.repository
    common = await asyncio.to_thread(lambda: Path(os.path.realpath(repository.common)))
    kept, ref = common / "worktrees" / f"steersman-{hashed(os.fsencode(top))[:16]}", f"{BRANCHES}{branch}"
    await _check_filters(shadow, ref)
    if await asyncio.to_thread(_is_there, repository, kept, top, ref):
        return
    await asyncio.to_thread(_check_free, kept, top)
    new = top.with_name(f".{top.name}.new")
    try:
        await _make_branch(shadow, ref)
        await asyncio.to_thread(_prepare, kept, top, new, ref)
        # Once HEAD is written: whoever checks it out from now on sees that.
        main = await has_main_tree(shadow)
        if place := await asyncio.to_thread(_checked_out_at, repository, common, kept, ref, main=main):
            raise GitFailed(f"branch {branch} is checked out at {place}")
        git = shadow.with_variables(new, GIT_WORK_TREE=str(new), GIT_INDEX_FILE=str(kept / "index"))
        await git.run("read-tree", "--reset", "-u", ref)
        await asyncio.to_thread(_publish, kept, top, new)
    except BaseException:
        await asyncio.to_thread(_discard, kept, new)  # else git would take the branch for checked out
        raise


async def has_main_tree(shadow: Shadow) -> bool:
    """Whether the repository has a work tree that is no linked one: a bare one checks nothing out. Raises GitFailed."""
    common = shadow.repository.common
    found = dict(await file_config(common / "config", shadow.user_git, _BARE))
    if _is_true(found.get("extensions.worktreeconfig")):  # then git keeps the main work tree's own settings apart
        found |= dict(await file_config(common / "config.worktree", shadow.user_git, _BARE))
    return not _is_true(found.get("core.bare"))


def _is_true(value: str | None) -> bool:
    return value is not None and value.lower() in ("true", "yes", "on", "1")


def _is_there(repository: Repository, kept: Path, top: Path, ref: str) -> bool:
    """Raises GitFailed where what is there is not this repository's work tree of this branch."""
    if not os.path.lexists(top):
        return False
    named = _pointer(top / ".git").removeprefix("gitdir: ")
    if not named or Path(os.path.realpath(top / named)) != kept:
        raise GitFailed(f"{top} is there, and is no worktree of {repository.top}: move it away")
    head = _pointer(kept / "HEAD")
    if not head:
        raise GitFailed(f"the repository knows nothing of its worktree {top} any more: move that away")
    if head != f"ref: {ref}":
        shown = printable(head.removeprefix("ref: ").removeprefix(BRANCHES), 200)
        branch = ref.removeprefix(BRANCHES)
        raise GitFailed(f"{top} has {shown} checked out: check out {branch} there, or `git worktree remove` it")
    return True


async def _check_filters(shadow: Shadow, ref: str) -> None:
    """Raises GitFailed where an agent's commit would put files through a filter that are as they came out of one."""
    found = await shadow.git.run("rev-parse", "--verify", "--quiet", f"{ref}^{{tree}}", ok_codes=(0, 1))
    if (tree := found.decode().strip() or shadow.repository.head()) is None:
        return
    if (filtered := await filtered_file(shadow, tree)) is not None:
        path, name = (printable(os.fsdecode(each), 200) for each in (filtered.path, filtered.name))
        raise GitFailed(
            f"git's configuration has a filter for {path} ({name}), which cannot be carried into a worktree, as it is "
            "not run for that: make one with `git worktree add`, and name its directory as the workspace"
        )


async def _make_branch(shadow: Shadow, ref: str) -> None:
    branch = ref.removeprefix(BRANCHES)
    check_ref_path(shadow, ref)
    if (await shadow.git.run("symbolic-ref", "--quiet", ref, ok_codes=(0, 1))).strip():
        raise GitFailed(f"{branch} is another name of a branch, and no branch itself")
    found = await shadow.git.run("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}", ok_codes=(0, 1))
    if found.strip():
        return
    head = shadow.repository.head()
    if head is None:
        raise GitFailed(f"{shadow.repository.top} has no commit yet at which branch {branch} could begin")
    await shadow.git.run("update-ref", "--no-deref", ref, head, "0" * len(head))


def _check_free(kept: Path, top: Path) -> None:
    """Raises GitFailed where what git keeps of a work tree that is not at `top` is still somebody's."""
    if os.path.lexists(kept / "locked"):
        raise GitFailed(f"the worktree {top} is gone, and locked: `git worktree unlock` it")
    place = kept / _pointer(kept / "gitdir")
    if place.name == ".git" and place != top / ".git" and os.path.lexists(place):
        raise GitFailed(f"the worktree {top} was moved to {printable(str(place.parent))}: `git worktree move` it back")


def _prepare(kept: Path, top: Path, new: Path, ref: str) -> None:
    """What git keeps of a work tree, and an empty directory for it. What a killed worker left of both goes first, and
    what is kept of a work tree that somebody has removed. Raises GitFailed, OSError.
    """
    if kept.parent.is_symlink():
        raise GitFailed(f"{kept.parent} in the repository is a link: work trees are kept in a directory")
    _discard(kept, new)
    kept.mkdir(parents=True)
    new.mkdir(mode=0o700, parents=True)
    _write(kept / "commondir", "../..\n")
    _write(kept / "gitdir", f"{top}/.git\n")
    _write(kept / "HEAD", f"ref: {ref}\n")


def _publish(kept: Path, top: Path, new: Path) -> None:
    _write(new / ".git", f"gitdir: {kept}\n")
    new.rename(top)


def _discard(kept: Path, new: Path) -> None:
    for each in (kept, new):
        if not each.parent.is_symlink() and not each.is_symlink():
            shutil.rmtree(each, ignore_errors=True)


def _checked_out_at(repository: Repository, common: Path, kept: Path, ref: str, *, main: bool) -> str | None:
    """Where another work tree has the branch checked out, or in the middle of a rebase or a bisection."""
    for git, place in _trees(repository, common, main=main):
        if git == kept:
            continue
        names = {_pointer(git / each) for each in ("rebase-merge/head-name", "rebase-apply/head-name")}
        bisected = _pointer(git / "BISECT_START")
        if ref in names or f"{BRANCHES}{bisected}" == ref or _pointer(git / "HEAD") == f"ref: {ref}":
            return printable(place)
    return None


def _trees(repository: Repository, common: Path, *, main: bool) -> Iterator[tuple[Path, str]]:
    """The git directories of all work trees, and where these are. `main`: one of them is no linked one."""
    if Path(os.path.realpath(repository.git)) == common:
        yield common, str(repository.top)
    elif main:
        yield common, str(common.parent if common.name == ".git" else common)
    for name in disk.names(common / "worktrees"):
        git = common / "worktrees" / name
        yield git, _pointer(git / "gitdir").removesuffix("/.git") or str(git)


def _write(path: Path, text: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o644), "wb") as file:
        file.write(os.fsencode(text))


def _pointer(path: Path) -> str:
    """The text of a small file, without what is around it; empty where it is missing or no regular file."""
    with contextlib.suppress(OSError):
        return read_regular(path, _MAX_POINTER).decode("utf-8", "surrogateescape").strip()
    return ""
