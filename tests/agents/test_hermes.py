"""The real Hermes, driven by its gateway: answers, messages, trust, failures, and workers that are replaced."""

import asyncio
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from activities.agents.hermes import interpreter
from activities.agents.hermes.agent import HermesAgent
from activities.agents.hermes.conversation import HermesConversation
from activities.agents.hermes.errors import no_answer
from activities.agents.hermes.kind import HERMES
from activities.agents.hermes.transcript import HermesTranscript
from activities.ports.agent import ExitFact
from activities.ports.place import PlaceInfo
from activities.ports.runtime import Channel, Record
from activities.untrusted_json import object_at
from steersman.contracts.activities import RunOutcome
from steersman.contracts.errors import AgentNotInstalled, ErrorType, InvalidRequest
from steersman.contracts.events import InitEvent
from steersman.contracts.model import JsonValue
from steersman.contracts.request import parse_request
from tests.agents.journals import Line
from tests.agents.kits import HermesKit
from tests.agents.stage import Stage, end, message, told
from tests.agents.test_codex import Written, damaged
from tests.scripted_model import Hold, Request, Say, Step, Tool, Usage, answer, cut, fail, hold, say, think, tool
from tests.support.processes import marked, until
from tests.support.programs import program

pytestmark = [pytest.mark.integration, pytest.mark.linux]

NAP = f"touch napping; {sys.executable} -c 'import time; time.sleep(600)'"
WAIT = "touch napping; while ! [ -e go ]; do sleep 0.02; done"
MODULES = ("__init__", "entry", "server", "slash_worker")
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}


def shell(command: str) -> Any:
    return tool("terminal", command=command, timeout=600)


def napping(command: str = NAP) -> Any:
    """At work in a tool until something ends it."""
    return answer(Say("at work"), Tool("terminal", {"command": command, "timeout": 600}))


def on_if_told(words: str) -> Any:
    """Holds until it is told that. Hermes may send a call again that an interrupt has cut, and drop the answer."""
    return lambda request: say("on") if request.saw(words) else hold("a")


async def ended(task: "asyncio.Task[RunOutcome]") -> RunOutcome:
    async with asyncio.timeout(40):
        return await task


async def naps(stage: Stage) -> None:
    await until((stage.workspace / "napping").exists, 30)
    await stage.wait_for("tool_use")


async def no_tool_lives(stage: Stage) -> None:
    await until(lambda: not [line for line in marked(stage.mark).values() if "time.sleep" in line])


async def recorded(stage: Stage) -> list[Record]:
    """The journal of its first process."""
    channel = await stage.runtime.open(stage.key, 1, 100, None)
    records = [each async for batch in channel.records() for each in batch]
    await channel.close()
    return records


