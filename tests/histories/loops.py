"""The loops whose histories are recorded, and what the model says in each."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from temporalio.service import RPCError

from steersman.contracts import names
from steersman.contracts.loop_state import LoopState
from tests.histories.recorder import Recorder, closed
from tests.loops.loop_site import repository
from tests.scripted_model import Step, fail, hold, say, tool
from tests.support.processes import until
from tests.support.temporal import SHORT_HISTORIES

LONG_TOOL = tool("Bash", command="python3 -c 'import time; time.sleep(600)'")
BOTH = "sed -i 's/\\[ \\]/[x]/' PLAN.md"
ONE = "sed -i 's/\\[ \\] one/[x] one/' PLAN.md"
COUNT_TO = "echo x >> n; test $(wc -l < n) -lt {} || " + BOTH
FILES = {"PLAN.md": "- [ ] one\n- [ ] two\n"}
VERIFY = {"command": "test -e right || { echo 'there is no file right'; exit 1; }"}


class Loop:
    """One loop that is told things."""

    def __init__(self, at: Recorder, handle: Any) -> None:
        self.at, self.handle = at, handle

    async def say(self, name: str, **said: Any) -> Any:
        return await self.handle.execute_update(name, said)

    async def state(self) -> LoopState:
        return LoopState.model_validate(await self.handle.query(names.STATE_QUERY))

    async def reaches(self, wanted: str | Callable[[LoopState], Any]) -> LoopState:
        async def there() -> LoopState | None:
            now = await self.state()
            return now if (now.status == wanted if isinstance(wanted, str) else wanted(now)) else None

        found: LoopState = await until(there, 60)
        return found


async def _start(at: Recorder, run: dict[str, Any], **fields: Any) -> Loop:
    if not (at.workspace / ".git").exists():
        repository(at.workspace, FILES)
    plan = {"plan": {"path": "PLAN.md"}, "done": {"items": {"kind": "checkboxes"}}}
    template = {"workspace": {"path": str(at.workspace)}, "labels": {"team": "x"}, **run}
    request = {"run": template, **plan, "pause_between_s": 0, **fields}
    return Loop(at, await at.start_loop(request))


async def claude(at: Recorder, **fields: Any) -> Loop:
    """A loop of Claude Code."""
    return await _start(at, {"agent": "claude", "permissions": {"mode": "full"}}, **fields)


async def program(at: Recorder, script: str, **fields: Any) -> Loop:
    """A loop of a shell's script."""
    return await _start(at, {"agent": "process", "command": ["sh", "-c", script]}, **fields)


async def loop_done(at: Recorder) -> Any:
    """The verification fails at first; a promise is asked for, too."""
    done = {"items": {"kind": "checkboxes"}, "verify": VERIFY, "promise": "ALL DONE"}
    return (await claude(at, done=done)).handle


async def loop_given_more_while_verifying(at: Recorder) -> Any:
    """An item comes during the verification that passes."""
    adds = {"command": "grep -q more PLAN.md || echo '- [ ] more' >> PLAN.md"}
    done = {"items": {"kind": "checkboxes"}, "verify": adds}
    return (await program(at, "sed -i 's/- \\[ \\]/- [x]/' PLAN.md", done=done)).handle


async def loop_talked_to(at: Recorder) -> Any:
    """Pauses, feedback, decisions, another plan, limits, and waits that are cut short."""
    loop = await claude(at, mode="checkpoint", limits={"cost_usd": 5, "duration_s": 3600})
    await at.script.wait_held()
    await loop.reaches(lambda now: now.session_id or now.run)
    await loop.say(names.PAUSE, now=True, reason="lunch")
    await loop.say(names.FEEDBACK, text="use tabs", id="tabs")
    await loop.say(names.FEEDBACK, text="use spaces", id="spaces")
    await loop.say(names.REMOVE_FEEDBACK, id="spaces")
    await loop.handle.signal(names.SET_LIMITS, {"cost_usd": 10, "no_progress": 0})
    await loop.say(names.RESUME, text="go on")
    await loop.reaches("waiting_for_decision")
    (at.workspace / "MORE.md").write_text("- [ ] one\n- [ ] more\n")
    await loop.say(names.REVISE, plan={"path": "MORE.md"}, prompt="Now: {open_items} {feedback}")
    await loop.say(names.RESUME, mode="batch")
    await loop.handle.signal(names.PAUSE, {})
    await loop.reaches("paused")
    await loop.handle.signal(names.RESUME, {"mode": "autonomous"})
    await at.script.wait_held()
    await loop.handle.signal(names.EXIT, {"reason": "enough"})
    return loop.handle


