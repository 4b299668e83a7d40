"""Snapshots of workspaces: all that is carried of one, under the id of one commit.

    snapshot        commit: the tree of the index; its message is a JSON object (`SnapshotState`)
      parent 1      commit: the tree of the files, as they are on the disk; its parent is HEAD
      other parents the commits of branches and tags

So whoever has the snapshot has every object that it needs, and what another side lacks is a pack of the difference.
Written here through a shadow, and by carry/copy_program.py. What is done with one must not live here.
"""

import asyncio
import os
import re
import shutil
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from activities.workspaces.carry.copy_program import as_bytes, as_text, empty_directories, staged_entries
from activities.workspaces.files import Unreadable, read_regular, read_text
from activities.workspaces.git.config import MAX_RULES
from activities.workspaces.git.effective_config import effective_config, unconditional_config
from activities.workspaces.git.repository import COMMIT
from activities.workspaces.git.runner import GitFailed
from activities.workspaces.git.shadow import Shadow
from activities.workspaces.git.trees import check_room, write_tree
from activities.workspaces.printable_text import printable

MAX_STATE = 256 * 1024 * 1024
"""What a snapshot says beside its files may have this many bytes."""
MAX_NAMES = 128 * 1024 * 1024
"""The names of all files may have this many bytes: what a git may print, where a snapshot is taken."""
MAX_REFS = 20_000
"""A repository with more branches and tags is not carried."""
MAX_REF_PART = 200
"""Bytes of a part of a branch's name: a file has it, and one with `.lock` behind it."""
BRANCHES = "refs/heads/"
_MERGED = re.compile(rb"\d+ [0-9a-f]+ 0\t")
_CONFIG = r"^(user\.(name|email)|core\.(autocrlf|eol|safecrlf|filemode|symlinks|ignorecase|precomposeunicode))$"
_FILTERS = r"^filter\."
_LFS_FILTERS = frozenset(["filter.lfs.clean", "filter.lfs.process"])
_LFS_ATTRIBUTE = re.compile(r"^[ \t]*[^#\s].*[ \t]filter=lfs(?:\s|$)", re.MULTILINE)

Object = Annotated[str, Field(pattern=rf"^(?:{COMMIT.pattern})$")]
Name = Annotated[str, Field(pattern=r"^refs/(?:heads|tags)/[^\x00-\x20\x7f~^:?*\[\\]+$", max_length=1000)]
Paths = Annotated[tuple[str, ...], Field(max_length=5_000_000)]


class NoSnapshot(Exception):
    """What should be a snapshot is none, or is not there. The message is a sentence."""


class SnapshotState(BaseModel):
    """What a snapshot says beside its files and its index. Paths are percent-encoded."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    steersman: Literal[1] = 1
    head: Annotated[str, Field(pattern=r"^refs/heads/[^\x00-\x20\x7f~^:?*\[\\]+$", max_length=1000)] | None = None
    """The branch that is checked out; None for none."""
    commit: Object | None = None
    """The commit that is checked out; None on a branch without one."""
    refs: Annotated[dict[Name, Object], Field(max_length=MAX_REFS)] = {}
    """Branches and tags."""
    others: Annotated[dict[str, Object], Field(max_length=MAX_REFS)] = {}
    """Other refs that a copy has, which are not carried: they are kept aside."""
    empty: Paths = ()
    """Directories without any entry, and in a copy those that had none."""
    private: Paths = ()
    """Files that nobody but their user may read."""
    include: Paths = ()
    """Files and directories that are carried although they are ignored."""


@dataclass(frozen=True)
class Snapshot:
    """`id`: the snapshot's commit. `files`: the commit of its files. `tree` and `index` are trees."""

    id: str
    files: str
    tree: str
    index: str
    state: SnapshotState
    unmerged: frozenset[bytes] = frozenset()
    """Paths that the index of the work tree has unmerged."""

    @property
    def tips(self) -> list[str]:
        """Objects with which everything of the snapshot can be had."""
        return [self.id, *sorted({*self.state.refs.values(), *self.state.others.values()})]

    @property
    def had(self) -> list[str]:
        """What is said to a pack of a side that has the snapshot. The trees too: git excludes of a commit only what it
        comes upon, and so would pack what is in no commit but the snapshot's own.
        """
        return [*self.tips, self.tree, self.index]