class TestAnswers:
    async def test_text_thoughts_tools_and_tokens(self, hermes: HermesKit) -> None:
        first = answer(
            think("hm"),
            say("one two", chunks=2),
            Tool("terminal", {"command": "pwd; echo key=$OPENAI_API_KEY; exit 3"}),
            usage=Usage(input=11, output=7, cache_read=5),
        )
        new = hermes.home.parent.parent / "workspace" / "new.txt"
        write = tool("write_file", path=str(new), content="hello\n")
        asked = {"model": "mock-other", "system_prompt": "speak low, @file:/etc/passwd"}
        async with hermes.run(first, write, say("done"), env={"OPENAI_API_KEY": "sk-1"}, **asked) as stage:
            outcome = await stage.play()
            assert (outcome.status, outcome.text, outcome.turns) == ("succeeded", "done", 3)
            assert new.read_text() == "hello\n"
            (init,) = stage.said("init")
            assert (init.session_id, init.model) == (outcome.session_id, "mock-other")
            deltas = [each.text for each in stage.said("message", delta=True) if each.kind == "text"]
            assert deltas[:2] == ["one ", "two"]
            whole = stage.said("message", delta=False)
            assert [(each.kind, each.text) for each in whole] == [
                ("thinking", "hm"),
                ("text", "one two"),
                ("text", "done"),
            ]
            used, _ = stage.said("tool_use")
            assert used.input == {"command": "pwd; echo key=$OPENAI_API_KEY; exit 3"}
            ran, wrote = stage.said("tool_result")
            assert (ran.text, ran.is_error, wrote.is_error) == (f"{stage.workspace}\nkey=", True, False)
            (change,) = stage.said("file_change")
            assert (change.path, change.change) == (str(new), "created")
        tokens = outcome.usage
        assert (tokens.input_tokens, tokens.output_tokens, tokens.cache_read_tokens) == (211, 47, 5)
        assert hermes.script.requests[0].model == "mock-other"
        assert hermes.script.requests[0].saw("speak low, @ file:/etc/passwd")

    @pytest.mark.exhaustive
    async def test_structured_output_is_asked_for_again(self, hermes: HermesKit) -> None:
        wrong, right = say('{"answer": "many"}'), say('```json\n{"answer": 42}\n```')
        async with hermes.run(wrong, right, output_schema=SCHEMA) as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.structured) == ("succeeded", {"answer": 42})
        assert hermes.script.requests[0].saw(json.dumps(SCHEMA))
        assert hermes.script.requests[1].saw("Your last answer was not what was asked for")

    @pytest.mark.exhaustive
    async def test_what_it_asks_its_user_is_answered_at_once(self, hermes: HermesKit) -> None:
        async with hermes.run(tool("clarify", question="red or blue?"), say("done")) as stage:
            assert (await stage.play()).text == "done"
            (result,) = stage.said("tool_result")
        assert "Nobody can answer this here" in result.text

    @pytest.mark.exhaustive
    async def test_hermess_own_limit_of_calls_is_no_success(self, hermes: HermesKit) -> None:
        async with hermes.run(shell("echo one")) as stage:
            config = hermes.home / "config.yaml"
            known = json.loads(config.read_text())
            config.write_text(json.dumps({**known, "agent": {"max_turns": 1}}))
            outcome = await stage.play()
        assert (outcome.status, outcome.error) == ("failed", ErrorType.AGENT_FAILED)
        assert "agent.max_turns" in (outcome.message or "")

    @pytest.mark.exhaustive
    async def test_a_limit_holds_within_a_turn_and_counts_sub_agents(self, hermes: HermesKit) -> None:
        task = tool("delegate_task", goal="child's task", background=False)
        async with hermes.run(task, say("of the child"), hold("never"), limits={"tokens": 200}) as stage:
            outcome = await stage.play()
            assert not stage.alive()
        assert (outcome.status, outcome.error) == ("failed", ErrorType.BUDGET_EXCEEDED)
        assert (outcome.usage.input_tokens, outcome.turns) == (200, 2)

    async def test_what_it_delegates_is_done_within_its_turn(self, hermes: HermesKit) -> None:
        """Left to itself, Hermes has it done in the background, and the run would end before."""
        task = tool("delegate_task", goal="look around")
        job = tool("terminal", command="sleep 600", background=True, notify_on_complete=True)
        async with hermes.run(task, say("it is under the bed"), job, say("done")) as stage:
            outcome = await stage.play()
            assert not stage.alive()
        assert (outcome.status, outcome.text, outcome.turns) == ("succeeded", "done", 4)
        assert hermes.script.requests[2].saw("it is under the bed")
        assert hermes.script.requests[3].saw("notify_unsupported")

    @pytest.mark.exhaustive
    async def test_an_interrupt_ends_what_it_delegates_too(self, hermes: HermesKit) -> None:
        def step(request: Request) -> Step:
            if request.saw("go on"):
                return say("on")
            return tool("delegate_task", goal="look around") if request.saw("do it") else shell(NAP)

        async with hermes.run(step) as stage:
            session, task = stage.start()
            await naps(stage)
            assert (await told(session, message("interrupt", "go on"))).state == "acknowledged"
            outcome = await ended(task)
            await no_tool_lives(stage)
        assert (outcome.status, outcome.text) == ("succeeded", "on")


