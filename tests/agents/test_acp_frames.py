"""What an agent that speaks ACP says, frame by frame: what becomes of it where agents read the protocol differently."""

import json
from typing import Any

import pytest

from activities.agents.acp import session_start
from activities.agents.acp.messages import FAILED
from activities.agents.acp.snapshot import MAX_TOLD
from activities.agents.acp.tools import MAX_OPEN
from activities.agents.acp.transcript import AcpTranscript
from activities.agents.gemini.transcript import GeminiTranscript
from steersman.contracts.events import EventBase
from tests.agents.journals import Line
from tests.agents.test_claude_journals import KILLED

DIFF = {"type": "diff", "path": "/w/a", "oldText": "x", "newText": "y"}
TEXT = {"type": "content", "content": {"type": "text", "text": "updated"}}


class Said:
    """A transcript of which the first turn has begun, and what it is told."""

    def __init__(self, transcript: AcpTranscript | None = None) -> None:
        self.transcript = transcript or AcpTranscript()
        self.events: list[Any] = []
        self._seq = 0
        self.write("initialize", method="initialize")
        self.answer("initialize", protocolVersion=1)
        self.write("session", method="session/new")
        self.answer("session", sessionId="s")
        self.prompt("prompt")

    def write(self, command: str, **frame: Any) -> None:
        self._feed("in", command, frame)

    def prompt(self, command: str) -> None:
        self.write(command, id=command, method="session/prompt", params={"prompt": [{"type": "text", "text": "x"}]})

    def steer(self, name: str) -> None:
        self.write(f"message-{name}", method="_session/steering", params={"prompt": []})

    def answer(self, command: str, **result: Any) -> None:
        self._feed("out", "", {"id": command, "result": result})

    def fail(self, command: str | None, **error: Any) -> None:
        self._feed("out", "", {"id": command, "error": error})

    def update(self, what: str, **fields: Any) -> None:
        params = {"sessionId": "s", "update": {"sessionUpdate": what, **fields}}
        self._feed("out", "", {"method": "session/update", "params": params})

    def ask(self, **call: Any) -> None:
        self._feed("out", "", {"id": 1, "method": "session/request_permission", "params": {"toolCall": call}})

    def say(self, text: str) -> None:
        self.update("agent_message_chunk", content={"type": "text", "text": text})

    def all(self, *types: str) -> list[Any]:
        """Events of these types."""
        return [each for each in self.events if each.type in types]

    def _feed(self, stream: str, command: str, frame: Any) -> None:
        self._seq += 1
        found: list[EventBase] = self.transcript.feed(Line(self._seq, 0, stream, json.dumps(frame).encode(), command))
        self.events += found


