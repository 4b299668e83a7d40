"""A snapshot that a copy has sent is looked at before any repository has its objects. Hostile input."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from activities.workspaces.carry import snapshots
from activities.workspaces.carry.copies import CopyFailed
from activities.workspaces.carry.copy_program import quoted
from activities.workspaces.carry.snapshots import Snapshot
from activities.workspaces.git.repository import COMMIT
from activities.workspaces.git.shadow import Shadow
from activities.workspaces.git.trees import check_room

MAX_PACK = "17179869184"
"""Bytes of what is taken from a copy, for git's own count."""


@asynccontextmanager
async def received(
    shadow: Shadow, snapshot: str, pack: Path, incoming: Path, *lenders: Path, repository: bool
) -> AsyncIterator[tuple[Snapshot, Path]]:
    """The snapshot, known to be good, and the directory of its packs, as long as the block lasts.

    `incoming`: a directory for its objects, made anew. `lenders`: object directories that it may build upon, beside the
    repository's. Raises CopyFailed, snapshots.NoSnapshot, GitFailed, OSError.
    """
    if not COMMIT.fullmatch(snapshot):
        raise CopyFailed("the copy's answer names no snapshot")
    check_room(shadow, (await asyncio.to_thread(pack.stat)).st_size)
    await asyncio.to_thread(shutil.rmtree, incoming, ignore_errors=True)
    await asyncio.to_thread(incoming.mkdir, mode=0o700)
    try:
        lent = ":".join(quoted(str(each)) for each in (shadow.repository.objects, *lenders))
        git = shadow.with_variables(GIT_OBJECT_DIRECTORY=str(incoming), GIT_ALTERNATE_OBJECT_DIRECTORIES=lent)
        apart = replace(shadow, git=git)
        # Strict: each object is looked at, and what it names has to be there.
        await apart.git.run(
            "index-pack", "--stdin", "--fix-thin", "--strict", f"--max-input-size={MAX_PACK}", stdin=pack
        )
        theirs = await snapshots.read(apart, snapshot)
        if repository:
            await snapshots.check_refs(apart, theirs.state)
        committed = [theirs.state.commit] if theirs.state.commit else []
        for tree in {theirs.tree, theirs.index, *committed}:
            await snapshots.check_unfolded(apart, tree)
        yield theirs, incoming / "pack"
    finally:
        await asyncio.to_thread(shutil.rmtree, incoming, ignore_errors=True)


def move_packs(incoming: Path, packs: Path) -> list[str]:
    """Have them in the other directory of packs, and return their names. An index comes last: by that git finds a pack.

    Blocks. Raises OSError.
    """
    packs.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = []
    for path in sorted(incoming.iterdir(), key=lambda path: path.suffix == ".idx"):
        names.append(path.name)
        if not (packs / path.name).exists():
            path.rename(packs / path.name)
    return names
