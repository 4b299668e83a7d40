"""Faults that come by way of Temporal: what people say, once or twice, and what is done to activities and workflows.

Whoever says something repeats it under the same id until it has an answer, as the client's documentation asks.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import PauseActivityRequest, ResetActivityRequest, UnpauseActivityRequest
from temporalio.client import WorkflowHandle
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from steersman.client import Steersman
from steersman.contracts import names
from steersman.errors import (
    AlreadyDecided,
    MessageRefused,
    RunNotFound,
    RunNotRunning,
    SteersmanError,
)
from tests.chaos.machine import Machine
from tests.chaos.schedule import Step
from tests.chaos.subjects import Subject

RPC_S = timedelta(seconds=5)
PATIENCE_S = 90.0
"""How long somebody repeats what was not answered."""
OVER = (RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.INVALID_ARGUMENT)
Say = Callable[[], Awaitable[object]]


class People:
    """`strike` says what was begun, or None where nobody was there for it; the rest goes on beside everything else."""

    def __init__(self, machine: Machine, steersman: Steersman, subjects: Callable[[], list[Subject]]) -> None:
        self._machine, self._steersman, self._subjects = machine, steersman, subjects
        self._client = steersman.temporal

    async def strike(self, step: Step) -> str | None:
        """Strike once."""
        runs = [each for each in self._subjects() if not each.is_loop]
        claude = [each for each in runs if each.is_claude]
        loops = [each for each in self._subjects() if each.is_loop]
        match step.fault:
            case "activity_paused" | "activity_reset" | "workflow_reset":
                fit = runs
            case "cancelled" | "cancelled_twice" | "terminated":
                fit = self._subjects()
            case "started_twice":
                fit = runs
            case "loop_paused" | "loop_told":
                fit = loops
            case "decided" | "decided_twice":
                fit = [each for each in claude if each.kind == "asking"]
            case _:
                fit = claude
        if not fit:
            return None
        subject = fit[step.target % len(fit)]
        act: Callable[[Subject, Step], Awaitable[str | None]] = getattr(self, f"_{step.fault}")
        try:
            async with asyncio.timeout(8):
                told = await act(subject, step)
        except (RPCError, SteersmanError, TimeoutError):
            return None
        if told is None:
            return None
        subject.befell[step.fault] += 1
        return f"{subject.id}{told and ': '}{told}"

    # What is said.

    async def _steered(self, subject: Subject, step: Step) -> str:
        return self._steer(subject, step, 1)

    async def _steered_twice(self, subject: Subject, step: Step) -> str:
        """As two updates at once, and as a signal."""
        text = self._steer(subject, step, 2)
        message = {"id": f"said-{step.number}", "text": subject.said[f"said-{step.number}"]}
        with contextlib.suppress(RPCError):
            await self._handle(subject).signal(names.STEER, message, rpc_timeout=RPC_S)
        return text

    def _steer(self, subject: Subject, step: Step, times: int) -> str:
        message_id, text = self._text(subject, step)
        for _ in range(times):
            self._say(subject, lambda: self._steersman.steer(subject.id, text, id=message_id))
        return message_id

    async def _redirected(self, subject: Subject, step: Step) -> str:
        message_id, text = self._text(subject, step)
        self._say(subject, lambda: self._steersman.interrupt(subject.id, text, id=message_id))
        return message_id

    async def _interrupted(self, subject: Subject, step: Step) -> str:
        """The turn ends; a while later somebody says how to go on."""
        message_id, text = self._text(subject, step)
        self._say(subject, lambda: self._steersman.interrupt(subject.id, id=f"interrupt-of-{message_id}"))

        async def go_on() -> None:
            await asyncio.sleep(0.5 + 2 * step.chance)
            self._say(subject, lambda: self._steersman.steer(subject.id, text, id=message_id))

        self._machine.later(go_on())
        return message_id

    async def _ended(self, subject: Subject, step: Step) -> str:
        self._say(subject, lambda: self._steersman.interrupt(subject.id, id=f"end-of-{step.number}", end=True))
        return ""

    async def _decided(self, subject: Subject, step: Step, times: int = 1) -> str | None:
        approvals = (await self._steersman.state(subject.id)).approvals
        if not approvals:
            return None
        word = "allow" if step.chance < 0.6 else "deny"
        for each in (word, "deny" if word == "allow" else "allow")[:times]:
            self._say(subject, lambda d=each: self._steersman.decide(subject.id, approvals[0].id, d))  # type: ignore[misc]
        return f"{word} {approvals[0].input.get('command', '')}"[:60]

    async def _decided_twice(self, subject: Subject, step: Step) -> str | None:
        """Two people at once, who do not agree."""
        return await self._decided(subject, step, 2)

    def _text(self, subject: Subject, step: Step) -> tuple[str, str]:
        message_id = f"said-{step.number}"
        text = subject.said[message_id] = f"<{subject.id} heard {step.number}>"
        return message_id, text

    def _say(self, subject: Subject, say: Say) -> None:
        self._machine.later(self._until_answered(subject, say))

    async def _until_answered(self, subject: Subject, say: Say) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while subject.closed_as is None:
                    try:
                        subject.heard(await say())
                    except (MessageRefused, AlreadyDecided, RunNotRunning, RunNotFound):
                        return
                    except SteersmanError:
                        await asyncio.sleep(0.5)
                    else:
                        return

    # Loops.

    async def _loop_paused(self, subject: Subject, step: Step) -> str:
        """At once or after the iteration; then resumed."""
        now = step.chance < 0.5
        self._say(subject, lambda: self._steersman.loops.pause(subject.id, now=now))

        async def resume() -> None:
            await asyncio.sleep(1 + 3 * step.chance)
            self._say(subject, lambda: self._steersman.loops.resume(subject.id))

        self._machine.later(resume())
        return "now" if now else ""

    async def _loop_told(self, subject: Subject, step: Step) -> str:
        self._say(subject, lambda: self._steersman.loops.feedback(subject.id, f"heed {step.number}"))
        return ""

    # Workflows and activities.

    async def _cancelled(self, subject: Subject, step: Step) -> str:
        await self._handle(subject).cancel(rpc_timeout=RPC_S)
        return ""

    async def _cancelled_twice(self, subject: Subject, step: Step) -> str:
        """The second says that it is urgent."""
        await self._handle(subject).cancel(rpc_timeout=RPC_S)
        await asyncio.sleep(step.chance)
        with contextlib.suppress(RPCError):
            await self._handle(subject).cancel(rpc_timeout=RPC_S)
            await self._handle(subject).signal(names.HURRY, rpc_timeout=RPC_S)
        return ""

    async def _terminated(self, subject: Subject, step: Step) -> str:
        await self._handle(subject).terminate("chaos", rpc_timeout=RPC_S)
        return ""

    async def _workflow_reset(self, subject: Subject, step: Step) -> str | None:
        kind = "FirstWorkflowTask" if step.chance < 0.5 else "LastWorkflowTask"
        described = await self._handle(subject).describe(rpc_timeout=RPC_S)
        if described.status is None or described.status.name != "RUNNING":
            return None
        reset = ("workflow", "reset", "--workflow-id", subject.id, "--run-id", described.run_id, "--type", kind)
        self._machine.later(self._cli(subject, *reset, "--reason", "chaos"))
        return kind

    async def _cli(self, subject: Subject, *arguments: str) -> None:
        await self._machine.site.temporal(*arguments, check=False)

    async def _activity_paused(self, subject: Subject, step: Step) -> str:
        await self._service("pause_activity", PauseActivityRequest, subject)
        seconds = 0.2 + 5 * step.chance

        async def unpause() -> None:
            await asyncio.sleep(seconds)
            while subject.closed_as is None:
                try:
                    await self._service("unpause_activity", UnpauseActivityRequest, subject)
                except RPCError as error:
                    if error.status in OVER:
                        return
                    await asyncio.sleep(0.5)
                else:
                    return

        self._machine.later(unpause())
        return f"for {seconds:.1f} s"

    async def _activity_reset(self, subject: Subject, step: Step) -> str:
        await self._service("reset_activity", ResetActivityRequest, subject)
        return ""

    async def _started_twice(self, subject: Subject, step: Step) -> str:
        start = self._client.start_workflow(
            names.RUN_WORKFLOW,
            subject.request,
            id=subject.id,  # which the first start may not have reached yet
            task_queue=names.TASK_QUEUE,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            rpc_timeout=RPC_S,
        )
        with contextlib.suppress(WorkflowAlreadyStartedError):
            await start
            return "and the server took it"
        return ""

    def _handle(self, subject: Subject) -> "WorkflowHandle[Any, Any]":
        return self._client.get_workflow_handle(subject.id)

    async def _service(self, call: str, request: Any, subject: Subject) -> None:
        asked = request(
            namespace=self._client.namespace,
            execution=WorkflowExecution(workflow_id=subject.id),
            identity="chaos",
            type=names.RUN_AGENT,
        )
        await getattr(self._client.workflow_service, call)(asked, timeout=RPC_S)
