"""What opencode does beyond every agent that speaks ACP: its steps are counted, its model's reading is known, its
service is not asked for ever, and nobody else speaks to its server.
"""

import asyncio
import json
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from activities.agents.opencode import telemetry
from activities.agents.opencode.agent import CONTENT, PLUGIN, OpencodeAgent
from activities.agents.opencode.telemetry import Reading
from activities.agents.opencode.transcript import OpencodeTranscript
from activities.ports.admission import Admission
from activities.untrusted_json import object_at
from steersman.contracts.errors import AgentFailed, AuthenticationFailed, ErrorType, InvalidRequest
from steersman.contracts.events import ProgressEvent
from steersman.contracts.request import parse_request
from tests.agents.journals import Line
from tests.agents.kits import OpencodeKit
from tests.agents.stage import deliver, message, word
from tests.agents.test_acp import END
from tests.scripted_model import Hold, Request, Say, ScriptedModel, Step, Tool, Usage, answer, fail, hold, say
from tests.support.processes import until

pytestmark = [pytest.mark.integration, pytest.mark.linux]


@pytest.fixture
def opencode(private: Path, model: ScriptedModel) -> OpencodeKit:
    kit = OpencodeKit(private, model)
    if (missing := kit.not_installed()) is not None:
        pytest.skip(missing)
    return kit


def listening(pid: int) -> list[int]:
    """The ports of this process's own listeners on the loopback interface."""
    links = [each.readlink() for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()]
    own = {str(each)[8:-1] for each in links if str(each).startswith("socket:[")}
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in own]


class TestUsage:
    async def test_each_step_is_counted_with_what_it_costs(self, opencode: OpencodeKit) -> None:
        steps = [answer(opencode.shell("true"), usage=Usage(1000, 20)), say("done", usage=Usage(2000, 30))]
        async with opencode.run(*steps) as stage:
            outcome = await stage.play()
            seen = [(event.usage.input_tokens, event.turns) for event in stage.said("usage")]
        assert outcome.status == "succeeded"
        assert (outcome.usage.input_tokens, outcome.usage.output_tokens, outcome.turns) == (3000, 50, 2)
        assert outcome.cost_usd == pytest.approx(3000 * 10e-6 + 50 * 100e-6)
        assert seen == [(1000, 1), (3000, 2)]
        assert len(opencode.script.requests) == 2  # no title was made beside it

    @pytest.mark.exhaustive
    async def test_a_subagents_steps_are_counted_too(self, opencode: OpencodeKit) -> None:
        task = Tool("task", {"description": "look", "prompt": "look around", "subagent_type": "general"})
        async with opencode.run(answer(task), say("I looked"), say("done")) as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.text) == ("succeeded", "done")
        assert (outcome.usage.input_tokens, outcome.turns) == (300, 3)

    async def test_a_limit_of_turns_ends_it_in_its_turn(self, opencode: OpencodeKit) -> None:
        async with opencode.run(*[answer(opencode.shell("true"))] * 20, limits={"turns": 2}) as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.error) == ("failed", ErrorType.BUDGET_EXCEEDED)
        assert outcome.turns < 10


TASK = Tool("task", {"description": "look", "prompt": "look around", "subagent_type": "general"})


