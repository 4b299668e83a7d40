"""What Claude Code does beyond every agent: steered, interrupted, resumed, asked, limited. Real CLI, scripted model."""

import asyncio
import base64
import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from activities.admission.schemas import admit_schema
from activities.agents.claude.agent import ClaudeAgent
from activities.agents.claude.sessions import ClaudeSessions
from steersman.contracts.activities import RunOutcome, Settlement
from steersman.contracts.errors import ErrorType, InvalidRequest
from tests.agents.kits import ClaudeKit
from tests.agents.stage import Stage, deliver, message, word
from tests.scripted_model import Answer, Hold, Say, Tool, Usage, answer, fail, hold, say, structured, tool
from tests.scripted_model.requests import Request
from tests.support.processes import until

pytestmark = [pytest.mark.integration, pytest.mark.linux]

SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
NAP = f"{sys.executable} -c 'import time; time.sleep(600)'"
TOUCH = "touch made-it"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


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


def dig() -> Answer:
    """A call of a sub-agent, which works behind the agent."""
    return tool("Agent", description="x", prompt="dig", subagent_type="general-purpose")


def digging(steps: list[Answer], then: Answer) -> Callable[[Request], Answer]:
    """These answers to the agent itself, and then always the last; its sub-agent is held."""

    def play(request: Request) -> Answer:
        if any(text.strip() == "dig" for text in request.texts):
            return hold("digging")
        return steps.pop(0) if steps else then

    return play


async def at_work_behind(claude: ClaudeKit, stage: Stage, *, turn_ended: bool) -> None:
    """Wait until the sub-agent works, and the agent itself has spoken, or its turn has ended."""
    await claude.script.wait_requests(3)
    # Usage is told as the second call begins, as it has gone on, and with the turn's result.
    await until(lambda: len([event for event in stage.said("usage") if event.turns == 2]) >= (3 if turn_ended else 1))


class TestSteer:
    async def test_between_two_tools_it_is_read_within_the_turn(self, claude: ClaudeKit) -> None:
        steps = (answer(Say("first"), Hold(), Tool("Bash", {"command": "true"})), say("as you wish"))
        async with claude.run(*steps) as stage:
            session, task = stage.start()
            await claude.script.wait_held()
            (at_once,) = (await deliver(session, message("steer", "use tabs"))).messages
            assert at_once.state in {"delivered", "acknowledged"}
            await claude.script.release()
            outcome = await ended(task)
        assert (outcome.status, outcome.text) == ("succeeded", "as you wish")
        assert claude.script.requests[1].saw("use tabs")
        (told,) = outcome.messages
        assert (told.id, told.state, told.how) == ("m-1", "acknowledged", "mid_turn")
        assert len(stage.said("message", role="user", text="use tabs")) == 1

    async def test_after_the_last_tool_it_is_a_turn_of_its_own(self, claude: ClaudeKit) -> None:
        async with claude.run(hold("first", " answer"), say("second answer")) as stage:
            session, task = stage.start()
            await claude.script.wait_held()
            await deliver(session, message("steer", "and now?"))
            await claude.script.release()
            outcome = await ended(task)
        assert (outcome.status, outcome.text) == ("succeeded", "second answer")
        (told,) = outcome.messages
        assert (told.state, told.how) == ("acknowledged", "new_turn")

    async def test_several_that_are_joined_begin_one_turn(self, claude: ClaudeKit) -> None:
        async with claude.run(hold("first", " answer"), say("second answer")) as stage:
            session, task = stage.start()
            await claude.script.wait_held()
            for name in ("m-1", "m-2"):
                await deliver(session, message("steer", "and now?", name))
            await claude.script.release()
            outcome = await ended(task)
        assert outcome.text == "second answer"
        assert [(each.state, each.how) for each in outcome.messages] == [("acknowledged", "new_turn")] * 2

    async def test_a_command_of_claude_codes_own_is_not_the_answer(self, claude: ClaudeKit) -> None:
        steps = (answer(Say("x"), Hold(), Tool("StructuredOutput", {"answer": 42})), say("never"))
        async with claude.run(*steps, output_schema=SCHEMA) as stage:
            session, task = stage.start()
            await claude.script.wait_held()
            await deliver(session, message("steer", "/context"))
            await claude.script.release()
            outcome = await ended(task)
        assert (outcome.status, outcome.structured) == ("succeeded", {"answer": 42})
        assert [each.state for each in outcome.messages] == ["acknowledged"]
        assert [event for event in stage.said("message") if "Context Usage" in event.text]

    async def test_the_same_message_twice_is_said_once_whichever_worker_says_it(self, claude: ClaudeKit) -> None:
        async with claude.run(hold("first", " answer"), say("second answer")) as stage:
            session, _ = stage.start()
            await claude.script.wait_held()
            await deliver(session, message("steer", "once"))
            await deliver(session, message("steer", "once"))
            await stage.detach()
            session, task = stage.start()
            await deliver(session, message("steer", "once"))
            await claude.script.release()
            outcome = await ended(task)
        assert outcome.text == "second answer"
        assert len(stage.said("message", role="user", text="once")) == 1
        assert sum(text.count("once") for text in claude.script.requests[1].texts) == 1