@dataclass(frozen=True)
class Known:
    """Objects that another side says it has: hostile text. `snapshots`: newest first. `tips`: branches, tags."""

    snapshots: list[str]
    tips: list[str]


async def take(shadow: Shadow, include: tuple[str, ...] = (), *, repository: bool) -> Snapshot:
    """Write a snapshot of the work tree. `repository`: it is the user's own; else all files count, and nothing is
    staged. `include`: as the state has it. Raises GitFailed.
    """
    tree = index = await write_tree(shadow, everything=not repository)
    _check_nested(shadow.nested)
    included: list[bytes] = []
    if include and repository:
        tree, included = await _with_included(shadow, tree, include)
    empty, private = await _beside_files(shadow, included, everything=not repository)
    state = SnapshotState(empty=empty, private=private, include=include)
    unmerged = frozenset[bytes]()
    if repository:
        refs = await _refs(shadow)
        head, commit = shadow.repository.branch(), shadow.repository.head()
        if head is not None and refs.get(head) != commit:
            raise GitFailed(f"{head}, which is checked out, is no branch of its own, or is being moved")
        state = state.model_copy(update={"refs": refs, "head": head, "commit": commit})
        index, unmerged = await _index(shadow)
    parent = ("-p", state.commit) if state.commit else ()
    files = await _commit(shadow, tree, *parent, message="files\n")
    parents = [word for each in (files, *await commits_of(shadow, state.refs.values())) for word in ("-p", each)]
    message = state.model_dump_json()
    if len(message) > MAX_STATE:
        raise GitFailed("the workspace has more branches, empty directories and private files than can be carried")
    snapshot = await _commit(shadow, index, *parents, message=message)
    return Snapshot(snapshot, files, tree, index, state, unmerged)


def _check_nested(paths: Iterable[bytes]) -> None:
    if nested := sorted(paths):
        shown = ", ".join(os.fsdecode(path) for path in nested[:5])
        raise GitFailed(f"a repository of its own lies in the workspace, which cannot be carried: {shown}")


async def _with_included(shadow: Shadow, tree: str, include: tuple[str, ...]) -> tuple[str, list[bytes]]:
    """The tree with what is ignored in these places, and the paths that it has beyond."""
    found = (await shadow.git.run("ls-files", "-z", "-o", "--", *map(as_bytes, include))).split(b"\0")[:-1]
    _check_nested(path.rstrip(b"/") for path in found if path.endswith(b"/"))
    if not found:
        return tree, found
    check_room(shadow, await asyncio.to_thread(_size, os.fsencode(shadow.repository.top), found))
    scratch = shadow.path / "included"
    try:
        await asyncio.to_thread(shutil.copy2, shadow.index, scratch)
        git = shadow.with_variables(GIT_INDEX_FILE=str(scratch))
        listed = b"".join(path + b"\0" for path in found)
        await git.run("update-index", "-z", "--add", "--remove", "--stdin", stdin=listed)
        return (await git.run("write-tree")).decode().strip(), found
    finally:
        for path in (scratch, scratch.with_name("included.lock")):
            path.unlink(missing_ok=True)


def _size(top: bytes, paths: list[bytes]) -> int:
    size = 0
    for path in paths:
        with suppress(OSError):
            size += os.lstat(os.path.join(top, path)).st_size
    return size


async def read(shadow: Shadow, commit: str) -> Snapshot:
    """A snapshot that may be of hostile making. Raises NoSnapshot, GitFailed."""
    if not COMMIT.fullmatch(commit):
        raise NoSnapshot(f"{commit[:80]!r} is no snapshot")
    size = (await shadow.git.run("cat-file", "-s", commit)).strip()
    if int(size) > MAX_STATE:
        raise NoSnapshot(f"the snapshot says more than {MAX_STATE // 1024**2} MiB beside its files")
    head, _, message = (await shadow.git.run("cat-file", "commit", commit)).partition(b"\n\n")
    lines = [line.split(b" ", 1) for line in head.split(b"\n")]
    index = next((line[1].decode("ascii", "replace") for line in lines if line[0] == b"tree"), "")
    parents = [line[1].decode("ascii", "replace") for line in lines if line[0] == b"parent"]
    try:
        state = SnapshotState.model_validate_json(message)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "too_long" and first["loc"][0] in ("refs", "others"):
            raise NoSnapshot(f"the copy has more branches, tags or other refs than {MAX_REFS:,}") from None
        raise NoSnapshot(f"the snapshot's message is none: {first['msg']}") from error
    if not parents:
        raise NoSnapshot("the snapshot has no files")
    files = parents[0]
    tree = (await shadow.git.run("rev-parse", "--verify", f"{files}^{{tree}}")).decode().strip()
    reachable = (await shadow.git.run("rev-list", "--no-walk", "--parents", files)).decode().split()[1:]
    if reachable != ([state.commit] if state.commit else []):
        raise NoSnapshot("the snapshot's files do not follow the commit that it names")
    return Snapshot(commit, files, tree, index, state)


