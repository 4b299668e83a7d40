"""Checkpoints of a work tree's files: commits under `refs/steersman/<loop>/<number>`, made, compared and restored.

HEAD, the index and the branches of the user's repository are never touched.
"""

import asyncio
import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from activities.workspaces.git.file_modes import ANYBODY, FileModes, looked_at, noted, notes
from activities.workspaces.git.repository import COMMIT
from activities.workspaces.git.runner import GitFailed, GitHung, GitOutput, GitRunner, gather_or_cancel
from activities.workspaces.git.shadow import Shadow
from activities.workspaces.git.trees import MAX_ADDED, Within, remove_from_index, write_tree
from activities.workspaces.put_back import (
    Replacement,
    Version,
    limit_permissions,
    put_back,
    remove_temporary,
    temporary_name,
)

REFS = "refs/steersman"
MAX_NAME = 120
"""Bytes of an id in a ref's name."""
MAX_STAT = 50_000
"""The statistics of a comparison are cut at this many bytes."""
MAX_COMMIT = 64 * 1024
"""No commit of a checkpoint has more bytes."""
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
_GITLINK, _NONE = b"160000", b"000000"


class NoCheckpoint(Exception):
    """The repository has no commit of this checkpoint. The message is a sentence."""


@dataclass(frozen=True)
class UndoneFiles:
    """What an undo did. `conflicts`: paths that were left as they are. `rescue`: the commit of the files before."""

    changed: int
    conflicts: set[bytes]
    rescue: str


@dataclass(frozen=True)
class CapturedFiles:
    """The tree of the files, and the commit if a checkpoint was made of it."""

    tree: str
    commit: str | None = None


@dataclass(frozen=True)
class Message:
    """A checkpoint's message. `last`: its last line."""

    text: str
    last: str = ""

    def with_notes(self, lines: str) -> str:
        """The message with these lines, before the last one."""
        end = f"{lines}{self.last}".rstrip()
        return f"{self.text.rstrip()}\n" + (f"\n{end}\n" if end else "")


def quoted(loop: str) -> str:
    """The loop id as one component of a path and of a git ref: percent-encoded, or cut and hashed if it is long."""
    name = quote(loop, safe="-_.").replace("~", "%7E")
    name = re.sub(r"^\.|\.$|\.(?=\.)|\.(?=lock$)", "%2E", name)
    if name and len(name) <= MAX_NAME:
        return name
    return f"{name.replace('.', '%2E')[:80]}+{hashlib.sha256(loop.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


def hashed(path: bytes) -> str:
    """A name for our git directory of the work tree at this path."""
    return hashlib.sha256(path).hexdigest()[:32]


def ref(loop: str, number: int) -> str:
    """The ref of a checkpoint."""
    return f"{REFS}/{quoted(loop)}/{number}"


async def capture(
    shadow: Shadow, name: str | None, message: Message, head: str | None, within: Within = (), most: int = MAX_ADDED
) -> CapturedFiles:
    """Write the files as a tree and, given a ref's name, commit it there with the parent `head`.

    Raises GitFailed, also where the user's index lacks files of more than `most` bytes together.
    """
    tree = await write_tree(shadow, within, most)
    if name is None:
        return CapturedFiles(tree)
    paths = (await shadow.git.run("ls-files", "-z")).split(b"\0")[:-1]
    limits = await asyncio.to_thread(looked_at, os.fsencode(shadow.repository.top), paths)
    commit = await _commit(shadow, tree, message.with_notes(notes(limits)), head)
    await keep(shadow, name, commit)
    return CapturedFiles(tree, commit)


async def with_modes(shadow: Shadow, commit: str, limits: Mapping[bytes, int]) -> str:
    """A commit as this one that says, too, which permissions its files have at most; the same each time.

    Raises GitFailed.
    """
    if not (said := notes(limits)):
        return commit
    output = await shadow.git.run("log", "-1", "--format=%T %ct %P", commit)
    tree, when, *parents = output.decode().split()
    dated = shadow.with_variables(GIT_AUTHOR_DATE=f"{when} +0000", GIT_COMMITTER_DATE=f"{when} +0000")
    return await _commit(shadow, tree, Message("files").with_notes(said), *parents, git=dated)


async def _commit(shadow: Shadow, tree: str, message: str, *parents: str | None, git: GitRunner | None = None) -> str:
    above = [word for each in parents if each for word in ("-p", each)]
    stdin = message.encode("utf-8", "replace")
    return (await (git or shadow.git).run("commit-tree", *above, "-F", "-", tree, stdin=stdin)).decode().strip()