class TestInterrupt:
    async def test_with_a_text_it_goes_on_with_that(self, claude: ClaudeKit) -> None:
        async with claude.run(hold("long story"), say("short story")) as stage:
            session, task = stage.start()
            await claude.script.wait_held()
            (told,) = (await deliver(session, message("interrupt", "make it short"))).messages
            assert (told.state, told.how) == ("acknowledged", "interrupted")
            outcome = await ended(task)
        assert (outcome.status, outcome.text, outcome.attempts) == ("succeeded", "short story", 1)
        assert claude.script.requests[1].saw("make it short")
        assert len(stage.said("progress", text="the turn was interrupted")) == 1

    async def test_it_ends_a_tool(self, claude: ClaudeKit) -> None:
        async with claude.run(tool("Bash", command=NAP, timeout=600_000), say("all right")) as stage:
            session, task = stage.start()
            await stage.wait_for("tool_use", name="Bash")
            await until(lambda: [line for line in stage.alive().values() if "time.sleep(600)" in line])
            await deliver(session, message("interrupt", "enough"))
            outcome = await ended(task)
            assert outcome.text == "all right"
            assert len(stage.said("tool_result", is_error=True)) == 1

    async def test_the_same_interrupt_twice_does_not_hit_the_next_turn(self, claude: ClaudeKit) -> None:
        async with claude.run(hold("one"), hold("two", " done")) as stage:
            session, task = stage.start()
            await claude.script.wait_held()
            await deliver(session, message("interrupt", "go on"))
            await claude.script.wait_requests(2)
            await claude.script.wait_held()
            (again,) = (await deliver(session, message("interrupt", "go on"))).messages
            assert again.state == "acknowledged"
            await stage.detach()
            session, task = stage.start()
            await deliver(session, message("interrupt", "go on"))
            await claude.script.release()
            outcome = await ended(task)
        assert outcome.text == "two done"
        assert len(stage.said("progress", text="the turn was interrupted")) == 1

    @pytest.mark.parametrize("answered", [True, False])
    async def test_of_sub_agents_it_leaves_the_run_waiting_as_of_a_turn(
        self,
        claude: ClaudeKit,
        answered: bool,  # noqa: FBT001
    ) -> None:
        """No turn reports that it was interrupted where the agent itself had answered."""
        first = [dig(), say("it digs") if answered else hold("it digs")]
        async with claude.run(digging(first, then=say("well"))) as stage:
            session, task = stage.start()
            await at_work_behind(claude, stage, turn_ended=answered)
            (told,) = (await deliver(session, message("interrupt"))).messages
            assert (told.state, told.how) == ("acknowledged", "interrupted")
            await stage.wait_for("progress", text="the turn was interrupted")
            assert not (await asyncio.wait({task}, timeout=1))[0]
            await deliver(session, message("steer", "go on", "m-2"))
            outcome = await ended(task)
        assert (outcome.status, outcome.text) == ("succeeded", "well")
        assert len(stage.said("progress", text="the turn was interrupted")) == 1

    async def test_a_crash_does_not_end_the_wait_either(self, claude: ClaudeKit) -> None:
        """The next process first says of the background command that it has ended with the one before."""
        steps = (tool("Bash", command=NAP, run_in_background=True), hold("x"), say("well"))
        async with claude.run(*steps) as stage:
            session, task = stage.start()
            await claude.script.wait_held()
            await deliver(session, message("interrupt"))
            await stage.wait_for("progress", text="the turn was interrupted")
            await until(lambda: stage.events[-1].type == "usage")  # that the turn has its result
            await stage.kill()
            await stage.pid(2)
            await until(lambda: len(stage.said("init")) == 2)
            assert not (await asyncio.wait({task}, timeout=1))[0]
            await deliver(session, message("steer", "go on", "m-2"))
            outcome = await ended(task)
        assert (outcome.text, outcome.attempts) == ("well", 2)

    async def test_a_turn_that_a_background_command_begins_by_its_end_does_not_end_the_wait(
        self, claude: ClaudeKit
    ) -> None:
        until_told = "until [ -e go ]; do sleep 0.1; done"
        steps = (tool("Bash", command=until_told, run_in_background=True), hold("x"), say("it has ended"), say("well"))
        async with claude.run(*steps) as stage:
            session, task = stage.start()
            await claude.script.wait_held()
            await deliver(session, message("interrupt"))
            Path(stage.request.workspace.path, "go").touch()
            await stage.wait_for("message", text="it has ended")
            assert not (await asyncio.wait({task}, timeout=1))[0]
            await deliver(session, message("steer", "go on", "m-2"))
            assert (await ended(task)).text == "well"


