"""Which run or loop has which workspace of this host, and who waits for it, in order: a file for each, beside the runs.

holds/<hash of its owner and key>.json    a run's or loop's hold: its owner, key, parent, workspace, place in the order

Two workspaces overlap where one is the other, or lies inside it; only paths count, all links followed. A file needs no
release: whether its run is open is asked by whoever finds it in the way (see activities/workspace_holds.py). Agents run
as the same user and may write here: a forged file can keep a workspace from others by a name, and is shown by
`steer workspaces`; a removed one lets another run in.
"""

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

from activities.store import disk
from activities.store.directory_lock import exclusively
from activities.store.ownership import Ownership
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.workspace_holder import HolderKind, OnOverlap, is_within, overlap

T = TypeVar("T")
Holder = tuple[str, str, str, str]
"""Cluster, namespace, run and execution."""

MAX_WAITING = 500
"""At most this many runs wait on a host: each has a slot of the host's queue, which stops need, too."""


@dataclass(frozen=True)
class Hold:
    """A run's or loop's hold of a workspace, or its wait for one. `path`: absolute, all links followed."""

    owner: Ownership
    key: RunKey
    path: str
    kind: HolderKind = "run"
    parent: RunKey | None = None
    """The workflow that has started this one as its child, as the server knows it."""
    on_overlap: OnOverlap = "reject"
    number: int = 0
    """The order in which they came."""
    takes_back: tuple[RunKey, ...] = ()
    """Runs that it has cancelled, and whose changes it is to undo before it begins."""
    held: bool = False
    """It has the workspace; False: it waits for it."""
    since: float = 0.0
    """Unix time at which it came."""

    @property
    def holder(self) -> Holder:
        """Whose it is."""
        return self.owner.cluster, self.owner.namespace, self.key.run, self.key.execution

    @property
    def turn(self) -> tuple[bool, int]:
        """Of those who wait the least comes first: who ends the holder goes before those who wait for its end."""
        return self.on_overlap not in ("interrupt", "rollback"), self.number

    def is_child_of(self, other: "Hold") -> bool:
        return self.owner == other.owner and self.parent == other.key

    def is_sibling_of(self, other: "Hold") -> bool:
        return self.parent is not None and (self.owner, self.parent) == (other.owner, other.parent)

    def overlaps(self, path: str) -> bool:
        """Whether the workspace is that directory, lies inside it, or around it."""
        return overlap(self.path, path)

    def to_json(self) -> str:
        parent = self.parent and self.parent.model_dump()
        takes_back = [each.model_dump() for each in self.takes_back]
        return json.dumps({**asdict(self), "key": self.key.model_dump(), "parent": parent, "takes_back": takes_back})

    @classmethod
    def of_json(cls, text: str) -> "Hold":
        """Raises ValueError, TypeError, KeyError for what no worker has written."""
        facts: dict[str, Any] = json.loads(text)
        parent = facts["parent"]
        hold = cls(
            owner=Ownership(str(facts["owner"]["cluster"]), str(facts["owner"]["namespace"])),
            key=RunKey.model_validate(facts["key"]),
            path=str(facts["path"]),
            kind=facts["kind"] if facts["kind"] in get_args(HolderKind) else "workflow",
            parent=None if parent is None else RunKey.model_validate(parent),
            on_overlap=facts["on_overlap"] if facts["on_overlap"] in get_args(OnOverlap) else "reject",
            number=int(facts["number"]),
            takes_back=tuple(map(RunKey.model_validate, facts["takes_back"])),
            held=facts["held"] is True,
            since=float(facts["since"]),
        )
        if not Path(hold.path).is_absolute():
            raise ValueError("its path is relative")
        return hold


def in_order(holds: Iterable[Hold]) -> list[Hold]:
    """Those who have a workspace, then those who wait, as their turn comes."""
    return sorted(holds, key=lambda each: (not each.held, each.turn))


def in_the_way(mine: Hold, all_holds: Iterable[Hold]) -> list[Hold]:
    """Whose end this one has to wait for, in order: overlapping ones that have their workspace or came before it.

    A child shares what its parent has, and the parent what its child has: then nobody else can have any of it, but for
    another child. A loop has one at a time; but one that was reset knows nothing of the one that it had at work.
    """
    others = [each for each in all_holds if each.overlaps(mine.path) and each.holder != mine.holder]
    under_parent = any(mine.is_child_of(each) and each.held and is_within(mine.path, each.path) for each in others)
    if under_parent:
        return in_order(each for each in others if each.held and each.is_sibling_of(mine))
    strangers = [each for each in others if not mine.is_child_of(each) and not each.is_child_of(mine)]
    return in_order(each for each in strangers if each.held or each.turn < mine.turn)


def heads(holds: Sequence[Hold]) -> list[Hold]:
    """Those that are no child of another one of them: whom to name, and to whom to turn."""
    return [each for each in holds if not any(each.is_child_of(other) for other in holds)]


class PlaceLost(Exception):
    """Whoever waited has no place in the order any more: it was given back, or its file was removed."""


_File = tuple[str, int, int, int]
"""A file as it was when it was read, name, inode, time and size: each is written anew under its name, never changed."""