class TestSubagents:
    """opencode tells of a subagent's session nothing but what the plugin tells."""

    @pytest.mark.parametrize(
        "decision", ["allow", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("deny", "interrupt"))]
    )
    async def test_what_one_asks_a_person_is_asked(self, opencode: OpencodeKit, decision: str) -> None:
        def end(request: Request) -> Step:
            return say("done") if request.saw("do it") else say("I looked")

        steps = (answer(TASK), answer(opencode.shell("touch asked")), end, end)
        async with opencode.run(*steps, permissions={"mode": "ask"}) as stage:
            session, task = stage.start()
            (asked,) = await until(lambda: stage.listener.asks)
            assert (asked.approval.tool, asked.approval.input["command"]) == ("execute", "touch asked")
            await stage.detach()
            session, task = stage.start()
            if decision == "interrupt":
                await deliver(session, message("interrupt", "go on"))
            else:
                await deliver(session, word(asked.approval.id, decision, asked.approval.tool))
            async with asyncio.timeout(40):
                outcome = await task
            assert (stage.workspace / "asked").exists() == (decision == "allow")
            uses = stage.said("tool_use")
            assert [each.name for each in uses] == ["think"]
            assert [each.id for each in stage.said("tool_result")] == [each.id for each in uses]
        assert (outcome.status, outcome.text) == ("succeeded", "done")

    @pytest.mark.exhaustive
    async def test_what_opencode_asks_about_by_itself_is_allowed_in_mode_full(self, opencode: OpencodeKit) -> None:
        """Of a file that is outside its directory it asks whether or not it is told to."""
        looks = Tool("read", {"filePath": "/etc/passwd"})
        async with opencode.run(answer(TASK), answer(looks), say("I looked"), say("done")) as stage:
            config = json.loads(stage.environment[CONTENT])
            del config["permission"]
            stage.environment[CONTENT] = json.dumps(config)
            outcome = await stage.play()
            assert [each.state for each in stage.said("permission")] == ["asked", "allowed"]
        assert (outcome.status, outcome.text) == ("succeeded", "done")

    @pytest.mark.exhaustive
    async def test_one_whose_session_is_gone_on_with_asks_once(self, opencode: OpencodeKit) -> None:
        async with opencode.run(answer(TASK), say("I looked"), say("done")) as stage:
            await stage.play()
            (result,) = stage.said("tool_result")
        own = result.text.partition('id="')[2].partition('"')[0]
        fields = {"session": own, "permissions": {"mode": "ask"}}
        async with opencode.again(answer(opencode.shell("touch asked")), say("done"), **fields) as stage:
            session, task = stage.start()
            (asked,) = await until(lambda: stage.listener.asks)
            await deliver(session, word(asked.approval.id, "allow", asked.approval.tool))
            outcome = await task
            assert [each.state for each in stage.said("permission")] == ["asked", "allowed"]
        assert (outcome.status, outcome.text) == ("succeeded", "done")

    def test_ones_service_is_not_waited_for_for_ever_either(self) -> None:
        transcript = OpencodeTranscript()
        retry = {"sessionId": "ses_sub", "attempt": 1, "message": "slow down", "next": (time.time() + 3600) * 1000}
        frame = {"jsonrpc": "2.0", "method": "_steersman/retry", "params": retry}
        (told,) = transcript.feed(Line(1, int(time.time() * 1000), "out", json.dumps(frame).encode()))
        assert isinstance(told, ProgressEvent)
        assert "asks for patience" in str(transcript.hopeless)


@pytest.mark.exhaustive
async def test_tools_whose_end_nobody_would_see_are_not_offered(opencode: OpencodeKit) -> None:
    asks = Tool("question", {"questions": [{"question": "red?", "header": "colour", "options": []}]})
    behind = Tool("task", {**TASK.input, "background": True})
    every = ("EXPERIMENTAL", "ENABLE_QUESTION_TOOL", "EXPERIMENTAL_BACKGROUND_SUBAGENTS")
    operators = {f"OPENCODE_{each}": "true" for each in every}
    async with opencode.run(answer(asks), answer(behind), say("done"), env=operators) as stage:
        outcome = await stage.play()
        (_, refused) = stage.said("tool_result")
    assert (outcome.status, outcome.text, refused.is_error) == ("succeeded", "done", True)


class TestSteer:
    async def test_it_is_acknowledged_once_the_model_has_read_it(self, opencode: OpencodeKit) -> None:
        async with opencode.run(answer(Say("one "), Hold(), opencode.shell("true")), hold("two")) as stage:
            session, task = stage.start()
            await opencode.script.wait_held()
            (told,) = (await deliver(session, message("steer", "use tabs"))).messages
            assert told.state == "delivered"
            await opencode.script.release()
            await until(lambda: len(opencode.script.requests) == 2)
            read = await until(lambda: [each for each in stage.listener.settlements if each.state == "acknowledged"])
            assert [(each.id, each.how) for each in read] == [("m-1", "mid_turn")]
            assert opencode.script.requests[-1].saw("use tabs")
            assert not task.done()
            await opencode.script.release()
            await task

    @pytest.mark.exhaustive
    async def test_one_that_an_interrupt_came_before_is_read_in_the_next_turn(self, opencode: OpencodeKit) -> None:
        async with opencode.run(hold("one"), say("two")) as stage:
            session, task = stage.start()
            await opencode.script.wait_held()
            await deliver(session, message("steer", "use tabs"))
            await deliver(session, message("interrupt", name="m-2"))
            await deliver(session, message("steer", "go on", "m-3"))
            outcome = await task
        assert opencode.script.requests[-1].saw("use tabs")
        assert [(each.id, each.how) for each in outcome.messages] == [
            ("m-1", "new_turn"),
            ("m-2", "interrupted"),
            ("m-3", "new_turn"),
        ]

    @pytest.mark.exhaustive
    async def test_an_answer_that_an_interrupt_comes_before_has_read_nothing(self, opencode: OpencodeKit) -> None:
        """Where a subagent is interrupted, opencode begins to answer the message, and asks its model nothing."""

        def step(request: Request) -> Step:
            return answer(TASK) if request.saw("do it") else answer(opencode.shell("touch napping; sleep 600"))

        async with opencode.run(step) as stage:
            session, task = stage.start()
            await until((stage.workspace / "napping").exists)
            await deliver(session, message("steer", "use tabs"))
            await deliver(session, message("interrupt", name="m-2"))
            await deliver(session, END)
            outcome = await task
        assert {each.id: each.state for each in outcome.messages}["m-1"] == "unverified"
        assert not any(each.saw("use tabs") for each in opencode.script.requests)

    @pytest.mark.exhaustive
    async def test_one_that_the_model_has_not_read_is_not_said_to_be(self, opencode: OpencodeKit) -> None:
        async with opencode.run(hold("one")) as stage:
            session, task = stage.start()
            await opencode.script.wait_held()
            await deliver(session, message("steer", "use tabs"))
            await deliver(session, END)
            outcome = await task
        assert {each.id: each.state for each in outcome.messages}["m-1"] == "unverified"