async def check_refs(shadow: Shadow, state: SnapshotState) -> None:
    """Raises NoSnapshot where git would not take a branch or a tag: half of the merge would be done by then.

    Raises GitFailed.
    """
    taken = set(state.refs)
    for name in state.refs:
        parts = name.split("/")
        above = {"/".join(parts[:length]) for length in range(3, len(parts))}
        if ".." in name or "@{" in name or name.endswith(".") or above & taken or not all(map(_is_ref_part, parts)):
            raise NoSnapshot(f"the copy has a branch or a tag that no repository may have: {printable(name)[:200]}")
    if state.head is not None and state.refs.get(state.head) != state.commit:
        raise NoSnapshot(f"the copy has {printable(state.head)[:200]} checked out, which is at another commit")
    if state.head is None and state.commit is None:
        raise NoSnapshot("the copy has neither a branch nor a commit checked out")
    named = [*state.refs.items(), *state.others.items()]
    asked = "".join(f"{value}\n" for _, value in named).encode()
    kinds = (await shadow.git.run("cat-file", "--batch-check=%(objecttype)", stdin=asked)).decode().splitlines()
    for (name, value), kind in zip(named, kinds, strict=True):
        if kind not in ("commit", "tag", "tree", "blob") or (name.startswith(BRANCHES) and kind != "commit"):
            raise NoSnapshot(f"{printable(name)[:200]} of the copy is at {value}, which is no commit, or is not there")


def _is_ref_part(part: str) -> bool:
    return 0 < len(part.encode()) <= MAX_REF_PART and not part.startswith(".") and not part.endswith(".lock")


async def check_unfolded(shadow: Shadow, tree: str) -> None:
    """Raises NoSnapshot for a tree, or a commit's, that is small but has more files than any workspace: git would take
    all memory over it. Raises GitFailed.
    """
    listed = await shadow.git.read("ls-tree", "-r", "-z", "--name-only", tree, limit=MAX_NAMES)
    if listed.cut:
        raise NoSnapshot(f"the names of the copy's files take more than {MAX_NAMES // 1024**2} MiB")


async def pack(shadow: Shadow, tips: Iterable[str], have: Iterable[str], path: Path) -> int:
    """Write what a side lacks of `tips` that has these objects, as a pack; its size in bytes. Raises GitFailed,
    OSError.
    """
    wanted = "".join(f"{each}\n" for each in (*tips, *(f"^{each}" for each in have)))
    await shadow.git.to_file(
        path, "pack-objects", "--revs", "--stdout", "--thin", "--delta-base-offset", "-q", stdin=wanted.encode()
    )
    return (await asyncio.to_thread(path.stat)).st_size


async def had_here(shadow: Shadow, known: Known) -> list[str]:
    """Of what another side says that it has, which may be hostile, what is here too: as `Snapshot.had`.

    Raises GitFailed.
    """
    trees = [f"{each}{tree}" for each in known.snapshots if COMMIT.fullmatch(each) for tree in ("^{tree}", "^1^{tree}")]
    tips = [each for each in (*known.snapshots, *known.tips) if COMMIT.fullmatch(each)]
    found: dict[str, None] = {}
    for asked, kinds in ((tips, ("commit", "tag")), (trees, ("tree",))):
        stdin = "".join(f"{each}\n" for each in asked).encode()
        answers = await shadow.git.run("cat-file", "--batch-check=%(objecttype) %(objectname)", stdin=stdin)
        lines = (line.split(" ") for line in answers.decode().splitlines())
        found |= dict.fromkeys(line[1] for line in lines if line[0] in kinds)
    return list(found)


