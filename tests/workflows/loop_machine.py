"""A machine for loops: its agent runs, verifications and surveys do what a test says, under the wire names.

AgentRun is a stand-in that asks the test how each run goes, so that a thousand iterations cost seconds. The real ones are
tested elsewhere.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError
from temporalio.worker import Worker

from steersman.contracts import names
from steersman.contracts.activities import Claim
from steersman.contracts.loop_activities import (
    AdmitLoop,
    DropInput,
    Dropped,
    ForkInput,
    ForkPoint,
    LookInput,
    Restored,
    RestoreInput,
    Survey,
    SurveyInput,
)
from steersman.contracts.loop_state import Item, ItemCount, ItemList, LoopResult, LoopState
from steersman.contracts.run import RunResult, RunState, Usage
from tests.workflows.machine import WAIT_S, until
from workflows.agent_loop import AgentLoop

Loop = WorkflowHandle[Any, Any]
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def result(text: str = "done", **fields: Any) -> dict[str, Any]:
    """What a run answers."""
    usage = {"input_tokens": 100, "output_tokens": 10}
    facts = {"status": "succeeded", "text": text, "session_id": "s-1", "turns": 1, "cost_usd": 0.01, "usage": usage}
    times = {"started_at": EPOCH, "ended_at": EPOCH + timedelta(seconds=1)}
    return RunResult.model_validate({**facts, **times, **fields}).model_dump(mode="json")


def fails(kind: str, message: str, **fields: Any) -> dict[str, Any]:
    """A run that fails with that type."""
    return {"fails": kind, "message": message, "result": result("", status="failed", **fields)}


def exits(code: int, output: str = "") -> dict[str, Any]:
    """A verification that ends with that exit code."""
    if code == 0:
        return result(output, session_id=None, cost_usd=0, turns=0, usage={})
    facts = {"exit_code": code}
    more = {"session_id": None, "cost_usd": 0, "turns": 0, "usage": {}}
    return {**fails("AgentCrashed", f"sh ended with exit code {code}"), "result": result(output, facts=facts, **more)}


def items(closed: int, left: int = 0, **counts: int) -> ItemList:
    """So many items."""
    listed = [Item(id=f"#{n}", text=f"step {n}") for n in range(1, left + 1)]
    count = ItemCount(closed=closed, open=left, **counts)
    return ItemList(count=count, items=tuple(listed), digest=f"{count.model_dump_json()}")


@workflow.defn(name=names.RUN_WORKFLOW, sandboxed=False)
class StandInRun:
    """Asks the test how it goes. `interrupt` with `end` ends it as AgentRun does."""

    def __init__(self) -> None:
        self.ended: dict[str, Any] | None = None
        self.state_now = RunState(phase="running")

    @workflow.run
    async def run(self, request: dict[str, Any]) -> Any:
        play = workflow.start_activity(
            "play_run",
            [workflow.info().workflow_id, request],
            start_to_close_timeout=timedelta(days=365),
            heartbeat_timeout=timedelta(seconds=10),
            cancellation_type=workflow.ActivityCancellationType.TRY_CANCEL,
        )
        await workflow.wait_condition(lambda: play.done() or self.ended is not None)
        if self.ended is not None and not play.done():
            play.cancel()
            return result("so far", stop_reason="interrupted")
        try:
            said: dict[str, Any] = await play
        except ActivityError as error:
            raise error.cause or error from error
        if "fails" in said:
            raise ApplicationError(said["message"], said["result"], type=said["fails"], non_retryable=True)
        return said

    @workflow.signal(name=names.INTERRUPT)
    def interrupt(self, message: dict[str, Any]) -> None:
        if message.get("end"):
            self.ended = message

    @workflow.query(name=names.STATE_QUERY)
    def state(self) -> RunState:
        return self.state_now


class LoopMachine:
    """Replace a `play_*` to say how; `asked` are the requests of the runs so far, in order."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.host = f"host-{uuid.uuid4().hex[:8]}"
        self.queue = f"steersman-{self.host}"
        self.asked: list[dict[str, Any]] = []
        self.verified: list[dict[str, Any]] = []
        self.surveys: list[SurveyInput] = []
        self.restores: list[RestoreInput] = []
        self.drops: list[DropInput] = []
        self.items: ItemList | None = None
        self.files = 0
        """Counts up with every iteration that "changes" something."""
        self.release = asyncio.Event()

    # ---- what a test may replace

    async def play_iteration(self, number: int, request: dict[str, Any]) -> dict[str, Any]:
        """The `number`th run of the agent, from 1."""
        self.files += 1
        return result(f"iteration {number}")

    async def play_verification(self, number: int) -> dict[str, Any]:
        return exits(0, "all fine")

    async def play_survey(self, wanted: SurveyInput) -> Survey:
        commit = f"c{wanted.number}" if wanted.number is not None else None
        return Survey(commit=commit, head="h", files=f"f{self.files}", items=self.items, plan_hash="p")

    async def play_restore(self, wanted: RestoreInput) -> Restored:
        return Restored(changed=1)

    async def play_admit(self, wanted: AdmitLoop) -> None:
        return None

    async def held(self) -> dict[str, Any]:
        """At work until the test releases it, or it is ended."""
        while not self.release.is_set():
            activity.heartbeat()
            await asyncio.sleep(0.02)
        self.release.clear()
        return result("released")

    # ---- the activities

    @activity.defn(name="play_run")
    async def play_run(self, run: list[Any]) -> dict[str, Any]:
        name, request = run
        if str(name).endswith("-verify"):
            self.verified.append(request)
            return await self.play_verification(len(self.verified))
        self.asked.append(request)
        return await self.play_iteration(len(self.asked), request)

    @activity.defn(name=names.CLAIM_HOST)
    async def claim_host(self, request: Any) -> Claim:
        return Claim(host=self.host)

    @activity.defn(name=names.ADMIT_LOOP)
    async def admit_loop(self, wanted: AdmitLoop) -> None:
        await self.play_admit(wanted)

    @activity.defn(name=names.SURVEY_WORKSPACE)
    async def survey_workspace(self, wanted: SurveyInput) -> Survey:
        self.surveys.append(wanted)
        return await self.play_survey(wanted)

    @activity.defn(name=names.RESTORE_CHECKPOINT)
    async def restore_checkpoint(self, wanted: RestoreInput) -> Restored:
        self.restores.append(wanted)
        return await self.play_restore(wanted)

    @activity.defn(name=names.DROP_CHECKPOINTS)
    async def drop_checkpoints(self, wanted: DropInput) -> Dropped:
        self.drops.append(wanted)
        return Dropped(numbers=wanted.numbers)

    @activity.defn(name=names.READ_FORK_POINT)
    async def read_fork_point(self, wanted: ForkInput) -> ForkPoint:
        loop = self.client.get_workflow_handle(wanted.loop)
        return ForkPoint.model_validate(await loop.query(names.FORK_POINT, wanted.number))

    @activity.defn(name=names.LOOK_AT_RUN)
    async def look_at_run(self, wanted: LookInput) -> RunState:
        return RunState(phase="closed", session_id="s-1", cost_usd=0.005, turns=1, usage=Usage(output_tokens=5))

    # ---- workers and loops

    @asynccontextmanager
    async def at_work(self, *, cached: int = 100) -> AsyncIterator["LoopMachine"]:
        """Poll the queues. `cached` 0: each workflow task replays its loop from the first event."""
        host = [
            self.admit_loop,
            self.survey_workspace,
            self.restore_checkpoint,
            self.drop_checkpoints,
            self.read_fork_point,
            self.look_at_run,
        ]
        async with AsyncExitStack() as stack:
            here = Worker(
                self.client,
                task_queue=self.queue,
                workflows=[AgentLoop, StandInRun],
                activities=[self.claim_host, self.play_run],
                max_cached_workflows=cached,
                max_heartbeat_throttle_interval=timedelta(seconds=0.1),
            )
            await stack.enter_async_context(here)
            there = Worker(self.client, task_queue=names.host_queue(self.host), activities=host)
            await stack.enter_async_context(there)
            yield self

    async def start(self, **fields: Any) -> Loop:
        """A loop of "claude" that is done when `true` says so, without pauses; its fields may be replaced."""
        request = {
            "run": {"agent": "claude", "workspace": {"path": "/w"}},
            "plan": "make it work",
            "done": {"verify": {"command": "true"}},
            "pause_between_s": 0,
            **fields,
        }
        return await self.start_raw(request)

    async def start_raw(self, *inputs: Any) -> Loop:
        """A loop with any inputs at all."""
        loop = f"loop-{uuid.uuid4()}"
        return await self.client.start_workflow(names.LOOP_WORKFLOW, args=inputs, id=loop, task_queue=self.queue)