class TestResume:
    async def test_a_killed_agent_goes_on_with_its_session(self, claude: ClaudeKit) -> None:
        async with claude.run(tool("Bash", command="true"), hold("working"), say("finished after all")) as stage:
            _, task = stage.start()
            await claude.script.wait_requests(2)
            await claude.script.wait_held()
            await stage.wait_for("tool_result")
            await stage.kill()
            outcome = await ended(task)
        assert (outcome.status, outcome.text, outcome.attempts) == ("succeeded", "finished after all", 2)
        assert claude.script.requests[2].saw("do it")
        assert claude.script.requests[2].saw("started again")
        assert {event.attempt for event in stage.events} == {1, 2}
        assert [event.session_id for event in stage.said("init")] == [outcome.session_id] * 2
        assert "resumed in a new process" in stage.said("progress")[0].text
        numbers = [event.seq for event in stage.events]
        assert numbers == list(range(1, len(numbers) + 1))

    async def test_killed_while_a_sub_agent_works_behind_it_goes_on(self, claude: ClaudeKit) -> None:
        """It has answered, and its sub-agent's end would have begun another turn."""
        async with claude.run(digging([dig(), say("it digs")], then=say("done"))) as stage:
            _, task = stage.start()
            await at_work_behind(claude, stage, turn_ended=True)
            await stage.kill()
            outcome = await ended(task)
        assert (outcome.status, outcome.text, outcome.attempts) == ("succeeded", "done", 2)

    async def test_killed_while_no_worker_looked(self, claude: ClaudeKit) -> None:
        async with claude.run(tool("Bash", command="true"), hold("working"), say("finished after all")) as stage:
            stage.start()
            await claude.script.wait_requests(2)
            await claude.script.wait_held()
            await stage.wait_for("tool_result")
            await stage.detach()
            await stage.kill()
            outcome = await stage.play()
        assert (outcome.status, outcome.attempts) == ("succeeded", 2)

    async def test_killed_again_and_again_it_is_given_up(self, claude: ClaudeKit) -> None:
        async with claude.run(tool("Bash", command="true"), *[hold("working")] * 4) as stage:
            _, task = stage.start()
            for attempt in range(1, 5):
                await claude.script.wait_requests(1 + attempt)
                await stage.wait_for("message", text="working", attempt=attempt)
                await stage.kill(attempt)
            outcome = await ended(task)
        assert (outcome.status, outcome.error, outcome.attempts) == ("failed", ErrorType.AGENT_CRASHED, 4)
        assert outcome.facts["signal"] == 9

    async def test_a_session_is_taken_up_and_forked(self, claude: ClaudeKit) -> None:
        async with claude.run(say("remembered: 7")) as stage:
            first = await stage.play()
        async with claude.run(say("it was 7"), session=first.session_id) as stage:
            second = await stage.play()
            assert claude.script.requests[0].saw("remembered: 7")
        async with claude.run(say("still 7"), session=first.session_id, fork_session=True) as stage:
            third = await stage.play()
            assert claude.script.requests[0].saw("it was 7")
        assert first.session_id == second.session_id != third.session_id

    @pytest.mark.parametrize("name", ["ü-😀 x.y_z", "é" * 50 + "😀" * 30 + "/" + "😀" * 50, "e\u0301", "q" * 250])
    async def test_a_conversation_is_where_it_is_looked_for_whatever_its_directory_is_called(
        self, claude: ClaudeKit, tmp_path: Path, name: str
    ) -> None:
        workspace = tmp_path / name
        workspace.mkdir(parents=True)
        async with claude.run(say("first"), workspace={"path": str(workspace)}) as stage:
            session = (await stage.play()).session_id
        assert session
        files = ClaudeSessions().files(session, workspace)
        assert files
        assert (tmp_path / "config" / files.conversation).is_file()
        assert ClaudeAgent(stage.environment).keeps(session, workspace)

    async def test_an_unknown_session_is_an_invalid_request(self, claude: ClaudeKit) -> None:
        async with claude.run(session="00000000-0000-4000-8000-000000000000") as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.error, outcome.attempts) == ("failed", ErrorType.INVALID_REQUEST, 1)
        assert (outcome.message or "").startswith("session: ")


