"""hold_workspace, release_workspace, list_workspaces: a workspace for a workflow whose claim found another one there.

A wait takes no slot of `run_agent`. Which hold is in whose way must not live here: see workspace_holds.
"""

import asyncio
import time
from datetime import timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.activity_helpers import as_application_error, heartbeating
from activities.context import ActivityContext
from activities.store.hold_files import Hold, HoldFiles, PlaceLost
from activities.takeover.registry import Registry
from activities.temporal.callers import caller
from activities.temporal.execution import standing
from activities.workspace_holds import WorkspaceHolds
from steersman.contracts import names
from steersman.contracts.errors import ActivityErrorType
from steersman.contracts.workspace_hold import HoldWorkspace, ListWorkspaces, WorkspaceHeld, Workspaces

LOOK_S = 0.1
"""Seconds between two looks at the files of the holds."""
FIRST_ASK_S, LAST_ASK_S = 1.0, 5.0
"""Seconds until the server is asked whether those in the way are open still: most say so by their files."""


class HoldActivities:
    """Any worker of the host can run them."""

    def __init__(self, context: ActivityContext, registry: Registry) -> None:
        self._context, self._registry = context, registry
        self._holds, self._files = WorkspaceHolds(context), HoldFiles(context.store.state)

    @activity.defn(name=names.HOLD_WORKSPACE)
    async def hold_workspace(self, asked: HoldWorkspace) -> WorkspaceHeld:
        """Take the workspace for the calling workflow, when its turn has come. Twice is fine."""
        async with heartbeating():
            with as_application_error():
                request = self._context.policy.caps.held(asked.request)
                workspace = await asyncio.to_thread(self._context.policy.workspace, request.workspace.path)
                hold = await self._holds.asked_by_caller(request, workspace)
                if hold is not None:
                    with self._registry.leading(hold.key):  # so that another worker takes over at once
                        await self._wait(hold)
                return WorkspaceHeld(path=str(workspace))

    async def _wait(self, hold: Hold) -> None:
        try:
            others = await self._holds.enter(hold)
            pause = FIRST_ASK_S
            ask_at = time.monotonic() + pause
            while others:
                await asyncio.sleep(LOOK_S)
                if time.monotonic() >= ask_at:
                    await self._holds.remove_closed(others)
                    pause = min(pause * 2, LAST_ASK_S)
                    ask_at = time.monotonic() + pause
                others = await self._files.turn(hold)
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            # A reset takes the activity back too: its new execution goes on in this place.
            if details and details.cancel_requested and await standing(self._context.client) in ("open", "closed"):
                await self._files.leave(hold)
                raise
            raise _detached("the worker shuts down, or the activity was taken back") from None
        except PlaceLost as error:
            raise _detached(str(error)) from error

    @activity.defn(name=names.RELEASE_WORKSPACE)
    async def release_workspace(self) -> None:
        """Give back what the calling workflow has on this host, or waits for."""
        if (asking := await caller(self._context.client)) is not None:
            await self._holds.release(asking.key)

    @activity.defn(name=names.LIST_WORKSPACES)
    async def list_workspaces(self, asked: ListWorkspaces) -> Workspaces:
        """Who has which workspace of this host, and who waits."""
        return Workspaces(holders=tuple(map(self._holds.shown, await self._holds.all())))


def _detached(why: str) -> ApplicationError:
    """What ends this attempt, and lets the next one begin at once, where the server still wants it."""
    return ApplicationError(
        f"{why}; the wait for the workspace goes on",
        type=ActivityErrorType.DETACHED,
        next_retry_delay=timedelta(milliseconds=50),
        category=ApplicationErrorCategory.BENIGN,
    )
