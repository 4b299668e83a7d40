"""A workspace is carried to a copy, and what became of the copy is merged into the workspace.

What is carried is in `snapshots`, what a merge decides in `merge`, how the user's work tree is written in `work_tree`.
Which runs work in which copies must not live here.
"""

import asyncio
import hashlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from activities.store.scratch import scratch_directory
from activities.workspaces.carry import merge, snapshots, work_tree
from activities.workspaces.carry.copies import CopyLacks, WorkspaceCopy
from activities.workspaces.carry.copy_program import STASHES, as_bytes, as_text
from activities.workspaces.carry.incoming import move_packs, received
from activities.workspaces.carry.snapshots import Snapshot, SnapshotState
from activities.workspaces.git import checkpoint_commits as commits
from activities.workspaces.git.file_modes import NOBODY_ELSE
from activities.workspaces.git.repository import Repository
from activities.workspaces.git.runner import GitFailed, gather_or_cancel
from activities.workspaces.git.shadow import Shadow
from activities.workspaces.git.shadows import NoRepository, Shadows
from activities.workspaces.put_back import Replacement, limit_permissions, put_back, temporary_name

_SCRATCH = "pack-"
"""How directories of packs begin that are on their way."""
_COLLECT = (
    *("-c", "gc.auto=6700", "-c", "gc.autoPackLimit=20", "-c", "gc.autoDetach=false", "-c", "gc.packRefs=false"),
    *("gc", "--auto", "--quiet"),
)
"""git's own collection, where it is due by git's count. What nothing leads to stays for git's two weeks: a copy may
have it from here. Refs stay as they are: behind a link.
"""
_COLLECT_S = 86400.0
"""It is looked whether that is due once in so many seconds."""
TRIES = 5
"""A merge begins anew this many times where the user has changed something meanwhile."""