async def keep(shadow: Shadow, name: str, commit: str) -> None:
    """Keep a commit under one of our refs. Raises GitFailed."""
    _unlock_ref(shadow, name)
    # Whatever is there, perhaps a symbolic ref to a user's branch, is replaced and not followed.
    await shadow.git.run("update-ref", "--no-deref", name, commit)


async def set_aside(shadow: Shadow, name: str, maker: str) -> None:
    """Rename the checkpoints of this number and above that another one than `maker` has made: the loop was reset, or
    its id was that of an earlier one. They are `<loop>@<the oldest one's id>/<number>` then. Raises GitFailed.
    """
    prefix, _, number = name.rpartition("/")
    others = {each: commit for each, commit in (await _kept(shadow, prefix)).items() if each >= int(number)}
    if not others:
        return
    oldest = others[min(others)]
    kept = await shadow.git.read("cat-file", "-p", oldest, limit=MAX_COMMIT)
    if kept.output.decode("utf-8", "replace").rstrip("\n").rpartition("\n")[2] == made_by(maker):
        return
    listed = []
    for each, commit in others.items():
        old, new = f"{prefix}/{each}", f"{prefix}@{oldest[:12]}/{each}"
        _unlock_ref(shadow, old)
        _unlock_ref(shadow, new)
        listed.append(f"update {new}\0{commit}\0\0delete {old}\0{commit}\0")
    await shadow.git.run("update-ref", "--no-deref", "-z", "--stdin", stdin="".join(listed).encode())


def made_by(maker: str) -> str:
    """The last line of a checkpoint's message."""
    return f"Execution: {maker}"


async def restore(shadow: Shadow, name: str, commit: str | None = None) -> int:
    """Restore the files of a checkpoint, and return how many paths changed. Raises GitFailed, NoCheckpoint.

    With `commit`, only if the checkpoint's ref still names it: whoever may write in the workspace can overwrite refs.
    Files stay that the ignore rules of now or of the checkpoint name, and so do nested repositories.
    """
    wanted = await tree_at(shadow, name)
    if commit is not None and (await shadow.git.run("rev-parse", "--verify", name)).decode().strip() != commit:
        raise NoCheckpoint(f"{name} names another commit than the one that was kept, {commit}: it was overwritten")
    now = await write_tree(shadow)
    changed = await _changed(shadow, now, wanted)
    nested = shadow.nested
    await _check_nested(shadow, wanted)
    if not changed:
        return 0
    kept: set[bytes] = set()
    if any(os.path.basename(path) == b".gitignore" for path in changed):
        kept = await _ignored_by(shadow, wanted, [path for path, gone in changed.items() if gone])
    limits = await _restore_closed(shadow, now, wanted, await modes_of(shadow, name), kept)
    await remove_from_index(shadow, kept)
    try:
        await shadow.git.run("read-tree", "--reset", "-u", wanted)
    finally:
        nested |= await _record_indexed(shadow)
        await asyncio.to_thread(_limit_all, shadow.repository.top, limits)
    # git only warns about a file that it cannot remove.
    wrong = (await _changed(shadow, await write_tree(shadow), wanted)).keys()
    left = (wrong & changed.keys()) - kept - nested
    if left:
        raise GitFailed(f"{len(left)} files could not be taken back, {os.fsdecode(min(left))!r} among them")
    return len(changed.keys() - kept - nested)


async def _restore_closed(
    shadow: Shadow, now: str, wanted: str, modes: FileModes, kept: set[bytes]
) -> dict[bytes, int]:
    """Restore the files that not everybody may read, which git would make anew with the permissions of the umask; which
    ones have at most. What is in their way goes, too. Raises GitFailed.
    """
    top = shadow.repository.top
    changed = await differences(shadow, wanted, now)
    files = [path for path, each in changed.items() if each.wanted and not is_nested(each.wanted)]
    there = await asyncio.to_thread(looked_at, os.fsencode(top), files)
    found = {path: modes.limit(path) & there.get(path, ANYBODY) for path in files}
    limits = {path: limit for path, limit in found.items() if limit != ANYBODY}
    if not limits:
        return limits
    going = {path for path, each in changed.items() if each.wanted is None and not is_nested(each.now)} - kept
    due = {path: changed[path] for path in (*going, *limits)}
    left = await _put_back(shadow, due, limits, temporary_name(wanted))
    # Else git would make them anew all the same. The rest of the index stays: what is ignored may be another by now.
    await remove_from_index(shadow, going - left)
    listed = b"".join(path + b"\0" for path in limits.keys() - left)
    await shadow.git.run("update-index", "-z", "--add", "--remove", "--replace", "--stdin", stdin=listed)
    return limits