class TestService:
    @pytest.mark.exhaustive
    async def test_a_rate_limit_names_its_end(self, opencode: OpencodeKit) -> None:
        async with opencode.run(*[fail(429, "slow down", retry_after_s=3600)] * 3) as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.error) == ("failed", ErrorType.AGENT_FAILED)
        limit = object_at(outcome.facts, "rate_limit")
        resets_at = datetime.fromisoformat(str(limit["resets_at"]))
        assert 3400 < (resets_at - datetime.now(UTC)).total_seconds() < 3700
        assert len(opencode.script.requests) == 1

    @pytest.mark.exhaustive
    async def test_answers_that_end_without_a_reason_are_not_asked_for_for_ever(self, opencode: OpencodeKit) -> None:
        async with opencode.run(*[answer(say("so"), stop_reason="none")] * 100) as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.error) == ("failed", ErrorType.AGENT_FAILED)
        assert "without a reason" in (outcome.message or "")
        assert len(opencode.script.requests) < 30

    async def test_an_answer_that_the_models_own_limit_has_cut_is_no_success(self, opencode: OpencodeKit) -> None:
        async with opencode.run(answer(say("half an ans"), stop_reason="max_tokens")) as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.error, outcome.text) == ("failed", ErrorType.AGENT_FAILED, "half an ans")
        assert "max_tokens" in (outcome.message or "")

    @pytest.mark.parametrize(
        ("attempt", "wait_s", "given_up"), [(1, 2, False), (5, 30, False), (6, 30, True), (1, 120, True)]
    )
    def test_when_it_is_given_up(self, attempt: int, wait_s: float, given_up: bool) -> None:  # noqa: FBT001
        now = datetime.now(UTC)
        retry = {"attempt": attempt, "message": "Bad Gateway", "next": (time.time() + wait_s) * 1000}
        error = telemetry.hopeless(retry, now)
        assert (error is not None) == given_up
        assert error is None or "Bad Gateway" in error.message

    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            ({"name": "APIError", "status": 401, "message": "no"}, AuthenticationFailed),
            ({"name": "ProviderAuthError", "message": "no"}, AuthenticationFailed),
            ({"name": "APIError", "status": 500, "message": "no"}, AgentFailed),
            ({"name": "UnknownError", "message": ["no"], "status": "x", "retryAfter": {}}, AgentFailed),
            ({"name": "MessageAbortedError", "message": "Aborted"}, type(None)),
            ({}, type(None)),
        ],
    )
    def test_what_an_error_means(self, error: dict[str, Any], kind: type) -> None:
        assert type(telemetry.failure(error, datetime.now(UTC))) is kind


def furnish(workspace: Path) -> list[Path]:
    """Programs of its own in a workspace; what each leaves behind where it ran."""
    witnesses = [workspace / f"witness-{number}" for number in range(2)]
    (workspace / ".opencode" / "plugin").mkdir(parents=True)
    write = f'import {{ writeFileSync }} from "node:fs"\nwriteFileSync("{witnesses[0]}", "")\n'
    (workspace / ".opencode" / "plugin" / "evil.js").write_text(f"{write}export const X = async () => ({{}})\n")
    server = {"type": "local", "command": ["touch", str(witnesses[1])], "enabled": True}
    (workspace / "opencode.json").write_text(json.dumps({"mcp": {"x": server}}))
    return witnesses