async def state(loop: Loop) -> LoopState:
    """What the `state` query answers."""
    return LoopState.model_validate(await loop.query(names.STATE_QUERY))


async def reaches(loop: Loop, wanted: str | Callable[[LoopState], bool]) -> LoopState:
    """Wait for a status, or for what a condition says."""

    async def there() -> LoopState | None:
        now = await state(loop)
        return now if (now.status == wanted if isinstance(wanted, str) else wanted(now)) else None

    found: LoopState = await until(there)
    return found


async def ended(loop: Loop) -> LoopResult:
    """The result of a loop that completes or stops."""
    async with asyncio.timeout(WAIT_S):
        return LoopResult.model_validate(await loop.result())


async def failed(loop: Loop) -> tuple[str | None, str, LoopResult]:
    """Type, sentence and result of a loop that fails."""
    with pytest.raises(WorkflowFailureError) as raised:
        async with asyncio.timeout(WAIT_S):
            await loop.result()
    cause = raised.value.cause
    assert isinstance(cause, ApplicationError), cause
    return cause.type, cause.message, LoopResult.model_validate(cause.details[0])


async def cancelled(loop: Loop) -> LoopState:
    """The state of a loop that closes as Canceled."""
    with pytest.raises(WorkflowFailureError) as raised:
        async with asyncio.timeout(WAIT_S):
            await loop.result()
    assert isinstance(raised.value.cause, CancelledError)
    return await state(loop)
