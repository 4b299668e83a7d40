"""Checkpoints of a work tree's files: commits under `refs/steersman/<loop>/<number>`, kept, compared, taken back.

HEAD, the index and the branches of the person's repository are never touched.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from activities.loops.git import Answer, GitFailed, GitHung, together
from activities.loops.places import quoted
from activities.loops.shadow import Shadow
from activities.loops.trees import remove, tree_of_now

REFS = "refs/steersman"
MAX_STAT = 50_000
_GITLINK = b"160000"


class NoCheckpoint(Exception):
    """The repository has no files of this checkpoint, in a sentence."""


@dataclass(frozen=True)
class Taken:
    """What a look came to: the files' tree, and the commit where they were to be kept."""

    tree: str
    commit: str | None = None


def ref(loop: str, number: int) -> str:
    """The name under which a checkpoint's files are kept."""
    return f"{REFS}/{quoted(loop)}/{number}"


async def take(shadow: Shadow, name: str | None, message: str, head: str | None) -> Taken:
    """Look at the files, and keep them under this ref, after the commit `head`. Raises GitFailed."""
    tree = await tree_of_now(shadow)
    if name is None:
        return Taken(tree)
    parent = ("-p", head) if head else ()
    said = await shadow.git.run("commit-tree", *parent, "-F", "-", tree, stdin=message.encode("utf-8", "replace"))
    commit = said.decode().strip()
    _clear(shadow, name)
    # Whatever stands there, a ref to a branch of the person's perhaps, is replaced and not followed.
    await shadow.git.run("update-ref", "--no-deref", name, commit)
    return Taken(tree, commit)


async def restore(shadow: Shadow, name: str, commit: str | None = None) -> int:
    """Make the work tree's files those of a checkpoint; how many paths that changed. Raises GitFailed, NoCheckpoint.

    With `commit`, only if the checkpoint's ref still names it: whoever may write in the workspace can overwrite refs.
    What is ignored stays, by the rules of now or of then. A repository within the work tree stays as it is.
    """
    wanted = await tree_at(shadow, name)
    if commit is not None and (await shadow.git.run("rev-parse", "--verify", name)).decode().strip() != commit:
        raise NoCheckpoint(f"{name} names another commit than the one that was kept, {commit}: it was overwritten")
    changed = await _changed(shadow, await tree_of_now(shadow), wanted)
    nested = shadow.nested
    await _check_nested(shadow, wanted)
    if not changed:
        return 0
    kept: set[bytes] = set()
    if any(os.path.basename(path) == b".gitignore" for path in changed):
        kept = await _ignored_then(shadow, wanted, [path for path, gone in changed.items() if gone])
        await remove(shadow, kept)
    try:
        await shadow.git.run("read-tree", "--reset", "-u", wanted)
    finally:
        nested |= await _learn_nested(shadow)
    # Of a file that it cannot remove git only warns.
    wrong = (await _changed(shadow, await tree_of_now(shadow), wanted)).keys()
    left = (wrong & changed.keys()) - kept - nested
    if left:
        raise GitFailed(f"{len(left)} files could not be taken back, {os.fsdecode(min(left))!r} among them")
    return len(changed.keys() - kept - nested)


async def drop(shadow: Shadow, loop: str, numbers: set[int] | None) -> list[int]:
    """Remove checkpoints, all with None; those that were there. Raises GitFailed."""
    found = [number for number in await kept(shadow, loop) if numbers is None or number in numbers]
    for number in found:
        _clear(shadow, ref(loop, number))
    listed = "".join(f"delete {ref(loop, number)}\0\0" for number in found).encode()
    if listed:
        await shadow.git.run("update-ref", "--no-deref", "-z", "--stdin", stdin=listed)
    return found


async def kept(shadow: Shadow, loop: str) -> list[int]:
    """The checkpoints that are there, in ascending order. Raises GitFailed."""
    prefix = f"{REFS}/{quoted(loop)}/"
    _place(shadow, f"{prefix}0")
    said = await shadow.git.run("for-each-ref", "--format=%(refname)", prefix)
    names = [line.removeprefix(prefix) for line in said.decode("utf-8", "replace").splitlines()]
    return sorted(int(name) for name in names if name.isdecimal())


async def compare(shadow: Shadow, older: str, newer: str | None, limit: int) -> tuple[str, Answer]:
    """The statistics and the patch between two checkpoints, or between one and now. Raises GitFailed, NoCheckpoint."""
    before = await tree_at(shadow, older)
    after = await tree_at(shadow, newer) if newer else await tree_of_now(shadow)
    plain = ("diff-tree", "-r", "-M", "--no-ext-diff", "--no-textconv", "--no-color")
    stat, patch = await together(
        shadow.git.read(*plain, "--stat=120", before, after, limit=MAX_STAT),
        shadow.git.read(*plain, "-p", before, after, limit=limit),
    )
    return stat.output.decode("utf-8", "replace"), patch