class TestStructuredOutput:
    async def test_an_answer_that_fits(self, claude: ClaudeKit) -> None:
        async with claude.run(structured({"answer": 42}), output_schema=SCHEMA) as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.structured) == ("succeeded", {"answer": 42})

    async def test_an_answer_without_it_is_a_failure(self, claude: ClaudeKit) -> None:
        async with claude.run(say("forty-two"), say("42!"), output_schema=SCHEMA) as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.error) == ("failed", ErrorType.AGENT_FAILED)
        assert outcome.message == "output_schema: the agent gave no structured answer"

    async def test_a_wrong_one_is_asked_for_again_and_then_a_failure(self, claude: ClaudeKit) -> None:
        async with claude.run(*[structured({"answer": "x"})] * 5, output_schema=SCHEMA) as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.error) == ("failed", ErrorType.AGENT_FAILED)
        assert outcome.structured is None

    async def test_one_that_claude_does_not_take_is_refused_by_name(self, claude: ClaudeKit) -> None:
        async with claude.run(say("x"), output_schema={**SCHEMA, "x-note": "mine"}) as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.error, outcome.attempts) == ("failed", ErrorType.INVALID_REQUEST, 1)
        assert "output_schema: Claude Code refuses it: " in (outcome.message or "")
        assert "x-note" in (outcome.message or "")

    @pytest.mark.parametrize("schema", [{"type": "integre"}, {"properties": 1}, {"$ref": 7}])
    async def test_a_wrong_schema_is_refused(self, claude: ClaudeKit, schema: dict[str, Any]) -> None:
        async with claude.run(output_schema=schema) as stage:
            with pytest.raises(InvalidRequest, match="output_schema: not a JSON Schema"):
                await admit_schema(stage.request)