class PartlyCarried(GitFailed):
    """A part of what became of the copy is in the workspace, and the rest could not be. The message says why."""


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
    """What was carried back. `commit`: what is checked out now. `files`: the commit of the copy's files. `before`: that
    of the files that were carried out, which says who may read them.

    `conflicts`: paths that stay as they were, sorted. `kept`: the ref, or the directory, that has the copy's version.
    """

    changed: bool
    before: str
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
    def run(self) -> str:
        """What tells the run from all others."""
        return hashlib.sha256(self.prefix.encode()).hexdigest()[:32]

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

    async def carry_out(
        self,
        workspace: Path,
        copy: WorkspaceCopy,
        names: RefNames,
        *,
        borrow: bool,
        refresh: bool = False,
        include: Iterable[str] = (),
    ) -> Carried:
        """Make a copy of the workspace. `borrow`: the copy is on this machine, and need not have what is here.
        `include`: what is ignored and carried all the same, relative to the workspace.

        Twice is once: the copy that is there stays. `refresh`: one of an earlier state of the workspace is made into
        this one; what is ignored there stays, all that was not carried back is lost. Where it cannot be, it is made
        anew. Raises CopyFailed, MachineUnreachable.
        """
        async with self.opened(workspace) as (shadow, repository):
            below = workspace.relative_to(shadow.repository.top)
            included = tuple(sorted({as_text(os.fsencode(below / each)) for each in include}))
            snapshot = await self._base(shadow, names, included, repository=repository)
            header = await copy_header(shadow, snapshot, workspace, names, repository=repository)
            header["borrow"] = [str(shadow.repository.objects)] if borrow else []
            top = shadow.repository.top
        carried = Carried(top, repository, snapshot.id, snapshot.files, directory="")
        # Others may go on meanwhile: the way may be long.
        header["refresh"] = refresh
        if borrow:
            directory = await _received(copy, header)
        else:
            directory = await self._sent(carried, snapshot, copy, header)
        return replace(carried, directory=directory)

    async def _sent(self, carried: Carried, snapshot: Snapshot, copy: WorkspaceCopy, header: dict[str, Any]) -> str:
        """Send what the copy's machine has not; the copy's directory there."""
        known = await copy.known(header["store"])
        async with self.opened_again(carried) as shadow:
            have = await snapshots.had_here(shadow, known)
        if have or header["refresh"]:
            with suppress(CopyLacks):
                return await self._sent_beyond(have, carried, snapshot, copy, header)
        return await self._sent_beyond([], carried, snapshot, copy, {**header, "refresh": False})

    async def _sent_beyond(
        self, have: list[str], carried: Carried, snapshot: Snapshot, copy: WorkspaceCopy, header: dict[str, Any]
    ) -> str:
        async with self._scratch() as directory:
            pack = directory / "pack"
            async with self.opened_again(carried) as shadow:
                size = await snapshots.pack(shadow, snapshot.tips, have, pack)
            return await copy.receive({**header, "have": have, "size": size}, pack)

    async def _base(self, shadow: Shadow, names: RefNames, include: tuple[str, ...], *, repository: bool) -> Snapshot:
        if known := await work_tree.commit_of(shadow, names.base):
            return await snapshots.read(shadow, known)
        if repository:
            await snapshots.check_carriable(shadow)
        snapshot = await snapshots.take(shadow, include, repository=repository)
        await commits.keep(shadow, names.base, snapshot.id)
        return snapshot

    async def carry_back(
        self, carried: Carried, copy: WorkspaceCopy, names: RefNames, title: str, kept: Path
    ) -> Returned:
        """Merge what became of the copy into the workspace. `kept`: a directory for what cannot be, where there is no
        repository. Twice is once.

        Raises PartlyCarried, CopyFailed, MachineUnreachable, snapshots.NoSnapshot.
        """
        async with self._scratch() as directory:
            pack = directory / "pack"
            async with self.opened_again(carried) as shadow:
                await _check_base(shadow, carried)
                base = await snapshots.read(shadow, carried.snapshot)
            # Others may go on meanwhile: the way may be long.
            snapshot = await copy.send(snapshot_header(base, carried, names), pack)
            async with self.opened_again(carried) as shadow:
                theirs = await self._taken(shadow, snapshot, pack, names, repository=carried.repository)
                return await _CarryBack(shadow, base, theirs, names, title, kept, repository=carried.repository).run()

    async def forget(self, top: Path, names: RefNames) -> None:
        """Remove what was kept of a run, but for its conflicts. Raises GitFailed."""
        async with self.opened(top) as (shadow, is_users):
            await commits.delete_refs(shadow, [names.base, names.ours, names.theirs])
            if not is_users and await asyncio.to_thread(_is_collected_now, shadow.repository.git / "collected"):
                await shadow.git.run(*_COLLECT)

    async def _taken(self, shadow: Shadow, snapshot: str, pack: Path, names: RefNames, *, repository: bool) -> Snapshot:
        objects = shadow.repository.objects
        # As git itself has what was pushed: none of the repository's until it is known to be good. The name is one that
        # `git gc` removes, and the same at each try, should we be killed.
        incoming = objects / f"tmp_objdir-{os.fsdecode(temporary_name(names.prefix)).lstrip('.')}"
        async with received(shadow, snapshot, pack, incoming, repository=repository) as (theirs, packs):
            await asyncio.to_thread(move_packs, packs, objects / "pack")
        await commits.keep(shadow, names.theirs, theirs.id)
        return theirs

    @asynccontextmanager
    async def opened_again(self, carried: Carried) -> AsyncIterator[Shadow]:
        """The shadow of the workspace that was carried. Raises GitFailed where it is another one by now."""
        async with self.opened(carried.top) as (shadow, repository):
            if repository != carried.repository or shadow.repository.top != carried.top:
                raise GitFailed(f"{carried.top} is not the git repository that was carried, or none any more")
            yield shadow

    def _scratch(self) -> AbstractAsyncContextManager[Path]:
        """A directory for a pack on its way."""
        self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
        return scratch_directory(self._state, _SCRATCH)

    @asynccontextmanager
    async def opened(self, workspace: Path) -> AsyncIterator[tuple[Shadow, bool]]:
        """The shadow of the workspace, and whether its repository is the user's. Raises GitFailed."""
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


async def _check_base(shadow: Shadow, carried: Carried) -> None:
    """Raises NoSnapshot where the repository is not the one any more that the copy was made of, GitFailed."""
    asked = carried.snapshot.encode() + b"\n"
    if (await shadow.git.run("cat-file", "--batch-check=%(objecttype)", stdin=asked)).strip() == b"commit":
        return
    raise snapshots.NoSnapshot(
        f"the repository of {carried.top} has no longer what the copy was made of ({carried.snapshot}): it is "
        "another clone by now, or an older backup. Bring that one back and try again, or take the files from "
        f"{carried.directory}"
    )


