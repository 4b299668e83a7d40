"""What agents that speak ACP do beyond every agent: steered, interrupted, resumed, asked. Real ones, scripted model."""

import asyncio
import sys
from pathlib import Path

import pytest

from activities.agents.interrupts import BESIDE_S
from activities.shim.client.journal import Record, RecordParser
from steersman.contracts.activities import RunOutcome, Settlement
from steersman.contracts.errors import ErrorType, InvalidRequest
from tests.agents.kits import AcpKit, OpencodeKit
from tests.agents.stage import Stage, deliver, end, message, word
from tests.scripted_model import Hold, Request, Say, Step, answer, cut, fail, hold, say
from tests.support.processes import until

pytestmark = [pytest.mark.integration, pytest.mark.linux]

SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
NAP = f"{sys.executable} -c 'import time; time.sleep(600)'"
TOUCH = "touch made-it"
WAIT = "touch napping; while ! [ -e go ]; do sleep 0.02; done"


END = end()


async def ended(task: "asyncio.Task[RunOutcome]") -> RunOutcome:
    async with asyncio.timeout(40):
        return await task


async def settled(stage: Stage, name: str, *states: str) -> Settlement:
    """Wait until the session has told what became of a message."""
    found = await until(
        lambda: [each for each in stage.listener.settlements if each.id == name and each.state in states]
    )
    return found[-1]


def made(stage: Stage) -> bool:
    return Path(stage.request.workspace.path, "made-it").exists()


def napping(stage: Stage) -> list[str]:
    return [line for line in stage.alive().values() if "time.sleep(600)" in line]


def assert_done_or_given_up(outcome: RunOutcome, acp: AcpKit, *, done: bool) -> None:
    if acp.gives_up and not done:
        assert (outcome.status, outcome.message) == ("failed", "the agent gave its turn up, as execute was denied")
    else:
        assert outcome.status == "succeeded"


class TestTurn:
    async def test_a_tool_changes_a_file(self, acp: AcpKit) -> None:
        async with acp.run(answer(Say("so be it"), acp.shell(TOUCH)), say("done")) as stage:
            outcome = await stage.play()
            assert made(stage)
            (used,), (result,) = stage.said("tool_use"), stage.said("tool_result")
        assert (outcome.status, outcome.text) == ("succeeded", "done")
        assert (used.name, result.name, used.id) == ("execute", "execute", result.id)
        assert TOUCH in str(used.input)
        assert not result.is_error

    async def test_what_it_says_comes_in_parts_and_whole(self, acp: AcpKit) -> None:
        async with acp.run(answer(Say("one "), Hold(), Say("two"))) as stage:
            _, task = stage.start()
            await stage.wait_for("message", role="assistant", text="one ", delta=True)
            assert not stage.said("message", role="assistant", delta=False)
            await acp.script.release()
            outcome = await ended(task)
            assert [event.text for event in stage.said("message", role="assistant", delta=False)] == ["one two"]
        assert outcome.text == "one two"

    async def test_an_answer_of_megabytes_is_not_lost(self, acp: AcpKit) -> None:
        async with acp.run(say(" ".join(map(str, range(300_000))))) as stage:
            outcome = await stage.play()
        assert outcome.status == "succeeded"
        assert outcome.text.startswith("0 1 2 3")


