"""The client for programs without an event loop: scripts, notebooks, threads."""

import asyncio
import inspect
import json
import secrets
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import steersman.client
import steersman.loops
import steersman.threads
from steersman.contracts.errors import AgentCrashed
from steersman.errors import RunCancelled, RunNotFound
from steersman.sync import Loops, Steersman, Thread
from tests.acceptance.site import Site, gone
from tests.scripted_model import ScriptedModel, say
from tests.support.processes import marked, until

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, sys
from steersman.sync import Steersman
with Steersman.connect(address=sys.argv[1], namespace=sys.argv[2]) as client:
    client.run(json.load(open(sys.argv[3])), run_id=sys.argv[4])
"""
LEFT_OUT = {"temporal", "deletable"}
"""Of the asynchronous classes: Temporal's own client, which has no use without a loop, and what `steer` alone needs."""


@pytest.mark.parametrize(
    ("mine", "its"),
    [
        (Steersman, steersman.client.Steersman),
        (Loops, steersman.loops.Loops),
        (Thread, steersman.threads.Thread),
    ],
)
def test_it_has_all_that_the_other_one_has(mine: type, its: type) -> None:
    for name in {name for name in dir(its) if not name.startswith("_")} - LEFT_OUT:
        assert hasattr(mine, name), name
        wanted, given = getattr(its, name), getattr(mine, name)
        if callable(wanted) and name != "connect":
            assert list(inspect.signature(given).parameters)[1:] == list(inspect.signature(wanted).parameters)[1:]
            assert given.__doc__


def connected(site: Site) -> Steersman:
    return Steersman.connect(address=site.namespace.address, namespace=site.namespace.name)


async def test_runs_are_started_followed_talked_to_and_stopped(shared: Site) -> None:
    asked = shared.process("sh", "-c", "echo one; echo two")
    sleeping = shared.process("sh", "-c", "echo at work; sleep 600")
    failing = shared.process("sh", "-c", "exit 3")

    def work() -> None:
        with connected(shared) as client:
            result = client.run(asked)
            assert (result.status, result.text) == ("succeeded", "one\ntwo")
            run = client.start(sleeping)
            with closing(client.attach(run)) as events:
                said = next(event for event in events if event.type == "message")
            assert said.text == "at work"
            assert client.state(run).phase == "running"
            assert client.stop(run).outcome == "stopped"
            with pytest.raises(RunCancelled):
                client.result(run)
            assert [event.type for event in client.attach(run)][-1] == "cancelled"
            with pytest.raises(AgentCrashed):
                client.run(failing)
            with pytest.raises(RunNotFound):
                client.loops.state("nobody")
        with pytest.raises(RuntimeError, match="closed"):
            client.state(run)

    await asyncio.to_thread(work)


async def test_many_threads_share_a_client(shared: Site) -> None:
    requests = [shared.process("echo", str(number)) for number in range(8)]

    def work() -> list[str]:
        with connected(shared) as client, ThreadPoolExecutor(8) as pool:
            return [result.text for result in pool.map(client.run, requests)]

    assert await asyncio.to_thread(work) == [str(number) for number in range(8)]
    assert not [each for each in threading.enumerate() if each.name == "steersman"]


async def test_a_conversation(site: Site, model: ScriptedModel) -> None:
    script = model.script("a", say("one"), say("two"))
    await site.worker().ready()
    workspace = site.workspace()
    env: Any = {"ANTHROPIC_BASE_URL": script.url}

    def work() -> None:
        with connected(site) as client:
            thread = client.thread(agent="claude", workspace=str(workspace), env=env)
            first = thread.run("first")
            assert first.text == "one"
            again = client.resume_thread(thread.id)
            assert [event.type for event in again.run_streamed("second")][-1] == "done"
            assert len(thread.runs()) == 2
            assert thread.interrupt().outcome == "already_finished"

    await asyncio.to_thread(work)
    assert script.requests[1].saw("first")


async def test_ctrl_c_stops_what_it_waits_for(shared: Site, mark: str, tmp_path: Path) -> None:
    request = shared.process("sleep", "600", mark=mark)
    run = f"run-{secrets.token_hex(4)}"
    file = tmp_path / "request.json"
    file.write_text(json.dumps(request))
    words = (shared.namespace.address, shared.namespace.name, str(file), run)
    script = subprocess.Popen([sys.executable, "-c", SCRIPT, *words], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    await until(lambda: marked(mark))
    script.send_signal(signal.SIGINT)
    _, err = await asyncio.to_thread(script.communicate)
    assert "KeyboardInterrupt" in err
    await gone(mark)
    client = await shared.steersman()
    with pytest.raises(RunCancelled):
        await client.result(run)