class TestHooks:
    """The user's; a trusted workspace's are the same."""

    async def test_a_message_that_one_blocks_is_rejected(self, claude: ClaudeKit) -> None:
        """In a turn it is reported as completed before that is said, at the beginning of one after its `init`."""
        self._blocks(claude, "secret")
        steps = (answer(Say("x"), Hold(), Tool("Bash", {"command": "true"})), hold("the", " answer"))
        async with claude.run(*steps) as stage:
            session, task = stage.start()
            await claude.script.wait_held()
            for name, text in (("m-1", "use tabs"), ("m-2", "the secret")):
                await deliver(session, message("steer", text, name))
            await claude.script.release()
            await claude.script.wait_requests(2)
            await claude.script.wait_held()
            await deliver(session, message("steer", "another secret", "m-3"))
            await claude.script.release()
            outcome = await ended(task)
        assert (outcome.status, outcome.text) == ("succeeded", "the answer")
        assert not claude.script.requests[1].saw("secret")
        blocked = ("rejected", "a hook blocked it: not here")
        assert {each.id: (each.state, each.how) for each in outcome.messages} == {
            "m-1": ("acknowledged", "mid_turn"),
            "m-2": blocked,
            "m-3": blocked,
        }
        assert len([event for event in stage.said("progress") if "blocked by hook" in event.text]) == 2

    async def test_a_message_that_is_interrupted_while_one_looks_at_it_was_not_read(self, claude: ClaudeKit) -> None:
        self._runs(claude, "grep -q slow && touch looking && sleep 600; exit 0")
        async with claude.run(hold("first", " answer"), say("second answer")) as stage:
            session, task = stage.start()
            await claude.script.wait_held()
            await deliver(session, message("steer", "slow"))
            await claude.script.release()
            await until(lambda: Path(stage.request.workspace.path, "looking").exists())
            await deliver(session, message("interrupt", "go on", "m-2"))
            outcome = await ended(task)
        assert not claude.script.requests[1].saw("slow")
        assert {each.id: (each.state, each.how) for each in outcome.messages} == {
            "m-1": ("rejected", "interrupted before the agent had read it"),
            "m-2": ("acknowledged", "interrupted"),
        }

    async def test_one_that_interrupts_the_turn_leaves_nobody_waiting(self, claude: ClaudeKit) -> None:
        decision = {"behavior": "deny", "message": "no", "interrupt": True}
        output = {"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": decision}}
        self._runs(claude, f"echo '{json.dumps(output)}'", "PermissionRequest")
        async with claude.run(tool("Bash", command=TOUCH), permissions={"mode": "ask"}) as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.error) == ("failed", ErrorType.AGENT_FAILED)
        assert outcome.message == "the turn was interrupted by no person: a hook can do that"

    async def test_a_prompt_that_one_blocks_is_no_success(self, claude: ClaudeKit) -> None:
        self._blocks(claude, "secret")
        async with claude.run(say("never"), prompt="the secret") as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.error) == ("failed", ErrorType.AGENT_FAILED)
        assert outcome.message == "a hook stopped the prompt: not here"

    def _blocks(self, claude: ClaudeKit, word: str) -> None:
        self._runs(claude, f"grep -q {word} && {{ echo not here >&2; exit 2; }}; exit 0")

    def _runs(self, claude: ClaudeKit, command: str, event: str = "UserPromptSubmit") -> None:
        hooks = {event: [{"hooks": [{"type": "command", "command": command}]}]}
        settings = claude._directory / "config" / "settings.json"  # noqa: SLF001
        settings.parent.mkdir()
        settings.write_text(json.dumps({"hooks": hooks}))


