"""A workspace is carried to a copy, and what became of the copy is merged into the workspace.

What is carried is in `snapshots`, what a merge decides in `merge`, how the user's work tree is written in `work_tree`.
Which runs work in which copies must not live here.
"""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from activities.workspaces.carry import merge, snapshots, work_tree
from activities.workspaces.carry.copies import CopyFailed, WorkspaceCopy
from activities.workspaces.carry.copy_program import as_bytes, as_text
from activities.workspaces.carry.snapshots import Snapshot
from activities.workspaces.files import read_regular
from activities.workspaces.git import checkpoint_commits as commits
from activities.workspaces.git.config import MAX_CONFIG
from activities.workspaces.git.repository import COMMIT, Repository
from activities.workspaces.git.runner import GitFailed, gather_or_cancel
from activities.workspaces.git.shadow import Shadow
from activities.workspaces.git.shadows import NoRepository, Shadows
from activities.workspaces.put_back import Replacement, put_back

TRIES = 5
"""A merge begins anew this many times where the user has changed something meanwhile."""
MAX_PACK = "17179869184"
"""Bytes of what is taken from a copy, for git's own count."""
_ZEROS = {"sha1": 40, "sha256": 64}


@dataclass(frozen=True)
class Carried:
    """What was carried out: `snapshot` is the base of the merge. `top`: the work tree's, `repository`: it is git's own.

    `files`: the commit of the files. `directory`: the workspace in the copy, on its machine.
    """

    top: Path
    repository: bool
    snapshot: str
    files: str
    directory: str


@dataclass
class Returned:
    """What was carried back. `commit`: what is checked out now. `files`: the commit of the copy's files.

    `conflicts`: paths that stay as they were, sorted. `kept`: the ref, or the directory, that has the copy's version.
    """

    changed: bool
    files: str
    commit: str | None = None
    conflicts: list[bytes] = field(default_factory=list)
    kept: str | None = None


@dataclass(frozen=True)
class RefNames:
    """Where a run's commits are kept in the repository: `prefix` of our own, `conflicts` for the user."""

    prefix: str
    conflicts: str

    def __post_init__(self) -> None:
        assert self.prefix.startswith(commits.REFS)

    @property
    def base(self) -> str:
        return f"{self.prefix}carried"

    @property
    def ours(self) -> str:
        """The workspace as it was before the copy was carried back."""
        return f"{self.prefix}before-return"

    @property
    def theirs(self) -> str:
        return f"{self.prefix}returned"