async def loop_was_talked_to(at: Recorder) -> Any:
    """The same, each workflow task with a command."""
    return await loop_talked_to(at)


async def loop_paused_between_iterations(at: Recorder) -> Any:
    """The same: it looks at its workspace again as it is resumed, and its checkpoints say what goes on with them."""
    return await loop_talked_to(at)


async def loop_taken_back(at: Recorder) -> Any:
    """Rollback, restart, and checkpoints deleted."""
    loop = await program(at, COUNT_TO.format(3), mode="checkpoint")
    await loop.reaches("waiting_for_decision")
    await loop.say(names.RESUME)
    await loop.reaches(lambda now: now.status == "waiting_for_decision" and now.iteration == 2)
    await loop.say(names.ROLLBACK, checkpoint=1)
    await loop.handle.execute_update(names.CHECKPOINTS, {"numbers": [2]})
    await loop.say(names.RESUME)
    await loop.reaches(lambda now: now.status == "waiting_for_decision" and now.iteration == 2)
    await loop.say(names.RESTART, **{"from": "iteration", "number": 2})
    await loop.reaches(lambda now: now.status == "waiting_for_decision" and now.iteration == 2)
    await loop.say(names.RESTART, **{"from": "plan"})
    await loop.reaches("waiting_for_decision")
    await loop.say(names.RESUME, mode="autonomous")
    return loop.handle


async def loop_forked(at: Recorder) -> Any:
    """From a checkpoint of a loop that was left; its session is forked."""
    loop = await claude(at, mode="checkpoint")
    await loop.reaches("waiting_for_decision")
    await loop.say(names.EXIT)
    await closed(loop.handle)
    return (await claude(at, from_checkpoint={"loop": loop.handle.id, "number": 1})).handle


async def loop_rate_limited(at: Recorder) -> Any:
    loop = await claude(at)
    await loop.reaches("waiting_rate_limit")
    await loop.say(names.SKIP_WAIT)
    return loop.handle


async def loop_failed(at: Recorder) -> Any:
    """Twice in a row, with a wait between."""
    return (await program(at, "echo no >&2; exit 3", limits={"failures": 2})).handle


async def loop_cancelled(at: Recorder) -> Any:
    loop = await claude(at)
    await at.script.wait_requests(1)
    await loop.handle.cancel()
    return loop.handle


async def loop_cancelled_after_a_reset_of_its_run(at: Recorder) -> Any:
    loop = await claude(at)
    await at.script.wait_requests(1)
    run = f"{loop.handle.id}-1"
    await at.reset(run)
    await loop.handle.cancel()
    return loop.handle


async def loop_cancelled_while_verifying(at: Recorder) -> Any:
    loop = await program(at, "true", done={"verify": {"command": "sleep 600"}})
    await loop.reaches("verifying")
    await loop.handle.cancel()
    return loop.handle


async def loop_refused(at: Recorder) -> Any:
    """There is no such plan."""
    return (await program(at, "true", plan={"path": "NO.md"})).handle


async def loop_prompt_was_too_long(at: Recorder) -> Any:
    """Once it was filled in."""
    return (await program(at, "true", plan="x" * 5_000, prompt="{plan}" * 240, done={"verify": VERIFY})).handle


async def loop_lost_its_workspace(at: Recorder) -> Any:
    """An iteration moves it away: the next one fails, which says nothing of the session."""
    loop = await program(at, 'mv "$PWD" "$PWD.away"', limits={"failures": 1, "no_progress": 0})
    return loop.handle


