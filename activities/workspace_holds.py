"""One run or loop at a time in a workspace of this host: holds taken and given back, and those of closed ones swept.

A hold counts as long as its run or loop is open. `finalize_run` and whoever else ends a run's log removes it; of one
that has closed unseen, and of a loop, the server is asked by whoever finds the hold in the way. What a request wants
done about a holder must not live here: see hold_activities.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from activities.context import ActivityContext
from activities.host_sweep import closed_runs_of, end_closed
from activities.store import disk
from activities.store.event_reader import is_ended
from activities.store.hold_files import Hold, heads
from activities.store.runs import RunStore
from activities.temporal.callers import Caller, caller, standing_of
from activities.temporal.execution import QUERY_ERRORS, QUERY_TIMEOUT, stated
from steersman.contracts import names
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import AgentFailed, InvalidRequest, WorkspaceError
from steersman.contracts.request import RunRequest
from steersman.contracts.workspace_holder import HolderKind, WorkspaceHolder

KINDS: Final[dict[str, HolderKind]] = {names.RUN_WORKFLOW: "run", names.LOOP_WORKFLOW: "loop"}
UNBEGUN_S: Final = 30.0
"""A holder that has begun nothing here after this many seconds is asked whether another host has it."""
MAX_REQUESTS: Final = 16
"""At most this many requests to the server are under way at once."""
MAX_NAMED: Final = 5
"""At most this many holders are named in a refusal."""


def holds_throughout(request: RunRequest) -> bool:
    """Whether a run has its workspace from its claim to its end: not one that only reads there, or works in a copy."""
    return request.permissions.mode != "read_only" and not request.is_carried


class WorkspaceHolds:
    """The holds of this host, by the server's word on those that are its own namespace's."""

    def __init__(self, context: ActivityContext) -> None:
        self._context = context
        self._closed_runs = closed_runs_of(context)
        self._files = context.store.holds

    @asynccontextmanager
    async def calling(self, request: RunRequest) -> AsyncIterator[Awaitable[Caller | None]]:
        """The workflow that has called this activity, None where it would hold nothing by this request. The server is
        asked while the block does other work.
        """
        asking = asyncio.create_task(self._calling(request))
        try:
            yield asking
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _calling(self, request: RunRequest) -> Caller | None:
        return None if request.permissions.mode == "read_only" else await caller(self._context.client)

    async def take(
        self, request: RunRequest, workspace: Path, calling: Awaitable[Caller | None]
    ) -> tuple[WorkspaceHolder, ...]:
        """Take the workspace for the workflow that is `calling`; those in the way where it cannot be taken.

        A run that may only read, and a standalone activity, takes nothing. Raises InvalidRequest where the request does
        not wait; AgentFailed where the disk has no room for a run; OSError, RPCError.
        """
        hold = self._asked(await calling, request, workspace)
        try:
            return () if hold is None else tuple(map(self.shown, heads(await self.enter(hold))))
        except OSError as error:
            # A run that finds no room fails at once; a loop tries again.
            if hold is None or hold.kind == "loop" or not disk.is_unwritable(error):
                raise
            raise AgentFailed(f"state directory: {error}; free some space, or make it writable") from error

    def _asked(self, calling: Caller | None, request: RunRequest, workspace: Path) -> Hold | None:
        """What a run or loop holds from its claim on; None for nothing. A loop's runs may work in copies: it looks at
        the workspace between them, and goes back there.
        """
        hold = self._hold_for(calling, request, workspace)
        return hold if hold and (hold.kind == "loop" or not request.is_carried) else None

    async def asked_by_caller(self, request: RunRequest, workspace: Path) -> Hold | None:
        """The hold that the calling workflow asks for; None for a standalone activity. Raises RPCError."""
        return self._hold_for(await caller(self._context.client), request, workspace)

    def _hold_for(self, asking: Caller | None, request: RunRequest, workspace: Path) -> Hold | None:
        if asking is None:
            return None
        return Hold(
            owner=self._context.store.owner,
            key=asking.key,
            path=str(workspace),
            kind=KINDS.get(asking.type, "workflow"),
            parent=asking.parent,
            on_overlap=request.workspace.on_overlap,
        )

    async def enter(self, hold: Hold) -> list[Hold]:
        """Take it; those in the way, open as far as can be told, where it cannot be taken.

        Raises InvalidRequest by their names where it does not wait, OSError.
        """
        waits = hold.on_overlap not in ("reject", "steer")
        others = await self._files.enter(hold, waits=waits)
        while others and await self.remove_closed(others):
            others = await self._files.enter(hold, waits=waits)
        if others and hold.on_overlap == "reject":
            raise self.refusal(hold, others)
        return others

    async def keep(self, key: RunKey, request: RunRequest, workspace: Path) -> None:
        """See to it that a run which is about to be led has its workspace: its hold may be lost, or its workspace lie
        elsewhere by now. Where its agent is at work already, whoever else is there.

        Raises InvalidRequest where another has it; OSError, RPCError.
        """
        if not holds_throughout(request):
            return
        found = await asyncio.to_thread(self._files.of, self._context.store.owner, key)
        if found is not None and found.held and found.path == str(workspace):
            return
        hold = await self.asked_by_caller(request, workspace)
        if hold is None:
            return
        if self._context.runtime.attempts(key):
            await self._files.put(hold)
        else:
            await self.enter(replace(hold, on_overlap="reject"))

    async def release(self, key: RunKey) -> None:
        """Give back what a run or loop of this owner has, or waits for. Raises OSError."""
        await self._files.remove(self._context.store.owner, key)

    async def remove_closed(self, holds: Iterable[Hold]) -> bool:
        """Remove these up to the first that is open, agents of closed ones stopped; whether any was removed.

        The first open one is in the way: about the others nobody need be asked.
        """
        removed = False
        for each in holds:
            if not await self._remove_if_closed(each):
                break
            removed = True
        return removed

    async def all(self) -> list[Hold]:
        """Every hold of an open run or loop, in order."""
        requests = asyncio.Semaphore(MAX_REQUESTS)

        async def is_open(hold: Hold) -> bool:
            try:
                async with requests:
                    return not await self._remove_if_closed(hold)
            except OSError:
                return True  # the disk takes nothing now

        found = await asyncio.to_thread(self._files.all)
        are_open = await asyncio.gather(*map(is_open, found))
        return [each for each, open_still in zip(found, are_open, strict=True) if open_still]

    async def in_the_way_of_undo(self, workspace: Path, *, but: RunKey | None = None) -> Hold | None:
        """Who has the workspace, one inside it or one around it. `but`: a loop that counts as nobody, with its runs."""
        for each in await asyncio.to_thread(self._files.all):
            if not each.held or (but is not None and but in (each.key, each.parent)):
                continue
            if each.overlaps(str(workspace)) and not await self._remove_if_closed(each):
                return each
        return None

    async def admit_restore(self, loop: str, workspace: Path) -> None:
        """Raises InvalidRequest where it is not this loop's workflow that has called the activity, WorkspaceError where
        another one has the workspace; RPCError.

        What waits to be merged there is left to people from then on.
        """
        asking = await caller(self._context.client)
        if asking is None or (asking.type, asking.key.run) != (names.LOOP_WORKFLOW, loop):
            raise InvalidRequest("key.loop: it is for that loop's own workflow to restore a checkpoint")
        if (holder := await self.in_the_way_of_undo(workspace, but=asking.key)) is not None:
            raise WorkspaceError(f"{self.shown(holder).name} is at work in the workspace")
        await self._context.carry.leave_to_people(workspace)

    def shown(self, hold: Hold) -> WorkspaceHolder:
        """As it is told."""
        own = hold.owner == self._context.store.owner
        return WorkspaceHolder(
            kind=hold.kind,
            id=hold.key.run if own else None,
            path=_text(hold.path) if self._may_tell(hold.path) else "",
            waits=not hold.held,
            on_overlap=hold.on_overlap,
            since=datetime.fromtimestamp(hold.since, UTC),
        )

    def _may_tell(self, path: str) -> bool:
        """Whether the path lies where this worker's requests may work: of others nothing is told."""
        try:
            self._context.kept_directory(path, "workspace.path")
        except InvalidRequest:
            return False
        return True

    def refusal(self, hold: Hold, others: Sequence[Hold]) -> InvalidRequest:
        """Why a run does not get its workspace, which these have."""
        return _refusal(_text(hold.path), [self.shown(each) for each in heads(others)])

    async def _remove_if_closed(self, hold: Hold) -> bool:
        if not await self._is_over(hold):
            return False
        await self._files.remove(hold.owner, hold.key)
        return True

    async def _is_over(self, hold: Hold) -> bool:
        if hold.owner != self._context.store.owner:
            return await asyncio.to_thread(self._has_ended_log, hold)
        standing = await standing_of(self._context.client, hold.key)
        directory = self._context.store.directory(hold.key)
        if standing == "closed":
            try:
                if hold.kind == "run" and directory.path.exists():
                    await end_closed(self._context, self._closed_runs, directory)
            except (AgentFailed, OSError):
                return False  # its end cannot be told or written down now, and its agent may be at work
            return True
        if standing == "unknown" or directory.path.exists() or time.time() - hold.since < UNBEGUN_S:
            return False
        return await self._is_elsewhere(hold.key)

    def _has_ended_log(self, hold: Hold) -> bool:
        """Whether a run of another namespace has ended: its server cannot be asked."""
        try:
            return is_ended(RunStore(self._context.store.state, hold.owner).directory(hold.key).events)
        except InvalidRequest:
            return True  # it names a run that is somebody else's

    async def _is_elsewhere(self, key: RunKey) -> bool:
        """Whether another host has it: this one's answer to its claim was lost, or it went where a checkpoint is."""
        workflow = self._context.client.get_workflow_handle(key.run)
        try:
            state = await stated(workflow, QUERY_TIMEOUT, object)  # a workflow of somebody else's may say anything
        except QUERY_ERRORS:
            return False
        host = state.get("host") if isinstance(state, dict) else None
        return host not in (None, self._context.host)


def _refusal(path: str, others: Sequence[WorkspaceHolder]) -> InvalidRequest:
    """Why a run does not get its workspace, and what to do."""
    first, *rest = others
    where = "it" if first.path == path else first.path or "a directory around it"
    named = f"{first.name} {'waits for' if first.waits else 'has'} {where}"
    if rest:
        named += f", and before this run came also {', '.join(each.name for each in rest[:MAX_NAMED])}"
    more = f" and {len(rest) - MAX_NAMED} more" if len(rest) > MAX_NAMED else ""
    return InvalidRequest(
        f"workspace.path: {path}: {named}{more}. Wait for its end, work in a directory of your own (git worktree), "
        "or say what is to become of the two (workspace.on_overlap)",
        workspace_holder=first.id,
    )


def _text(path: str) -> str:
    """A path of any bytes as JSON can have it."""
    return path.encode("utf-8", "replace").decode()
