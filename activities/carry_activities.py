"""The activities of runs that work in copies of their workspaces: the copy, its way back, and what a person decides
where that fails.
"""

import asyncio
from datetime import timedelta

from temporalio import activity

from activities.activity_helpers import as_application_error, heartbeating
from activities.context import ActivityContext
from activities.place_progress import PlaceProgress
from activities.ports.runtime import CLEANUP
from activities.run_failures import TRIES_TO_REACH, retry_later
from activities.run_preparation import RELEASE_TRIES, check_gates, directory_of
from activities.shim.client import MachineUnreachable
from activities.store.event_reader import is_ended
from activities.store.identity import StoreGone
from activities.store.run_directory import RunDirectory
from activities.temporal.callers import caller
from activities.temporal.execution import epoch
from steersman.contracts import names
from steersman.contracts.activities import CarriedBack, CarryBackInput, CarryOutInput, RunKey, WorkspaceInput
from steersman.contracts.errors import ActivityErrorType, InvalidRequest, RunError, WorkspaceError
from steersman.contracts.run import CarriedWorkspace, Finalize

PATIENCE = timedelta(minutes=10)
"""So long a machine that cannot be reached is asked for what a run has done there; then a sweep goes on asking."""
UNPROVEN_PATIENCE = timedelta(seconds=10)
"""The same, where it could not be reached to stop the run either."""


class CarryActivities:
    """Stateless: any worker of the host can answer."""

    def __init__(self, context: ActivityContext) -> None:
        self._context = context

    @activity.defn(name=names.CARRY_OUT)
    async def carry_out(self, out: CarryOutInput) -> CarriedWorkspace:
        """Copy the run's workspace. Twice is once."""
        context, workspace = self._context, out.request.workspace
        async with heartbeating():
            try:
                await asyncio.to_thread(context.store.check, out.store)
                with as_application_error():
                    context.policy.check_runtime(out.request.runtime)
                    path = await asyncio.to_thread(context.policy.workspace, workspace.path)
                    directory = await directory_of(context, out.key, out.request.runtime)
                    await check_gates(context, out.request)
                    try:
                        loop = await self._loop() if workspace.reuse else None
                        progress = PlaceProgress(directory, epoch())
                        try:
                            return await context.carry.out(directory, path, workspace.include, loop, progress.tell)
                        finally:
                            await progress.aclose()
                    except MachineUnreachable as error:
                        if activity.info().attempt >= TRIES_TO_REACH:
                            raise WorkspaceError(f"workspace: it cannot be copied: {error}") from error
                        raise
            except StoreGone as error:
                raise retry_later(ActivityErrorType.STORE_GONE, str(error)) from error
            except MachineUnreachable as error:
                raise retry_later(ActivityErrorType.UNREACHABLE, str(error)) from error

    @activity.defn(name=names.CARRY_BACK)
    async def carry_back(self, back: CarryBackInput) -> CarriedBack:
        """Merge what became of the copy into the workspace. Twice is once."""
        context = self._context
        async with heartbeating():
            with as_application_error():
                directory = context.store.directory(back.key)
            try:
                await asyncio.to_thread(context.store.check, back.store)
                if not await asyncio.to_thread(directory.path.exists):
                    gone = "the run's directory is gone, and its copy of the workspace with it"
                    return CarriedBack(finalize=Finalize(status="failed", error=gone))
                try:
                    workspace = await asyncio.to_thread(context.policy.workspace, back.request.workspace.path)
                except RunError as error:
                    await context.carry.sessions.back(directory, keep=back.keep)
                    failed = await context.carry.fail(directory, error.message)
                    return await context.carry.sessions.told(directory, failed)
                return await context.carry.back(directory, back.carried, workspace, keep=back.keep)
            except StoreGone as error:
                raise retry_later(ActivityErrorType.STORE_GONE, str(error)) from error
            except MachineUnreachable as error:
                if _waited() > (UNPROVEN_PATIENCE if back.keep else PATIENCE):
                    return await context.carry.fail(directory, str(error), unreachable=True)
                raise retry_later(ActivityErrorType.UNREACHABLE, str(error)) from error

    @activity.defn(name=names.DESCRIBE_WORKSPACE)
    async def describe_workspace(self, asked: WorkspaceInput) -> CarriedBack:
        """What has become of a closed run's copy by now: also what a retry, a sweep or a discard has made of it. Fails
        where nothing is known of one.
        """
        async with heartbeating():
            with as_application_error():
                directory = await asyncio.to_thread(self._context.store.readable, asked.key)
                return await self._context.carry.describe(directory)

    @activity.defn(name=names.RETRY_WORKSPACE)
    async def retry_workspace(self, asked: WorkspaceInput) -> CarriedBack:
        """Carry back once more what could not be. Fails where nothing waits for that."""
        async with heartbeating():
            with as_application_error():
                directory = await self._decided(asked)
                if await self._is_living(directory):
                    raise InvalidRequest(f"processes of run {asked.key.run} may still be at work")
                return await self._context.carry.retry(directory)

    @activity.defn(name=names.DISCARD_WORKSPACE)
    async def discard_workspace(self, asked: WorkspaceInput) -> CarriedBack:
        """Give up what could not be carried back, and what is left on a machine that cannot be reached. Fails where
        nothing waits for that.
        """
        carry = self._context.carry
        async with heartbeating():
            with as_application_error():
                directory = await self._decided(asked)
                if not directory.is_local and self._context.runtime.has_living(asked.key):
                    await asyncio.to_thread(directory.note_given_up)
                    if not await asyncio.to_thread(carry.is_gate, directory):
                        return CarriedBack(finalize=Finalize(status="none"))
                if directory.is_local and await self._is_living(directory):
                    raise InvalidRequest(f"processes of run {asked.key.run} are still at work")
                return await carry.discard(directory)

    async def _loop(self) -> RunKey | None:
        """The loop whose run this is, by the server's word. Raises RPCError."""
        asking = await caller(self._context.client)
        return asking.parent if asking and asking.parent_type == names.LOOP_WORKFLOW else None

    async def _decided(self, asked: WorkspaceInput) -> RunDirectory:
        """The directory of a run that has closed. Raises InvalidRequest, ApplicationError."""
        context = self._context
        if context.policy.max_permission == "read_only":
            raise InvalidRequest("this worker allows nobody to change a workspace")
        directory = await asyncio.to_thread(context.store.readable, asked.key)
        if not await asyncio.to_thread(is_ended, directory.events):
            raise InvalidRequest(f"run {asked.key.run} is still open")
        if context.runtime.has_living(asked.key) and not directory.is_local:  # perhaps nobody could reach it
            await context.runtime.stop(asked.key, CLEANUP, "the run had closed")
            await context.runtime.release(asked.key)
        return directory

    async def _is_living(self, directory: RunDirectory) -> bool:
        """Whether something of the closed run is still there, once its shims have had the time to leave."""
        for _ in range(RELEASE_TRIES):
            if not self._context.runtime.has_living(directory.key):
                return False
            await asyncio.sleep(0.05)
        return True


def _waited() -> timedelta:
    """How long the activity has been tried, until this attempt: by the server's clock, which the worker's may differ
    from.
    """
    return activity.info().started_time - activity.info().scheduled_time