async def excludes(shadow: Shadow) -> str:
    """The ignore rules of the user and of the repository that are in no file of the work tree."""
    texts = []
    for path in (Path(shadow.excludes_file), shadow.path / "info" / "exclude"):
        try:
            texts.append((await asyncio.to_thread(read_regular, path, MAX_STATE)).decode("utf-8", "surrogateescape"))
        except OSError:
            continue
    return "\n".join(texts)


async def _commit(shadow: Shadow, tree: str, *parents: str, message: str) -> str:
    return (await shadow.git.run("commit-tree", *parents, "-F", "-", tree, stdin=message.encode())).decode().strip()


async def commits_of(shadow: Shadow, objects: Iterable[str]) -> list[str]:
    """The commits among these, or to which tags among these lead. Raises GitFailed."""
    asked = "".join(f"{each}^{{commit}}\n" for each in sorted(set(objects))).encode()
    answers = (await shadow.git.run("cat-file", "--batch-check=%(objectname) %(objecttype)", stdin=asked)).decode()
    return sorted({line.split(" ")[0] for line in answers.split("\n") if line.endswith(" commit")})


async def _refs(shadow: Shadow) -> dict[str, str]:
    form = "--format=%(objectname) %(refname) %(symref)"
    output = await shadow.git.run("for-each-ref", form, "refs/heads", "refs/tags")
    refs = {}
    try:
        lines = output.decode().split("\n")[:-1]
    except UnicodeDecodeError:
        raise GitFailed("a branch or a tag has a name that is no UTF-8") from None
    for line in lines:
        value, name, symbolic = line.split(" ", 2)
        if not symbolic:
            refs[name] = value
    if len(refs) > MAX_REFS:
        raise GitFailed(f"the repository has {len(refs):,} branches and tags; {MAX_REFS:,} can be carried")
    await _check_objects(shadow, refs)
    return refs


async def _check_objects(shadow: Shadow, refs: Mapping[str, str]) -> None:
    """What a ref without its object keeps from being packed must not be found out when the work is done."""
    asked = "".join(f"{each}\n" for each in sorted(set(refs.values()))).encode()
    answers = (await shadow.git.run("cat-file", "--batch-check=%(objectname)", stdin=asked)).decode()
    missing = {line.split(" ")[0] for line in answers.split("\n") if line.endswith(" missing")}
    if named := [name for name, value in refs.items() if value in missing]:
        raise GitFailed(f"{named[0]} names an object that is not there: delete it, or bring the object back")


async def _index(shadow: Shadow) -> tuple[str, frozenset[bytes]]:
    """The tree of the user's index, and the paths that are not merged there: of those our side counts."""
    index, own, scratch = shadow.repository.index, shadow.path / "own", shadow.path / "staged"
    for path in (own, scratch):
        path.unlink(missing_ok=True)
    git = shadow.with_variables(GIT_INDEX_FILE=str(scratch))
    try:
        if await asyncio.to_thread(_is_file, index):
            await asyncio.to_thread(shutil.copy2, index, own)
            users = shadow.with_variables(GIT_INDEX_FILE=str(own))
            lines = (await users.run("ls-files", "-s", "-z")).split(b"\0")[:-1]
            unmerged = frozenset(line.split(b"\t", 1)[1] for line in lines if not _MERGED.match(line))
            if not unmerged:
                return (await users.run("write-tree")).decode().strip(), unmerged
            entries = staged_entries(lines)
            await git.run("update-index", "-z", "--index-info", stdin=b"".join(line + b"\0" for line in entries))
            return (await git.run("write-tree")).decode().strip(), unmerged
        return (await git.run("write-tree")).decode().strip(), frozenset()
    finally:
        for path in (own, scratch):
            path.unlink(missing_ok=True)


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


