"""Record histories of real runs: `python -m tests.histories.record [NAME...]`.

A dev server, the real worker, real processes and the real Claude Code CLI with a scripted model. What must not live
here: judgement of what a run did, which the acceptance tests have.
"""

import asyncio
import contextlib
import os
import socket
import sys
import tempfile
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle

from steersman.contracts import names
from steersman.contracts.run import RunState
from tests.scripted_model import Hold, Say, ScriptedModel, Tool, answer, hold, say, tool
from tests.scripted_model.script import Script
from tests.support.processes import until
from tests.support.temporal import DevServer, connect
from tests.support.workers import WorkerProcess

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HOST = "recorder"
WAITING = "import os, time\nprint('at work', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)"


class Recorder:
    """One machine with a worker."""

    def __init__(self, directory: Path, server: DevServer, client: Client, script: Script) -> None:
        self.directory, self.client, self.script = directory, client, script
        self.workspace = directory / "workspace"
        self.workspace.mkdir(exist_ok=True)
        self._server = server
        self._workers: list[WorkerProcess] = []

    async def work(self) -> WorkerProcess:
        """A worker, polling."""
        flags = ("--state-dir", str(self.directory / "state"), "--host", HOST)
        model = {**self.script.env(self.directory / "config"), "HOME": str(self.directory)}
        log = self.directory / f"worker-{len(self._workers)}.log"
        worker = WorkerProcess(log, flags, {**self._server.env, **model})
        self._workers.append(worker)
        await worker.ready()
        return worker

    async def end(self) -> None:
        for worker in self._workers:
            with contextlib.suppress(ProcessLookupError):
                worker.kill()

    async def start(self, *inputs: Any, **fields: Any) -> "WorkflowHandle[Any, Any]":
        """A run, of these inputs or of a request with these fields."""
        request = {"workspace": {"path": str(self.workspace)}, **fields}
        given = inputs or (request,)
        run = f"run-{uuid.uuid4()}"
        return await self.client.start_workflow(names.RUN_WORKFLOW, args=given, id=run, task_queue=names.TASK_QUEUE)

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


async def process_succeeded(at: Recorder) -> Any:
    return await at.process("print('hello')", labels={"team": "x"})


async def process_failed(at: Recorder) -> Any:
    return await at.process("raise SystemExit(3)")


async def claude_steered_interrupted_approved(at: Recorder) -> Any:
    run = await at.start(agent="claude", prompt="work", permissions={"mode": "ask"}, limits={"turns": 50})
    await until(lambda: _asked(run))
    (approval,) = (await state(run)).approvals
    await run.execute_update(names.DECIDE, {"id": approval.id, "decision": "allow"})
    await at.script.wait_held()
    steer = asyncio.ensure_future(run.execute_update(names.STEER, {"text": "use tabs", "id": "steer-one"}))
    await until(lambda: _told(run))
    await at.script.release()
    await steer
    await at.script.wait_requests(4)
    await at.script.wait_held()
    await run.execute_update(names.INTERRUPT, {"text": "make it short"})
    return run


async def claude_ended(at: Recorder) -> Any:
    """A steer waits behind the tool when the run is ended with its turn."""
    run = await at.start(agent="claude", prompt="work", permissions={"mode": "ask"}, limits={"tokens": 100_000})
    await until(lambda: _asked(run))
    (approval,) = (await state(run)).approvals
    await run.execute_update(names.DECIDE, {"id": approval.id, "decision": "allow"})
    await at.script.wait_held()
    await run.execute_update(names.STEER, {"text": "use tabs"})
    await run.execute_update(names.INTERRUPT, {"end": True, "reason": "lunch"})
    return run


async def _asked(run: "WorkflowHandle[Any, Any]") -> bool:
    return bool((await state(run)).approvals)


async def _told(run: "WorkflowHandle[Any, Any]") -> bool:
    return bool((await state(run)).messages)


async def cancelled(at: Recorder) -> Any:
    run = await at.process(WAITING)
    await at_work(run)
    await run.cancel()
    return run


async def input_was_no_object(at: Recorder) -> Any:
    return await at.start([1, 2])


async def workspace_was_missing(at: Recorder) -> Any:
    return await at.process("print()", workspace={"path": "/no/such/directory"})


async def duration_limit(at: Recorder) -> Any:
    run = await at.process(WAITING, limits={"duration_s": 1})
    await at_work(run)
    return run


async def worker_was_killed(at: Recorder) -> Any:
    run = await at.process(WAITING)
    await at_work(run)
    await at.end()
    await at.work()
    await until(lambda: _sessions(run, 2), 40)
    (at.workspace / "go").touch()
    return run


async def _sessions(run: "WorkflowHandle[Any, Any]", count: int) -> bool:
    history = await run.fetch_history()
    told = [event.workflow_execution_signaled_event_attributes.signal_name for event in history.events]
    return told.count(names.SESSION_STARTED) >= 2 * count


SCENARIOS: dict[str, Callable[[Recorder], Awaitable[Any]]] = {
    scenario.__name__: scenario
    for scenario in (
        process_succeeded,
        process_failed,
        claude_steered_interrupted_approved,
        claude_ended,
        cancelled,
        input_was_no_object,
        workspace_was_missing,
        duration_limit,
        worker_was_killed,
    )
}


def scripted(model: ScriptedModel, name: str) -> Script:
    """What the model says in the scenario with Claude."""
    steered = answer(Say("made it"), Hold(), Tool("Bash", {"command": "true"}))
    steps = (tool("Bash", command="touch made-it"), steered, say("with tabs"), hold("a long story"), say("short"))
    return model.script(name, steps[0], steps[1], answer(Say("tabs"), Tool("Bash", {"command": "true"})), *steps[3:])


async def record(name: str) -> None:
    """One scenario, on machinery of its own."""
    with tempfile.TemporaryDirectory(prefix="steersman-") as directory:
        server = DevServer(Path(directory)).start()
        try:
            async with ScriptedModel() as model:
                client = await connect(server.address)
                at = Recorder(Path(directory), server, client, scripted(model, name))
                try:
                    await at.work()
                    run = await SCENARIOS[name](at)
                    await closed(run)
                    history = await run.fetch_history()
                finally:
                    await at.end()
        finally:
            server.kill()
        text = history.to_json()
    for place, word in ((str(ROOT), "/steersman"), (sys.prefix, "/venv"), (socket.gethostname(), HOST)):
        text = text.replace(place, word)
    (HERE / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(f"{name}: {len(history.events)} events\n")


async def main(wanted: list[str]) -> None:
    """Record what is wanted, or all."""
    for name in wanted or SCENARIOS:
        await record(name)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
    sys.stdout.flush()
    os._exit(0)  # Temporal's native threads can crash an interpreter that shuts down
