"""A worker host on which histories are recorded: a dev server, the real worker, a scripted model.

Which runs and loops are recorded must not live here.
"""

import contextlib
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.common import RetryPolicy

from steersman.contracts import names
from steersman.contracts.run import RunState
from tests.scripted_model.script import Script
from tests.support.processes import until
from tests.support.temporal import DevServer
from tests.support.workers import WorkerProcess

HOST = "recorder"
FIRST_TASK = 3
"""The event that the first workflow task's start is."""


class Recorder:
    """One worker host."""

    def __init__(self, directory: Path, server: DevServer, client: Client, script: Script) -> None:
        self.directory, self.client, self.script = directory, client, script
        self.workspace = directory / "workspace"
        self.workspace.mkdir(exist_ok=True)
        self._server = server
        self._workers: list[WorkerProcess] = []

    async def work(self, *more: str) -> WorkerProcess:
        """A worker, polling."""
        flags = ("--state-dir", str(self.directory / "state"), "--host", HOST, *more)
        model = {**self.script.env(self.directory / "config"), "HOME": str(self.directory)}
        log = self.directory / f"worker-{len(self._workers)}.log"
        worker = WorkerProcess(log, flags, {**self._server.default.env, **model})
        self._workers.append(worker)
        await worker.ready()
        return worker

    async def end(self) -> None:
        for worker in self._workers:
            with contextlib.suppress(ProcessLookupError):
                worker.kill()

    async def start(
        self,
        *inputs: Any,
        run_timeout: timedelta | None = None,
        retry_policy: RetryPolicy | None = None,
        **fields: Any,
    ) -> "WorkflowHandle[Any, Any]":
        """A run, of these inputs or of a request with these fields. `run_timeout`, `retry_policy`: Temporal's own."""
        request = {"workspace": {"path": str(self.workspace)}, **fields}
        given = inputs or (request,)
        run = f"run-{uuid.uuid4()}"
        return await self.client.start_workflow(
            names.RUN_WORKFLOW,
            args=given,
            id=run,
            task_queue=names.TASK_QUEUE,
            run_timeout=run_timeout,
            retry_policy=retry_policy,
        )

    async def start_loop(self, request: Any) -> "WorkflowHandle[Any, Any]":
        """A loop of that request."""
        loop = f"loop-{uuid.uuid4()}"
        return await self.client.start_workflow(names.LOOP_WORKFLOW, request, id=loop, task_queue=names.TASK_QUEUE)

    async def reset(self, run: str) -> None:
        """Have it begin anew, as the Web UI does."""
        await self.client.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace=self.client.namespace,
                workflow_execution=WorkflowExecution(workflow_id=run),
                reason="again",
                request_id=str(uuid.uuid4()),
                workflow_task_finish_event_id=FIRST_TASK,
            )
        )

    async def process(self, code: str, **fields: Any) -> "WorkflowHandle[Any, Any]":
        """A run of a program in Python."""
        return await self.start(agent="process", command=["python3", "-u", "-c", code], **fields)


async def state(run: "WorkflowHandle[Any, Any]") -> RunState:
    return RunState.model_validate(await run.query(names.STATE_QUERY))


async def at_work(run: "WorkflowHandle[Any, Any]") -> None:
    """Wait until the agent's process runs."""

    async def running() -> bool:
        return (await state(run)).handle is not None

    await until(running)


async def closed(run: "WorkflowHandle[Any, Any]") -> None:
    """Wait for its end, whichever it is."""
    with contextlib.suppress(WorkflowFailureError):
        await run.result()