def _limit_all(top: Path, limits: Mapping[bytes, int]) -> None:
    for path, limit in limits.items():
        limit_permissions(top, path, limit)


async def drop(shadow: Shadow, loop: str, numbers: set[int] | None) -> list[int]:
    """Remove the refs of checkpoints, all with None, and return the numbers of those that existed. Raises GitFailed."""
    found = [number for number in await checkpoint_numbers(shadow, loop) if numbers is None or number in numbers]
    await delete_refs(shadow, [ref(loop, number) for number in found])
    return found


async def drop_refs(shadow: Shadow, prefix: str) -> None:
    """Remove the refs whose names begin so; `prefix` has no pattern's characters. Raises GitFailed."""
    _ref_path(shadow, prefix)
    output = await shadow.git.run("for-each-ref", "--format=%(refname)", f"{prefix}*")
    await delete_refs(shadow, output.decode("utf-8", "replace").splitlines())


async def delete_refs(shadow: Shadow, names: list[str]) -> None:
    """Remove refs of ours, those that there are. Raises GitFailed."""
    for name in names:
        _unlock_ref(shadow, name)
    listed = "".join(f"delete {name}\0\0" for name in names).encode()
    if listed:
        await shadow.git.run("update-ref", "--no-deref", "-z", "--stdin", stdin=listed)


async def checkpoint_numbers(shadow: Shadow, loop: str) -> list[int]:
    """The numbers of a loop's checkpoints, ascending. Raises GitFailed."""
    return sorted(await _kept(shadow, f"{REFS}/{quoted(loop)}"))


async def _kept(shadow: Shadow, prefix: str) -> dict[int, str]:
    """The objects of a loop's checkpoints by their numbers, as we write those: `007` is no checkpoint's ref."""
    _ref_path(shadow, f"{prefix}/0")
    output = await shadow.git.run("for-each-ref", "--format=%(refname) %(objectname)", f"{prefix}/")
    found = {}
    for line in output.decode("utf-8", "replace").splitlines():
        name, _, commit = line.removeprefix(f"{prefix}/").partition(" ")
        if _NUMBER.fullmatch(name):
            found[int(name)] = commit
    return found


async def compare(
    shadow: Shadow, before: str, after: str | None, limit: int, within: Within = ()
) -> tuple[str, GitOutput]:
    """The statistics and the patch between two trees, or between one and the files as they are. Raises GitFailed."""
    after = after or await write_tree(shadow, within)
    diff = ("diff-tree", "-r", "-M", "--no-ext-diff", "--no-textconv", "--no-color")
    stat, patch = await gather_or_cancel(
        shadow.git.read(*diff, "--stat=120", before, after, "--", *within, limit=MAX_STAT),
        shadow.git.read(*diff, "-p", before, after, "--", *within, limit=limit),
    )
    return stat.output.decode("utf-8", "replace"), patch


async def count(shadow: Shadow, older: str, newer: str, within: Within) -> tuple[int, int, int]:
    """Files, lines added and lines removed between two commits; of a file that is no text no lines are counted.

    Raises GitFailed, NoCheckpoint.
    """
    before, after = await trees_of(shadow, older, newer)
    diff = ("diff-tree", "-r", "-z", "--no-renames", "--no-ext-diff", "--no-textconv")
    output = await shadow.git.run(*diff, "--numstat", before, after, "--", *within)
    lines = [line.split(b"\t", 2) for line in output.split(b"\0")[:-1]]
    added, removed = (sum(int(line[column]) for line in lines if line[column].isdigit()) for column in (0, 1))
    return len(lines), added, removed