class TestCalls:
    def test_a_change_that_was_told_before_it_was_made(self) -> None:
        """So claude-agent-acp does it: what the call says at its end has no content."""
        said = Said()
        said.update("tool_call", toolCallId="c", kind="edit", status="pending", content=[])
        said.update("tool_call_update", toolCallId="c", content=[DIFF])
        said.update("tool_call_update", toolCallId="c", status="completed", rawOutput="updated")
        (change,) = said.all("file_change")
        assert (change.path, change.change, change.tool_id) == ("/w/a", "edited", "c")

    def test_a_change_is_told_once_and_of_what_was_done_alone(self) -> None:
        said = Said()
        said.update("tool_call", toolCallId="c", kind="edit", content=[DIFF])
        said.update("tool_call_update", toolCallId="c", status="completed", content=[DIFF])
        said.update("tool_call", toolCallId="d", kind="edit", content=[DIFF])
        said.update("tool_call_update", toolCallId="d", status="failed", content=[TEXT])
        assert [each.tool_id for each in said.all("file_change")] == ["c"]

    def test_null_says_nothing_new(self) -> None:
        """An update has null for what is as it was: so Python and Go write what is not given."""
        said = Said()
        said.update("tool_call", toolCallId="c", kind="read", title="Read", rawInput={"path": "a"}, status="pending")
        nothing = dict.fromkeys(("kind", "title", "rawInput", "status", "content", "locations"))
        said.update("tool_call_update", **{**nothing, "toolCallId": "c"})
        said.ask(**{**nothing, "toolCallId": "c"})
        (used,), (asked,) = said.all("tool_use"), said.all("permission")
        assert (used.name, asked.tool, asked.input) == ("read", "read", {"title": "Read", "path": "a"})

    def test_a_second_call_of_one_id_is_a_call_of_its_own(self) -> None:
        """Models give two calls one id, and a person is asked about the second one."""
        said = Said()
        for number in range(2):
            call = {"toolCallId": "c", "kind": "execute", "rawInput": {"command": f"ls {number}"}}
            said.update("tool_call", **call, status="pending")
            said.ask(toolCallId="c")
            said.write("answer", id=1, result={"outcome": {"outcome": "cancelled"}})
            said.update("tool_call_update", toolCallId="c", status="completed", rawOutput=f"out {number}")
        asked = [each.input for each in said.all("permission") if each.state == "asked"]
        assert asked == [each.input for each in said.all("tool_use")] == [{"command": "ls 0"}, {"command": "ls 1"}]
        assert [each.text for each in said.all("tool_result")] == ["out 0", "out 1"]

    def test_a_call_with_many_others_within_it_is_told_once(self) -> None:
        """A sub-agent's: it is the oldest, and at work."""
        said = Said()
        said.update("tool_call", toolCallId="parent", kind="think", title="Task", status="in_progress")
        for number in range(MAX_OPEN + 5):
            said.update("tool_call", toolCallId=f"{number}", kind="read", status="completed")
        said.update("tool_call_update", toolCallId="parent", status="completed", rawOutput="done")
        told = [(each.type, each.name) for each in said.all("tool_use", "tool_result") if each.id == "parent"]
        assert told == [("tool_use", "think"), ("tool_result", "think")]


class TestTurns:
    @pytest.mark.parametrize("command", ["interrupt-m", "end-m"])
    def test_a_turn_that_was_cancelled_may_be_answered_with_an_error(self, command: str) -> None:
        """The run waits for a person, or has ended, as where the agent says that the turn was cancelled."""
        said = Said()
        said.write(command, method="session/cancel")
        said.fail("prompt", code=-32800, message="Request cancelled")
        transcript = said.transcript
        assert (transcript.parked, transcript.finished) == (True, command == "end-m")
        assert not said.all("error")
        assert [each.how for each in transcript.settlements()] == ["interrupted"]

    def test_an_error_that_nobody_asked_for_is_a_failure(self) -> None:
        said = Said()
        said.fail("prompt", code=-32603, message="Internal error")
        assert said.transcript.finished
        assert said.all("error")

    def test_what_is_said_after_a_turns_end_is_no_part_of_the_next_one(self) -> None:
        said = Said()
        said.say("one")
        said.write("interrupt-m", method="session/cancel")
        said.answer("prompt", stopReason="cancelled")
        said.say(" late")
        said.prompt("message-m-2")
        said.say("two")
        said.answer("message-m-2", stopReason="end_turn")
        told = [each.text for each in said.all("message") if not each.delta]
        assert told == ["x", "one", " late", "x", "two"]
        assert said.transcript.progress.text == "two"

    def test_a_call_that_its_turn_has_cut_off_is_told_once_and_shows_nothing_of_the_next_turn(self) -> None:
        """claude-agent-acp says that a sub-agent's call has failed when it has answered the prompt."""
        said = Said()
        said.update("tool_call", toolCallId="c", kind="execute", title="Run", status="in_progress")
        said.write("interrupt-m", method="session/cancel")
        said.answer("prompt", stopReason="cancelled")
        said.prompt("message-m-2")
        said.update("tool_call_update", toolCallId="c", status="failed", rawOutput="cancelled")
        assert [each.type for each in said.all("tool_use", "tool_result")] == ["tool_use", "tool_result"]
        assert {each.id: each.state for each in said.transcript.settlements()}["m-2"] == "delivered"
        said.update("tool_call", toolCallId="c", kind="read", status="completed")
        assert [each.name for each in said.all("tool_result")] == ["execute", "read"]
        assert {each.id: each.state for each in said.transcript.settlements()}["m-2"] == "acknowledged"

    def test_a_message_that_is_answered_with_an_error_was_not_shown_to_be_read(self) -> None:
        said = Said()
        said.write("interrupt-m", method="session/cancel")
        said.answer("prompt", stopReason="cancelled")
        said.prompt("message-m-2")
        said.fail("message-m-2", code=-32602, message="Session not found")
        settled = {each.id: (each.state, each.how) for each in said.transcript.settlements()}
        assert settled["m-2"] == ("unverified", FAILED)

    @pytest.mark.parametrize(("interrupted", "state"), [(False, "denied"), (True, "withdrawn")])
    def test_a_denial_of_which_the_agent_offers_no_option(self, interrupted: bool, state: str) -> None:  # noqa: FBT001
        """It is told that the turn was cancelled, which no agent takes for a yes, and some give the turn up."""
        said = Said()
        said.ask(toolCallId="c", kind="execute")
        if interrupted:
            said.write("interrupt-m", method="session/cancel")
        said.write("answer", id=1, result={"outcome": {"outcome": "cancelled"}})
        said.answer("prompt", stopReason="cancelled")
        assert [each.state for each in said.all("permission")] == ["asked", state]
        why = [] if interrupted else ["the agent gave its turn up, as execute was denied"]
        assert [each.message for each in said.all("error")] == why


