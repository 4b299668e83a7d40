"""A worker host for loops: its agent runs, verifications and surveys do what a test says, under the wire names.

AgentRun is a fake that asks the test how each run goes, so that a thousand iterations cost seconds. The real ones
are tested elsewhere.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import ActivityError, ApplicationError
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
from steersman.contracts.loop_state import ItemList
from steersman.contracts.notices import NoticeAnswer, NoticeInput
from steersman.contracts.run import RunState, Usage
from steersman.contracts.workspace_hold import HoldWorkspace, WorkspaceHeld
from steersman.contracts.workspace_holder import WorkspaceHolder
from tests.support.temporal import FEW_POLLS
from tests.workflows.loop_results import exits, result
from workers.wiring import workflow_runner
from workflows.agent_loop import AgentLoop
from workflows.run_notice import RunNotice

__all__ = ["HELD", "FakeLoopHost", "Loop", "exits", "refusal"]

Loop = WorkflowHandle[Any, Any]

HELD: dict[str, Any] = {"held": True}
"""In a script: at work until the test releases it, or it is ended."""


def refusal(message: str, kind: str = "InvalidRequest") -> ApplicationError:
    """What an activity raises that will not change its mind."""
    return ApplicationError(message, type=kind, non_retryable=True)


@workflow.defn(name=names.RUN_WORKFLOW, sandboxed=False)
class FakeRun:
    """Asks the test how it goes. `interrupt` with `end` ends it as AgentRun does."""

    def __init__(self) -> None:
        self.ended: dict[str, Any] | None = None

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


class FakeLoopHost:
    """Fill `script` and `verdicts` with what runs answer in turn, or replace a `play_*` to say how.

    After the end of its script a run succeeds and changes a file, after the end of its verdicts a verification passes.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.host = f"host-{uuid.uuid4().hex[:8]}"
        self.queue = f"steersman-{self.host}"
        self.loops: list[Loop] = []
        self.notices: list[NoticeInput] = []
        self.script: list[dict[str, Any]] = []
        self.verdicts: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        """The requests of the agent's runs so far."""
        self.verified: list[dict[str, Any]] = []
        self.surveys: list[SurveyInput] = []
        self.restores: list[RestoreInput] = []
        self.drops: list[DropInput] = []
        self.held_by: tuple[WorkspaceHolder, ...] = ()
        """Who has the workspace that a loop claims."""
        self.holds: list[HoldWorkspace] = []
        self.free = asyncio.Event()
        self.released: list[str] = []
        """Queues of the hosts on which a loop gave its workspace back."""
        self.items: ItemList | None = None
        self.head, self.files = "h", 0
        self.known = RunState(phase="closed", session_id="s-1", cost_usd=0.005, turns=1, usage=Usage(output_tokens=5))
        """What a run that closed without a result had come to."""
        self._release = asyncio.Event()
        self._holding = asyncio.Event()

    # ---- what a test may replace

    async def play_iteration(self, number: int, request: dict[str, Any]) -> dict[str, Any]:
        """The `number`th run of the agent, from 1."""
        if number <= len(self.script):
            return await self._played(self.script[number - 1])
        self.files += 1
        return result(f"iteration {number}")

    async def play_verification(self, number: int) -> dict[str, Any]:
        return await self._played(self.verdicts[number - 1]) if number <= len(self.verdicts) else exits(0, "all fine")

    async def play_survey(self, wanted: SurveyInput) -> Survey:
        commit = f"c{wanted.number}" if wanted.number is not None else None
        return Survey(commit=commit, head=self.head, files=f"f{self.files}", items=self.items, plan_hash="p")

    async def play_restore(self, wanted: RestoreInput) -> Restored:
        return Restored(changed=1)

    async def play_admit(self, wanted: AdmitLoop) -> None:
        return None

    async def play_drop(self, wanted: DropInput) -> Dropped:
        return Dropped(numbers=wanted.numbers)

    # ---- runs that are held

    async def at_hold(self) -> None:
        """Wait until something is held."""
        async with asyncio.timeout(20):
            await self._holding.wait()
        self._holding.clear()

    def release(self) -> None:
        """Let what is held go on."""
        self._release.set()

    async def held(self) -> None:
        """At work until the test releases it, or it is ended."""
        self._holding.set()
        while not self._release.is_set():
            activity.heartbeat()
            await asyncio.sleep(0.02)
        self._release.clear()

    async def _played(self, said: dict[str, Any]) -> dict[str, Any]:
        if said is not HELD:
            return said
        await self.held()
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
        """By the host whose queue it is, or by this one."""
        queue = activity.info().task_queue
        host = self.host if queue == self.queue else queue.removeprefix(names.host_queue(""))
        return Claim(host=host, workspace_held_by=self.held_by)

    @activity.defn(name=names.HOLD_WORKSPACE)
    async def hold_workspace(self, hold: HoldWorkspace) -> WorkspaceHeld:
        self.holds.append(hold)
        await self.free.wait()
        return WorkspaceHeld(path=hold.request.workspace.path)

    @activity.defn(name=names.RELEASE_WORKSPACE)
    async def release_workspace(self) -> None:
        self.released.append(activity.info().task_queue)

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
        return await self.play_drop(wanted)

    @activity.defn(name=names.READ_FORK_POINT)
    async def read_fork_point(self, wanted: ForkInput) -> ForkPoint:
        loop = self.client.get_workflow_handle(wanted.loop)
        found: ForkPoint | None = await loop.query(names.FORK_POINT, wanted.number, result_type=ForkPoint)
        if found is None:
            raise refusal(f"from_checkpoint: loop {wanted.loop} has no checkpoint {wanted.number}")
        return found

    @activity.defn(name=names.LOOK_AT_RUN)
    async def look_at_run(self, wanted: LookInput) -> RunState:
        return self.known

    @activity.defn(name=names.SEND_NOTICE)
    async def send_notice(self, given: NoticeInput) -> NoticeAnswer:
        self.notices.append(given)
        return NoticeAnswer(status=200)

    # ---- workers and loops

    @asynccontextmanager
    async def at_work(
        self, *, cached: int = 100, host: bool = True, run: type = FakeRun
    ) -> AsyncIterator["FakeLoopHost"]:
        """Poll the queues. `cached` 0: each workflow task replays its loop from the first event."""
        async with AsyncExitStack() as stack:
            here = Worker(
                self.client,
                task_queue=self.queue,
                workflow_runner=workflow_runner(),
                workflows=[AgentLoop, RunNotice, run],
                activities=[self.claim_host, self.play_run],
                max_cached_workflows=cached,
                max_heartbeat_throttle_interval=timedelta(seconds=0.1),
                **FEW_POLLS,
            )
            await stack.enter_async_context(here)
            if host:
                await stack.enter_async_context(self.hosting())
            yield self

    def hosting(self) -> Worker:
        """A worker of the host's own queue."""
        activities: list[Callable[..., Any]] = [
            self.claim_host,
            self.hold_workspace,
            self.release_workspace,
            self.admit_loop,
            self.survey_workspace,
            self.restore_checkpoint,
            self.drop_checkpoints,
            self.read_fork_point,
            self.look_at_run,
            self.send_notice,
        ]
        throttle = timedelta(seconds=0.1)
        queue = names.host_queue(self.host)
        return Worker(
            self.client,
            task_queue=queue,
            activities=activities,
            max_heartbeat_throttle_interval=throttle,
            **FEW_POLLS,
        )

    async def start(self, *, loop: str | None = None, **fields: Any) -> Loop:
        """A loop of "claude" that is done when `true` says so, without pauses; its fields may be replaced."""
        request = {
            "run": {"agent": "claude", "workspace": {"path": "/w"}},
            "plan": "make it work",
            "done": {"verify": {"command": "true"}},
            "pause_between_s": 0,
            **fields,
        }
        return await self.start_raw(request, loop=loop)

    async def start_raw(self, *inputs: Any, loop: str | None = None) -> Loop:
        """A loop with any inputs at all."""
        loop = loop or f"loop-{uuid.uuid4()}"
        started = await self.client.start_workflow(names.LOOP_WORKFLOW, args=inputs, id=loop, task_queue=self.queue)
        self.loops.append(started)
        return started