class TestSteer:
    async def test_in_a_tool_it_is_read_when_the_tool_returns(self, hermes: HermesKit) -> None:
        async with hermes.run(shell(WAIT), say("done")) as stage:
            session, task = stage.start()
            await naps(stage)
            assert (await told(session, message("steer", "also this"))).state == "delivered"
            (stage.workspace / "go").touch()
            outcome = await ended(task)
            assert [each.text for each in stage.said("message", role="user")] == ["also this"]
        assert [(each.state, each.how) for each in outcome.messages] == [("acknowledged", "mid_turn")]
        assert len(hermes.script.requests) == 2
        assert "also this" in json.dumps(hermes.script.requests[1].body["messages"][-1])

    async def test_one_that_no_tool_carries_begins_the_next_turn(self, hermes: HermesKit) -> None:
        async with hermes.run(answer(Say("one"), Hold(), Say(".")), say("two")) as stage:
            session, task = stage.start()
            await hermes.script.wait_held()
            assert (await told(session, message("steer", "also this"))).state == "delivered"
            await hermes.script.release()
            outcome = await ended(task)
        assert outcome.text == "two"
        assert [(each.state, each.how) for each in outcome.messages] == [("acknowledged", "new_turn")]
        assert [each for each in hermes.script.requests[1].texts if each == "also this"] == ["also this"]


class TestInterrupt:
    async def test_in_a_text_the_session_goes_on(self, hermes: HermesKit) -> None:
        async with hermes.run(on_if_told("go on")) as stage:
            session, task = stage.start()
            await hermes.script.wait_held()
            assert (await told(session, message("steer", "never read", "m-0"))).state == "delivered"
            both = await asyncio.gather(
                told(session, message("interrupt")), told(session, message("interrupt", name="m-2"))
            )
            assert {(each.state, each.how) for each in both} <= {
                ("acknowledged", "interrupted"),
                ("acknowledged", "nothing was running"),
            }
            again = await told(session, message("interrupt", name="m-3"))
            assert (again.state, again.how) == ("acknowledged", "nothing was running")
            assert not task.done()
            assert (await told(session, message("steer", "go on", "m-4"))).how == "new_turn"
            outcome = await ended(task)
        assert (outcome.text, outcome.attempts) == ("on", 1)
        assert {each.id: each.state for each in outcome.messages}["m-0"] == "rejected"
        assert not hermes.script.requests[-1].saw("never read")

    async def test_with_a_text_in_a_tool_of_which_nothing_is_left(self, hermes: HermesKit) -> None:
        async with hermes.run(napping(), say("instead")) as stage:
            session, task = stage.start()
            await naps(stage)
            settled = await told(session, message("interrupt", "do that"))
            assert (settled.state, settled.how) == ("acknowledged", "interrupted")
            await no_tool_lives(stage)
            assert (await ended(task)).text == "instead"
        assert hermes.script.requests[1].saw("do that")

    @pytest.mark.exhaustive
    async def test_before_the_first_event(self, hermes: HermesKit) -> None:
        async with hermes.run(on_if_told("rather that")) as stage:
            session, task = stage.start()
            settled = await told(session, message("interrupt", "rather that"))
            assert (settled.state, settled.how) == ("acknowledged", "interrupted")
            assert (await ended(task)).text == "on"

    def test_a_turn_that_hermes_begins_by_itself_ends_no_run_that_waits_for_a_person(self) -> None:
        transcript = HermesTranscript(("prompt", "do it"))
        lines: list[Line] = []

        def hear(stream: str, name: str, **frame: Any) -> list[Any]:
            lines.append(Line(len(lines) + 1, 0, stream, json.dumps(frame).encode(), name))
            return transcript.feed(lines[-1])

        def told(kind: str, **payload: Any) -> list[Any]:
            return hear("out", "-", method="event", params={"type": kind, "session_id": "live", "payload": payload})

        def submit(name: str, text: str) -> None:
            hear("in", name, id=name, method="prompt.submit", params={"session_id": "live", "text": text})
            told("message.start")

        def turn_ends(text: str, status: str) -> list[Any]:
            return [*told("message.complete", text=text, status=status), *told("session.info", running=False)]

        hear("in", "session", id="session", method="session.create", params={})
        hear("out", "-", id="session", result={"session_id": "live", "stored_session_id": "stored"})
        submit("prompt", "do it")
        hear("in", "interrupt-m-1", id="interrupt-m-1", method="session.interrupt", params={"session_id": "live"})
        turn_ends("", "interrupted")
        assert transcript.parked
        told("message.start")
        assert [each.text for each in turn_ends("noted", "complete") if each.type == "message"] == ["noted"]
        assert (transcript.parked, transcript.finished, transcript.working) == (True, False, False)
        submit("message-m-2", "go on")
        turn_ends("on", "complete")
        assert {each.id: each.state for each in transcript.settlements()}["m-2"] == "acknowledged"
        assert (transcript.finished, transcript.progress.text) == (True, "on")

    async def test_one_that_ends_the_run(self, hermes: HermesKit) -> None:
        async with hermes.run(napping()) as stage:
            session, task = stage.start()
            await naps(stage)
            settled = await told(session, end())
            assert (settled.state, settled.how) == ("acknowledged", "interrupted")
            outcome = await ended(task)
            assert (outcome.status, outcome.stop_reason, outcome.error) == ("succeeded", "interrupted", None)
            assert not stage.alive()


