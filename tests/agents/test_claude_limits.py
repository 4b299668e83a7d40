"""What limits Claude Code: the requester's tokens, and the provider's limits, which are told as facts."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities.agents.claude.errors import hopeless, result_error
from activities.agents.claude.rate_limits import Refusals
from steersman.contracts.activities import RunOutcome
from steersman.contracts.errors import ErrorType
from tests.agents.kits import ClaudeKit
from tests.scripted_model import Failure, Hold, Say, Usage, answer, fail, hold, say, tool

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PLAN = {"ANTHROPIC_API_KEY": "", "CLAUDE_CODE_OAUTH_TOKEN": "sk-ant-oat01-test"}
"""The environment of an account with a plan, in place of a key."""


def used_up(resets: str = "2000000000", window: str = "five_hour") -> Failure:
    """How the service refuses an account whose plan is used up."""
    unified = {"status": "rejected", "reset": resets, "representative-claim": window}
    return fail(429, "no", headers={f"anthropic-ratelimit-unified-{name}": each for name, each in unified.items()})


def refused(outcome: RunOutcome) -> Any:
    """The facts of a run that failed for the provider's limit."""
    assert (outcome.status, outcome.error) == ("failed", ErrorType.AGENT_FAILED)
    assert outcome.facts["api_error_status"] in (429, 529)
    return outcome.facts["rate_limit"]


@pytest.mark.integration
@pytest.mark.linux
class TestProvider:
    async def test_a_plan_that_is_used_up_says_until_when(self, claude: ClaudeKit) -> None:
        async with claude.run(used_up(), env=PLAN) as stage:
            outcome = await stage.play()
        assert refused(outcome) == {"resets_at": "2033-05-18T03:33:20Z", "limit": "five_hour"}
        assert len(claude.script.requests) == 1

    async def test_in_the_middle_of_the_work_the_session_is_kept(self, claude: ClaudeKit) -> None:
        async with claude.run(tool("Bash", command="true"), used_up(window="seven_day"), env=PLAN) as stage:
            first = await stage.play()
        assert refused(first)["limit"] == "seven_day"
        async with claude.run(say("gone on"), env=PLAN, session=first.session_id) as stage:
            second = await stage.play()
        assert (second.status, second.text, second.facts) == ("succeeded", "gone on", {})
        assert claude.script.requests[0].saw("do it")

    async def test_a_wait_that_a_key_is_told_is_not_sat_out(self, claude: ClaudeKit) -> None:
        began = datetime.now(UTC)
        async with claude.run(fail(429, "slow down", retry_after_s=45), limits={"rate_limit_s": 60}) as stage:
            first = await stage.play()
        resets_at = datetime.fromisoformat(refused(first)["resets_at"])
        assert timedelta(seconds=44) < resets_at - began < timedelta(seconds=80)
        assert datetime.now(UTC) - began < timedelta(seconds=44)
        assert not stage.alive()
        async with claude.run(say("gone on"), session=first.session_id) as stage:
            assert (await stage.play()).text == "gone on"

    async def test_a_wait_of_an_hour_is_not_told_by_claude_code(self, claude: ClaudeKit) -> None:
        async with claude.run(fail(429, "slow down", retry_after_s=3600)) as stage:
            outcome = await stage.play()
        assert refused(outcome) == {"resets_at": None, "limit": None}

    async def test_a_short_wait_is_sat_out(self, claude: ClaudeKit) -> None:
        async with claude.run(fail(429, "slow down"), fail(429, "slow down", retry_after_s=1), say("done")) as stage:
            outcome = await stage.play()
        assert (outcome.status, outcome.text, outcome.facts) == ("succeeded", "done", {})

    async def test_a_service_that_is_overloaded(self, claude: ClaudeKit) -> None:
        async with claude.run(*[fail(529, "busy")] * 2, env={"CLAUDE_CODE_MAX_RETRIES": "1"}) as stage:
            outcome = await stage.play()
        assert refused(outcome) == {"resets_at": None, "limit": "overloaded"}

    async def test_words_are_no_limit(self, claude: ClaudeKit) -> None:
        words = "You've hit your 5-hour limit. API Error: 429 rate_limit_error"
        loud = tool("Bash", command=f'echo "{words}" >&2; exit 1')
        async with claude.run(loud, fail(500, words), env={"CLAUDE_CODE_MAX_RETRIES": "0"}) as stage:
            outcome = await stage.play()
        assert outcome.status == "failed"
        assert words in (outcome.message or "")
        assert "rate_limit" not in outcome.facts