class TestTrust:
    async def test_what_a_trusted_workspace_brings_along_runs(self, opencode: OpencodeKit) -> None:
        async with opencode.run(say("done")) as stage:
            del stage.environment["OPENCODE_DISABLE_PROJECT_CONFIG"]
            witnesses = furnish(stage.workspace)
            outcome = await stage.play()
            assert all(each.exists() for each in witnesses)
        assert outcome.status == "succeeded"

    @pytest.mark.parametrize("above", [True, False])
    async def test_of_one_that_is_not_opencode_would_load_programs(self, opencode: OpencodeKit, above: bool) -> None:  # noqa: FBT001
        """So the run is refused; opencode's own switch leaves out the server, and not the plugin (measured)."""
        async with opencode.run(say("done")) as stage:
            stage.trusted = False
            witnesses = furnish(stage.workspace.parent if above else stage.workspace)
            outcome = await stage.play()
            assert not any(each.exists() for each in witnesses)
        assert (outcome.status, outcome.error) == ("failed", ErrorType.WORKSPACE_ERROR)
        assert "opencode.json" in (outcome.message or "")
        assert "steer trust" in (outcome.message or "")

    @pytest.mark.parametrize("trusted", [True, False])
    @pytest.mark.exhaustive
    async def test_texts_are_texts(self, opencode: OpencodeKit, trusted: bool) -> None:  # noqa: FBT001
        async with opencode.run(say("done")) as stage:
            stage.trusted = trusted
            del stage.environment["OPENCODE_DISABLE_PROJECT_CONFIG"]
            for home in (".claude", ".agents"):
                skill = stage.workspace / home / "skills" / "own"
                skill.mkdir(parents=True)
                (skill / "SKILL.md").write_text("---\nname: own\ndescription: plunder the seven seas\n---\nArr.\n")
            (stage.workspace / "AGENTS.md").write_text("Speak like a pirate.")
            outcome = await stage.play()
        assert outcome.status == "succeeded"
        asked = json.dumps(opencode.script.requests[0].body)
        assert asked.count("Speak like a pirate.") == 1
        assert ("Nobody has vouched for the workspace" in asked) != trusted
        assert ("plunder the seven seas" in asked) == trusted


@pytest.mark.exhaustive
async def test_nobody_else_speaks_to_its_server(opencode: OpencodeKit) -> None:
    secrets = "env | grep -c -e OPENCODE_SERVER_PASSWORD=. -e OPENCODE_CONFIG_CONTENT=. -e BUN_TMPDIR=.*/files"
    async with opencode.run(answer(opencode.shell(secrets)), hold("at work")) as stage:
        _, task = stage.start()
        await opencode.script.wait_held()
        ports = [port for pid in stage.alive() for port in listening(pid)]
        assert ports
        for port in ports:
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/session", timeout=10)
            refused.value.close()
            assert refused.value.code == 401
        await opencode.script.release()
        await task
        (result,) = stage.said("tool_result")
    assert result.text.strip() == "0"


class TestConfiguration:
    def test_the_users_own_stays(self, tmp_path: Path) -> None:
        given = {"plugin": ["file:///own.js"], "agent": {"mine": {}}, "theme": "dark"}
        made = self.configuration(tmp_path, json.dumps(given))
        assert made["plugin"] == ["file:///own.js", f"file://{tmp_path}/a%20b/{PLUGIN}"]
        assert made["agent"] == {"mine": {}, "title": {"disable": True}}
        assert (made["theme"], made["permission"]) == ("dark", {"*": "ask"})

    def test_one_that_is_no_json_is_refused_by_name(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidRequest, match=CONTENT):
            self.configuration(tmp_path, "{")

    def configuration(self, directory: Path, given: str) -> dict[str, Any]:
        request = parse_request(
            {"agent": "opencode", "prompt": "p", "workspace": {"path": "/w"}, "permissions": {"mode": "ask"}}
        )
        admission = Admission({CONTENT: given}, directory)
        environment = OpencodeAgent({}).own_environment(request, admission, directory / "a b")
        found: dict[str, Any] = json.loads(environment[CONTENT])
        return found


class TestReading:
    def test_an_answer_follows_all_that_was_heard_before(self) -> None:
        reading = Reading()
        reading.written("prompt", "do it", joins=False)
        reading.written("message-a", "x" * 5000, joins=True)
        reading.written("message-b", "later", joins=True)
        for number, text in ((1, "do it"), (2, "x" * 4000), (3, "of its own")):
            reading.hear({"message": f"msg_{number}", "text": text})
        assert list(reading.answer({"to": "msg_2"})) == [("prompt", False), ("message-a", True)]
        assert list(reading.answer({"to": "msg_9"})) == []
        assert reading.is_sound()

    def test_frames_of_anybody_do_no_harm(self) -> None:
        reading = Reading()
        for number in range(3_000):
            reading.written(f"message-{number}", "same", joins=True)
            reading.hear({"message": f"msg_{number:05}", "text": "same"})
            reading.hear({"message": {"no": "name"}, "text": ["no", "text"]})
        assert reading.is_sound()
        assert len(list(reading.answer({"to": "msg_99999"}))) == telemetry.MAX_HEARD
