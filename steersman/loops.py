"""Loops from Python: start them, follow them, pause and steer them, take them back to a checkpoint.

    loop = await steersman.loops.start({
        "run": {"agent": "claude", "workspace": {"path": "/src/app"}},
        "plan": {"path": "PLAN.md"},
        "done": {"items": {"kind": "checkboxes"}, "verify": {"command": "make test"}},
    })
    result = await steersman.loops.result(loop)

The verbs are those of the wire (steersman.contracts.loop_messages), the errors those of runs (steersman.errors). What
follows from a verb is the workflow's business: nothing is decided here.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy

from steersman._client import loop_requests, visibility
from steersman._client.host_calls import call_host
from steersman._client.loop_calls import LoopCalls
from steersman._client.loop_follower import Attach, LoopItem, LoopLog
from steersman._client.loop_updates import LoopVerbs
from steersman.contracts import names
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.loop import LoopRequest, loop_request_json, parse_loop_request
from steersman.contracts.loop_activities import Diff, DiffInput, DropInput, Dropped, Kept, KeptInput
from steersman.contracts.loop_messages import Cleanup, CleanupReceipt
from steersman.contracts.loop_state import Checkpoint, LoopResult, LoopState
from steersman.contracts.messages import parse_message
from steersman.contracts.request import oversized
from steersman.errors import HostUnreachable, RunCancelled, RunNotFound, RunTerminated, ServerRefused, translated
from steersman.ids import check_loop_id, new_loop_id
from steersman.reports import LoopSummary, StopResult

GIT_S = 120
"""What git may take over a large workspace."""


class Loops(LoopVerbs):
    """Everything that can be done to loops. `Steersman.loops` is one."""

    def __init__(self, client: Client, attach: Attach) -> None:
        """`attach`: how the events of a run are had, e.g. Steersman.attach."""
        super().__init__(LoopCalls(client))
        self._client = client
        self._address = client.service_client.config.target_host
        self._attach = attach

    # Starting, and the end.

    async def start(self, request: LoopRequest | dict[str, Any], *, loop_id: str | None = None) -> str:
        """Start a loop; its id. The request is judged here first: what is wrong, or a literal secret, is never sent.

        Raises:
            InvalidRequest: the request or the id; the message names the field.
            AlreadyRunning: a loop with this id is open.
            ServerUnreachable: nothing is known to have been started.
        """
        data = loop_request_json(request) if isinstance(request, LoopRequest) else request
        checked = parse_loop_request(data)
        if wrong_size := oversized(data, "LoopRequest"):
            raise InvalidRequest(wrong_size)
        loop_id = check_loop_id(loop_id) if loop_id is not None else new_loop_id()
        with translated(of=f"loop {loop_id}", address=self._address):
            await self._client.start_workflow(
                names.LOOP_WORKFLOW,
                loop_request_json(checked),
                id=loop_id,
                task_queue=names.TASK_QUEUE,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                **visibility.loop_introduction(checked),
            )
        return loop_id

    async def fork(
        self, loop: str, number: int, changes: dict[str, Any] | None = None, *, loop_id: str | None = None
    ) -> str:
        """Start a new loop as another one was at a checkpoint: files, session (forked), items, what was used up.

        Its request is the other's with the plan of that time, the limits that it has now, and `changes` over it. The id
        of the new loop.

        Raises: RunNotFound for the other loop, InvalidRequest where it has no such checkpoint; NoWorker; as `start`.
        """
        asked = await self._calls.request(loop)
        point = await self._calls.fork_point(loop, number)
        request = loop_requests.forked(asked, point, loop, number, changes or {})
        return await self.start(request, loop_id=loop_id)

    async def result(self, loop: str) -> LoopResult:
        """Wait for the loop's end: status "completed" or "stopped", and why.

        Raises:
            LoopFailed, InvalidRequest or another RunError: `.result` is a LoopResult with status "failed".
            RunCancelled: with `.stop_report` of the run that was at work. RunTerminated, a subclass.
            RunNotFound, ServerUnreachable.
        """
        closing = await self._calls.closing(loop)
        if isinstance(closing, LoopResult):
            return closing
        raise closing

    async def stop(self, loop: str, *, reason: str = "") -> StopResult:
        """Cancel the loop and its run, wait until nothing of it is left, and say what the stop found.

        The outcome "not_found" stands for an unknown id; stopping twice is fine.

        Raises: NoWorker (the cancel is recorded), ServerUnreachable.
        """
        try:
            if await self._calls.open_execution(loop) is None:
                return StopResult(run=loop, outcome="already_finished", phase="closed")
            at_work = (await self._calls.state(loop)).run
        except RunNotFound:
            return StopResult(run=loop, outcome="not_found")
        await self._calls.cancel(loop, None, reason)
        closing = await self._calls.while_worked(loop, self._calls.closing(loop))
        if not isinstance(closing, RunCancelled):
            return StopResult(run=loop, outcome="already_finished", phase="closed")
        report = await self._calls.run_report([at_work]) or closing.stop_report
        if report is not None:
            return StopResult.of(loop, report)
        lost = isinstance(closing, RunTerminated) and at_work is not None
        return StopResult(run=loop, outcome="unverified" if lost else "stopped", phase="closed")

    # Following and looking.

    async def follow(self, loop: str, *, wake: asyncio.Event | None = None) -> AsyncGenerator[LoopItem, None]:
        """What the loop does, run after run, until its end: LoopState where it changed, RunBegun, RunEvent.

        Begins with the state and the events of the run at work. Set `wake` to have the state looked at now; else it
        is looked at within a second. Look at `result` for how the loop ended.

        Raises: RunNotFound, NoWorker, HostUnreachable, ServerUnreachable; in the middle after a minute.
        """
        log = LoopLog(loop, self._calls, self._attach, wake or asyncio.Event())
        async with aclosing(log.follow()) as items:
            async for item in items:
                yield item

    async def state(self, loop: str) -> LoopState:
        """What the loop is doing, or was when it closed. Raises RunNotFound, NoWorker, ServerUnreachable."""
        return await self._calls.state_now(loop)

    # Checkpoints.

    async def checkpoints(self, loop: str) -> list[Checkpoint]:
        """All checkpoints, oldest first. Raises as `state`."""
        return await self._calls.checkpoints(loop)

    async def deletable(self, loop: str, among: list[Checkpoint] | None = None) -> list[Checkpoint]:
        """What `clean` chooses from, oldest first: of a loop that has closed, the checkpoints whose files are there.

        What a closed loop's `checkpoints` says can change no more: after a `clean` it still names what was deleted.
        `among`: what it has just said.

        Raises: as `state`; HostUnreachable, ServerRefused of a closed loop.
        """
        found = await self.checkpoints(loop) if among is None else among
        if await self._calls.open_execution(loop) is not None:
            return found
        host, workspace = await self._place(loop)
        question = KeptInput(loop=loop, workspace=workspace)
        kept = (await call_host(self._client, host, names.LIST_CHECKPOINTS, question, Kept, takes_s=GIT_S)).numbers
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
        """Delete checkpoints and the git refs of their files; give exactly one of these. Also of a closed loop.

        Raises: as the verbs; HostUnreachable, ServerRefused of a closed loop.
        """
        fields = {"numbers": numbers, "older_than_s": older_than_s, "oldest": oldest, "all": all}
        said = parse_message(Cleanup, fields)
        if await self._calls.open_execution(loop) is not None:
            return await self._calls.update(loop, names.CHECKPOINTS, said, CleanupReceipt)
        found = await self.deletable(loop)
        chosen = loop_requests.chosen(found, said, datetime.now(UTC))
        host, workspace = await self._place(loop)
        question = DropInput(loop=loop, workspace=workspace, numbers=chosen, all=said.all)
        dropped = await call_host(self._client, host, names.DROP_CHECKPOINTS, question, Dropped, takes_s=GIT_S)
        return CleanupReceipt(deleted=dropped.numbers, kept=len(found) - len(set(chosen)))

    async def diff(self, loop: str, older: int, newer: int | None = None) -> Diff:
        """What changed in the files from one checkpoint to another, or to what is there now.

        Raises: RunNotFound, NoWorker, HostUnreachable; ServerRefused where a checkpoint has no files.
        """
        host, workspace = await self._place(loop)
        question = DiffInput(loop=loop, workspace=workspace, older=older, newer=newer)
        return await call_host(self._client, host, names.DIFF_CHECKPOINTS, question, Diff, takes_s=GIT_S)

    async def _place(self, loop: str) -> tuple[str, str]:
        state = await self.state(loop)
        if state.workspace is None:
            raise ServerRefused(f"loop {loop} never had a workspace")
        if state.host is None:
            raise HostUnreachable(f"loop {loop} has not been given to any host yet", "")
        return state.host, state.workspace

    # Last, because it hides the type of that name from what comes after it.

    async def list(self, query: str | None = None, *, limit: int = 100) -> list[LoopSummary]:
        """Loops, the newest first. `query`: Temporal's list filter, e.g. `RunPhase="paused"`.

        Raises: ServerRefused for a wrong query, ServerUnreachable.
        """
        with translated(address=self._address):
            return await visibility.list_loops(self._client, query, limit)
