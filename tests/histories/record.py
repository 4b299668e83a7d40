"""Record histories of real runs and loops: `python -m tests.histories.record [NAME...]`.

A dev server, the real worker, real processes and the real Claude Code CLI with a scripted model. What must not live
here: judgement of what a run did, which the acceptance tests have.
"""

import asyncio
import os
import socket
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

from aiohttp import web
from temporalio.api.failure.v1 import ApplicationFailureInfo, Failure
from temporalio.api.workflowservice.v1 import RespondActivityTaskFailedByIdRequest
from temporalio.client import WorkflowHandle
from temporalio.common import RetryPolicy

from steersman.contracts import names
from tests.histories.loops import LOOPS, Scenario
from tests.histories.recorder import HOST, Recorder, at_work, closed, state
from tests.scripted_model import Hold, Say, ScriptedModel, Step, Tool, answer, hold, say, tool
from tests.support.images import attached, png
from tests.support.processes import until
from tests.support.temporal import DevServer, connect

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WAITING = "import os, time\nprint('at work', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)"


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


async def claude_withdrew_nothing(at: Recorder) -> Any:
    """Questions that were never asked are withdrawn: workflow tasks in which nothing is to be done."""
    run = await at.start(agent="claude", prompt="work", permissions={"mode": "ask"})
    await until(lambda: _asked(run))
    for number in range(4):
        withdrawn = {"id": f"none-{number}", "tool": "Bash", "input": {}, "since": "2026-01-01T00:00:00Z"}
        await run.signal(names.APPROVAL_ASKED, {"approval": withdrawn, "withdrawn": True})
        await state(run)
    await run.cancel()
    return run


async def claude_withdrew_nothing_of_all(at: Recorder) -> Any:
    """The same, each of those tasks with a command that changes nothing."""
    return await claude_withdrew_nothing(at)


async def claude_was_heard_late(at: Recorder) -> Any:
    """A question that its host dates before its time to be answered gets that time from when it is heard."""
    run = await at.start(agent="claude", prompt="work", permissions={"mode": "ask"}, limits={"approval_s": 120})
    await until(lambda: _asked(run))
    question = {"id": "late", "tool": "Bash", "input": {}, "since": "2026-01-01T00:00:00Z"}
    await run.signal(names.APPROVAL_ASKED, {"approval": question})
    assert "late" in [each.id for each in (await state(run)).approvals]
    await run.cancel()
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


async def claude_awaited_a_message(at: Recorder) -> Any:
    """Its turn was interrupted; it was told how to go on, and stopped."""
    run = await at.start(agent="claude", prompt="work", permissions={"mode": "full"})
    await at.script.wait_held()
    await run.execute_update(names.INTERRUPT, {})

    async def awaits(*, wanted: bool) -> bool:
        return (await state(run)).awaits_message is wanted

    await until(lambda: awaits(wanted=True))
    await run.execute_update(names.STEER, {"text": "use tabs"})
    await until(lambda: awaits(wanted=False))
    await run.cancel()
    return run


async def claude_waited_for_ever(at: Recorder) -> Any:
    """No timer runs while it waits, and its phase says that it does; then it is cancelled, with a reason."""
    run = await at.start(agent="claude", prompt="work", permissions={"mode": "ask"}, limits={"approval_s": None})
    await until(lambda: _asked(run))
    (approval,) = (await state(run)).approvals
    await run.execute_update(names.DECIDE, {"id": approval.id, "decision": "allow"})
    await at.script.wait_held()
    await run.cancel(reason="too dear")
    return run


async def claude_told_a_webhook(at: Recorder) -> Any:
    """Which allows what is asked, and hears of that, of the budget and of the end."""

    async def take(_request: web.Request) -> web.Response:
        return web.json_response({"decision": "allow"})

    application = web.Application()
    application.router.add_post("/", take)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    await at.end()
    await at.work("--allow-webhook", url)
    webhook = {"url": url, "on": ["approval", "decision", "budget", "end"], "decides": True}
    asks: dict[str, Any] = {"permissions": {"mode": "ask"}, "limits": {"turns": 3}, "notify": [webhook]}
    run = await at.start(agent="claude", prompt="work", **asks)
    await at.script.wait_held()
    await run.execute_update(names.INTERRUPT, {"end": True})
    await closed(run)
    await runner.cleanup()
    return run


async def claude_told_a_webhook_by_chance(at: Recorder) -> Any:
    """The same, its notices under ids that a reset does not use again."""
    return await claude_told_a_webhook(at)


async def claude_was_shown_files(at: Recorder) -> Any:
    """With its prompt, in its turn, and with the text that follows an interrupt."""
    files = [attached(png(), "red.png"), attached(b"look here", "notes")]
    run = await at.start(agent="claude", prompt="work", permissions={"mode": "full"}, attachments=files)
    await at.script.wait_held()
    await run.signal(names.STEER, {"text": "and this", "attachments": files})
    await at.script.release()
    await at.script.wait_requests(4)
    await at.script.wait_held()
    await run.execute_update(names.INTERRUPT, {"text": "make it short", "attachments": files})
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


async def agent_was_unknown(at: Recorder) -> Any:
    """Recorded by a version that refused it in the workflow; since then a worker does."""
    return await at.start(agent="nobody", prompt="go")