@dataclass(frozen=True)
class _RefPlan:
    """`due`: refs to move. `kept_aside`: theirs, which cannot be. `head`: the branch and the commit to check out; None:
    as they are. `both`: the commit that has both sides', where both have committed. `aside`: nothing of files, index
    and HEAD can be merged.
    """

    due: work_tree.Moves = field(default_factory=dict)
    kept_aside: Mapping[str, str] = field(default_factory=dict)
    head: tuple[str | None, str] | None = None
    both: str | None = None
    aside: bool = False

    def has_led(self, before: SnapshotState, now: SnapshotState) -> bool:
        """Whether all that has changed since is what this plan does: a worker was killed over it."""
        moved = {name: value for name, (_, value) in self.due.items()}
        names = before.refs.keys() | now.refs.keys()
        if any(now.refs.get(name) not in (before.refs.get(name), moved.get(name)) for name in names):
            return False
        steps = {before.head, self.head[0]} if self.head else {before.head}
        return now.head in steps and (now.head is not None or now.commit in (before.commit, self.head and self.head[1]))


@dataclass(frozen=True)
class _Plan:
    """What is to be done."""

    files: merge.Merge
    index: merge.Merge
    refs: _RefPlan


class _CarryBack:
    """One merge of a copy into its workspace, begun anew where the user has changed something meanwhile."""

    def __init__(
        self, shadow: Shadow, base: Snapshot, theirs: Snapshot, names: RefNames, title: str, kept: Path,
        *, repository: bool,
    ) -> None:  # fmt: skip
        self._shadow, self._base, self._theirs = shadow, base, theirs
        self._names, self._title, self._kept, self._repository = names, title, kept, repository
        self._before, self._has_written = base.files, False
        self._closed = frozenset(map(as_bytes, {*theirs.state.private} - {*base.state.private}))
        """What the run has closed to all but its user."""

    async def run(self) -> Returned:
        base, theirs = self._base, self._theirs
        closed = dict.fromkeys(map(as_bytes, base.state.private), NOBODY_ELSE)
        self._before = await commits.with_modes(self._shadow, base.files, closed)
        same = (base.tree, base.index, base.state) == (theirs.tree, theirs.index, theirs.state)
        if same:
            return Returned(False, self._before, theirs.files, self._shadow.repository.head())
        # Before anything is written, so that a crash leaves nothing that could be lost.
        await commits.keep(self._shadow, self._names.conflicts, theirs.files)
        try:
            return await self._tried()
        except (GitFailed, OSError) as error:
            if self._has_written:
                raise PartlyCarried(str(error)) from error
            raise

    async def _tried(self) -> Returned:
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
        ours = await snapshots.take(shadow, base.state.include, repository=self._repository)
        if not self._repository:
            await commits.keep(shadow, self._names.ours, ours.id)
            files = await self._merged(base.tree, ours.tree, theirs.tree, None, None)
            return _Plan(files, merge.Merge(), _RefPlan())
        self._state, refs = await self._ref_plan(ours)
        if refs.aside:
            whole = await commits.differences(shadow, base.tree, theirs.tree)
            staged = await commits.differences(shadow, base.index, theirs.index)
            return _Plan(merge.Merge(conflicts={*whole, *staged}), merge.Merge(), refs)
        mine = self._state.commit
        files, index = await gather_or_cancel(
            self._merged(base.tree, ours.tree, theirs.tree, mine, refs.both),
            self._merged(base.index, ours.index, theirs.index, mine, refs.both),
        )
        for path in ours.unmerged & index.due.keys():  # a person is about to decide that
            del index.due[path]
            index.conflicts.add(path)
        return _Plan(files, index, refs)

    async def _ref_plan(self, ours: Snapshot) -> tuple[SnapshotState, _RefPlan]:
        """What becomes of refs and HEAD, and of which state of ours: that of before a try that was killed."""
        if known := await work_tree.commit_of(self._shadow, self._names.ours):
            before = (await snapshots.read(self._shadow, known)).state
            plan = await self._refs(before)
            if plan.has_led(before, ours.state):
                return before, plan
        await commits.keep(self._shadow, self._names.ours, ours.id)
        return ours.state, await self._refs(ours.state)

    async def _refs(self, ours: SnapshotState) -> _RefPlan:
        base, theirs, repository = self._base.state, self._theirs.state, self._shadow.repository
        symbolic = await asyncio.to_thread(work_tree.symbolic_refs, repository)
        refs = merge.merged_refs(base.refs, ours.refs, theirs.refs, symbolic)
        due, aside = dict(refs.due), {**refs.kept_aside, **theirs.others}
        joined: dict[str, str] = {}
        for name, (mine, other) in refs.diverged.items():
            both = await self._joined(mine, other, name)
            if both is None:
                aside[name] = other
                continue
            joined[name] = both
            if both != mine:
                due[name] = (mine, both)
        elsewhere = await work_tree.checked_out_elsewhere(self._shadow)
        for name in due.keys() & elsewhere:
            aside[name] = due.pop(name)[1]
        head, both, is_aside = await self._head(ours, joined, aside, elsewhere)
        moves = head is not None or (ours.head or "") in due
        is_aside = is_aside or (moves and await asyncio.to_thread(work_tree.in_progress, repository))
        if is_aside:
            if (moved := due.pop(ours.head or "", None)) is not None:
                aside[ours.head or ""] = theirs.refs.get(ours.head or "", moved[1])
            if theirs.commit is not None:
                aside["HEAD"] = theirs.commit
            return _RefPlan(due, aside, aside=True)
        return _RefPlan(due, aside, head, both)

    async def _head(
        self, mine: SnapshotState, joined: Mapping[str, str], aside: Mapping[str, str], elsewhere: set[str]
    ) -> tuple[tuple[str | None, str] | None, str | None, bool]:
        """What to check out, the commit that has both sides' where both have committed, and whether neither can be."""
        base, other = self._base.state, self._theirs.state
        was, now, then = (base.head, base.commit), (mine.head, mine.commit), (other.head, other.commit)
        if then in (was, now) or other.commit is None:
            return None, other.commit if then == now and then != was else None, False
        if now == was:
            taken = other.head in aside or other.head in elsewhere
            return (None, None, True) if taken else ((other.head, other.commit), None, False)
        if mine.head != other.head or mine.commit is None:
            return None, None, True
        if mine.head is not None:
            both = joined.get(mine.head)
        else:
            both = await self._joined(mine.commit, other.commit, "HEAD")
        return ((mine.head, both), both, False) if both else (None, None, True)

    async def _merged(self, base: str, ours: str, theirs: str, mine: str | None, both: str | None) -> merge.Merge:
        """The merge of these trees. `mine`: our commit, `both`: the one that has both sides'."""
        shadow = self._shadow
        trees = [ours, theirs]
        if both:
            trees += [f"{each}^{{tree}}" for each in (mine, self._theirs.state.commit, both)]
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
        await snapshots.check_unfolded(self._shadow, other)
        try:
            output = await git.run("merge-tree", "--write-tree", "--no-messages", "-z", mine, other, ok_codes=(0, 1))
            tree, _, conflicts = output.partition(b"\0")
        except GitFailed:  # a git before 2.38
            return None
        if conflicts.strip(b"\0"):
            return None
        # The same commit at each try: by a time that is ours, and does not change.
        when = (await git.run("log", "-1", "--format=%ct", self._base.id)).decode().strip()
        dated = self._shadow.with_variables(GIT_AUTHOR_DATE=f"{when} +0000", GIT_COMMITTER_DATE=f"{when} +0000")
        message = f"Merge {name.removeprefix(snapshots.BRANCHES)} of {self._title}\n".encode()
        made = await dated.run("commit-tree", "-p", mine, "-p", other, "-F", "-", tree.decode(), stdin=message)
        return made.decode().strip()

    async def _is_ancestor(self, older: str, newer: str) -> bool:
        # By what it prints: an exit code of 1 would also be that of an error.
        return not await self._shadow.git.run("rev-list", "-n", "1", older, f"^{newer}")

    async def _carry_out(self, plan: _Plan) -> Returned:
        shadow, refs = self._shadow, plan.refs
        repository, why = shadow.repository, f"steersman: carried back from {self._title}"
        conflicts = plan.files.conflicts | plan.index.conflicts
        if self._repository:
            await work_tree.wait_for_locks(repository, refs.due, head=self._moves_head(refs))
        if refs.aside:
            await self._set_refs(refs, why)
            return await self._returned(conflicts, refs.kept_aside)
        before, after = set(self._base.state.empty), set(self._theirs.state.empty)
        await asyncio.to_thread(work_tree.remove_empty, repository.top, before - after)  # a file may come in its place
        # What a person has staged and theirs has changed, too, stays on the disk as well.
        due = {path: each for path, each in plan.files.due.items() if path not in plan.index.conflicts}
        left = await self._write_files(due)
        self._has_written |= len(left) < len(due)
        conflicts |= left
        await asyncio.to_thread(work_tree.make_empty, repository.top, after - before)
        await self._close(plan.files.due.keys() | conflicts)
        if self._repository:
            await work_tree.write_index(shadow, plan.index.due, object_format(self._base))
            self._has_written |= bool(plan.index.due)
            await self._set_refs(refs, why)
        if refs.head:
            was = (self._state.head, self._state.commit)
            if self._moves_head(refs):
                await asyncio.to_thread(work_tree.set_head, repository, was, refs.head, why)
            elif refs.head[1] != was[1]:
                work_tree.log_head(repository, was[1], refs.head[1], why)
        return await self._returned(conflicts, refs.kept_aside)

    def _moves_head(self, plan: _RefPlan) -> bool:
        """Whether HEAD itself is to be written, and not the branch that it names alone."""
        return plan.head is not None and (plan.head[0] is None or plan.head[0] != self._state.head)

    async def _set_refs(self, plan: _RefPlan, why: str) -> None:
        self._has_written |= len(plan.due) > 1  # the first ones, where a later one fails
        await work_tree.set_refs(self._shadow, plan.due, why)
        self._has_written |= bool(plan.due)

    async def _write_files(self, due: Mapping[bytes, Replacement]) -> set[bytes]:
        """Write them, and return the paths that were left as they are."""
        nested = {path for path, each in due.items() if commits.is_nested(each.now) or commits.is_nested(each.wanted)}
        due = {path: each for path, each in due.items() if path not in nested}
        # What was closed to others all along is here as its user has it by now.
        private = {path for path in map(as_bytes, self._theirs.state.private) if path in due and due[path].now is None}
        limits = dict.fromkeys(private | self._closed, NOBODY_ELSE)
        with tempfile.TemporaryDirectory(dir=self._shadow.path.parent) as scratch:
            wanted = {path: each.wanted for path, each in due.items() if each.wanted}
            staged = await commits.stage(self._shadow, wanted, Path(scratch))
            out = await asyncio.to_thread(work_tree.links_out, due, staged)
            due = {path: each for path, each in due.items() if path not in out}
            top = self._shadow.repository.top
            left = await put_back(top, due, staged, limits, temporary_name(self._names.prefix))
        return nested | out | left

    async def _close(self, seen: AbstractSet[bytes]) -> None:
        """Close the files to others that the run has closed and not changed otherwise. `seen`: paths that are done."""
        if not (asked := self._closed - seen):
            return
        listed = await self._shadow.git.run("ls-tree", "-r", "-z", "--name-only", self._theirs.tree)
        for path in asked & set(listed.split(b"\0")):  # a copy could name any file
            if work_tree.is_safe(path):
                await asyncio.to_thread(limit_permissions, self._shadow.repository.top, path, NOBODY_ELSE)

    async def _returned(self, conflicts: set[bytes], kept_aside: Mapping[str, str]) -> Returned:
        shadow, theirs, name = self._shadow, self._theirs, self._names.conflicts
        commit = shadow.repository.head() if self._repository else None
        returned = Returned(True, self._before, theirs.files, commit, sorted(conflicts))
        if not conflicts and not kept_aside:
            await commits.delete_refs(shadow, [name])
            return returned
        if not self._repository:
            await commits.delete_refs(shadow, [name])
            returned.kept = str(self._kept)
            await export(shadow, self._base, theirs, self._kept, conflicts)
            return returned
        if kept_aside:
            await keep_aside(shadow, theirs, kept_aside, name)
        returned.kept = name
        return returned