class TestSessions:
    async def test_a_killed_process_is_resumed_and_usage_adds_up(self, hermes: HermesKit) -> None:
        async with hermes.run(shell("echo one"), hold("b"), say("the end")) as stage:
            _, task = stage.start()
            await hermes.script.wait_held()
            await stage.wait_for("usage")  # which it is asked for once a tool has ended
            await stage.kill()
            outcome = await ended(task)
        assert (outcome.status, outcome.text, outcome.attempts) == ("succeeded", "the end", 2)
        assert (outcome.usage.input_tokens, outcome.turns) == (200, 2)
        assert hermes.script.requests[2].saw("do it")
        assert hermes.script.requests[2].saw("Your process ended unexpectedly")

    async def test_what_a_result_carried_is_told_again_after_a_crash(self, hermes: HermesKit) -> None:
        """Hermes has it in mind alone: the result is in its session as it was before."""
        async with hermes.run(shell(WAIT), hold("b"), say("the end")) as stage:
            session, task = stage.start()
            await naps(stage)
            await told(session, message("steer", "also this"))
            (stage.workspace / "go").touch()
            await until(lambda: any(each.state == "acknowledged" for each in stage.listener.settlements))
            await stage.kill()
            outcome = await ended(task)
        assert (outcome.status, outcome.text, outcome.attempts) == ("succeeded", "the end", 2)
        assert [each.state for each in outcome.messages] == ["acknowledged"]
        first, second = (request.saw("also this") for request in hermes.script.requests[1:])
        assert (first, second) == (True, True)
        assert hermes.script.requests[2].saw("Your process ended unexpectedly")

    @pytest.mark.exhaustive
    async def test_a_process_that_died_before_its_session_was_saved_begins_anew(self, hermes: HermesKit) -> None:
        async with hermes.run(say("fine")) as stage:
            _, task = stage.start()
            await stage.wait_for("init")
            await stage.kill()
            outcome = await ended(task)
            assert (outcome.status, outcome.text) == ("succeeded", "fine")
            assert outcome.attempts in (2, 3)

    @pytest.mark.exhaustive
    async def test_a_session_that_was_held_elsewhere_works_here(self, hermes: HermesKit, tmp_path: Path) -> None:
        async with hermes.run(say("first")) as stage:
            session = (await stage.play()).session_id
        workspace = {"path": str(tmp_path)}
        async with hermes.run(shell("pwd > here"), say("second"), workspace=workspace, session=session) as stage:
            outcome = await stage.play()
            assert (tmp_path / "here").read_text() == f"{tmp_path}\n"
        assert (outcome.text, outcome.session_id, outcome.usage.input_tokens) == ("second", session, 200)
        assert hermes.script.requests[0].saw("first")

    async def test_sessions_that_cannot_be_gone_on_with(self, hermes: HermesKit) -> None:
        async with hermes.run(session="20261125_020841_eb28f5") as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.error, outcome.attempts) == ("failed", ErrorType.INVALID_REQUEST, 1)
        assert "session not found" in (outcome.message or "")
        for name, model in (("of-another", None), ("20261125_020841_eb28f5", "m")):
            with pytest.raises(InvalidRequest, match="session"):
                async with hermes.run(session=name, model=model):
                    pass

    def test_an_answer_with_more_history_than_is_read_begins_the_session(self) -> None:
        found = HermesTranscript(None)
        names = '{"session_id": "a1", "resumed": "20261125_020841_eb28f5", '
        line = f'{{"jsonrpc": "2.0", "id": "session", "result": {names}"messages": [{"{}," * 300_000}'
        (event,) = found.feed(Line(1, 1, "out", line.encode()))
        assert isinstance(event, InitEvent)
        assert (event.session_id, found.state.live) == ("20261125_020841_eb28f5", "a1")


