"""What the agents of a run know of each other where one goes on for another, and what follows such a run."""

from typing import Any

import pytest

from tests.acceptance.loops import claude_loop, ended, project, tick
from tests.acceptance.site import Site
from tests.acceptance.test_fallback import asked, at_work, worker_env
from tests.loops.loop_site import repository
from tests.scripted_model import Script, ScriptedModel, answer, fail, hold, say, tool
from tests.support.processes import until

REFUSED = fail(429, "slow down", retry_after_s=3600)
BEGUN = answer(say("ANALYSIS: the hinge"), tool("Bash", command="true"))


async def worker(site: Site, codex: Script) -> None:
    await site.worker("--allow-env", "MOCK_KEY", **worker_env(site, codex)).ready()


async def test_a_message_that_the_first_one_has_read_is_told_to_the_next(
    site: Site, model: ScriptedModel, mark: str
) -> None:
    first = model.script("a", hold("first words"), *[fail(401, "no")] * 12)
    second = model.script("b", say("mended"))
    await worker(site, second)
    steersman, workspace = await site.steersman(), repository(site.workspace())
    run = await steersman.start(asked(site, first, mark, workspace))
    await first.wait_held()
    await steersman.steer(run, "use nails")
    await first.release()
    await steersman.result(run)
    (message,) = (await steersman.state(run)).messages
    assert message.state == "acknowledged", "by Claude Code, which has got nothing more from its model"
    assert second.requests[0].saw("use nails")
    said = [each.text for each in await steersman.events(run) if each.type == "message" and each.role == "user"]
    assert said.count("use nails") == 1


@pytest.mark.parametrize("between", ["not installed", "refused at once"])
async def test_one_that_has_done_nothing_is_not_said_to_have_worked(
    site: Site, model: ScriptedModel, mark: str, between: str
) -> None:
    first = model.script("a", BEGUN, REFUSED, say("mended"))
    second = model.script("b", *([fail(429, "slow down")] * 6 if between == "refused at once" else [say("mended")]))
    await worker(site, second)
    steersman, workspace = await site.steersman(), repository(site.workspace())
    last, agents = second, [{"agent": "opencode"}, {"agent": "codex"}]
    if between == "refused at once":
        last, agents = first, [{"agent": "codex"}, {"agent": "claude", "model": "claude-sonnet-5"}]
    result = await steersman.run({**asked(site, first, mark, workspace), "fallback": agents})
    assert result.text == "mended"
    told = "\n".join(last.requests[-1].texts)
    assert 'Another agent ("claude") has worked on this before you' in told
    assert "ANALYSIS: the hinge" in told
    assert "People said meanwhile" not in told, "that is the prompt"


async def test_a_thread_goes_on_with_its_own_agents_session(site: Site, model: ScriptedModel, mark: str) -> None:
    first, second = model.script("a", BEGUN, REFUSED, say("second")), model.script("b", say("mended"))
    await worker(site, second)
    steersman, workspace = await site.steersman(), repository(site.workspace())
    request: dict[str, Any] = asked(site, first, mark, workspace)
    del request["prompt"]
    thread = steersman.thread(**request)
    one = await thread.run("mend the fence")
    own = one.parts[0].session_id
    assert (one.text, one.part, one.own_session_id) == ("mended", 1, own)
    assert own != one.session_id
    forked = await thread.fork()
    two = await thread.run("now the others")
    assert (two.session_id, two.own_session_id, two.part) == (own, None, 0)
    assert first.requests[-1].saw("mend the fence")
    assert forked.id != thread.id


async def test_a_closed_run_that_begins_anew_is_its_first_agents_again(
    site: Site, model: ScriptedModel, mark: str
) -> None:
    first, second = model.script("a", REFUSED, hold("again")), model.script("b", hold("half"))
    await worker(site, second)
    steersman, workspace = await site.steersman(), repository(site.workspace())
    run = await steersman.start(asked(site, first, mark, workspace))
    await second.wait_held()
    await until(lambda: at_work(steersman, run, "codex"))
    await second.release()
    await steersman.result(run)
    events = (await site.temporal("workflow", "show", "--workflow-id", run))["events"]
    kinds = [each["eventType"].removeprefix("EVENT_TYPE_") for each in events]
    ended = len(kinds) - 1 - kinds[::-1].index("WORKFLOW_EXECUTION_SIGNALED")
    point = next(at for at in range(ended, len(kinds)) if kinds[at] == "WORKFLOW_TASK_COMPLETED")
    await site.temporal(
        "workflow", "reset", "--workflow-id", run, "--event-id", events[point]["eventId"], "--reason", "again"
    )
    await first.wait_held()
    state = await until(lambda: at_work(steersman, run, "claude"))
    assert state.capabilities
    assert (state.part, state.capabilities.cost, state.own_session_id) == (0, True, None)
    await first.release()
    result = await steersman.result(run)
    assert (result.part, result.parts) == (0, ())


async def test_a_loop_that_is_paused_while_another_one_works_tells_its_own_of_it(
    site: Site, model: ScriptedModel, mark: str
) -> None:
    first = model.script("a", REFUSED, tool("Bash", command=tick("one", "two")), say("done"))
    second = model.script("b", hold("half"))
    await worker(site, second)
    steersman, workspace = await site.steersman(), project(site)
    items = {"items": {"kind": "checkboxes", "path": "PLAN.md"}}
    request = claude_loop(site, first, workspace, mark, plan="PLANTEXT", done=items)
    env = {**request["run"]["env"], "MOCK_KEY": {"from_env": "MOCK_KEY"}}
    request["run"] |= {"env": env, "fallback": [{"agent": "codex"}]}
    loop = await steersman.loops.start(request)
    await second.wait_held()
    await until(lambda: at_work(steersman, f"{loop}-1", "codex"))
    assert (await steersman.loops.pause(loop, now=True)).status == "paused"
    await steersman.loops.resume(loop)
    assert (await ended(steersman, loop)).status == "completed"
    told = "\n".join(first.requests[1].texts)
    assert "PLANTEXT" in told, "it never got to work on it"
    assert 'Another agent ("codex") took over in iteration 1' in told


async def test_a_loops_verification_has_none_of_their_keys(site: Site, model: ScriptedModel, mark: str) -> None:
    first = model.script("a", tool("Bash", command=tick("one", "two")), say("done"))
    second = model.script("b", say("x"))
    flags = ("--allow-env", "MOCK_KEY", "--allow-env", "OPENAI_API_KEY")
    await site.worker(*flags, **worker_env(site, second), OPENAI_API_KEY="sk-the-key").ready()
    steersman, workspace = await site.steersman(), project(site)
    done = {"verify": {"command": "env | grep OPENAI > seen; true"}, "items": {"kind": "checkboxes"}}
    request = claude_loop(site, first, workspace, mark, done=done)
    env = {**request["run"]["env"], "OPENAI_API_KEY": {"from_env": "OPENAI_API_KEY"}}
    request["run"] |= {"env": env, "fallback": [{"agent": "codex"}]}
    assert (await ended(steersman, await steersman.loops.start(request))).status == "completed"
    assert (workspace / "seen").read_text() == ""