class TestPermissions:
    @pytest.mark.parametrize(("mode", "done"), [("read_only", False), ("accept_edits", True), ("full", True)])
    async def test_what_a_mode_lets_it_do_unasked(self, claude: ClaudeKit, mode: str, done: bool) -> None:  # noqa: FBT001
        async with claude.run(tool("Bash", command=TOUCH), say("that was it"), permissions={"mode": mode}) as stage:
            outcome = await stage.play()
            assert made(stage) == done
        assert outcome.text == "that was it"
        assert not stage.listener.asks
        assert bool(stage.said("tool_result", is_error=True)) != done

    @pytest.mark.parametrize("mode", ["read_only", "accept_edits"])
    async def test_what_would_ask_is_refused_where_nobody_is_asked(self, claude: ClaudeKit, mode: str) -> None:
        outside = str(Path(claude._directory, "outside"))  # noqa: SLF001
        steps = (tool("Write", file_path=outside, content="x"), say("that was it"))
        async with claude.run(*steps, permissions={"mode": mode}) as stage:
            outcome = await stage.play()
        assert outcome.text == "that was it"
        assert not Path(outside).exists()

    @pytest.mark.parametrize("decision", ["allow", "deny"])
    async def test_ask_waits_for_a_person(self, claude: ClaudeKit, decision: str) -> None:
        steps = (tool("Bash", command=TOUCH), say("that was it"))
        async with claude.run(*steps, permissions={"mode": "ask"}) as stage:
            session, task = stage.start()
            (asked,) = await until(lambda: stage.listener.asks)
            assert (asked.approval.tool, asked.approval.input["command"]) == ("Bash", TOUCH)
            assert not made(stage)
            await deliver(session, word(asked.approval.id, decision, "Bash", message="not on my machine"))
            outcome = await ended(task)
            assert made(stage) == (decision == "allow")
        assert outcome.text == "that was it"
        states = [event.state for event in stage.said("permission", id=asked.approval.id)]
        assert states == ["asked", "allowed" if decision == "allow" else "denied"]
        assert claude.script.requests[1].saw("not on my machine") == (decision == "deny")

    async def test_a_wait_for_a_person_is_no_silence_of_the_agent(self, claude: ClaudeKit) -> None:
        steps = (tool("Bash", command=TOUCH), say("that was it"))
        async with claude.run(*steps, permissions={"mode": "ask"}, limits={"idle_s": 4}) as stage:
            session, task = stage.start()
            (asked,) = await until(lambda: stage.listener.asks)
            await until(lambda: datetime.now(UTC) - asked.approval.since > timedelta(seconds=5))
            await deliver(session, word(asked.approval.id, "allow", "Bash"))
            assert (await ended(task)).text == "that was it"

    async def test_a_remembered_word_counts_for_the_tool_for_the_rest_of_the_run(self, claude: ClaudeKit) -> None:
        again = "touch second"
        steps = (
            tool("Bash", command=TOUCH),
            tool("Bash", command=again),
            hold("x"),
            tool("Bash", command=TOUCH),
            say("y"),
        )
        async with claude.run(*steps, permissions={"mode": "ask"}) as stage:
            session, task = stage.start()
            (asked,) = await until(lambda: stage.listener.asks)
            parcel = word(asked.approval.id, "allow", "Bash", remember=True)
            await deliver(session, parcel)
            await claude.script.wait_held()
            await stage.wait_for("message", text="x")
            await stage.kill()
            await stage.pid(2)
            await deliver(session, parcel)
            outcome = await ended(task)
        assert (outcome.text, outcome.attempts, len(stage.listener.asks)) == ("y", 2, 1)

    async def test_a_question_survives_the_worker(self, claude: ClaudeKit) -> None:
        async with claude.run(tool("Bash", command=TOUCH), say("that was it"), permissions={"mode": "ask"}) as stage:
            stage.start()
            (first,) = await until(lambda: stage.listener.asks)
            await stage.detach()
            session, task = stage.start()
            _, second = await until(lambda: stage.listener.asks if len(stage.listener.asks) > 1 else None)
            assert second.approval.id == first.approval.id
            await deliver(session, word(first.approval.id, "allow", "Bash"))
            assert (await ended(task)).text == "that was it"
            assert made(stage)
        assert len(stage.said("permission", state="asked")) == 1

    async def test_a_worker_that_leaves_in_its_handshake_takes_no_question_back(self, claude: ClaudeKit) -> None:
        async with claude.run(tool("Bash", command=TOUCH), say("that was it"), permissions={"mode": "ask"}) as stage:
            stage.start()
            (first,) = await until(lambda: stage.listener.asks)
            await stage.detach()
            pid = await stage.pid()
            os.kill(pid, signal.SIGSTOP)
            stage.start()
            await until(lambda: len(stage.listener.asks) == 2)
            await stage.detach()
            os.kill(pid, signal.SIGCONT)
            session, task = stage.start()
            await until(lambda: len(stage.listener.asks) > 2)
            await deliver(session, word(first.approval.id, "allow", "Bash"))
            assert (await ended(task)).text == "that was it"
        assert [each.withdrawn for each in stage.listener.asks] == [False, False, False]

    async def test_an_interrupt_withdraws_the_question(self, claude: ClaudeKit) -> None:
        async with claude.run(tool("Bash", command=TOUCH), say("all right"), permissions={"mode": "ask"}) as stage:
            session, task = stage.start()
            await until(lambda: stage.listener.asks)
            await deliver(session, message("interrupt", "leave it"))
            assert (await ended(task)).text == "all right"
            assert not made(stage)
        assert [each.withdrawn for each in stage.listener.asks] == [False, True]
        assert stage.said("permission", state="withdrawn")

    async def test_allow_and_deny_are_kept(self, claude: ClaudeKit) -> None:
        permissions = {"mode": "ask", "allow": ["Bash(touch:*)"], "deny": ["WebFetch"]}
        steps = (tool("Bash", command=TOUCH), tool("WebFetch", url="http://127.0.0.1:9/", prompt="x"), say("done"))
        async with claude.run(*steps, permissions=permissions) as stage:
            outcome = await stage.play()
            assert made(stage)
        assert outcome.text == "done"
        assert not stage.listener.asks
        assert stage.said("tool_result", is_error=True)