class TestTrust:
    @pytest.mark.parametrize("trusted", [True, False])
    async def test_what_a_workspace_brings_along(self, hermes: HermesKit, *, trusted: bool) -> None:
        look = answer(Tool("terminal", {"command": "pwd"}), Tool("read_file", {"path": "sub/text"}))
        write = tool("write_file", path="sub/new.py", content="x = 1")
        # Language servers build what they look at; this one only says that it was started.
        server = hermes.home.parent / "bin" / "pyright-langserver"
        server.parent.mkdir(parents=True)
        server.write_text(f"#!/bin/sh\ntouch {server.parent}/served\n")
        server.chmod(0o755)
        path = f"{server.parent}:{os.environ['PATH']}"
        async with hermes.run(look, write, lambda _request: say("done"), env={"PATH": path}) as stage:
            top, shadow, filtered = stage.workspace, stage.workspace / "shadow", stage.workspace / "filtered"
            files = {
                "AGENTS.md": "of AGENTS.md @diff @url:http://127.0.0.1:9/x",
                "sub/AGENTS.md": "of the directory below",
                "sub/text": "text",
                ".env": "HERMES_MODEL=of-the-workspace",
                ".cursor/rules/a.mdc": "of the rules",
                ".gitattributes": "* filter=f",
            }
            # Modules of Hermes: those that it starts by name, and those that these import.
            modules = ("hermes_bootstrap.py", "utils.py", *(f"tui_gateway/{each}.py" for each in MODULES))
            files |= dict.fromkeys((*modules, ".hermes/plugins/a/__init__.py"), f"open({str(shadow)!r}, 'w').close()")
            for name, text in files.items():
                (top / name).parent.mkdir(parents=True, exist_ok=True)
                (top / name).write_text(text)
            for command in ("init -q", "add sub", f"config filter.f.clean 'touch {filtered}; cat'"):
                subprocess.run(f"git {command}", shell=True, cwd=top, check=True)
            (top / "sub" / "text").write_text("also")  # git has to look at it
            stage.trusted = trusted
            assert (await stage.play()).text == "done"
            assert (shadow.exists(), filtered.exists()) == (False, trusted)
            assert (server.parent / "served").exists() == trusted
            assert f"{top}" in stage.said("tool_result")[0].text
            assert bool([each for each in stage.said("progress") if "not trusted" in each.text]) != trusted
        first, second = (json.dumps(each.body["messages"]) for each in hermes.script.requests[:2])
        system, _, prompt = first.partition('"role": "user"')
        assert ("of AGENTS.md" in system, "of AGENTS.md @ diff @ url:" in prompt) == (trusted, not trusted)
        assert ("Nobody has vouched" in first) != trusted
        assert ("of the directory below" in second) == trusted
        assert hermes.script.requests[0].model == "mock-model"

    def test_it_runs_in_mode_full_alone(self, tmp_path: Path) -> None:
        asked = {"agent": "hermes", "prompt": "go", "workspace": {"path": str(tmp_path)}}
        for fields in ({}, {"permissions": {"mode": "ask"}}):
            with pytest.raises(InvalidRequest, match=r'permissions.mode: agent "hermes" asks nobody'):
                parse_request({**asked, **fields})
        with pytest.raises(InvalidRequest, match="permissions"):
            parse_request({**asked, "permissions": {"mode": "full", "deny": ["terminal"]}})
        assert parse_request({**asked, "permissions": {"mode": "full"}}).permissions.mode == "full"