class TestInterrupt:
    async def test_with_a_text_it_goes_on_with_that(self, acp: AcpKit) -> None:
        async with acp.run(hold("long story"), say("short story")) as stage:
            session, task = stage.start()
            await acp.script.wait_held()
            (told,) = (await deliver(session, message("interrupt", "make it short"))).messages
            assert (told.state, told.how) in {("acknowledged", "interrupted"), ("delivered", "interrupted")}
            outcome = await ended(task)
        assert (outcome.status, outcome.text, outcome.attempts) == ("succeeded", "short story", 1)
        assert acp.script.requests[-1].saw("make it short")
        assert [(each.state, each.how) for each in outcome.messages] == [("acknowledged", "interrupted")]
        assert len(stage.said("progress", text="the turn was interrupted")) == 1

    async def test_it_ends_a_tool(self, acp: AcpKit) -> None:
        async with acp.run(answer(acp.shell(NAP)), say("all right")) as stage:
            session, task = stage.start()
            await until(lambda: napping(stage))
            await deliver(session, message("interrupt", "enough"))
            await until(lambda: not napping(stage))
            outcome = await ended(task)
        assert outcome.text == "all right"

    async def test_the_same_interrupt_twice_does_not_hit_the_next_turn(self, acp: AcpKit) -> None:
        async with acp.run(hold("one"), hold("two", " done")) as stage:
            session, task = stage.start()
            await acp.script.wait_held()
            await deliver(session, message("interrupt", "go on"))
            await stage.wait_for("message", role="assistant", text="two", delta=True)
            (again,) = (await deliver(session, message("interrupt", "go on"))).messages
            assert again.state == "acknowledged"
            await stage.detach()
            session, task = stage.start()
            (once_more,) = (await deliver(session, message("interrupt", "go on"))).messages
            assert once_more.state == "acknowledged"
            await acp.script.release()
            outcome = await ended(task)
        assert outcome.text == "two done"

    async def test_two_at_once(self, acp: AcpKit) -> None:
        async with acp.run(hold("one"), say("two")) as stage:
            session, task = stage.start()
            await acp.script.wait_held()
            first, second = await asyncio.gather(
                deliver(session, message("interrupt")), deliver(session, message("interrupt", None, "m-2"))
            )
            assert {each.messages[0].state for each in (first, second)} == {"acknowledged"}
            await asyncio.sleep(BESIDE_S + 0.1)
            (late,) = (await deliver(session, message("interrupt", None, "m-late"))).messages
            assert (late.state, late.how) == ("acknowledged", "nothing was running")
            await deliver(session, message("interrupt", "go on", "m-3"))
            assert (await ended(task)).text == "two"

    async def test_it_ends_the_run_with_its_turn(self, acp: AcpKit) -> None:
        async with acp.run(hold("one")) as stage:
            session, task = stage.start()
            await acp.script.wait_held()
            (receipt,) = (await deliver(session, END)).messages
            assert (receipt.state, receipt.how) == ("acknowledged", "interrupted")
            outcome = await ended(task)
        assert (outcome.status, outcome.stop_reason, outcome.attempts) == ("succeeded", "interrupted", 1)

    async def test_before_its_session_began_it_ends_the_run(self, acp: AcpKit) -> None:
        async with acp.run(say("never")) as stage:
            session, task = stage.start()
            await stage.pid()
            await deliver(session, END)
            outcome = await ended(task)
            assert not stage.said("message", role="assistant")
        assert (outcome.status, outcome.stop_reason) == ("succeeded", "interrupted")


