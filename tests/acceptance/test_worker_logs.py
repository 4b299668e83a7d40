"""What workers' logs tell of a run's life: each step once, by the worker that takes it, and nothing that was said."""

import json
from typing import Any

import pytest

from steersman.client import Steersman
from steersman.contracts.errors import RunError
from steersman.errors import RunCancelled
from tests.acceptance.site import Site, gone
from tests.acceptance.test_resume import handle_of
from tests.scripted_model import ScriptedModel, hold, say
from tests.support.processes import until

ACTIONS = ("agent_started", "agent_adopted", "message_delivered", "stop_asked", "agent_gone", "run_closed")


def told(site: Site, run: str) -> list[tuple[str, dict[str, Any]]]:
    """What the workers logged of a run: which worker and action, and the rest of the line."""
    found = []
    for number, worker in enumerate(site.workers):
        # Warnings of the SDK's are no JSON.
        whole = [line for line in worker.log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
        lines = [each for each in map(json.loads, whole) if each.get("action") in ACTIONS]
        found += [(f"{number} {each['action']}", each) for each in lines]
    return [each for each in found if each[1]["run"] == run]


def steps(site: Site, run: str) -> list[str]:
    return [step for step, _ in told(site, run)]


def fact(site: Site, run: str, step: str, name: str) -> Any:
    (line,) = [line for each, line in told(site, run) if each == step]
    return line[name]


async def reaches(site: Site, run: str, step: str) -> None:
    await until(lambda: step in steps(site, run), 40)


async def test_a_run_that_is_steered_and_taken_over(site: Site, model: ScriptedModel) -> None:
    first = site.worker()
    await first.ready()
    steersman = await site.steersman()
    script = model.script("whole", hold("thinking aloud"), say("what came of it"))
    run = await steersman.start(site.claude(script, prompt="a secret wish"))
    await script.wait_held()
    pid = (await handle_of(steersman, run)).pid
    await steersman.steer(run, "a private word", id="word-1")
    await first.terminate()
    await site.worker().ready()
    await reaches(site, run, "1 agent_adopted")
    await script.release()
    result = await steersman.result(run)
    await reaches(site, run, "1 run_closed")

    assert steps(site, run) == [
        "0 agent_started",
        "0 message_delivered",
        "1 agent_adopted",
        "1 agent_gone",
        "1 run_closed",
    ]
    execution = (await steersman.state(run)).execution
    assert {line["execution"] for _, line in told(site, run)} == {execution}
    assert [fact(site, run, step, "pid") for step in ("0 agent_started", "1 agent_adopted", "1 agent_gone")] == [
        pid
    ] * 3
    assert fact(site, run, "0 message_delivered", "id") == "word-1"
    assert fact(site, run, "1 agent_gone", "exit_code") == 0
    assert fact(site, run, "1 agent_gone", "took_s") > 0
    assert fact(site, run, "1 run_closed", "status") == "succeeded"
    assert fact(site, run, "1 run_closed", "took_s") > fact(site, run, "1 agent_gone", "took_s")
    logged = "".join(worker.log.read_text(encoding="utf-8") for worker in site.workers)
    for words in ("a secret wish", "a private word", "thinking aloud", "what came of it", result.text):
        assert words not in logged


@pytest.mark.exhaustive
async def test_a_run_that_is_stopped(shared: Site, steersman: Steersman, mark: str) -> None:
    run = await steersman.start(shared.process("sleep", "600", mark=mark))
    await reaches(shared, run, "0 agent_started")
    await steersman.stop(run, reason="a person's words")
    with pytest.raises(RunCancelled):
        await steersman.result(run)
    await reaches(shared, run, "0 run_closed")

    assert sorted(steps(shared, run)) == ["0 agent_gone", "0 agent_started", "0 run_closed", "0 stop_asked"]
    assert fact(shared, run, "0 stop_asked", "reason") == "cancelled"
    assert fact(shared, run, "0 agent_gone", "stopped_for") == "cancelled"
    closed = [fact(shared, run, "0 run_closed", name) for name in ("status", "outcome", "how", "processes")]
    assert closed == ["cancelled", "stopped", "terminated", 1]
    assert "a person's words" not in shared.workers[0].log.read_text(encoding="utf-8")


@pytest.mark.exhaustive
async def test_a_run_that_reaches_a_limit(shared: Site, steersman: Steersman, mark: str) -> None:
    run = await steersman.start(shared.process("sleep", "600", mark=mark, limits={"idle_s": 1}))
    with pytest.raises(RunError):
        await steersman.result(run)
    await reaches(shared, run, "0 run_closed")

    assert steps(shared, run) == ["0 agent_started", "0 stop_asked", "0 agent_gone", "0 run_closed"]
    assert "limits.idle_s" in fact(shared, run, "0 stop_asked", "reason")
    assert fact(shared, run, "0 run_closed", "error") == "RunTimedOut"


@pytest.mark.exhaustive
async def test_a_run_that_is_terminated_with_a_worker_there_and_with_none(site: Site, mark: str) -> None:
    first = site.worker()
    await first.ready()
    steersman = await site.steersman()
    runs = [await steersman.start(site.process("sleep", "600", mark=mark)) for _ in range(2)]
    for run in runs:
        await reaches(site, run, "0 agent_started")
    await site.temporal("workflow", "terminate", "--workflow-id", runs[0], "--reason", "x")
    await reaches(site, runs[0], "0 run_closed")
    first.kill()
    await site.temporal("workflow", "terminate", "--workflow-id", runs[1], "--reason", "x")
    await site.worker().ready()
    await reaches(site, runs[1], "1 run_closed")
    await gone(mark)

    assert steps(site, runs[0]) == ["0 agent_started", "0 stop_asked", "0 agent_gone", "0 run_closed"]
    assert steps(site, runs[1]) == ["0 agent_started", "1 stop_asked", "1 agent_gone", "1 run_closed"]