class TestFailures:
    async def test_a_refused_key(self, hermes: HermesKit) -> None:
        async with hermes.run(fail(401, "no such key")) as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.error) == ("failed", ErrorType.AUTHENTICATION_FAILED)
        assert "no such key" in (outcome.message or "")

    @pytest.mark.parametrize(
        ("steps", "status"),
        [([fail(429)], 429), ([fail(500)], 500), ([cut("ha")] * 4, None), ([answer(think("hm"))] * 6, None)],
        ids=["429", "500", "cut", "nothing said"],
    )
    async def test_a_service_that_fails(self, hermes: HermesKit, steps: list[Any], status: int | None) -> None:
        async with hermes.run(*steps) as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.error, outcome.attempts) == ("failed", ErrorType.AGENT_FAILED, 1)
        assert outcome.facts.get("api_error_status") == status
        assert ("rate_limit" in outcome.facts) == (status == 429)

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("⚠️ No reply: the model returned empty content", "no reply: the model returned empty content"),
            ("The\n\n⚠️ No reply: streaming stopped early", "no reply: streaming stopped early"),
            ("(empty)", "gave no answer"),
            ("It says `⚠️ No reply: so`.\n\nDone.", None),
            ("", None),
        ],
    )
    def test_what_hermes_says_in_the_place_of_an_answer(self, text: str, reason: str | None) -> None:
        error = no_answer(text)
        assert (error is None) == (reason is None)
        assert (reason or "") in str(error)

    @pytest.mark.parametrize("how", ["unreachable", "no provider"])
    @pytest.mark.exhaustive
    async def test_a_model_that_is_not_there(self, hermes: HermesKit, how: str) -> None:
        async with hermes.run() as stage:
            config = hermes.home / "config.yaml"
            known = json.loads(config.read_text())
            known["model"]["base_url"] = "http://127.0.0.1:9/v1"
            config.write_text(json.dumps(known if how == "unreachable" else {}))
            outcome = await stage.play()
        expected = ErrorType.AGENT_FAILED if how == "unreachable" else ErrorType.AUTHENTICATION_FAILED
        assert (outcome.status, outcome.error, outcome.attempts) == ("failed", expected, 1), outcome.message