class HoldFiles:
    """All holds of this host, of whichever owner. What is in the files is remembered: there may be hundreds."""

    def __init__(self, state: Path) -> None:
        self._place = state / "holds"
        self._known: dict[_File, Hold | None] = {}

    def all(self) -> list[Hold]:
        """In order."""
        return in_order(self._by_name().values())

    def _by_name(self) -> dict[str, Hold]:
        """All holds by the names of their files: one is looked for by its name, as there may be hundreds."""
        before = self._known
        self._known = known = {file: before[file] if file in before else self._read(file[0]) for file in self._files()}
        return {file[0]: hold for file, hold in known.items() if hold is not None}

    def waiting(self, owner: Ownership) -> list[str]:
        """The runs and loops of this owner that wait for a workspace."""
        return [hold.key.run for hold in self.all() if hold.owner == owner and not hold.held]

    def of(self, owner: Ownership, key: RunKey) -> Hold | None:
        """The run's or loop's hold."""
        return self._read(_name_of(owner, key))

    def _files(self) -> Iterator[_File]:
        with suppress(OSError), os.scandir(self._place) as entries:
            for entry in entries:
                try:
                    found = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                yield entry.name, found.st_ino, found.st_mtime_ns, found.st_size

    def _read(self, name: str) -> Hold | None:
        """None for a file that no worker has written: it says nothing."""
        try:
            hold = Hold.of_json(disk.read_text(self._place / name))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None
        return hold if name == file_name(hold) else None

    async def enter(self, asked: Hold, *, waits: bool) -> list[Hold]:
        """Take the workspace, or with `waits` a place in the order; returns who is in the way, none where it was taken.

        Twice is fine: whoever has a hold keeps it, with its place. Raises InvalidRequest where too many wait, OSError.
        """
        return await self._exclusively(lambda: self._enter(asked, waits=waits))

    async def turn(self, asked: Hold) -> list[Hold]:
        """As `enter`, for whoever waits already. Raises PlaceLost, OSError."""
        return await self._in_place(lambda: self._turn(asked))

    async def put(self, asked: Hold) -> None:
        """Enter it as it is, whoever is in the way: its agent is at work. Raises OSError."""
        await self._exclusively(lambda: self._write(replace(self._placed(asked, self._by_name()), held=True)))

    async def remove(self, owner: Ownership, key: RunKey) -> None:
        """Give back what the run or loop has, or waits for. Raises OSError."""
        await asyncio.to_thread(self._place.joinpath(_name_of(owner, key)).unlink, missing_ok=True)

    async def leave(self, asked: Hold) -> None:
        """Give up the place in the order; what it has by now stays. Raises OSError."""
        with suppress(PlaceLost):
            await self._in_place(lambda: self._leave(asked))

    def _enter(self, asked: Hold, *, waits: bool) -> list[Hold]:
        known = self._by_name()
        mine = self._placed(asked, known)
        if mine.held:
            return []
        others = in_the_way(mine, known.values())
        waiting = [each for each in known.values() if not each.held and each.holder != mine.holder] if others else []
        if waits and len(waiting) >= MAX_WAITING:
            raise InvalidRequest(
                f"workspace.on_overlap: {MAX_WAITING} runs of this host wait for their workspaces already"
            )
        if not others or waits:
            self._write(replace(mine, held=not others))
        return others

    async def note(self, asked: Hold, takes_back: Iterable[RunKey]) -> None:
        """Write down whose changes it is to undo. Raises PlaceLost, OSError."""
        await self._in_place(lambda: self._note(asked, takes_back))

    def _note(self, asked: Hold, takes_back: Iterable[RunKey]) -> None:
        self._write(replace(self._had(asked), takes_back=tuple(takes_back)))

    def _had(self, asked: Hold) -> Hold:
        """What whoever waits has already. Raises PlaceLost."""
        mine = self.of(asked.owner, asked.key)
        if mine is None:
            raise PlaceLost(f"{asked.key.run} has no place in the order of {asked.path} any more")
        return mine

    def _turn(self, asked: Hold) -> list[Hold]:
        self._had(asked)
        return self._enter(asked, waits=True)

    def _leave(self, asked: Hold) -> None:
        mine = self.of(asked.owner, asked.key)
        if mine is not None and not mine.held:
            self._place.joinpath(file_name(asked)).unlink(missing_ok=True)

    def _placed(self, asked: Hold, known: Mapping[str, Hold]) -> Hold:
        before = known.get(file_name(asked))
        if before is not None and before.path == asked.path:
            return replace(before, kind=asked.kind, parent=asked.parent, on_overlap=asked.on_overlap)
        number = max((each.number for each in known.values()), default=0) + 1
        return replace(asked, number=number, since=time.time())

    def _write(self, hold: Hold) -> None:
        text, path = hold.to_json(), self._place / file_name(hold)
        with suppress(OSError, UnicodeDecodeError):
            if disk.read_text(path) == text:
                return
        temporary = self._place / ".new"
        disk.write_new(temporary, text)
        temporary.replace(path)

    async def _exclusively(self, work: Callable[[], T]) -> T:
        await asyncio.to_thread(self._place.mkdir, mode=0o700, exist_ok=True)  # but no state directory that is away
        return await exclusively(self._place, work, makes=False)

    async def _in_place(self, work: Callable[[], T]) -> T:
        """For whoever has a hold: where its disk is away, nothing is made in its place. Raises PlaceLost."""
        try:
            return await exclusively(self._place, work, makes=False)
        except FileNotFoundError as error:
            raise PlaceLost(f"{self._place} is not there") from error


def file_name(hold: Hold) -> str:
    """The name of a hold's file."""
    return _name_of(hold.owner, hold.key)


def _name_of(owner: Ownership, key: RunKey) -> str:
    whose = json.dumps([owner.cluster, owner.namespace, key.run, key.execution])
    return f"{hashlib.sha256(whose.encode()).hexdigest()[:32]}.json"