async def workspace_was_missing(at: Recorder) -> Any:
    return await at.process("print()", workspace={"path": "/no/such/directory"})


async def duration_limit(at: Recorder) -> Any:
    run = await at.process(WAITING, limits={"duration_s": 1})
    await at_work(run)
    return run


async def was_begun_again(at: Recorder) -> Any:
    """By a retry policy, after Temporal's own timeout: the second execution."""
    code = "import os, time\nif not os.path.exists('begun'):\n    open('begun', 'w').close(); time.sleep(600)"
    retry = RetryPolicy(maximum_attempts=10, initial_interval=timedelta(seconds=1))
    return await at.process(code, run_timeout=timedelta(seconds=5), retry_policy=retry)


async def activity_was_failed(at: Recorder) -> Any:
    """By a person, while the agent was at work."""
    run = await at.process(WAITING)
    await at_work(run)
    found = (await run.describe()).raw_description.pending_activities
    (activity,) = (each.activity_id for each in found if each.activity_type.name == names.RUN_AGENT)
    failure = Failure(message="by hand", application_failure_info=ApplicationFailureInfo(non_retryable=True))
    await at.client.workflow_service.respond_activity_task_failed_by_id(
        RespondActivityTaskFailedByIdRequest(
            namespace=at.client.namespace, workflow_id=run.id, activity_id=activity, failure=failure
        )
    )
    return run


async def worker_was_killed(at: Recorder) -> Any:
    run = await at.process(WAITING)
    await at_work(run)
    await at.end()
    await at.work()
    await until(lambda: _sessions(run, 2), 40)
    (at.workspace / "go").touch()
    return run


async def claude_was_refused_at_a_takeover(at: Recorder) -> Any:
    """What it had used counts, though the worker that refuses it has led nothing."""
    run = await at.start(agent="claude", prompt="go", permissions={"mode": "full"})
    await at.script.wait_held()
    await until(lambda: _used(run))
    await at.end()
    await at.work("--max-permission", "read_only")
    return run


async def _used(run: "WorkflowHandle[Any, Any]") -> bool:
    return (await state(run)).cost_usd > 0


async def waited_for_its_workspace(at: Recorder) -> Any:
    """Its limit holds over the wait and the work."""
    first = await at.process(WAITING)
    await at_work(first)
    run = await at.process("print()", workspace=_queue(at), limits={"duration_s": 600})
    await until(lambda: _waits(run))
    await first.cancel()
    return run


async def cancelled_in_the_queue(at: Recorder) -> Any:
    await at_work(await at.process(WAITING))
    run = await at.process("print()", workspace=_queue(at))
    await until(lambda: _waits(run))
    await run.cancel(reason="not now")
    return run


def _queue(at: Recorder) -> dict[str, str]:
    return {"path": str(at.workspace), "on_overlap": "queue"}


async def _waits(run: "WorkflowHandle[Any, Any]") -> bool:
    return bool((await state(run)).workspace_held_by)


async def _sessions(run: "WorkflowHandle[Any, Any]", count: int) -> bool:
    history = await run.fetch_history()
    told = [event.workflow_execution_signaled_event_attributes.signal_name for event in history.events]
    return told.count(names.SESSION_STARTED) >= 2 * count


def scripted() -> tuple[Step, ...]:
    """What the model says in the runs with Claude."""
    bash = Tool("Bash", {"command": "true"})
    first = (tool("Bash", command="touch made-it"), answer(Say("made it"), Hold(), bash))
    return (*first, answer(Say("tabs"), bash), hold("a long story"), say("short"))


RUNS = {
    play.__name__: Scenario(play, scripted())
    for play in (
        process_succeeded,
        process_failed,
        claude_steered_interrupted_approved,
        claude_withdrew_nothing,
        claude_withdrew_nothing_of_all,
        claude_was_heard_late,
        claude_ended,
        claude_awaited_a_message,
        claude_waited_for_ever,
        claude_told_a_webhook,
        claude_told_a_webhook_by_chance,
        claude_was_shown_files,
        cancelled,
        input_was_no_object,
        agent_was_unknown,
        workspace_was_missing,
        duration_limit,
        was_begun_again,
        activity_was_failed,
        worker_was_killed,
        claude_was_refused_at_a_takeover,
        waited_for_its_workspace,
        cancelled_in_the_queue,
    )
}
SCENARIOS = {**RUNS, **LOOPS}


async def record(name: str) -> None:
    """One scenario, on machinery of its own."""
    scenario = SCENARIOS[name]
    with tempfile.TemporaryDirectory(prefix="steersman-") as directory:
        server = DevServer(Path(directory), scenario.settings).start()
        try:
            async with ScriptedModel() as model:
                client = await connect(server.address)
                at = Recorder(Path(directory), server, client, model.script(name, *scenario.steps))
                try:
                    await at.work()
                    run = await scenario.play(at)
                    await closed(run)
                    history = await run.fetch_history()
                finally:
                    await at.end()
        finally:
            server.close()
        text = history.to_json()
    # The virtual environment may lie in the checkout: the longer path goes first.
    places = {sys.prefix: "/venv", sys.base_prefix: "/python", str(ROOT): "/steersman", socket.gethostname(): HOST}
    for place, word in places.items():
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