class TestProgram:
    def test_the_python_of_a_script(self, tmp_path: Path) -> None:
        script = tmp_path / "hermes"
        with pytest.raises(AgentNotInstalled, match="uv tool install hermes-agent"):
            HermesAgent({"PATH": str(tmp_path)}).program()
        spaced = tmp_path / "a b" / "python3"
        spaced.parent.mkdir()
        spaced.symlink_to(sys.executable)
        for head in (
            f"#!{sys.executable}\n",
            f"#! {sys.executable}\n",
            f"#!/bin/sh\n'''exec' '{spaced}' \"$0\" \"$@\"\n",
        ):
            script.write_text(f"{head}import sys\n")
            script.chmod(0o755)
            found = interpreter.interpreter(HermesAgent({"PATH": str(tmp_path)}).program())
            assert found in (sys.executable, str(spaced))
        for head in ("#!/usr/bin/env python3\n", "#!/gone/bin/python3\n", "", "\x7fELF"):
            script.write_text(head)
            with pytest.raises(AgentNotInstalled, match="names no Python"):
                interpreter.interpreter(str(script))
        (tmp_path / "python").symlink_to(sys.executable)
        with pytest.raises(AgentNotInstalled, match="names no Python"):
            interpreter.interpreter(str(script))  # another program of this name
        script.write_text("#!/usr/bin/env python3\n")
        assert interpreter.interpreter(str(script)) == str(tmp_path / "python")
        with pytest.raises(AgentNotInstalled, match="cannot be read"):
            interpreter.interpreter(str(tmp_path / "gone"))

    async def test_a_python_that_has_no_hermes(self, hermes: HermesKit) -> None:
        async with hermes.run() as stage:
            (stage.workspace / "hermes").write_text(f"#!{sys.executable}\n")
            (stage.workspace / "hermes").chmod(0o755)
            stage.agent = HermesAgent({"PATH": str(stage.workspace)})
            outcome = await stage.play()
        assert (outcome.status, outcome.error, outcome.attempts) == ("failed", ErrorType.AGENT_NOT_INSTALLED, 1)
        assert "uv tool install hermes-agent" in (outcome.message or "")

    def test_what_the_doctor_says(self, hermes: HermesKit, tmp_path: Path) -> None:
        (missing,) = HERMES.findings({"PATH": str(tmp_path)})
        assert missing.ok
        assert missing.detail.startswith("not installed (uv tool install hermes-agent")
        path = str(Path(program("hermes")).parent)
        found, key = HERMES.findings({"PATH": path, "HERMES_HOME": str(tmp_path), "OPENROUTER_API_KEY": "sk"})
        assert (found.ok, found.detail) == (True, f"0.19.0 at {path}/hermes")
        assert key.detail == "OPENROUTER_API_KEY"

    @pytest.mark.parametrize(
        "head",
        [
            "#!{}",
            "#! {} -s",
            "#!/bin/sh\n'''exec' '{}' \"$0\" \"$@\"",
            '#!/bin/sh\n\'\'\'exec\' "{}" "$0" "$@"',
            "#!/bin/sh\n'''exec' {} \"$0\" \"$@\"",
        ],
    )
    @pytest.mark.parametrize("end", ["\n", "\nimport re\n"])
    def test_on_another_machine_its_own_shell_looks(self, tmp_path: Path, head: str, end: str) -> None:
        script = tmp_path / "hermes"
        script.write_text(head.format(sys.executable) + end)
        place = PlaceInfo(name="there", environ={}, programs={"hermes": str(script)}, is_root=False)
        argv = interpreter.command(HermesAgent({}).program(place), place)
        done = subprocess.run([*argv, "-c", "print('a b')"], capture_output=True, text=True, check=False)
        assert (done.stdout, done.returncode) == ("a b\n", 0)
        script.write_text("#!/bin/sh\n")
        done = subprocess.run([*argv, "-c", "print('a b')"], capture_output=True, text=True, check=False)
        assert (done.returncode, "names no Python" in done.stderr) == (127, True)
        with pytest.raises(AgentNotInstalled, match="a login on there"):
            HermesAgent({}).program(PlaceInfo(name="there", environ={}, programs={}, is_root=False))


