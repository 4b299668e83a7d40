"""An agent that goes on for another one: every worker comes to the same, whatever lies where that is written down."""

import asyncio
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from activities.running.handover import CUT, MAX_DIFF, MAX_MESSAGE, MAX_SAID, begun_again, cause_of, handover
from activities.running.totals import LastWork
from steersman.contracts.errors import (
    AgentFailed,
    AgentNotInstalled,
    AuthenticationFailed,
    BudgetExceeded,
    ErrorType,
    RunError,
)
from steersman.contracts.request import RunRequest, parse_request
from tests.agents.kits import ClaudeKit
from tests.agents.stage import deliver, message
from tests.scripted_model import Request, Step, answer, fail, hold, say, tool
from tests.support.processes import until

pytestmark = [pytest.mark.integration, pytest.mark.linux]

OTHER: dict[str, Any] = {"fallback": [{"agent": "claude", "model": "claude-sonnet-5"}]}


def refuses_the_first(request: Request) -> Step:
    """The key of the first agent is refused after its first word."""
    if request.saw("could not go on"):
        return hold("", "done")
    begin = answer(say("I begin"), tool("Bash", command="sleep 1"))
    return begin if request.number == 1 else fail(401, "no")


class TestTakeover:
    @pytest.mark.parametrize("when", ["noted", "started", "held"])
    async def test_a_worker_that_ends_is_followed_by_one_that_goes_on_with_the_same(
        self, claude: ClaudeKit, when: str
    ) -> None:
        async with claude.run(*[refuses_the_first] * 12, **OTHER) as stage:
            session, task = stage.start()
            await stage.wait_for("message", role="assistant", text="I begin", delta=False)
            await deliver(session, message("steer", "and the gate"))
            reached = {
                "noted": (stage.directory.path / "part-1.json").exists,
                "started": (stage.directory.attempt(2) / "journal").exists,
                "held": lambda: any(each.saw("could not go on") for each in claude.script.requests),
            }
            await until(reached[when], 60)
            await stage.detach()
            session, task = stage.start()
            await claude.script.wait_held()
            await claude.script.release()
            async with asyncio.timeout(60):
                outcome = await task
            again = await stage.play()  # one that reads it all once more comes to the same
            assert (again.parts, again.text, again.attempts) == (outcome.parts, outcome.text, outcome.attempts)
            told = [each for each in stage.said("progress") if "cannot go on" in each.text]
        assert (outcome.status, outcome.text, outcome.attempts) == ("succeeded", "done", 2)
        assert [(each.model, each.attempts) for each in outcome.parts] == [(None, 1), ("claude-sonnet-5", 1)]
        assert outcome.session_id == outcome.parts[1].session_id
        assert len(told) == 1
        last = "\n".join(claude.script.requests[-1].texts)
        for words in ("could not go on", "I begin", "and the gate", "do it"):
            assert words in last

    @pytest.mark.parametrize(
        "forged", ["{", "[]", '{"attempt": "2", "why": "", "told": ""}', '{"attempt": 2, "why": 3, "told": {}}']
    )
    async def test_what_an_agent_writes_there_does_not_break_the_run(self, claude: ClaudeKit, forged: str) -> None:
        async with claude.run(*[refuses_the_first] * 12, **OTHER) as stage:
            (stage.directory.path / "part-1.json").write_text(forged)
            _, task = stage.start()
            await claude.script.wait_held()
            await claude.script.release()
            async with asyncio.timeout(60):
                outcome = await task
        assert (outcome.status, outcome.text, outcome.attempts) == ("succeeded", "done", 2)


class TestCause:
    @pytest.mark.parametrize(
        ("error", "cause"),
        [
            (AgentNotInstalled("x"), "not_installed"),
            (AuthenticationFailed("x"), "authentication"),
            (AgentFailed("x", api_error_status=429), "rate_limit"),
            (AgentFailed("x", rate_limit={"resets_at": None, "limit": None}), "rate_limit"),
            (AgentFailed("x", rate_limit={"limit": "overloaded"}), "overloaded"),
            (AgentFailed("x", api_error_status=529), "overloaded"),
            (AgentFailed("x", api_error_status=503), "overloaded"),
            (AgentFailed("x", api_error_status=500), None),
            (AgentFailed("x"), None),
            (BudgetExceeded("x"), None),
        ],
    )
    def test_why_another_one_may_go_on(self, error: RunError, cause: str | None) -> None:
        assert cause_of(error) == cause


class Files:
    commit = "c"

    def __init__(self, diff: str) -> None:
        self._diff = diff

    async def changes(self, limit: int) -> str:
        return self._diff[:limit]

    async def keep(self) -> str | None:
        return None