class TestSteer:
    async def test_it_is_acknowledged_or_refused_in_words(self, acp: AcpKit) -> None:
        """A program that announces no steering says so; the workflow refuses it earlier for those that never do."""
        async with acp.run(hold("first", " answer"), say("second answer")) as stage:
            session, task = stage.start()
            await acp.script.wait_held()
            (told,) = (await deliver(session, message("steer", "use tabs"))).messages
            await acp.script.release()
            outcome = await ended(task)
            script = stage.said("message", role="user", text="use tabs")
        assert outcome.status == "succeeded"
        if acp.steers:
            assert told.state in {"acknowledged", "delivered"}  # opencode's model reads it at its next step
            assert [(each.state, each.how) for each in outcome.messages] == [("acknowledged", "mid_turn")]
            assert acp.script.requests[-1].saw("use tabs")
            assert len(script) == 1
        else:
            assert told.state == "rejected"
            assert "interrupt it" in (told.how or "")

    async def test_in_a_tool_it_is_acknowledged_once_the_model_was_given_it(self, acp: AcpKit) -> None:
        if not acp.steers or isinstance(acp, OpencodeKit):
            pytest.skip("it announces no steering")  # opencode has a way of its own, see test_opencode
        async with acp.run(answer(acp.shell(WAIT)), hold("on"), permissions={"mode": "full"}) as stage:
            session, task = stage.start()
            await until((stage.workspace / "napping").exists, 30)
            (told,) = (await deliver(session, message("steer", "use tabs"))).messages
            assert told.state == "delivered"
            assert len(acp.script.requests) == 1
            (stage.workspace / "go").touch()
            await until(lambda: [each for each in stage.listener.settlements if each.state == "acknowledged"])
            assert acp.script.requests[1].saw("use tabs")
            await acp.script.release()
            outcome = await ended(task)
        assert [(each.state, each.how) for each in outcome.messages] == [("acknowledged", "mid_turn")]

    @pytest.mark.parametrize("end", ["kill", "stop", pytest.param("interrupt", marks=pytest.mark.exhaustive)])
    async def test_in_a_tool_that_does_not_come_to_its_end_it_is_unverified(self, acp: AcpKit, end: str) -> None:
        """The agent has it for its turn, and the model was never asked again."""
        if not acp.steers or isinstance(acp, OpencodeKit):
            pytest.skip("it announces no steering")  # opencode has a way of its own, see test_opencode
        after = () if end == "stop" else (say("the end"), say("the end"))
        async with acp.run(answer(acp.shell(WAIT)), *after, permissions={"mode": "full"}) as stage:
            session, task = stage.start()
            await until((stage.workspace / "napping").exists, 30)
            await deliver(session, message("steer", "use tabs"))
            if end == "kill":
                await stage.kill()
            elif end == "stop":
                await session.stop("cancelled")
            else:
                await deliver(session, message("interrupt", "go on", "m-2"))
            outcome = await ended(task)
        assert {each.id: each.state for each in outcome.messages}["m-1"] == "unverified"

    async def test_after_an_interrupt_it_is_a_turn_of_its_own(self, acp: AcpKit) -> None:
        async with acp.run(hold("first"), say("second answer")) as stage:
            session, task = stage.start()
            await acp.script.wait_held()
            await deliver(session, message("interrupt"))
            await deliver(session, message("steer", "go on", "m-2"))
            outcome = await ended(task)
        assert outcome.text == "second answer"
        assert {each.id: each.state for each in outcome.messages}["m-2"] == "acknowledged"


class TestResume:
    async def test_a_killed_agent_goes_on_with_its_session(self, acp: AcpKit) -> None:
        async with acp.run(answer(acp.shell(TOUCH)), hold("first"), say("again")) as stage:
            _, task = stage.start()
            await acp.script.wait_held()
            await stage.kill()
            async with asyncio.timeout(100):
                outcome = await task
        assert (outcome.status, outcome.text, outcome.attempts) == ("succeeded", "again", 2)
        assert acp.script.requests[-1].saw("do it")
        assert acp.script.requests[-1].saw("Your process ended unexpectedly")

    async def test_a_session_is_taken_up(self, acp: AcpKit) -> None:
        async with acp.run(say("first")) as stage:
            session = (await stage.play()).session_id
        async with acp.again(say("second"), session=session, prompt="and then?") as stage:
            _, task = stage.start()
            async with asyncio.timeout(100):
                outcome = await task
        assert (outcome.text, outcome.session_id) == ("second", session)
        assert acp.script.requests[-1].saw("do it")
        assert acp.script.requests[-1].saw("and then?")

    async def test_an_unknown_session_is_an_invalid_request(self, acp: AcpKit) -> None:
        async with acp.run(session="11111111-2222-4333-8444-555555555555") as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.error) == ("failed", ErrorType.INVALID_REQUEST)
        assert (outcome.message or "").startswith("session: ")

    async def test_a_worker_is_replaced_at_each_step_of_its_beginning(self, acp: AcpKit) -> None:
        """One that has seen so many records leaves, as in a deploy; the next goes on with the next frame."""
        async with acp.run(answer(acp.shell(TOUCH)), say("done")) as stage:
            for step in range(1, 12):
                _, task = stage.start()
                await _records_or_end(stage, step, task)
                if task.done():
                    break
                await stage.detach()
            _, task = stage.start()
            outcome = await ended(task)
            assert made(stage)
            written = _written(stage)
        assert (outcome.status, outcome.text, outcome.attempts) == ("succeeded", "done", 1)
        assert len(written) == len(set(written)), written
        assert len(acp.script.requests) == 2