async def undo(shadow: Shadow, older: str, newer: str, rescue: str, message: str, within: Within) -> UndoneFiles:
    """Restore the paths that differ between two commits as they are in the older one, but for those that have changed
    since the newer one. What is there now is committed under the ref `rescue`, which stays where that changes any file.
    Raises GitFailed, NoCheckpoint.
    """
    before, after = await trees_of(shadow, older, newer)
    changed = await differences(shadow, before, after, within)
    temporary = temporary_name(f"{before} {after}")
    await asyncio.to_thread(remove_temporary, shadow.repository.top, changed, temporary)
    kept = await capture(shadow, rescue, Message(message), shadow.repository.head(), within)
    since, undone = await gather_or_cancel(
        differences(shadow, after, kept.tree, within),
        differences(shadow, before, kept.tree, within),
    )
    due = {path: each for path, each in changed.items() if path not in since}
    # A nested repository is in a tree by its commit alone, which says nothing of its files.
    left = {path for path, each in due.items() if is_nested(each.now) or is_nested(each.wanted)}
    # What was ignored before may have been there before, unseen.
    left |= await _ignored_by(shadow, before, [path for path, each in due.items() if each.wanted is None])
    due = {path: each for path, each in due.items() if path not in left}
    modes = await modes_of(shadow, older)
    left |= await _put_back(shadow, due, {path: modes.limit(path) for path in due}, temporary)
    conflicts = (changed.keys() & since.keys() & undone.keys()) | left
    if not (files := len(due.keys() - left)):  # all is there as it was
        await delete_refs(shadow, [rescue])
    return UndoneFiles(files, conflicts, (kept.commit or "") if files else "")


async def _put_back(
    shadow: Shadow, due: Mapping[bytes, Replacement], limits: Mapping[bytes, int], temporary: bytes
) -> set[bytes]:
    """Put files back, and return the paths that were left as they are. Raises GitFailed."""
    with tempfile.TemporaryDirectory(dir=shadow.path.parent) as scratch:
        staged = await stage(shadow, {path: each.wanted for path, each in due.items() if each.wanted}, Path(scratch))
        return await put_back(shadow.repository.top, due, staged, limits, temporary)


def is_nested(version: Version | None) -> bool:
    """Whether it is a repository of its own, by its commit."""
    return version is not None and version.mode == _GITLINK


async def differences(shadow: Shadow, old: str, new: str, within: Within = ()) -> dict[bytes, Replacement]:
    """The paths that differ between two trees: what they hold in the new one, and what they held in the old one.

    Raises GitFailed.
    """
    output = await shadow.git.run("diff-tree", "-r", "-z", "--no-renames", old, new, "--", *within)
    parts = output.split(b"\0")[:-1]
    found = {}
    for line, path in zip(parts[::2], parts[1::2], strict=True):
        old_mode, new_mode, old_id, new_id, _ = line.removeprefix(b":").split(b" ")
        found[path] = Replacement(
            now=None if new_mode == _NONE else Version(new_mode, new_id),
            wanted=None if old_mode == _NONE else Version(old_mode, old_id),
        )
    return found


async def stage(shadow: Shadow, wanted: Mapping[bytes, Version], directory: Path) -> dict[bytes, Path]:
    """Write these contents into files of our own: which has each path's. Raises GitFailed."""
    if not wanted:
        return {}
    git = shadow.with_variables(GIT_INDEX_FILE=str(directory / "index"))
    # By numbers: a directory costs as much as all else of a file.
    lines = (each.mode + b" " + each.object_id + b"\t%d\0" % number for number, each in enumerate(wanted.values()))
    await git.run("update-index", "-z", "--index-info", stdin=b"".join(lines))
    await git.run("checkout-index", "--all", f"--prefix={directory}/")
    return {path: directory / str(number) for number, path in enumerate(wanted)}


async def trees_of(shadow: Shadow, *commits: str) -> list[str]:
    """The trees of commits. Raises NoCheckpoint, GitFailed."""
    if wrong := [each for each in commits if not COMMIT.fullmatch(each)]:
        raise NoCheckpoint(f"{wrong[0][:80]!r} is no commit")
    try:
        output = await shadow.git.run("rev-parse", *(f"{each}^{{tree}}" for each in commits))
    except GitHung:
        raise
    except GitFailed as error:
        raise NoCheckpoint(f"{shadow.repository.top} has no files of {' and '.join(commits)} any more") from error
    return output.decode().split()


async def modes_of(shadow: Shadow, name: str) -> FileModes:
    """Who may read the files of a commit, as it says. Raises GitFailed."""
    return noted((await shadow.git.read("cat-file", "commit", name, limit=MAX_COMMIT)).output)