async def loop_of_no_object(at: Recorder) -> Any:
    return await at.start_loop([1, 2])


async def loop_agent_was_unknown(at: Recorder) -> Any:
    """As `agent_was_unknown`."""
    return (await _start(at, {"agent": "nobody"})).handle


async def loop_run_was_stopped(at: Recorder) -> Any:
    """A person stops the run at work, the loop pauses and goes on."""
    loop = await program(at, f"test -e go && {BOTH} || sleep 600")
    now = await loop.reaches(lambda now: now.run)
    run = at.client.get_workflow_handle(now.run or "")
    await until(lambda: _at_work(run))
    await run.cancel()
    await loop.reaches("paused")
    (at.workspace / "go").touch()
    await loop.say(names.RESUME)
    return loop.handle


async def loop_worker_was_killed(at: Recorder) -> Any:
    """While it verified."""
    verify = {"command": "until test -e ../go; do sleep 0.1; done"}
    loop = await program(at, BOTH, done={"verify": verify})
    now = await loop.reaches("verifying")
    await until(lambda: _at_work(at.client.get_workflow_handle(now.run or "")))
    await at.end()
    await at.work()
    (at.directory / "go").touch()
    return loop.handle


async def loop_went_on(at: Recorder) -> Any:
    """The last of several executions."""
    loop = await program(at, COUNT_TO.format(12), session="fresh")
    await loop.reaches(lambda now: now.iteration >= 2)
    await loop.say(names.FEEDBACK, text="use tabs")
    return loop.handle


async def loop_waited_for_its_workspace(at: Recorder) -> Any:
    first = await at.process("import time; time.sleep(600)")
    await until(lambda: _at_work(first))
    queue = {"path": str(at.workspace), "on_overlap": "queue"}
    loop = await _start(at, {"agent": "process", "command": ["sh", "-c", BOTH], "workspace": queue})
    await loop.reaches(lambda now: now.workspace_held_by)
    await first.cancel()
    return loop.handle


async def _at_work(run: Any) -> bool:
    try:
        return (await run.query(names.STATE_QUERY))["handle"] is not None
    except RPCError:  # its start is on the way
        return False


@dataclass(frozen=True)
class Scenario:
    """A loop, what the model says in it, and how the server is set."""

    play: Callable[[Recorder], Awaitable[Any]]
    steps: tuple[Step, ...] = ()
    settings: tuple[str, ...] = ()


def _both(text: str) -> tuple[Step, Step]:
    return tool("Bash", command=BOTH), say(text)


TALKED_TO = (hold("on it"), say("thought"), tool("Bash", command=ONE), say("one"), hold("more"))
LOOPS = {
    each.play.__name__: each
    for each in (
        Scenario(loop_done, (*_both("ALL DONE"), tool("Bash", command="touch right"), say("It is right.\nALL DONE"))),
        Scenario(loop_given_more_while_verifying),
        Scenario(loop_talked_to, TALKED_TO),
        Scenario(loop_was_talked_to, TALKED_TO),
        Scenario(loop_paused_between_iterations, TALKED_TO),
        Scenario(loop_taken_back),
        Scenario(loop_forked, (tool("Bash", command=ONE), say("one"), *_both("two"))),
        Scenario(loop_rate_limited, (fail(429, "slow down", retry_after_s=45), *_both("done"))),
        Scenario(loop_failed),
        Scenario(loop_cancelled, (LONG_TOOL,)),
        Scenario(loop_cancelled_after_a_reset_of_its_run, (LONG_TOOL, LONG_TOOL)),
        Scenario(loop_cancelled_while_verifying),
        Scenario(loop_prompt_was_too_long),
        Scenario(loop_lost_its_workspace),
        Scenario(loop_refused),
        Scenario(loop_of_no_object),
        Scenario(loop_agent_was_unknown),
        Scenario(loop_run_was_stopped),
        Scenario(loop_worker_was_killed),
        Scenario(loop_waited_for_its_workspace),
        Scenario(loop_went_on, settings=SHORT_HISTORIES),
    )
}
