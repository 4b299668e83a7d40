"""Programs that ask for messages are given them on their stdin, once each, whichever worker leads."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from steersman.client import Steersman
from steersman.contracts.events import AgentEvent
from steersman.errors import MessageRefused
from tests.acceptance.loops import process_loop, project, reaches, tick
from tests.acceptance.programs import LISTENING, python
from tests.acceptance.site import Site, following, gone, phase

LINES: dict[str, Any] = {"options": {"messages": "lines"}}
UNREAD = "the program has ended, and says of no message whether it read it"


def read(events: list[AgentEvent]) -> list[str]:
    """What the program says that it has read."""
    return [e.text for e in events if e.type == "message" and e.role == "assistant" and e.text.startswith("read ")]


async def states(steersman: Steersman, run: str) -> dict[str, tuple[str, str | None]]:
    return {each.id: (each.state, each.how) for each in (await steersman.state(run)).messages}


@pytest.mark.exhaustive
async def test_a_program_is_steered_and_ends_by_itself(shared: Site, steersman: Steersman) -> None:
    run = await steersman.start(shared.process(*python(LISTENING), prompt="begin", **LINES))
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message" and "begin" in e.text)
        can = (await steersman.state(run)).capabilities
        assert can is not None
        assert (can.steer, can.soft_steer, can.interrupt) == (False, True, False)

        receipt = await steersman.steer(run, "mind the step", id="mine")
        assert (receipt.state, receipt.how) == ("delivered", None)
        assert (await steersman.steer(run, "mind the step", id="mine")).state == "delivered"
        with pytest.raises(MessageRefused, match='agent "process" cannot interrupt: stop the run'):
            await steersman.interrupt(run, "turn round")
        refused = await steersman.steer(run, "one\ntwo", id="two-lines")
        assert refused.state == "rejected"
        assert "a message is one line" in (refused.how or "")
        await shared.temporal(
            *("workflow", "signal", "--workflow-id", run, "--name", "steer"),
            *("--input", '{"id": "bye", "text": "good bye"}'),
        )
        result = await steersman.result(run)
        events = await attached.end()

    assert result.status == "succeeded"
    assert result.messages_delivered >= 1, "what ended the program may be settled by its end"
    assert result.text.endswith("done with it")
    assert read(events) == ["read 'begin\\n'", "read 'mind the step\\n'", "read 'good bye\\n'"]
    assert [e.text for e in events if e.type == "message" and e.role == "user"] == ["mind the step", "good bye"]
    settled = await states(steersman, run)
    assert settled.pop("two-lines")[0] == "rejected"
    assert settled == {"mine": ("unverified", UNREAD), "bye": ("unverified", UNREAD)}


@pytest.mark.exhaustive
async def test_the_command_line_steers_it(shared: Site, steersman: Steersman) -> None:
    def steer(*arguments: str) -> "asyncio.Future[tuple[int, str]]":
        return asyncio.ensure_future(_steer(shared, *arguments))

    workspace = str(shared.workspace())
    command = ("run", "process", "--detach", "-w", workspace, "--option", 'messages="json"', "--", *python(LISTENING))
    code, out = await steer(*command)
    assert code == 0, out
    run = out.split()[0]
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message" and e.text == "ready")
        assert (await steer("steer", run, "two\nlines and bye"))[0] == 0
        assert (await steer("interrupt", run))[0] != 0
        events = await attached.end()
    (said,) = read(events)
    assert '"text": "two\\\\nlines and bye"' in said


async def _steer(site: Site, *arguments: str) -> tuple[int, str]:
    env = {**site.namespace.env, "HOME": str(site.root / "home"), "PATH": str(Path(sys.executable).parent)}
    process = await asyncio.create_subprocess_exec(
        "steer", *arguments, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=-1, stderr=-2
    )
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


@pytest.mark.exhaustive
async def test_a_worker_that_is_killed_leaves_no_message_to_be_written_twice(site: Site, mark: str) -> None:
    first = site.worker()
    steersman = await site.steersman()
    await first.ready()
    run = await steersman.start(site.process(*python(LISTENING), mark=mark, **LINES))
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message" and e.text == "ready")
        assert (await steersman.steer(run, "before", id="m-1")).state == "delivered"
        await attached.until(lambda e: e.type == "message" and e.text == "read 'before\\n'")
        first.kill()
        late = asyncio.ensure_future(steersman.steer(run, "between", id="m-2"))
        await site.worker().ready()
        assert (await late).state in {"delivered", "queued"}
        await attached.until(lambda e: e.type == "message" and e.text == "read 'between\\n'")
        assert (await steersman.steer(run, "before", id="m-1")).state == "delivered"
        await steersman.steer(run, "bye", id="m-3")
        result = await steersman.result(run)
        events = await attached.end()
    assert (result.status, result.attempts) == ("succeeded", 1)
    assert read(events) == [f"read '{text}\\n'" for text in ("before", "between", "bye")]
    assert {state for state, _ in (await states(steersman, run)).values()} == {"unverified"}
    await gone(mark)


async def test_its_answer_is_its_last_line(shared: Site, steersman: Steersman) -> None:
    schema = {"type": "object", "required": ["fixed"], "properties": {"fixed": {"type": "integer"}}}
    request = shared.process(*python("print('at work'); print('{\"fixed\": 3}')"), output_schema=schema)
    assert (await steersman.result(await steersman.start(request))).structured == {"fixed": 3}

    request = shared.process(*python("print('{\"fixed\": 3}'); print('all done')"), output_schema=schema)
    run = await steersman.start(request)
    async with following(steersman, run) as attached:
        events = await attached.end()
    assert (events[-1].type, getattr(events[-1], "error", None)) == ("failed", "AgentFailed")
    assert "output_schema: the last line of the output is no JSON" in getattr(events[-1], "message", "")
    assert "'all done'" in getattr(events[-1], "message", "")


@pytest.mark.exhaustive
async def test_a_loop_of_programs_that_take_messages(shared: Site, steersman: Steersman) -> None:
    """Its plan comes as the prompt does; who steers an iteration is heard; a pause that cannot wait cancels the run."""
    workspace = project(shared)
    script = f'while read line; do echo "read $line"; case $line in bye) {tick("one", "two")}; exit;; esac; done'
    loop = await steersman.loops.start(process_loop(shared, script, workspace, run=LINES))
    state = await reaches(steersman, loop, lambda state: state.run)
    run = state.run or ""
    await phase(steersman, run, "running")
    assert state.capabilities is not None
    assert (state.capabilities.soft_steer, state.capabilities.interrupt) == (True, False)
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "message" and e.text == "read - #2: two")
        await steersman.loops.feedback(loop, "and mind the step")
        await steersman.loops.pause(loop, now=True)
        assert (await attached.end())[-1].type == "cancelled"
    await reaches(steersman, loop, "paused")
    await steersman.loops.resume(loop)
    again = (await reaches(steersman, loop, lambda state: state.run)).run or ""
    assert again != run
    await phase(steersman, again, "running")
    async with following(steersman, again) as attached:
        await attached.until(lambda e: e.type == "message" and "and mind the step" in e.text)
        await steersman.steer(again, "bye")
        await attached.end()
    result = await asyncio.wait_for(steersman.loops.result(loop), 60)
    assert (result.status, result.stop_reason) == ("completed", "done")