async def keep_aside(shadow: Shadow, theirs: Snapshot, refs: Mapping[str, str], name: str) -> None:
    """Keep the snapshot's files and what is at these refs of it under `name`, for the user. Raises GitFailed.

    Stashes, and what is no commit, have refs of their own as well: `name` with `+1`, `+2` and so on behind it.
    """
    aside = await snapshots.commits_of(shadow, refs.values())
    parents = [word for each in (theirs.files, *aside) for word in ("-p", each)]
    message = "".join(f"{ref} {value}\n" for ref, value in sorted(refs.items())).encode()
    made = await shadow.git.run("commit-tree", *parents, "-F", "-", theirs.tree, stdin=message)
    await commits.keep(shadow, name, made.decode().strip())
    stashes = [value for ref, value in refs.items() if ref == "refs/stash" or ref.startswith(STASHES)]
    tags = sorted(set(refs.values()) - set(aside))  # mostly
    for number, value in enumerate((*stashes, *tags), 1):
        await commits.keep(shadow, f"{name}+{number}", value)


async def export(
    shadow: Shadow, base: Snapshot, theirs: Snapshot, kept: Path, paths: AbstractSet[bytes] | None = None
) -> None:
    """Write the snapshot's versions of what has changed into a directory of ours. `paths`: of these alone.

    Raises GitFailed, OSError.
    """
    changed = await commits.differences(shadow, base.tree, theirs.tree)
    wanted = {path: each.now for path, each in changed.items() if each.now and (paths is None or path in paths)}
    await asyncio.to_thread(kept.mkdir, mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=shadow.path.parent) as scratch:
        staged = await commits.stage(shadow, wanted, Path(scratch))
        due = {path: Replacement(now=None, wanted=each) for path, each in wanted.items()}
        await put_back(kept, due, staged, {}, temporary_name(str(kept)))