class TestStructured:
    async def test_an_answer_that_fits(self, acp: AcpKit) -> None:
        async with acp.run(say('{"answer": 42}'), output_schema=SCHEMA) as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.structured) == ("succeeded", {"answer": 42})
        assert acp.script.requests[-1].saw("JSON Schema")

    async def test_a_wrong_one_is_asked_for_again(self, acp: AcpKit) -> None:
        async with acp.run(say("it is 42"), say('```json\n{"answer": 42}\n```'), output_schema=SCHEMA) as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.structured) == ("succeeded", {"answer": 42})
        assert acp.script.requests[-1].saw("not what was asked for")

    async def test_once_and_then_it_is_a_failure(self, acp: AcpKit) -> None:
        async with acp.run(say('{"answer": "x"}'), say('{"answer": null}'), output_schema=SCHEMA) as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.error) == ("failed", ErrorType.AGENT_FAILED)
        assert "output_schema" in (outcome.message or "")


class TestPermissions:
    @pytest.mark.parametrize(("mode", "done"), [("full", True), ("accept_edits", False), ("read_only", False)])
    async def test_what_a_mode_lets_it_do_unasked(self, acp: AcpKit, mode: str, done: bool) -> None:  # noqa: FBT001
        async with acp.run(answer(acp.shell(TOUCH)), say("done"), permissions={"mode": mode}) as stage:
            outcome = await stage.play()
            assert made(stage) == done
            states = [event.state for event in stage.said("permission")]
        assert_done_or_given_up(outcome, acp, done=done)
        assert states == (["asked", "allowed" if done else "denied"] if acp.asks_for_all or not done else [])
        assert not stage.listener.asks

    @pytest.mark.parametrize("decision", ["allow", "deny"])
    async def test_ask_waits_for_a_person(self, acp: AcpKit, decision: str) -> None:
        steps = (answer(acp.shell(TOUCH)), say("done"))
        async with acp.run(*steps, permissions={"mode": "ask"}) as stage:
            session, task = stage.start()
            (asked,) = await until(lambda: stage.listener.asks)
            assert asked.approval.tool == "execute"
            assert TOUCH in str(asked.approval.input)
            assert not made(stage)
            await deliver(session, word(asked.approval.id, decision, "execute"))
            outcome = await ended(task)
            assert made(stage) == (decision == "allow")
        assert_done_or_given_up(outcome, acp, done=decision == "allow")

    async def test_the_words_of_a_denial_reach_the_model(self, acp: AcpKit) -> None:
        told = "use the other file"

        def then(request: Request) -> Step:
            return say("as you wish" if request.saw(told) else "hm")

        async with acp.run(answer(acp.shell(TOUCH)), *[then] * 3, permissions={"mode": "ask"}) as stage:
            session, task = stage.start()
            (asked,) = await until(lambda: stage.listener.asks)
            await deliver(session, word(asked.approval.id, "deny", "execute", message=told))
            outcome = await ended(task)
            assert not made(stage)
            assert stage.said("message", role="user", text=told)
        assert (outcome.status, outcome.text) == ("succeeded", "as you wish"), outcome.message

    async def test_a_question_survives_the_worker(self, acp: AcpKit) -> None:
        async with acp.run(answer(acp.shell(TOUCH)), say("done"), permissions={"mode": "ask"}) as stage:
            stage.start()
            (asked,) = await until(lambda: stage.listener.asks)
            await stage.detach()
            session, task = stage.start()
            await until(lambda: len(stage.listener.asks) == 2)
            assert stage.listener.asks[1].approval.id == asked.approval.id
            await deliver(session, word(asked.approval.id, "allow", "execute"))
            assert (await ended(task)).status == "succeeded"
            assert made(stage)

    async def test_an_interrupt_withdraws_the_question(self, acp: AcpKit) -> None:
        def then(request: Request) -> Step:
            """Claude Code, and so its adapter, may ask once more about the tool that was refused."""
            return say("as you wish" if request.saw("leave that") else "never mind")

        async with acp.run(answer(acp.shell(TOUCH)), then, permissions={"mode": "ask"}) as stage:
            session, task = stage.start()
            await until(lambda: stage.listener.asks)
            await deliver(session, message("interrupt", "leave that"))
            outcome = await ended(task)
            assert not made(stage)
            assert stage.listener.asks[-1].withdrawn
        assert outcome.text == "as you wish"

    @pytest.mark.parametrize("field", ["allow", "deny"])
    async def test_rules_are_refused(self, acp: AcpKit, field: str) -> None:
        with pytest.raises(InvalidRequest, match=f"permissions.{field}"):
            async with acp.run(permissions={"mode": "ask", field: ["execute"]}):
                pass