async def tree_at(shadow: Shadow, name: str) -> str:
    """The tree of a checkpoint. Raises NoCheckpoint, GitFailed."""
    _ref_path(shadow, name)
    try:
        output = await shadow.git.run("rev-parse", "--verify", "--quiet", f"{name}^{{tree}}")
    except GitHung:
        raise
    except GitFailed as error:
        loop, _, number = name.removeprefix(f"{REFS}/").rpartition("/")
        where = shadow.repository.top
        raise NoCheckpoint(f"{where} has no files of checkpoint {number} of {unquote(loop)}") from error
    return output.decode().strip()


async def _changed(shadow: Shadow, now: str, wanted: str) -> dict[bytes, bool]:
    """The paths that differ, each with True if the wanted tree lacks it."""
    output = await shadow.git.run("diff-tree", "-r", "-z", "--name-status", "--no-renames", now, wanted)
    parts = output.split(b"\0")[:-1]
    return {path: status == b"D" for status, path in zip(parts[::2], parts[1::2], strict=True)}


async def _ignored_by(shadow: Shadow, wanted: str, paths: list[bytes]) -> set[bytes]:
    """The paths that the .gitignore files of the wanted tree name."""
    output = await shadow.git.run("ls-tree", "-r", "-z", "--name-only", wanted)
    rules = [path for path in output.split(b"\0") if os.path.basename(path) == b".gitignore"]
    if not rules or not paths:
        return set()
    loop = shadow.path.parent
    with tempfile.TemporaryDirectory(dir=loop) as tree, tempfile.TemporaryDirectory(dir=loop) as scratch:
        git = shadow.with_variables(
            Path(tree), GIT_WORK_TREE=tree, GIT_INDEX_FILE=f"{scratch}/index", GIT_LITERAL_PATHSPECS="0"
        )
        await git.run("read-tree", wanted)
        await git.run("checkout-index", "-z", "--stdin", stdin=b"".join(path + b"\0" for path in rules))
        # So that no name is taken for a pattern.
        listed = b"".join(b"./" + path + b"\0" for path in paths)
        command = shadow.with_excludes("check-ignore", "--no-index", "-z", "--stdin")
        output = await git.run(*command, stdin=listed, ok_codes=(0, 1))
    return {path.removeprefix(b"./") for path in output.split(b"\0")[:-1]}


async def _check_nested(shadow: Shadow, wanted: str) -> None:
    """Raises GitFailed where a file would replace a nested repository: its history would be lost."""
    nested = shadow.nested
    if not nested:
        return
    paths = {b"/".join(path.split(b"/")[:depth]) for path in nested for depth in range(1, path.count(b"/") + 2)}
    output = await shadow.git.run("ls-tree", "-z", wanted, "--", *sorted(paths))
    for line in output.split(b"\0")[:-1]:
        entry, path = line.split(b"\t", 1)
        # Asked for a directory and for something in it, git lists the directory's other entries, too.
        if path in paths and entry.split(b" ")[1] == b"blob":
            shown = path.decode("utf-8", "replace")
            raise GitFailed(f"{shown} is a file in the checkpoint, and a repository of its own is there now")


async def _record_indexed(shadow: Shadow) -> set[bytes]:
    """Record the nested repositories that the index has now, and return their paths."""
    output = await shadow.git.run("ls-files", "-s", "-z")
    found = {line.split(b"\t", 1)[1] for line in output.split(b"\0")[:-1] if line.startswith(_GITLINK)}
    shadow.record_nested(found)
    return found


def _unlock_ref(shadow: Shadow, name: str) -> None:
    """Remove the lock file of a git that was killed, and a link, which git would follow. Raises GitFailed."""
    path = _ref_path(shadow, name)
    if path.is_symlink():
        path.unlink()
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)


def check_ref_path(shadow: Shadow, name: str) -> None:
    """Raises GitFailed if a directory on the path of a ref is a link, or no directory."""
    _ref_path(shadow, name)


def _ref_path(shadow: Shadow, name: str) -> Path:
    """The file of a loose ref. Raises GitFailed if a directory on its path is a link, or no directory."""
    common = Path(os.path.realpath(shadow.repository.common))
    path = common / name
    for directory in reversed(path.relative_to(common).parents[:-1]):
        if os.path.lexists(common / directory) and (
            os.path.islink(common / directory) or not os.path.isdir(common / directory)
        ):
            raise GitFailed(f"{directory} in the repository is a link, or no directory: checkpoints are kept in one")
    return path
