"""hold_workspace, release_workspace, list_workspaces: a workspace for a workflow whose claim found another one there.

A wait takes no slot of `run_agent`. Which hold is in whose way must not live here: see workspace_holds; nor how a
holder is spoken to: see workspace_holders.
"""

import asyncio
import logging
import math
import time
from collections.abc import Sequence

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.activity_helpers import as_application_error, heartbeating
from activities.context import ActivityContext
from activities.run_failures import retry_later
from activities.store.hold_files import Hold, Holder, PlaceLost, heads
from activities.store.identity import StoreGone
from activities.takeover.detachment import detached
from activities.takeover.registry import Registry
from activities.temporal.callers import caller
from activities.temporal.execution import standing
from activities.workspace_holders import Over, WorkspaceHolders
from activities.workspace_holds import WorkspaceHolds
from steersman.contracts import names
from steersman.contracts.errors import ActivityErrorType, RunError
from steersman.contracts.request import RunRequest
from steersman.contracts.workspace_hold import HoldWorkspace, ListWorkspaces, Steered, WorkspaceHeld, Workspaces

log = logging.getLogger("steersman.hosting")

LOOK_S = 0.1
"""Seconds between two looks at the files of the holds."""
FIRST_ASK_S, LAST_ASK_S = 1.0, 5.0
"""Seconds until the server is asked whether those in the way are open still: most say so by their files."""
KINDLY_S = 30.0
"""A holder that was asked to end has this many seconds before it is cancelled."""


class HoldActivities:
    """Any worker of the host can run them."""

    def __init__(self, context: ActivityContext, registry: Registry) -> None:
        self._context, self._registry = context, registry
        self._holds, self._files = WorkspaceHolds(context), context.store.holds
        self._holders = WorkspaceHolders(context)

    @activity.defn(name=names.HOLD_WORKSPACE)
    async def hold_workspace(self, asked: HoldWorkspace) -> WorkspaceHeld:
        """Take the workspace for the calling workflow, by what its request says of an overlap. Twice is fine."""
        async with heartbeating():
            await self._check_store()
            with as_application_error():
                request = asked.request
                workspace = await asyncio.to_thread(self._context.policy.workspace, request.workspace.path)
                workspace = await asyncio.to_thread(self._context.worktrees.directory, request, workspace)
                hold = await self._holds.asked_by_caller(request, workspace)
                if hold is None:
                    return WorkspaceHeld(path=str(workspace))
                try:
                    with self._registry.leading(hold.key):  # so that another worker takes over at once
                        return WorkspaceHeld(path=hold.path, steered=await self._take(hold, request))
                except OSError:
                    await self._check_store()
                    raise

    async def _check_store(self) -> None:
        """Raises ApplicationError, for another attempt, where the state directory is away: it has all the holds."""
        try:
            await asyncio.to_thread(self._context.store.check)
        except StoreGone as gone:
            raise retry_later(ActivityErrorType.STORE_GONE, str(gone)) from gone

    @activity.defn(name=names.RELEASE_WORKSPACE)
    async def release_workspace(self) -> None:
        """Give back what the calling workflow has on this host, or waits for."""
        if (asking := await caller(self._context.client)) is not None:
            await self._holds.release(asking.key)

    @activity.defn(name=names.LIST_WORKSPACES)
    async def list_workspaces(self, asked: ListWorkspaces) -> Workspaces:
        """Who has which workspace of this host, and who waits."""
        async with heartbeating():
            found = map(self._holds.shown, heads(await self._holds.all()))
            return Workspaces(holders=tuple(each for each in found if each.path))

    async def _take(self, hold: Hold, request: RunRequest) -> Steered | None:
        """Raises RunError where it cannot be had; then nothing of it is left."""
        try:
            if hold.on_overlap == "steer":
                return await self._steer(hold, request)
            await self._wait(hold)
            await self._take_back(hold)
        except RunError:
            await self._holds.release(hold.key)
            raise
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            # A reset takes the activity back too: its new execution goes on in this place.
            if details and details.cancel_requested and await standing(self._context.client) in ("open", "closed"):
                await self._files.leave(hold)
                raise
            raise _detached("the worker shuts down, or the activity was taken back") from None
        except PlaceLost as error:
            raise _detached(str(error)) from error
        return None

    # In turn.

    async def _wait(self, hold: Hold) -> None:
        others, look = await self._holds.enter(hold), _Look(self._holds)
        told: dict[Holder, float] = {}
        while others:
            if hold.on_overlap in ("interrupt", "rollback"):
                await self._end(hold, [each for each in heads(others) if each.held], told)
            await look.again(others)
            others = await self._files.turn(hold)

    async def _end(self, hold: Hold, holders: Sequence[Hold], told: dict[Holder, float]) -> None:
        """Have these end, kindly at first. `told`: when each of them was asked."""
        new = [each for each in holders if each.holder not in told]
        for each in new:
            self._holders.check(each, hold.on_overlap)
        if new and hold.on_overlap == "rollback":
            known = await asyncio.to_thread(self._files.of, hold.owner, hold.key)
            before = known.takes_back if known else ()
            await self._files.note(hold, dict.fromkeys((*before, *(each.key for each in new))))
        for each in new:
            ask = self._holders.end if hold.on_overlap == "interrupt" else self._holders.cancel
            await ask(each, hold)
            told[each.holder] = time.monotonic()
            facts = {"run": hold.key.run, "holder": each.key.run, "on_overlap": hold.on_overlap}
            log.info("a run takes another one's workspace", extra={"action": "workspace_overlap", "facts": facts})
        for each in holders:
            if told[each.holder] + KINDLY_S < time.monotonic():
                told[each.holder] = math.inf
                await self._holders.cancel(each, hold)

    async def _take_back(self, hold: Hold) -> None:
        known = await asyncio.to_thread(self._files.of, hold.owner, hold.key)
        if known is None or not known.takes_back:
            return
        for key in known.takes_back:
            await self._holders.take_back(key)
        await self._files.note(hold, ())

    # In the holder's place.

    async def _steer(self, hold: Hold, request: RunRequest) -> Steered | None:
        """What became of the prompt; None where the workspace is this one's, as whoever had it has ended."""
        others, look = await self._holds.enter(hold), _Look(self._holds)
        while others:
            holders = [each for each in heads(others) if each.held]
            for each in holders:
                self._holders.check(each, "steer")
            if len(holders) > 1:
                raise self._holds.refusal(hold, others)
            try:
                if holders:
                    return await self._holders.steer(holders[0], hold, request)
            except Over:
                pass
            await look.again(others)
            others = await self._files.enter(hold, waits=False)
        return None


class _Look:
    """The pauses between looks at those in the way."""

    def __init__(self, holds: WorkspaceHolds) -> None:
        self._holds = holds
        self._pause = FIRST_ASK_S
        self._ask_at = time.monotonic() + self._pause

    async def again(self, others: Sequence[Hold]) -> None:
        """Wait a moment; now and then ask the server whether these are open still."""
        await asyncio.sleep(LOOK_S)
        if time.monotonic() < self._ask_at:
            return
        await self._holds.remove_closed(others)
        self._pause = min(self._pause * 2, LAST_ASK_S)
        self._ask_at = time.monotonic() + self._pause


def _detached(why: str) -> ApplicationError:
    return detached(f"{why}; the wait for the workspace goes on")