async def tree_at(shadow: Shadow, name: str) -> str:
    """The tree of a checkpoint. Raises NoCheckpoint, GitFailed."""
    _place(shadow, name)
    try:
        said = await shadow.git.run("rev-parse", "--verify", "--quiet", f"{name}^{{tree}}")
    except GitHung:
        raise
    except GitFailed as error:
        loop, _, number = name.removeprefix(f"{REFS}/").rpartition("/")
        where = shadow.repository.top
        raise NoCheckpoint(f"{where} has no files of checkpoint {number} of {unquote(loop)}") from error
    return said.decode().strip()


async def _changed(shadow: Shadow, now: str, wanted: str) -> dict[bytes, bool]:
    """Paths that differ, and whether the wanted tree is without them."""
    said = await shadow.git.run("diff-tree", "-r", "-z", "--name-status", "--no-renames", now, wanted)
    parts = said.split(b"\0")[:-1]
    return {path: how == b"D" for how, path in zip(parts[::2], parts[1::2], strict=True)}


async def _ignored_then(shadow: Shadow, wanted: str, paths: list[bytes]) -> set[bytes]:
    """Which of these paths the checkpoint's own .gitignore files left out."""
    said = await shadow.git.run("ls-tree", "-r", "-z", "--name-only", wanted)
    rules = [path for path in said.split(b"\0") if os.path.basename(path) == b".gitignore"]
    if not rules or not paths:
        return set()
    place = shadow.path.parent
    with tempfile.TemporaryDirectory(dir=place) as tree, tempfile.TemporaryDirectory(dir=place) as scratch:
        git = shadow.elsewhere(
            Path(tree), GIT_WORK_TREE=tree, GIT_INDEX_FILE=f"{scratch}/index", GIT_LITERAL_PATHSPECS="0"
        )
        await git.run("read-tree", wanted)
        await git.run("checkout-index", "-z", "--stdin", stdin=b"".join(path + b"\0" for path in rules))
        # So that no name is taken for a pattern.
        listed = b"".join(b"./" + path + b"\0" for path in paths)
        asked = shadow.listing("check-ignore", "--no-index", "-z", "--stdin")
        said = await git.run(*asked, stdin=listed, well=(0, 1))
    return {path.removeprefix(b"./") for path in said.split(b"\0")[:-1]}


async def _check_nested(shadow: Shadow, wanted: str) -> None:
    """Refuse to put a file where a repository of its own is now: its history would be gone for good."""
    nested = shadow.nested
    if not nested:
        return
    places = {b"/".join(path.split(b"/")[:depth]) for path in nested for depth in range(1, path.count(b"/") + 2)}
    said = await shadow.git.run("ls-tree", "-z", wanted, "--", *sorted(places))
    for line in said.split(b"\0")[:-1]:
        facts, path = line.split(b"\t", 1)
        # Asked for a directory and for something in it, git lists the directory's other entries, too.
        if path in places and facts.split(b" ")[1] == b"blob":
            shown = path.decode("utf-8", "replace")
            raise GitFailed(f"{shown} is a file in the checkpoint, and a repository of its own is there now")


async def _learn_nested(shadow: Shadow) -> set[bytes]:
    """The repositories that a tree has brought into the index."""
    said = await shadow.git.run("ls-files", "-s", "-z")
    found = {line.split(b"\t", 1)[1] for line in said.split(b"\0")[:-1] if line.startswith(_GITLINK)}
    shadow.keep_nested(found)
    return found


def _clear(shadow: Shadow, name: str) -> None:
    """Take away the lock of a git that was killed, and a link, which would be followed. Raises GitFailed."""
    place = _place(shadow, name)
    if place.is_symlink():
        place.unlink()
    place.with_name(f"{place.name}.lock").unlink(missing_ok=True)


def _place(shadow: Shadow, name: str) -> Path:
    """Where a ref is kept. Raises GitFailed where a link, or no directory, is on the way to it."""
    common = Path(os.path.realpath(shadow.repository.common))
    place = common / name
    for directory in reversed(place.relative_to(common).parents[:-1]):
        if os.path.lexists(common / directory) and (
            os.path.islink(common / directory) or not os.path.isdir(common / directory)
        ):
            raise GitFailed(f"{directory} in the repository is a link, or no directory: checkpoints are kept in one")
    return place