class TestLimits:
    async def test_turns_are_held_in_the_middle_of_the_work(self, claude: ClaudeKit) -> None:
        steps = [tool("Bash", command="true")] * 2
        async with claude.run(*steps, hold("never"), limits={"turns": 2}) as stage:
            outcome = await stage.play()
            assert not stage.alive()
        assert (outcome.status, outcome.error) == ("failed", ErrorType.BUDGET_EXCEEDED)
        assert (outcome.message or "").startswith("limits.turns")

    async def test_cost_is_held_in_the_middle_of_a_turn(self, claude: ClaudeKit) -> None:
        dear = answer(Say("dear"), Hold(), usage=Usage(input=2_000_000))
        async with claude.run(dear, limits={"cost_usd": 0.5}) as stage:
            outcome = await stage.play()
            assert not stage.alive()
        assert (outcome.status, outcome.error) == ("failed", ErrorType.BUDGET_EXCEEDED)
        assert outcome.cost_usd > 0.5

    async def test_limits_hold_over_all_attempts(self, claude: ClaudeKit) -> None:
        steps = (tool("Bash", command="true"), hold("one"), hold("never"))
        async with claude.run(*steps, limits={"turns": 2}) as stage:
            _, task = stage.start()
            await stage.wait_for("tool_result")
            await stage.wait_for("message", text="one")
            await stage.kill()
            outcome = await ended(task)
        assert (outcome.error, outcome.attempts, outcome.turns) == (ErrorType.BUDGET_EXCEEDED, 2, 3)

    async def test_usage_and_cost_are_what_the_model_said(self, claude: ClaudeKit) -> None:
        usage = Usage(input=1000, output=200, cache_read=50, cache_write=10)
        async with claude.run(say("x", usage=usage)) as stage:
            outcome = await stage.play()
        assert (outcome.usage.input_tokens, outcome.usage.output_tokens) == (1000, 200)
        assert (outcome.usage.cache_read_tokens, outcome.usage.cache_write_tokens) == (50, 10)
        assert outcome.turns == 1
        assert outcome.cost_usd == pytest.approx(0.00806)