@pytest.mark.integration
@pytest.mark.linux
class TestTokens:
    async def test_they_are_held_in_the_middle_of_a_turn(self, claude: ClaudeKit) -> None:
        much = answer(Say("much"), Hold(), usage=Usage(input=100, cache_read=500, cache_write=300))
        async with claude.run(tool("Bash", command="true"), much, limits={"tokens": 1000}) as stage:
            outcome = await stage.play()
            assert not stage.alive()
        assert (outcome.status, outcome.error) == ("failed", ErrorType.BUDGET_EXCEEDED)
        assert outcome.message == "limits.tokens: the agent has used 1021 of 1000 tokens"
        assert await claude.script.wait_outcome(claude.script.requests[1]) == "hung up"

    async def test_they_count_over_all_attempts(self, claude: ClaudeKit) -> None:
        much = answer(Say("much"), Hold(), usage=Usage(input=600))
        async with claude.run(much, much, say("never"), limits={"tokens": 1000}) as stage:
            _, task = stage.start()
            await stage.wait_for("message", text="much", delta=True)
            await stage.kill()
            outcome = await task
        assert (outcome.error, outcome.attempts) == (ErrorType.BUDGET_EXCEEDED, 2)

    async def test_as_many_as_are_allowed_are_no_failure(self, claude: ClaudeKit) -> None:
        async with claude.run(hold("a", "b"), limits={"tokens": 120}) as stage:
            _, task = stage.start()
            await claude.script.wait_held()
            await claude.script.release()
            assert (await task).status == "succeeded"


class TestPatience:
    """How long a living process may wait for a limit, by its api_retry frames: 60 s here."""

    def gives_up(self, attempt: int, wait_ms: int, status: int = 429) -> Any:
        error = hopeless(NOW, {"error_status": status, "attempt": attempt, "retry_delay_ms": wait_ms}, 60)
        return error.facts["rate_limit"] if error else None

    @pytest.mark.parametrize(("attempt", "wait_ms"), [(1, 500), (4, 5000), (6, 19_900), (1, 29_000), (2, 29_000)])
    def test_it_waits(self, attempt: int, wait_ms: int) -> None:
        assert self.gives_up(attempt, wait_ms) is None

    @pytest.mark.parametrize(("attempt", "wait_ms"), [(1, 31_000), (3, 20_500), (2, 30_100)])
    def test_a_time_that_the_service_told_is_given(self, attempt: int, wait_ms: int) -> None:
        at = (NOW + timedelta(milliseconds=wait_ms)).isoformat().replace("+00:00", "Z")
        assert self.gives_up(attempt, wait_ms) == {"resets_at": at, "limit": None}

    @pytest.mark.parametrize(("attempt", "wait_ms"), [(7, 32_000), (7, 40_000), (10, 39_000)])
    def test_claude_codes_own_waits_tell_no_time(self, attempt: int, wait_ms: int) -> None:
        assert self.gives_up(attempt, wait_ms) == {"resets_at": None, "limit": None}

    @pytest.mark.parametrize("status", [500, 529, None])
    def test_other_failures_are_claude_codes_own_affair(self, status: Any) -> None:
        assert self.gives_up(9, 59_000, status) is None

    @pytest.mark.parametrize("value", [None, "x", -1, float("nan"), 1e300, [], True])
    def test_what_is_no_number_ends_nothing(self, value: Any) -> None:
        assert hopeless(NOW, {"error_status": 429, "attempt": value, "retry_delay_ms": value}, 60) is None

    def test_nobody_asked_for_less_than_claude_codes_own(self) -> None:
        assert hopeless(NOW, {"error_status": 429, "attempt": 10, "retry_delay_ms": 59_000}) is None


class TestRefusals:
    """Which refusal a result failed for."""

    def facts(self, *events: dict[str, Any], **result: Any) -> Any:
        refusals = Refusals()
        for event in events:
            refusals.event({"rate_limit_info": event})
        frame = {"is_error": True, "api_error_status": 429, "result": "no", **result}
        error = result_error(frame, refusals.facts(frame))
        assert error is not None
        return error.facts.get("rate_limit")

    def test_the_newest_refusal_counts(self) -> None:
        first = {"status": "rejected", "resetsAt": 1_900_000_000, "rateLimitType": "seven_day"}
        second = {"status": "rejected", "resetsAt": 2_000_000_000, "rateLimitType": "five_hour"}
        assert self.facts(first, second) == {"resets_at": "2033-05-18T03:33:20Z", "limit": "five_hour"}

    @pytest.mark.parametrize("later", [{"status": "allowed"}, {"status": "rejected", "isUsingOverage": True}])
    def test_one_that_is_over_or_covered_does_not(self, later: dict[str, Any]) -> None:
        first = {"status": "rejected", "resetsAt": 1_900_000_000, "rateLimitType": "seven_day"}
        assert self.facts(first, {**first, **later}) == {"resets_at": None, "limit": None}

    def test_a_failure_of_another_kind_is_no_limit(self) -> None:
        refusal = {"status": "rejected", "resetsAt": 2_000_000_000, "rateLimitType": "five_hour"}
        assert self.facts(refusal, api_error_status=500) is None

    @pytest.mark.parametrize("value", [None, "soon", -1, 0, float("nan"), float("inf"), 1e300, True, [], {}])
    def test_a_time_that_is_none_is_not_told(self, value: Any) -> None:
        assert self.facts({"status": "rejected", "resetsAt": value, "rateLimitType": value})["resets_at"] is None
