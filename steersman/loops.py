"""The client's part for loops: start and follow them, change what they do, restore a checkpoint.

    loop = await steersman.loops.start({
        "run": {"agent": "claude", "workspace": {"path": "/src/app"}},
        "plan": {"path": "PLAN.md"},
        "done": {"items": {"kind": "checkboxes"}, "verify": {"command": "make test"}},
    })
    result = await steersman.loops.result(loop)

Updates take the fields of their messages on the wire (steersman.contracts.loop_messages); errors are those of runs
(steersman.errors). Times are aware UTC datetimes, durations seconds, money US dollars. Nothing is decided here: the
workflow decides what an update leads to.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy

from steersman._client import visibility
from steersman._client.checkpoint_selection import selected
from steersman._client.host_calls import GIT_S, call_host
from steersman._client.host_workers import check_served
from steersman._client.loop_calls import LoopCalls
from steersman._client.loop_follower import Attach, LoopFollower
from steersman._client.loop_requests import forked, in_the_way
from steersman._client.loop_updates import LoopUpdates
from steersman._client.start_metadata import loop_metadata
from steersman.contracts import names
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.loop import LoopRequest, loop_request_json, parse_loop_request
from steersman.contracts.loop_activities import DiffInput, DropInput, Dropped, Kept, KeptInput
from steersman.contracts.loop_messages import Cleanup, CleanupReceipt
from steersman.contracts.loop_state import Checkpoint, LoopResult, LoopState
from steersman.contracts.messages import parse_message
from steersman.contracts.request import oversized
from steersman.contracts.workspace import Diff
from steersman.errors import (
    HostUnreachable,
    NoWorker,
    RunCancelled,
    RunNotFound,
    RunTerminated,
    ServerRefused,
    translated,
)
from steersman.ids import check_loop_id, new_loop_id
from steersman.loop_items import LoopItem, RunBegun, RunEvent
from steersman.reports import LoopSummary, StopResult

__all__ = ["LoopItem", "Loops", "RunBegun", "RunEvent"]


class Loops(LoopUpdates):
    """What can be done to loops; `Steersman.loops`. Safe to use from many tasks of one event loop."""

    def __init__(self, client: Client, attach: Attach) -> None:
        """`client`: connected. `attach`: reads the events of a run, e.g. Steersman.attach."""
        super().__init__(LoopCalls(client))
        self._client = client
        self._address = client.service_client.config.target_host
        self._attach = attach

    # Starting, and the end.

    async def start(self, request: LoopRequest | dict[str, Any], *, loop_id: str | None = None) -> str:
        """Start a loop and return its id. A request that is wrong, or has a literal secret, is not sent.

        Args:
            request: a LoopRequest, or the same as JSON.
            loop_id: 1 to 180 of A-Z a-z 0-9 . _ : -; by default a new one.

        Raises:
            InvalidRequest: the request or the id is wrong; the message names the field.
            AlreadyRunning: a loop with this id is open.
            ServerUnreachable: the loop may or may not have been started.
            ServerRefused.
        """
        data = loop_request_json(request) if isinstance(request, LoopRequest) else request
        checked = parse_loop_request(data)
        if wrong_size := oversized(data, "LoopRequest"):
            raise InvalidRequest(wrong_size)
        loop_id = check_loop_id(loop_id) if loop_id is not None else self._new_id(checked)
        if checked.from_checkpoint and checked.from_checkpoint.loop == loop_id:
            raise InvalidRequest(f"loop_id: a loop from a checkpoint of {loop_id} has an id of its own")
        with translated(of=f"loop {loop_id}", address=self._address):
            await self._client.start_workflow(
                names.LOOP_WORKFLOW,
                loop_request_json(checked),
                id=loop_id,
                task_queue=names.TASK_QUEUE,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                **loop_metadata(checked),
            )
        return loop_id

    def _new_id(self, request: LoopRequest) -> str:
        plan = request.plan if isinstance(request.plan, str) else PurePath(request.plan.path).stem
        return new_loop_id() if self._client.data_converter.payload_codec else new_loop_id(plan)

    async def fork(
        self, loop: str, number: int, changes: dict[str, Any] | None = None, *, loop_id: str | None = None
    ) -> str:
        """Start a new loop from checkpoint `number` of `loop` and return its id.

        It begins with the files, the session (forked), the items and the totals of the checkpoint. Its request is the
        other loop's with the plan of the checkpoint, the limits that the other loop has now, and `changes` (fields of a
        LoopRequest, as JSON) merged into it.

        Raises:
            RunNotFound: no loop of that id.
            InvalidRequest: it has no such checkpoint, it is open and has the workspace, or the changed request or
                `loop_id` is wrong.
            HostUnreachable: the host that has the checkpoint's files has no worker; nothing was started.
            NoWorker, AlreadyRunning, ServerUnreachable, ServerRefused.
        """
        original = await self._calls.request(loop)
        point = await self._calls.fork_point(loop, number)
        request = forked(original, point, loop, number, changes or {})
        if in_the_way(request, original) and await self._calls.open_execution(loop) is not None:
            raise InvalidRequest(
                f"workspace: loop {loop} is open and has {original['run']['workspace']['path']} until it ends: "
                "let it exit, or name another workspace"
            )
        why = f"it has the files of checkpoint {number}. Start one there, or begin a new loop on another host"
        await check_served(self._client, point.host, why)
        return await self.start(request, loop_id=loop_id)

    async def result(self, loop: str) -> LoopResult:
        """Wait for the loop's end. `.status` is "completed" or "exited", `.stop_reason` and `.reason` say why.

        Raises:
            LoopFailed, InvalidRequest or another RunError: `.result` is a LoopResult with status "failed".
            RunCancelled: `.stop_report` is that of the run at work. RunTerminated, a subclass.
            RunNotFound.
            ServerUnreachable: the server has not answered for a minute.
        """
        outcome = await self._calls.outcome(loop)
        if isinstance(outcome, LoopResult):
            return outcome
        raise outcome

    async def stop(self, loop: str, *, reason: str = "") -> StopResult:
        """Cancel the loop and its run, wait until the loop has closed, and return what the stop found.

        A loop that has closed, or does not exist, is an outcome, not an error. With a codec the reason is not sent:
        Temporal keeps it unencrypted.

        Raises:
            NoWorker: the cancel is recorded, and carried out once a worker is there.
            ServerUnreachable, ServerRefused.
        """
        at_work, may_work = None, True
        try:
            if await self._calls.open_execution(loop) is None:
                return StopResult(run=loop, outcome="already_finished", phase="closed")
            with suppress(NoWorker):  # which has to record the cancel all the same
                at_work = (await self._calls.state(loop)).run
                may_work = at_work is not None
        except RunNotFound:
            return StopResult(run=loop, outcome="not_found")
        await self._calls.cancel(loop, None, reason)
        outcome = await self._calls.while_worker_lives(loop, self._calls.outcome(loop))
        if not isinstance(outcome, RunCancelled):
            return StopResult(run=loop, outcome="already_finished", phase="closed")
        report = await self._calls.first_stop_report([at_work]) or outcome.stop_report
        if report is not None:
            return StopResult.of(loop, report)
        lost = isinstance(outcome, RunTerminated) and may_work
        return StopResult(run=loop, outcome="unverified" if lost else "stopped", phase="closed")

    # Following and looking.

    async def follow(self, loop: str, *, wake: asyncio.Event | None = None) -> AsyncGenerator[LoopItem, None]:
        """What the loop does, until its end: a LoopState when it has changed, a RunBegun for each run, its RunEvents.

        The state comes first, then the events of the run at work, from its first. `result` says how the loop ended.

        Args:
            loop: the loop's id.
            wake: set it to have the state queried now; else it is queried within a second.

        Raises: RunNotFound, NoWorker, HostUnreachable, ServerUnreachable; once following, after a minute of failures.
        """
        follower = LoopFollower(loop, self._calls, self._attach, wake or asyncio.Event())
        async with aclosing(follower.follow()) as items:
            async for item in items:
                yield item

    async def state(self, loop: str) -> LoopState:
        """The loop's state, also after it has closed.

        Raises:
            RunNotFound, ServerUnreachable, ServerRefused.
            NoWorker: no worker answered within 5 s.
        """
        return await self._calls.current_state(loop)

    # Checkpoints.

    async def checkpoints(self, loop: str) -> list[Checkpoint]:
        """All checkpoints, oldest first. Raises as `state`."""
        return await self._calls.checkpoints(loop)

    async def deletable(self, loop: str, among: list[Checkpoint] | None = None) -> list[Checkpoint]:
        """The checkpoints that `clean` can delete, oldest first: of a closed loop, those whose files are still there.

        (The `checkpoints` of a closed loop stay as they were when it closed, whatever `clean` has deleted since.)
        `among`: what `checkpoints` has just returned, to save a query.

        Raises: as `state`; HostUnreachable where the loop has closed.
        """
        found = await self.checkpoints(loop) if among is None else among
        if await self._calls.open_execution(loop) is not None:
            return found
        host, workspace = await self._host_and_workspace(loop)
        argument = KeptInput(loop=loop, workspace=workspace)
        kept = (await call_host(self._client, host, names.LIST_CHECKPOINTS, argument, Kept, takes_s=GIT_S)).numbers
        return [each for each in found if each.number in kept]

    async def clean(
        self,
        loop: str,
        *,
        numbers: tuple[int, ...] = (),
        older_than_s: float | None = None,
        oldest: int | None = None,
        all: bool = False,  # noqa: A002 - the name on the wire
    ) -> CleanupReceipt:
        """Delete checkpoints and the git refs of their files, of an open or a closed loop. Give exactly one argument.

        Args:
            loop: the loop's id.
            numbers: the numbers of the checkpoints.
            older_than_s: those made longer ago than this many seconds.
            oldest: this many, the oldest first.
            all: every one.

        Raises:
            InvalidRequest: none or several of the arguments are given, or one is out of range.
            HostUnreachable: of an open loop, they may be deleted yet, where a worker comes within two minutes.
            MessageRefused, NoWorker: of an open loop.
            ServerRefused: of a closed loop.
            RunNotFound, ServerUnreachable.
        """
        fields = {"numbers": numbers, "older_than_s": older_than_s, "oldest": oldest, "all": all}
        cleanup = parse_message(Cleanup, fields)
        if await self._calls.open_execution(loop) is not None:
            return await self._calls.update(loop, names.CHECKPOINTS, cleanup, CleanupReceipt)
        found = await self.deletable(loop)
        drop = selected(found, cleanup, datetime.now(UTC))
        host, workspace = await self._host_and_workspace(loop)
        argument = DropInput(loop=loop, workspace=workspace, numbers=drop, all=cleanup.all)
        dropped = await call_host(self._client, host, names.DROP_CHECKPOINTS, argument, Dropped, takes_s=GIT_S)
        # What a worker that was told to end had dropped is none of what the next one found.
        deleted = tuple(sorted({*drop, *dropped.numbers}))
        return CleanupReceipt(deleted=deleted, kept=len(found) - len(set(drop)))

    async def diff(self, loop: str, older: int, newer: int | None = None) -> Diff:
        """How the files changed from checkpoint `older` to `newer`, or to what is in the workspace now.

        `.patch` has at most 500,000 bytes; `.truncated` says whether it was cut.

        Raises:
            RunNotFound, NoWorker, HostUnreachable, ServerUnreachable.
            ServerRefused: a checkpoint has no files.
        """
        host, workspace = await self._host_and_workspace(loop)
        argument = DiffInput(loop=loop, workspace=workspace, older=older, newer=newer)
        return await call_host(self._client, host, names.DIFF_CHECKPOINTS, argument, Diff, takes_s=GIT_S)

    async def _host_and_workspace(self, loop: str) -> tuple[str, str]:
        state = await self.state(loop)
        if state.workspace is None:
            raise ServerRefused(f"loop {loop} never had a workspace")
        if state.host is None:
            raise HostUnreachable(f"loop {loop} has not been given to any host yet", "")
        return state.host, state.workspace

    # The last method: below it `list` is no longer the type.

    async def list(self, query: str | None = None, *, limit: int = 100) -> list[LoopSummary]:
        """Loops, the newest first; at most `limit`.

        `query`: Temporal's list filter, e.g. `RunPhase="paused"`; by default all loops that the server still has.

        Raises:
            ServerRefused: the query is wrong.
            ServerUnreachable.
        """
        with translated(address=self._address):
            return await visibility.list_loops(self._client, query, limit)