class WorkspaceCarrier:
    """`state`: the directory of the git directories for workspaces. Each method raises GitFailed, OSError."""

    def __init__(self, shadows: Shadows, state: Path) -> None:
        self._shadows, self._state = shadows, state

    async def carry_out(self, workspace: Path, copy: WorkspaceCopy, names: RefNames, *, borrow: bool) -> Carried:
        """Make a copy of the workspace. `borrow`: the copy is on this machine, and need not have what is here.

        Twice is once: the copy that is there stays. Raises CopyFailed, MachineUnreachable.
        """
        async with self._opened(workspace) as (shadow, repository):
            known = await _commit_of(shadow, names.base)
            if known:
                snapshot = await snapshots.read(shadow, known)
            else:
                snapshot = await snapshots.take(shadow, repository=repository)
                await commits.keep(shadow, names.base, snapshot.id)
            objects = str(shadow.repository.objects)
            within = as_text(os.fsencode(workspace.relative_to(shadow.repository.top)))
            header = {
                "within": within,
                "name": _name(shadow.repository.top),
                "repository": repository,
                "format": "sha256" if len(snapshot.id) == _ZEROS["sha256"] else "sha1",
                "snapshot": snapshot.id,
                "files": snapshot.tree,
                "index": snapshot.index,
                "head": snapshot.state.head,
                "commit": snapshot.state.commit,
                "refs": snapshot.state.refs,
                "empty": snapshot.state.empty,
                "private": snapshot.state.private,
                "excludes": await snapshots.excludes(shadow) if repository else "",
                "user": await _user(shadow) if repository else {},
                "borrow": [objects] if borrow else [],
            }
            with tempfile.TemporaryDirectory(dir=shadow.path.parent) as scratch:
                pack = Path(scratch) / "pack"
                header["size"] = 0 if borrow else await snapshots.pack(shadow, snapshot, [], pack)
                directory = await copy.receive(header, None if borrow else pack)
            return Carried(shadow.repository.top, repository, snapshot.id, snapshot.files, directory)

    async def carry_back(
        self, carried: Carried, copy: WorkspaceCopy, names: RefNames, title: str, kept: Path
    ) -> Returned:
        """Merge what became of the copy into the workspace. `kept`: a directory for what cannot be, where there is no
        repository. Twice is once.

        Raises CopyFailed, MachineUnreachable, snapshots.NoSnapshot.
        """
        async with self._opened(carried.top) as (shadow, repository):
            if repository != carried.repository or shadow.repository.top != carried.top:
                raise GitFailed(f"{carried.top} is not the git repository that was carried, or none any more")
            base = await snapshots.read(shadow, carried.snapshot)
            theirs = await self._fetch(shadow, base, copy, names, repository=repository)
            back = _CarryBack(shadow, base, theirs, names, title, kept, repository=repository)
            return await back.run()

    async def forget(self, top: Path, names: RefNames) -> None:
        """Remove what was kept of a run, but for its conflicts. Raises NoRepository."""
        async with self._opened(top) as (shadow, _):
            await commits.delete_refs(shadow, [names.base, names.ours, names.theirs])

    async def _fetch(
        self, shadow: Shadow, base: Snapshot, copy: WorkspaceCopy, names: RefNames, *, repository: bool
    ) -> Snapshot:
        with tempfile.TemporaryDirectory(dir=shadow.path.parent) as scratch:
            pack = Path(scratch) / "pack"
            snapshot = await copy.send({"have": base.tips, "repository": repository}, pack)
            if not COMMIT.fullmatch(snapshot):
                raise CopyFailed("the copy's answer names no snapshot")
            # Strict: each object is looked at, and what it names has to be there.
            await shadow.git.run(
                "index-pack", "--stdin", "--fix-thin", "--strict", f"--max-input-size={MAX_PACK}", stdin=pack
            )
        theirs = await snapshots.read(shadow, snapshot)
        await commits.keep(shadow, names.theirs, theirs.id)
        return theirs

    @asynccontextmanager
    async def _opened(self, workspace: Path) -> AsyncIterator[tuple[Shadow, bool]]:
        """The shadow of the workspace, and whether its repository is the user's."""
        try:
            found, own = await asyncio.to_thread(self._shadows.repository, workspace), False
        except NoRepository:
            found, own = await self._own_repository(workspace), True
        directory = self._directory(found.top)
        async with self._shadows.open_repository(directory, found) as shadow:
            yield shadow, not own

    async def _own_repository(self, workspace: Path) -> Repository:
        """A repository of ours for files that are in none."""
        git = self._directory(workspace) / "own"
        for name in ("objects/info", "objects/pack", "refs", "info"):
            (git / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (git / "HEAD").exists():
            (git / "HEAD").write_text("ref: refs/heads/none\n")
        return Repository(workspace, git, git, self._shadows.allowed_roots)

    def _directory(self, top: Path) -> Path:
        path = self._state / f"{commits.hashed(os.fsencode(top))}-carry"
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.utime(path)
        return path


@dataclass(frozen=True)
class _Plan:
    """`files` and `index`: what is to be done. `head`: the branch and the commit to check out; None: as they are.

    `aside`: nothing of files, index and HEAD can be merged, for this reason.
    """

    files: merge.Merge
    index: merge.Merge
    refs: Mapping[str, tuple[str | None, str]]
    kept_aside: Mapping[str, str]
    head: tuple[str | None, str] | None = None
    aside: bool = False


class _CarryBack:
    """One merge of a copy into its workspace, begun anew where the user has changed something meanwhile."""

    def __init__(
        self, shadow: Shadow, base: Snapshot, theirs: Snapshot, names: RefNames, title: str, kept: Path,
        *, repository: bool,
    ) -> None:  # fmt: skip
        self._shadow, self._base, self._theirs = shadow, base, theirs
        self._names, self._title, self._kept, self._repository = names, title, kept, repository

    async def run(self) -> Returned:
        base, theirs = self._base, self._theirs
        same = (base.tree, base.index, base.state) == (theirs.tree, theirs.index, theirs.state)
        if same:
            return Returned(changed=False, files=theirs.files, commit=self._shadow.repository.head())
        # Before anything is written, so that a crash leaves nothing that could be lost.
        await commits.keep(self._shadow, self._names.conflicts, theirs.files)
        for left in reversed(range(TRIES)):
            try:
                return await self._merge()
            except work_tree.Moved as moved:
                if not left:
                    raise GitFailed(str(moved)) from moved
        raise AssertionError

    async def _merge(self) -> Returned:
        if not self._repository:
            return await self._carry_out(await self._planned())
        async with work_tree.index_lock(self._shadow.repository):
            return await self._carry_out(await self._planned())

    async def _planned(self) -> _Plan:
        shadow, base, theirs = self._shadow, self._base, self._theirs
        ours = await snapshots.take(shadow, repository=self._repository)
        await commits.keep(shadow, self._names.ours, ours.id)
        self._ours = ours
        if not self._repository:
            files = await self._merged(base.tree, ours.tree, theirs.tree, None)
            return _Plan(files, merge.Merge(), {}, {})
        refs = merge.merged_refs(base.state.refs, ours.state.refs, theirs.state.refs)
        due, aside = dict(refs.due), dict(refs.kept_aside)
        joined: dict[str, str] = {}
        for name, (mine, other) in refs.diverged.items():
            both = await self._joined(mine, other, name)
            if both is None:
                aside[name] = other
                continue
            joined[name] = both
            if both != mine:
                due[name] = (mine, both)
        elsewhere = await asyncio.to_thread(work_tree.checked_out_elsewhere, shadow.repository)
        for name in due.keys() & elsewhere:
            aside[name] = due.pop(name)[1]
        head, both, is_aside = await self._head(ours, joined, aside)
        if is_aside:
            due.pop(ours.state.head or "", None)
            whole = await commits.differences(shadow, base.tree, theirs.tree)
            staged = await commits.differences(shadow, base.index, theirs.index)
            conflicts = merge.Merge(conflicts={*whole, *staged})
            return _Plan(conflicts, merge.Merge(), due, aside, aside=True)
        files, index = await gather_or_cancel(
            self._merged(base.tree, ours.tree, theirs.tree, both),
            self._merged(base.index, ours.index, theirs.index, both),
        )
        return _Plan(files, index, due, aside, head)

    async def _head(
        self, ours: Snapshot, joined: Mapping[str, str], aside: Mapping[str, str]
    ) -> tuple[tuple[str | None, str] | None, str | None, bool]:
        """What to check out, the commit that has both sides' where both have committed, and whether neither can be."""
        base, mine, other = self._base.state, ours.state, self._theirs.state
        was, now, then = (base.head, base.commit), (mine.head, mine.commit), (other.head, other.commit)
        if then in (was, now) or other.commit is None:
            return None, other.commit if then == now and then != was else None, False
        if now == was:
            taken = other.head in aside or other.head in await asyncio.to_thread(
                work_tree.checked_out_elsewhere, self._shadow.repository
            )
            return (None, None, True) if taken else ((other.head, other.commit), None, False)
        if mine.head != other.head or mine.commit is None:
            return None, None, True
        if mine.head is not None:
            both = joined.get(mine.head)
        else:
            both = await self._joined(mine.commit, other.commit, "HEAD")
        return ((mine.head, both), both, False) if both else (None, None, True)

    async def _merged(self, base: str, ours: str, theirs: str, both: str | None) -> merge.Merge:
        """The merge of these trees. `both`: the commit that has both sides' commits."""
        shadow = self._shadow
        trees = [ours, theirs]
        if both:
            trees += [f"{each}^{{tree}}" for each in (self._ours.state.commit, self._theirs.state.commit, both)]
        found = await gather_or_cancel(*(commits.differences(shadow, base, each) for each in trees))
        merged = merge.merged(found[0], found[1], merge.Commits(*found[2:]) if both else None)
        unsafe = [path for path in (*merged.due, *merged.conflicts) if not work_tree.is_safe(path)]
        if unsafe:
            raise snapshots.NoSnapshot(f"the copy has a path that no work tree may have: {unsafe[0][:200]!r}")
        return merged

    async def _joined(self, mine: str, other: str, name: str) -> str | None:
        """A commit that has both: one of them, or a merge; None where they cannot be merged."""
        git = self._shadow.git
        if mine == other or await self._is_ancestor(other, mine):
            return mine
        if await self._is_ancestor(mine, other):
            return other
        try:
            output = await git.run("merge-tree", "--write-tree", "--no-messages", "-z", mine, other, ok_codes=(0, 1))
            tree, _, conflicts = output.partition(b"\0")
        except GitFailed:  # a git before 2.38
            return None
        if conflicts.strip(b"\0"):
            return None
        when = (await git.run("log", "-1", "--format=%ct", self._theirs.id)).decode().strip()
        dated = self._shadow.with_variables(GIT_AUTHOR_DATE=f"{when} +0000", GIT_COMMITTER_DATE=f"{when} +0000")
        message = f"Merge {name.removeprefix(snapshots.BRANCHES)} of {self._title}\n".encode()
        made = await dated.run("commit-tree", "-p", mine, "-p", other, "-F", "-", tree.decode(), stdin=message)
        return made.decode().strip()

    async def _is_ancestor(self, older: str, newer: str) -> bool:
        # By what it prints: an exit code of 1 would also be that of an error.
        return not await self._shadow.git.run("rev-list", "-n", "1", older, f"^{newer}")

    async def _carry_out(self, plan: _Plan) -> Returned:
        shadow, ours = self._shadow, self._ours
        repository, why = shadow.repository, f"steersman: carried back from {self._title}"
        conflicts = plan.files.conflicts | plan.index.conflicts
        if plan.aside:
            await self._set_refs(plan, why)
            return await self._returned(conflicts, plan.kept_aside)
        before, after = set(self._base.state.empty), set(self._theirs.state.empty)
        await asyncio.to_thread(work_tree.remove_empty, repository.top, before - after)  # a file may come in its place
        # What a person has staged and theirs has changed, too, stays on the disk as well.
        conflicts |= await self._write_files(
            {path: each for path, each in plan.files.due.items() if path not in plan.index.conflicts}
        )
        await asyncio.to_thread(work_tree.make_empty, repository.top, after - before)
        if self._repository:
            await work_tree.write_index(shadow, plan.index.due)
            await self._set_refs(plan, why)
        if plan.head:
            was = (ours.state.head, ours.state.commit)
            if plan.head[0] != ours.state.head or plan.head[0] is None:
                await asyncio.to_thread(work_tree.set_head, repository, was, plan.head, why)
            elif plan.head[1] != ours.state.commit:
                work_tree.log_head(repository, ours.state.commit, plan.head[1], why)
        return await self._returned(conflicts, plan.kept_aside)

    async def _set_refs(self, plan: _Plan, why: str) -> None:
        for name, (was, value) in sorted(plan.refs.items()):
            await work_tree.set_ref(self._shadow, name, was, value, why)

    async def _write_files(self, due: Mapping[bytes, Replacement]) -> set[bytes]:
        """Write them, and return the paths that were left as they are."""
        nested = {path for path, each in due.items() if commits.is_nested(each.now) or commits.is_nested(each.wanted)}
        due = {path: each for path, each in due.items() if path not in nested}
        private = frozenset(map(as_bytes, self._theirs.state.private))
        with tempfile.TemporaryDirectory(dir=self._shadow.path.parent) as scratch:
            wanted = {path: each.wanted for path, each in due.items() if each.wanted}
            staged = await commits.stage(self._shadow, wanted, Path(scratch))
            out = await asyncio.to_thread(work_tree.links_out, due, staged)
            due = {path: each for path, each in due.items() if path not in out}
            left = await asyncio.to_thread(put_back, self._shadow.repository.top, due, staged, private)
        return nested | out | left

    async def _returned(self, conflicts: set[bytes], kept_aside: Mapping[str, str]) -> Returned:
        shadow, theirs, name = self._shadow, self._theirs, self._names.conflicts
        commit = shadow.repository.head() if self._repository else None
        returned = Returned(changed=True, files=theirs.files, commit=commit, conflicts=sorted(conflicts))
        if not conflicts and not kept_aside:
            await commits.delete_refs(shadow, [name])
            return returned
        if not self._repository:
            await commits.delete_refs(shadow, [name])
            returned.kept = str(self._kept)
            await self._export(conflicts)
            return returned
        if kept_aside:
            parents = [word for each in (theirs.files, *sorted(set(kept_aside.values()))) for word in ("-p", each)]
            message = "".join(f"{ref} {value}\n" for ref, value in sorted(kept_aside.items())).encode()
            made = await shadow.git.run("commit-tree", *parents, "-F", "-", theirs.tree, stdin=message)
            await commits.keep(shadow, name, made.decode().strip())
        returned.kept = name
        return returned

    async def _export(self, conflicts: set[bytes]) -> None:
        """Write the copy's versions into a directory of ours."""
        theirs = await commits.differences(self._shadow, self._base.tree, self._theirs.tree)
        wanted = {path: each.now for path, each in theirs.items() if path in conflicts and each.now}
        self._kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._shadow.path.parent) as scratch:
            staged = await commits.stage(self._shadow, wanted, Path(scratch))
            due = {path: Replacement(now=None, wanted=each) for path, each in wanted.items()}
            await asyncio.to_thread(put_back, self._kept, due, staged)


async def _commit_of(shadow: Shadow, name: str) -> str | None:
    """The commit that a ref of ours names; None where there is none."""
    with suppress(GitFailed):
        return (await shadow.git.run("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")).decode().strip()
    return None


async def _user(shadow: Shadow) -> dict[str, str]:
    """Who commits, where the repository itself says so."""
    path = shadow.repository.common / "config"
    found = {}
    with suppress(OSError, GitFailed):
        text = await asyncio.to_thread(read_regular, path, MAX_CONFIG)
        command = ("config", "--file", "-", "--no-includes", "-z", "--get-regexp", r"^user\.(name|email)$")
        output = await shadow.git.run(*command, stdin=text, ok_codes=(0, 1))
        for line in output.decode("utf-8", "replace").split("\0"):
            key, _, value = line.partition("\n")
            if value and value.isprintable():
                found[key.removeprefix("user.")] = value
    return found


def _name(top: Path) -> str:
    """The name of the copy's directory: tools show it, and some go by it."""
    try:
        top.name.encode()
    except UnicodeEncodeError:
        return "workspace"
    return top.name or "workspace"