class TestSteering:
    @pytest.mark.parametrize(
        ("outcome", "state"),
        [("startedNewTurn", "acknowledged"), ("failed", "unverified"), ("queued", "unverified")],
    )
    def test_what_the_agent_says_of_a_message(self, outcome: str, state: str) -> None:
        said = Said()
        said.steer("m")
        said.answer("message-m", outcome=outcome)
        assert [each.state for each in said.transcript.settlements()] == [state]

    @pytest.mark.parametrize("command", ["interrupt-m-2", "end-m-2"])
    def test_an_answer_after_the_turn_was_interrupted(self, command: str) -> None:
        """The agent had it for a turn that is no more."""
        said = Said()
        said.steer("m")
        said.write(command, method="session/cancel")
        said.answer("prompt", stopReason="cancelled")
        said.answer("message-m", outcome="injected")
        assert {each.id: each.state for each in said.transcript.settlements()}["m"] == "unverified"

    def test_an_answer_after_the_turns_own_end(self) -> None:
        said = Said()
        said.steer("m")
        said.answer("prompt", stopReason="end_turn")
        said.answer("message-m", outcome="injected")
        assert [each.state for each in said.transcript.settlements()] == ["acknowledged"]


class TestAnswers:
    @pytest.mark.parametrize(("total", "output"), [(120, 20), (135, 35), (None, 35)])
    def test_what_was_thought_is_counted_once(self, total: int | None, output: int) -> None:
        """It is a part of the output with codex-acp, and beside it with others: the total says."""
        said = Said()
        used = {"inputTokens": 70, "cachedReadTokens": 30, "outputTokens": 20, "thoughtTokens": 15}
        said.answer("prompt", stopReason="end_turn", usage={**used, "totalTokens": total})
        usage = said.transcript.progress.usage
        assert (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens) == (70, 30, output)

    def test_the_first_answer_counts(self) -> None:
        said = Said()
        said.answer("session", sessionId="other")
        said.fail("initialize", code=-32603, message="already initialized")
        said.answer("prompt", stopReason="end_turn")
        said.answer("prompt", stopReason="refusal")
        transcript = said.transcript
        assert (transcript.progress.session_id, transcript.hopeless) == ("s", None)
        assert len(said.all("init")) == 1
        assert not said.all("error")

    def test_an_error_of_no_request_is_told(self) -> None:
        """JSON-RPC's answer to what could not be read. Nobody else would say why the agent is silent from then on."""
        said = Said()
        said.fail(None, code=-32700, message="Parse error")
        assert [each.message for each in said.all("error")] == ["the agent could not read a request: Parse error"]