def _is_collected_now(stamp: Path) -> bool:
    """Whether objects in a repository of ours are collected now, as nobody else ever would. Raises OSError."""
    with suppress(FileNotFoundError):
        if time.time() - stamp.lstat().st_mtime < _COLLECT_S:
            return False
    stamp.touch(mode=0o600)
    return True


def object_format(snapshot: Snapshot) -> str:
    """The hash by which the repository names objects."""
    return "sha256" if len(snapshot.id) == 64 else "sha1"


async def _received(copy: WorkspaceCopy, header: dict[str, Any]) -> str:
    """The directory of a copy on this machine."""
    if header["refresh"]:
        with suppress(CopyLacks):
            return await copy.receive(header, None)
    return await copy.receive({**header, "refresh": False}, None)


async def copy_header(
    shadow: Shadow, snapshot: Snapshot, workspace: Path, names: RefNames, *, repository: bool
) -> dict[str, Any]:
    """What the program of the place is told of a snapshot that a copy is to be made of."""
    top, state = shadow.repository.top, snapshot.state
    return {
        "run": names.run,
        "borrow": [],
        "store": commits.hashed(os.fsencode(top)),
        "have": [],
        "size": 0,
        "refresh": False,
        "within": as_text(os.fsencode(workspace.relative_to(top))),
        "name": _name(top),
        "repository": repository,
        "format": object_format(snapshot),
        "snapshot": snapshot.id,
        "files": snapshot.tree,
        "index": snapshot.index,
        "head": state.head,
        "commit": state.commit,
        "refs": state.refs,
        "empty": state.empty,
        "private": state.private,
        "excludes": await snapshots.excludes(shadow) if repository else "",
        "attributes": await snapshots.attributes(shadow) if repository else "",
        "config": await snapshots.config(shadow) if repository else {},
    }


def snapshot_header(base: Snapshot, carried: Carried, names: RefNames) -> dict[str, Any]:
    """What the program of the place is told of a snapshot that it is to take."""
    return {
        "run": names.run,
        "have": base.had,
        "repository": carried.repository,
        "format": object_format(base),
        "index": base.index,
        "empty": base.state.empty,
        "include": base.state.include,
    }


def _name(top: Path) -> str:
    """The name of the copy's directory: tools show it, and some go by it."""
    try:
        top.name.encode()
    except UnicodeEncodeError:
        return "workspace"
    return top.name or "workspace"