class TestFailures:
    async def test_a_refused_key(self, claude: ClaudeKit) -> None:
        async with claude.run(*[fail(401, "invalid x-api-key")] * 12) as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.error) == ("failed", ErrorType.AUTHENTICATION_FAILED)

    async def test_no_key_at_all(self, claude: ClaudeKit) -> None:
        async with claude.run(env={"ANTHROPIC_API_KEY": ""}) as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.error) == ("failed", ErrorType.AUTHENTICATION_FAILED)

    async def test_a_service_that_fails(self, claude: ClaudeKit) -> None:
        async with claude.run(*[fail(500, "overheated")] * 3, env={"CLAUDE_CODE_MAX_RETRIES": "1"}) as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.error) == ("failed", ErrorType.AGENT_FAILED)
        assert "500" in (outcome.message or "")
        assert [event for event in stage.said("progress") if "retry 1 of 1" in event.text]

    async def test_an_answer_of_megabytes_is_not_lost(self, claude: ClaudeKit) -> None:
        """Temporal takes 2 MiB: an answer that is larger must be cut, or the run fails at its very end."""
        async with claude.run(say("x" * 3_000_000)) as stage:
            outcome = await stage.play()
        assert outcome.status == "succeeded"
        assert len(outcome.model_dump_json()) < 2 * 1024 * 1024

    async def test_settings_that_forbid_full_are_not_gone_round(self, claude: ClaudeKit, tmp_path: Path) -> None:
        settings = tmp_path / "config" / "settings.json"
        settings.parent.mkdir()
        settings.write_text(json.dumps({"permissions": {"disableBypassPermissionsMode": "disable"}}))
        async with claude.run(tool("Bash", command=TOUCH), say("done")) as stage:
            outcome = await stage.play()
            assert not made(stage)
        assert (outcome.status, outcome.error) == ("failed", ErrorType.INVALID_REQUEST)
        assert "disableBypassPermissionsMode" in (outcome.message or "")

    async def test_an_image_that_a_tool_gives_is_named(self, claude: ClaudeKit, tmp_path: Path) -> None:
        picture = tmp_path / "workspace" / "a.png"
        picture.parent.mkdir()
        picture.write_bytes(base64.b64decode(PIXEL))
        async with claude.run(tool("Read", file_path=str(picture)), say("done")) as stage:
            await stage.play()
            assert [each.text for each in stage.said("tool_result")] == ["[image]"]

    async def test_mcp_servers_that_are_not_there_are_told(self, claude: ClaudeKit, tmp_path: Path) -> None:
        settings = tmp_path / "config" / "settings.json"
        settings.parent.mkdir()
        settings.write_text(json.dumps({"deniedMcpServers": [{"serverName": "evil"}]}))
        servers = {
            "gone": {"command": "/nonexistent"},
            "far": {"url": "http://127.0.0.1:9/mcp"},
            "evil": {"command": "x"},
        }
        async with claude.run(say("done"), options={"mcp_servers": servers}) as stage:
            await stage.play()
            (told,) = stage.said("progress")
        assert told.text == "MCP servers: gone failed, far failed, evil is left out by Claude Code"

    async def test_an_mcp_server_of_a_request_has_not_the_agents_key(self, claude: ClaudeKit, tmp_path: Path) -> None:
        server = {"command": "sh", "args": ["-c", f"env > {tmp_path}/seen"], "env": {"OWN": "its own"}}
        async with claude.run(say("done"), options={"mcp_servers": {"curious": server}}) as stage:
            key = stage.environment["ANTHROPIC_API_KEY"]
            await stage.play()
        seen = (tmp_path / "seen").read_text().splitlines()
        assert "OWN=its own" in seen
        assert not [line for line in seen if line.endswith(f"={key}")]

    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({"mcp_servers": []}, "options.*mcp_servers"),
            ({"mcp_servers": {"a": {"env": {"K": {"from_env": "NOT_HANDED_OUT"}}}}}, "options.mcp_servers.a"),
            ({"mcp_servers": {"a": {}}}, "options.mcp_servers.a"),
            ({"mcp_servers": {"a": {"command": ["true"]}}}, "options.mcp_servers.a"),
            ({"mcp_servers": {"a": {"command": "true", "args": "x"}}}, "options.mcp_servers.a"),
            ({"mcp_servers": {"a": {"command": "true", "env": []}}}, "options.mcp_servers.a"),
            ({"mcp_servers": {"a": {"type": "sdk", "name": "a"}}}, "options.mcp_servers.a"),
            ({"mcp_servers": {"a": {"type": "stdio", "url": "http://a.example"}}}, "options.mcp_servers.a"),
            ({"add_dirs": ["relative"]}, "options.*add_dirs"),
            ({"setting_sources": ["cloud"]}, "options.*setting_sources"),
            ({"fallback_model": 7}, "options.*fallback_model"),
        ],
    )
    async def test_a_wrong_option_is_named(self, claude: ClaudeKit, options: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidRequest, match=field):
            async with claude.run(options=options):
                pass