class TestHandover:
    async def test_nothing_done_is_nothing_told(self, tmp_path: Path) -> None:
        assert await self.told(tmp_path, "", []) == ""

    async def test_people_are_heard_the_prompt_is_not_repeated(self, tmp_path: Path) -> None:
        (empty := tmp_path / "empty").touch()
        events = [
            {"type": "message", "role": "user", "text": "mend it"},
            {"type": "message", "role": "user", "text": "Before. mend it"},
            {"type": "message", "role": "user", "text": "with nails", "message_id": "message-1"},
            {"type": "message", "role": "user", "text": "and then mend it", "message_id": "message-2"},
            {"type": "message", "role": "user", "text": "Go on.", "message_id": "resume-2"},
            {"type": "message", "role": "user", "text": await begun_again("I did", (), empty, Files(""))},
            {"type": "message", "role": "assistant", "text": "I do"},
            {"type": "message", "role": "user", "text": None},
            ["message", "role"],
        ]
        told = await self.told(tmp_path, "I do", events, "-a\n+b")
        assert "- with nails" in told
        assert "Go on." not in told
        assert told.count("mend it") == 1
        assert "I did" not in told
        assert "- and then mend it" in told
        assert "+b" in told

    async def test_its_length_is_bounded(self, tmp_path: Path) -> None:
        events = [{"type": "message", "role": "user", "text": "y" * 100_000}] * 100
        told = await self.told(tmp_path, "x" * 1_000_000, events, "z" * 1_000_000)
        assert len(told) < 2_000 + MAX_SAID + MAX_DIFF + 20 * (MAX_MESSAGE + len(CUT))
        assert told.count(CUT) == 21
        assert "(earlier ones are left out)" in told
        assert "(cut off before this)" in told

    async def told(self, directory: Path, said: str, events: list[Any], diff: str = "") -> str:
        log = directory / "events.jsonl"
        log.write_text("".join(f"{json.dumps(each)}\n" for each in events) + "{torn")
        return await handover(LastWork("claude", said, "why"), ("mend it", "Before. mend it"), log, Files(diff))


class TestRequest:
    GOOD: ClassVar[dict[str, Any]] = {"agent": "claude", "prompt": "p", "workspace": {"path": "/w"}}

    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"fallback": [{"agent": "process"}]}, 'fallback.0: agent "process"'),
            ({"fallback": [{"agent": "acp"}]}, "fallback.0: command is required"),
            ({"fallback": [{"agent": "codex"}], "limits": {"cost_usd": 1}}, "fallback.0"),
            ({"fallback": [{"agent": "codex"}] * 6}, "fallback"),
            ({"fallback": [{"agent": "codex", "prompt": "x"}]}, "fallback.0.prompt: unknown field"),
            ({"fallback_on": ["boredom"]}, "fallback_on.0"),
        ],
    )
    def test_a_wrong_one_is_named(self, fields: dict[str, Any], words: str) -> None:
        with pytest.raises(RunError, match=words.replace("[", r"\[")) as refused:
            parse_request({**self.GOOD, **fields})
        assert refused.value.type == ErrorType.INVALID_REQUEST

    def test_each_agent_has_what_is_its_own(self) -> None:
        request = parse_request(
            {
                **self.GOOD,
                "session": "s",
                "model": "m",
                "env": {"ANTHROPIC_API_KEY": {"from_env": "KEY"}, "OPENAI_API_KEY": {"from_env": "KEY"}, "MINE": "x"},
                "fallback": [{"agent": "codex", "model": "n"}, {"agent": "claude"}],
            }
        )
        parts = [request.of_part(number) for number in range(3)]
        assert [(each.agent, each.model, each.session) for each in parts] == [
            ("claude", "m", "s"),
            ("codex", "n", None),
            ("claude", None, None),
        ]
        assert [set(each.env) for each in parts] == [
            {"ANTHROPIC_API_KEY", "MINE"},
            {"OPENAI_API_KEY", "MINE"},
            {"ANTHROPIC_API_KEY", "MINE"},
        ]
        of_acp = parse_request({**request.model_dump(mode="json"), "agent": "acp", "model": None, "command": ["a"]})
        assert set(of_acp.of_part(0).env) == {"ANTHROPIC_API_KEY", "OPENAI_API_KEY", "MINE"}
        outline = request.outline()
        assert parse_request(outline.model_dump(mode="json")) == outline
        assert [each.agent for each in outline.fallback] == ["codex", "claude"]

    def test_a_request_without_says_nothing_of_it(self) -> None:
        """Workers of an earlier build refuse fields that they do not know."""
        written = RunRequest.model_validate(self.GOOD).model_dump(mode="json")
        assert not {"fallback", "fallback_on"} & set(written)