class TestWorkers:
    @pytest.mark.exhaustive
    async def test_one_that_is_replaced_after_each_event_loses_and_doubles_nothing(self, hermes: HermesKit) -> None:
        async with hermes.run(shell("echo once >> made"), answer(Say("half"), Hold(), Say(" done"))) as stage:
            for count in (0, 0, 1, 2, 3, 4):
                _, task = stage.start()
                await until(lambda count=count: len(stage.events) >= count, 30)  # type: ignore[misc]
                await stage.detach()
            _, task = stage.start()
            await hermes.script.wait_held()
            await stage.detach()
            _, task = stage.start()
            await hermes.script.release()
            outcome = await ended(task)
            assert (outcome.text, outcome.attempts) == ("half done", 1)
            assert (stage.workspace / "made").read_text() == "once\n"
            assert len({event.model_dump_json(exclude={"seq"}) for event in stage.events}) == len(stage.events)
        assert len(hermes.script.requests) == 2

    @pytest.mark.exhaustive
    async def test_an_interrupt_that_a_dead_worker_wrote_is_carried_through(self, hermes: HermesKit) -> None:
        async with hermes.run(napping(), say("instead")) as stage:
            session, _ = stage.start()
            await naps(stage)
            saying = asyncio.create_task(told(session, message("interrupt", "do that")))
            await stage.wait_for("tool_result")
            await stage.detach()
            saying.cancel()
            session, task = stage.start()
            assert (await told(session, message("interrupt", "do that"))).state == "acknowledged"
            assert (await ended(task)).text == "instead"
        assert [each for each in hermes.script.requests[1].texts if each == "do that"] == ["do that"]

    @pytest.mark.exhaustive
    async def test_whoever_takes_over_at_any_record_writes_and_reads_the_same(self, hermes: HermesKit) -> None:
        """Of a journal with all that the conversation writes by itself, at each of its records."""
        steps = (shell(WAIT), answer(Say("x"), Hold()), napping(), say("no"), say('{"answer": 1}'))
        async with hermes.run(*steps, output_schema=SCHEMA, system_prompt="low") as stage:
            session, task = stage.start()
            await naps(stage)
            await told(session, message("steer", "also this"))
            (stage.workspace / "go").touch()
            await hermes.script.wait_held()
            await told(session, message("steer", "and this", "m-2"))
            await hermes.script.release()
            await until(lambda: [each for each in marked(stage.mark).values() if "time.sleep" in each], 30)
            await told(session, message("interrupt", "do that", "m-3"))
            outcome = await ended(task)
            assert (outcome.status, outcome.structured) == ("succeeded", {"answer": 1})
            records = await recorded(stage)
        journal = {each.id: each.data.strip() for each in records if each.stream == "in"}
        due: set[str] = set()
        prompt = ("prompt", object_at(json.loads(journal["prompt"]), "params")["text"].removeprefix("low\n\n"))

        async def wrong(answer: JsonValue) -> str | None:
            return None if answer == {"answer": 1} else "no such JSON"

        whole = HermesTranscript(prompt, structured=True)
        expected = [whole.feed(each) for each in records]
        for count in range(len(records) + 1):
            found = HermesTranscript(prompt, structured=True)
            for each in records[:count]:
                found.feed(each)
            written = Written()
            await HermesConversation(cast("Channel", written), found, wrong).open()
            due |= written.lines.keys()
            snapshot, later = found.snapshot(), HermesTranscript(prompt, structured=True)
            assert snapshot
            later.restore(snapshot)
            assert [later.feed(each) for each in records[count:]] == expected[count:]
            assert later.state == whole.state
            for command, data in written.lines.items():
                assert command == "repair" or data.strip().encode() == journal[command]
        by_person = {"session", "message-m-1", "message-m-2", "interrupt-m-3", "message-m-3", "close"}
        assert due == {each for each in journal if each not in by_person}
        assert {"prompt", "usage-1", "again-m-2", "repair"} <= due

    @pytest.mark.exhaustive
    async def test_damaged_frames_break_nothing(self, hermes: HermesKit) -> None:
        async with hermes.run(shell("echo hi"), say("done")) as stage:
            await stage.play()
            records = await recorded(stage)
        chance = random.Random(7)
        for _ in range(100):
            found = HermesTranscript(("prompt", "do it"), structured=True)
            for each in records:
                frame = json.loads(each.data) if each.stream in ("in", "out") and each.data else None
                data = json.dumps(damaged(frame, chance)).encode() if frame else each.data
                found.feed(Line(each.seq, each.time_ms, each.stream, data, each.id))
                assert isinstance(found.working, bool)
                assert isinstance(found.finished, bool)
            if (snapshot := found.snapshot()) is not None:
                HermesTranscript(None).restore(snapshot)
            found.verdict(ExitFact(code=0))

    @pytest.mark.parametrize("forged", [b"", b"[]", b'{"progress": 1}', b'{"results": -1}', b'{"turn": "x"}'])
    def test_a_forged_snapshot_is_refused(self, forged: bytes) -> None:
        with pytest.raises(ValueError):  # noqa: PT011 - whatever is wrong with it
            HermesTranscript(None).restore(forged)