async def check_carriable(shadow: Shadow) -> None:
    """Raises GitFailed for a repository of which a copy would be another one, so that commits made there are wrong."""
    repository = shadow.repository
    if await asyncio.to_thread((repository.common / "shallow").exists):
        raise GitFailed("the repository is a shallow clone, which cannot be carried: git fetch --unshallow")
    if await asyncio.to_thread(_is_file, repository.index):
        users = shadow.with_variables(GIT_INDEX_FILE=str(repository.index))
        listed = (await users.run("ls-files", "-t", "-z")).split(b"\0")
        if left_out := [os.fsdecode(line[2:]) for line in listed if line.startswith(b"S ")]:
            more = f" and {len(left_out) - 5:,} more" if len(left_out) > 5 else ""
            raise GitFailed(
                "the work tree is a sparse checkout, or has files with the skip-worktree bit, which cannot be carried: "
                f"{printable(', '.join(left_out[:5]), 500)}{more}; `git sparse-checkout disable` takes all back, "
                "`git update-index --no-skip-worktree FILE` one"
            )
    filters = await effective_config(repository, shadow.user_git, _FILTERS)
    everywhere = await unconditional_config(shadow.user_git, _FILTERS)
    if any(everywhere.get(name) != value for name, value in filters.items()):
        raise GitFailed(
            "the repository has filters that a copy would not have: in its own configuration, in what that includes, "
            "or by an includeIf; which cannot be carried: configure them globally"
        )
    if not filters.keys().isdisjoint(_LFS_FILTERS) and await _has_lfs_files(shadow):
        raise GitFailed(
            "the repository keeps files with Git LFS (filter=lfs in its attributes), which cannot be carried: contents "
            "that are committed in a copy would be lost with it; run in the workspace itself, or in a worktree"
        )


async def _has_lfs_files(shadow: Shadow) -> bool:
    """Whether attributes of the work tree or the repository say that files are kept with Git LFS."""
    if _LFS_ATTRIBUTE.search(await attributes(shadow)):
        return True
    variables = {"GIT_LITERAL_PATHSPECS": "0"}
    if await asyncio.to_thread(_is_file, shadow.repository.index):
        variables["GIT_INDEX_FILE"] = str(shadow.repository.index)
    listing = shadow.with_excludes("ls-files", "-z", "-c", "-o", "--exclude-standard", "--", ":(glob)**/.gitattributes")
    listed = (await shadow.with_variables(None, **variables).run(*listing)).split(b"\0")[:-1]
    return await asyncio.to_thread(_any_has_lfs, shadow.repository.top, set(listed))


def _any_has_lfs(top: Path, paths: Iterable[bytes]) -> bool:
    for path in paths:
        with suppress(Unreadable):
            if _LFS_ATTRIBUTE.search(read_text(top, os.fsdecode(path))):
                return True
    return False


async def config(shadow: Shadow) -> dict[str, str]:
    """What a copy has of the configuration that holds in the work tree: who commits, and how files are compared."""
    found = await effective_config(shadow.repository, shadow.user_git, _CONFIG)
    return {key: value for key, value in found.items() if value and value.isprintable()}


async def attributes(shadow: Shadow) -> str:
    """The repository's attributes that are in no file of the work tree."""
    with suppress(OSError):
        path = shadow.repository.common / "info" / "attributes"
        return (await asyncio.to_thread(read_regular, path, MAX_RULES)).decode("utf-8", "surrogateescape")
    return ""


async def _beside_files(
    shadow: Shadow, included: list[bytes], *, everything: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Directories without an entry, and files that nobody but their user may read."""
    listing = ("ls-files", "-z", "-o", "--directory")
    command = listing if everything else shadow.with_excludes(*listing, "--exclude-standard")
    untracked = (await shadow.git.run(*command)).split(b"\0")[:-1]
    files = (await shadow.git.run("ls-files", "-z")).split(b"\0")[:-1] + included
    return await asyncio.to_thread(_look_beside, os.fsencode(shadow.repository.top), untracked, files)


def _look_beside(top: bytes, untracked: list[bytes], files: list[bytes]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    empty = empty_directories(top, [path.rstrip(b"/") for path in untracked if path.endswith(b"/")])
    private = []
    for path in files:
        try:
            mode = os.lstat(os.path.join(top, path)).st_mode
        except OSError:
            continue
        if stat.S_ISREG(mode) and not mode & 0o077:
            private.append(as_text(path))
    return tuple(sorted(map(as_text, empty))), tuple(sorted(private))  # as the copy says them