class TestFailures:
    async def test_a_refused_key(self, acp: AcpKit) -> None:
        if acp.refused is None:
            return
        async with acp.run(*[fail(401, "invalid key")] * 3) as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.error) == ("failed", acp.refused)

    @pytest.mark.parametrize("step", [fail(429, "slow down"), fail(500), cut("ha")], ids=["429", "500", "cut"])
    @pytest.mark.parametrize(
        "env", [{"CLAUDE_CODE_MAX_RETRIES": "3"}, pytest.param({}, marks=pytest.mark.exhaustive)], ids=["few", "all"]
    )
    async def test_a_service_that_fails(self, acp: AcpKit, step: Step, env: dict[str, str]) -> None:
        """However often it is asked again, and whatever it said: that is no success, and nobody waits for ever."""
        if acp.name == "opencode" and step != fail(500):
            return  # it asks again for a minute, each time
        if not env and acp.name != "acp":
            return  # Claude Code alone knows the variable: of itself it asks ten times, for a minute
        async with acp.run(*[step] * 100, limits={"idle_s": acp.silent_s}, env=env) as stage:
            outcome = await stage.play()
            assert not stage.alive()
        assert (outcome.status, outcome.attempts) == ("failed", 1)
        assert acp.script.requests

    async def test_a_service_that_is_not_there(self, acp: AcpKit) -> None:
        """It gives up, or is silent for too long; nobody waits for ever."""
        async with acp.run(limits={"idle_s": 5}, env=acp.unreachable) as stage:
            outcome = await stage.play()
            assert not stage.alive()
        assert outcome.status == "failed"

    async def test_a_program_that_speaks_another_language(self, acp: AcpKit) -> None:
        """Nothing is understood of it, so its silence counts."""
        code = "import time; print('hello', flush=True); time.sleep(600)"
        command = [sys.executable, "-c", code]
        async with acp.run(limits={"idle_s": 0.5}, agent="acp", command=command, options={}) as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.error) == ("failed", ErrorType.RUN_TIMED_OUT)

    async def test_a_model_that_it_does_not_offer(self, acp: AcpKit) -> None:
        if acp.name == "gemini":  # whose list of models lacks some that it takes
            return
        async with acp.run(model="no-such-model") as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.error) == ("failed", ErrorType.INVALID_REQUEST)
        assert "model: the agent does not offer no-such-model" in (outcome.message or "")


def _records(stage: Stage) -> list[Record]:
    """The first process's journal, as far as it is written."""
    try:
        return RecordParser().feed((stage.directory.attempt(1) / "journal").read_bytes())
    except FileNotFoundError:
        return []


async def _records_or_end(stage: Stage, count: int, task: "asyncio.Task[RunOutcome]") -> None:
    await until(lambda: len(_records(stage)) >= count or task.done())


def _written(stage: Stage) -> list[str]:
    return [record.id for record in _records(stage) if record.stream == "in"]