def test_an_option_without_a_category_is_known_by_its_id() -> None:
    choices = [{"value": "code", "name": "Code"}]
    opened = {"configOptions": [{"id": "mode", "category": None, "type": "select", "options": choices}]}
    line = session_start.set_value(session_start.Setting("mode", "code"), "s", opened)
    assert json.loads(line or "{}")["params"] == {"sessionId": "s", "configId": "mode", "value": "code"}
    assert session_start.offered("mode", opened) == ["code"]


class TestGemini:
    """It takes a turn that was cancelled out of its session."""

    def test_what_was_told_in_turns_that_were_cancelled_is_known_until_one_ends_well(self) -> None:
        said = Said(GeminiTranscript())
        for number in range(2):
            said.write(f"interrupt-{number}", method="session/cancel")
            said.answer(f"message-{number - 1}" if number else "prompt", stopReason="cancelled")
            assert said.transcript.told == ["x"] * (number + 1)
            assert said.transcript.verdict(KILLED).unsaved == ("x",) * (number + 1)
            said.prompt(f"message-{number}")
        assert said.transcript.verdict(KILLED).unsaved == ()  # its file has a turn that ends with the process
        said.answer("message-1", stopReason="end_turn")
        assert said.transcript.told == []

    def test_an_end_of_the_run_is_not_awaited(self) -> None:
        said = Said(GeminiTranscript())
        said.say("half")
        said.update("tool_call", toolCallId="c", kind="execute", title="Run", status="in_progress")
        said.write("end-m", method="_steersman/end")
        transcript = said.transcript
        assert transcript.finished
        assert [(each.state, each.how) for each in transcript.settlements()] == [("acknowledged", "interrupted")]
        assert [each.type for each in said.events[-2:]] == ["tool_result", "progress"]
        assert transcript.progress.said == "half"

    @pytest.mark.parametrize("kind", [AcpTranscript, GeminiTranscript])
    def test_other_agents_forget_nothing(self, kind: type[AcpTranscript]) -> None:
        said = Said(kind())
        assert said.transcript.told == (["x"] if kind.forgets else [])


def test_what_is_told_again_is_bounded_and_no_less() -> None:
    """Of a turn that is interrupted again and again: the task, and what was said last."""
    said = Said(GeminiTranscript())
    counts = []
    for number in range(MAX_TOLD + 20):
        said.write(f"interrupt-{number}", method="session/cancel")
        said.answer(f"message-{number - 1}" if number else "prompt", stopReason="cancelled")
        said.prompt(f"message-{number}")
        counts.append(len(said.transcript.told))
    assert counts[:MAX_TOLD] == [*range(2, MAX_TOLD + 1), MAX_TOLD]
    assert counts[-1] == MAX_TOLD


class TestLateCancel:
    """opencode ends a sub-agent first, and may come to the agent's own turn only when that has ended by itself."""

    def interrupted(self) -> Said:
        said = Said()
        said.write("interrupt-m", method="session/cancel")
        said.answer("prompt", stopReason="end_turn")
        said.prompt("message-m")
        return said

    @pytest.mark.parametrize("reason", ["cancelled", "end_turn"])
    def test_a_message_whose_turn_it_ends_is_written_again(self, reason: str) -> None:
        said = self.interrupted()
        said.answer("message-m", stopReason=reason)
        script = said.transcript
        assert (script.messages.late, script.steered) == (["m"], {"m": [{"type": "text", "text": "x"}]})
        assert not script.finished
        assert not said.all("error")
        said.prompt("again-m")
        said.say("well")
        said.answer("again-m", stopReason="end_turn")
        assert script.verdict(KILLED).error is None
        assert (script.progress.text, script.steered) == ("well", {})
        assert {each.id: each.state for each in script.settlements()}["m"] == "acknowledged"

    def test_once(self) -> None:
        said = self.interrupted()
        for command in ("message-m", "again-m"):
            if command.startswith("again"):
                said.prompt(command)
            said.answer(command, stopReason="cancelled")
        assert said.transcript.finished
        assert "nobody had asked it to" in said.all("error")[0].message

    def test_it_may_not_come(self) -> None:
        said = self.interrupted()
        said.say("well")
        said.answer("message-m", stopReason="end_turn")
        assert said.transcript.verdict(KILLED).error is None
        assert not said.transcript.steered
