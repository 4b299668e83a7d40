"""The agent itself dies: its session goes on in a new process, and the run says what happened."""

import os
import signal
from functools import partial

import pytest

from steersman.client import Steersman
from steersman.contracts.errors import AgentCrashed
from steersman.contracts.run import Handle
from tests.acceptance.programs import CRASH, STUBBORN, python
from tests.acceptance.site import Site, answered, claudes, following, gone, in_order
from tests.scripted_model import ScriptedModel, hold, say, tool
from tests.support.files import below, content
from tests.support.processes import lives, marked, parent, until


async def handle_of(steersman: Steersman, run: str, attempt: int = 1) -> Handle:
    """Which process it is, once that attempt has one."""

    async def known() -> Handle | None:
        state = await answered(partial(steersman.state, run))
        return state.handle if state.handle and state.attempt >= attempt else None

    return await until(known)


def shim_of(handle: Handle) -> int:
    """The process that owns an agent."""
    owner = parent(handle.pid)
    assert owner is not None
    return owner


def written_down(site: Site, *words: str) -> bool:
    """Whether a line of some transcript of Claude Code has all these words."""
    transcripts = [path for path in below(site.root) if path.match("projects/*/*.jsonl")]
    lines = (line for file in transcripts for line in content(file).decode("utf-8", "replace").splitlines())
    return any(all(word in line for word in words) for line in lines)


async def test_a_killed_agent_goes_on_with_its_session(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    steps = (tool("Bash", command="echo a first step"), hold("thinking"), say("finished"))
    script = model.script("killed", *steps)
    request = shared.claude(script, prompt="build the thing", mark=mark, permissions={"mode": "full"})
    run = await steersman.start(request)
    async with following(steersman, run) as attached:
        await script.wait_held()
        await attached.until(lambda e: e.type == "message" and e.text == "thinking")
        # Claude Code writes its transcript some 100 ms behind what it says.
        await until(lambda: written_down(shared, '"tool_result"', "a first step"))
        first = await handle_of(steersman, run)
        os.kill(first.pid, signal.SIGKILL)
        result = await steersman.result(run)
        events = await attached.end()

    assert (result.status, result.text, result.attempts) == ("succeeded", "finished", 2)
    assert script.requests[-1].saw("build the thing")
    assert script.requests[-1].saw("a first step")
    assert in_order(events)
    assert {event.attempt for event in events} == {1, 2}
    inits = [event.session_id for event in events if event.type == "init"]
    assert len(set(inits)) == 1
    assert result.session_id == inits[0]
    assert (await steersman.state(run)).attempt == 2
    await gone(mark)


@pytest.mark.exhaustive
async def test_an_agent_killed_before_its_session_exists_starts_over(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    script = model.script("early", say("finished"))
    run = await steersman.start(shared.claude(script, prompt="build the thing", mark=mark))
    claude = await until(lambda: [pid for pid, line in marked(mark).items() if "stream-json" in line])
    os.kill(claude[0], signal.SIGKILL)

    result = await steersman.result(run)

    assert (result.text, result.attempts) == ("finished", 2)
    assert len(script.requests) == 1
    assert sum(text.count("build the thing") for text in script.requests[0].texts) == 1


@pytest.mark.exhaustive
async def test_what_a_killed_shim_left_is_cleared_away_and_the_session_resumed(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    steps = (tool("Bash", command="python3 -c 'import time; time.sleep(60)'"), say("finished"))
    script = model.script("shim", *steps)
    run = await steersman.start(shared.claude(script, mark=mark, permissions={"mode": "full"}))
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "tool_use")
        await until(lambda: any("time.sleep(60)" in line for line in marked(mark).values()))
        first = await handle_of(steersman, run)
        left = set(marked(mark))
        os.kill(shim_of(first), signal.SIGKILL)
        result = await steersman.result(run)
        events = await attached.end()

    assert (result.text, result.attempts) == ("finished", 2)
    assert not any(map(lives, left))
    assert in_order(events)
    await gone(mark)


async def test_a_program_whose_shim_was_killed_leaves_nothing(shared: Site, steersman: Steersman, mark: str) -> None:
    run = await steersman.start(shared.process(*python(STUBBORN), mark=mark))
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message")
        handle = await handle_of(steersman, run)
        os.kill(shim_of(handle), signal.SIGKILL)
        with pytest.raises(AgentCrashed):
            await steersman.result(run)
        assert (await attached.end())[-1].type == "failed"
    await gone(mark)


@pytest.mark.exhaustive
async def test_an_agent_that_crashes_again_and_again_is_given_up(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    script = model.script("loop", *(hold("thinking") for _ in range(20)))
    run = await steersman.start(shared.claude(script, prompt=f"prompt-{mark}", mark=mark))
    killed: set[int] = set()

    async def crash_until_closed() -> bool:
        # Before its transcript is on disk a resume finds nothing, and takes a process more.
        if script.holding and written_down(shared, f"prompt-{mark}"):
            for pid in claudes(mark):
                if pid not in killed and len(script.requests) > len(killed):
                    killed.add(pid)
                    os.kill(pid, signal.SIGKILL)
        # Lists lag behind: the run may not be in them yet.
        return [each.phase for each in await steersman.list(f'WorkflowId="{run}"')] == ["closed"]

    await until(crash_until_closed, 60)
    with pytest.raises(AgentCrashed) as failure:
        await steersman.result(run)

    assert failure.value.facts["signal"] == signal.SIGKILL
    assert failure.value.facts["exit_code"] is None
    assert "stderr" in failure.value.facts
    assert (await steersman.state(run)).attempt == len(killed)
    assert 2 <= len(killed) <= 5


async def test_a_program_that_fails_says_how(shared: Site, steersman: Steersman) -> None:
    run = await steersman.start(shared.process(*python(CRASH, "an empty disk")))

    with pytest.raises(AgentCrashed, match="the reason is an empty disk") as failure:
        await steersman.result(run)

    facts = failure.value.facts
    assert (facts["exit_code"], facts["signal"]) == (7, None)
    assert facts["stderr"][-1] == "the reason is an empty disk"
    events = await steersman.events(run)
    assert events[-1].type == "failed"
    assert events[-1].error == "AgentCrashed"
    assert in_order(events)
