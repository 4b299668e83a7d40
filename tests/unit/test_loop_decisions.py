"""What follows from an iteration: done or not, held up or not, which limit is reached. Decided without Temporal."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError

from activities.agents.catalog import AGENTS
from steersman.contracts.errors import AgentNotInstalled
from steersman.contracts.loop import LoopLimits, LoopRequest, Verify, parse_loop_request
from steersman.contracts.loop_state import (
    ItemCount,
    ItemList,
    LoopResult,
    LoopState,
    StopReason,
    Totals,
    Verification,
)
from steersman.contracts.request import parse_request
from steersman.contracts.run import RunResult, Usage
from tests.unit.test_agent_catalog import FIELDS
from workflows.agent_loop import decisions, outcomes
from workflows.agent_loop.carried_state import CarriedState
from workflows.agent_loop.outcomes import IterationOutcome

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ITEMS = {"kind": "json", "path": "x"}


def request(**fields: Any) -> LoopRequest:
    run = {"agent": "claude", "workspace": {"path": "/w"}}
    return parse_loop_request({"run": run, "plan": "p", "done": {"verify": {"command": "make"}}, **fields})


def counted(**counts: int) -> ItemList:
    return ItemList(count=ItemCount(**counts))


def passed(iteration: int = 1, status: Any = "passed") -> Verification:
    return Verification(status=status, command="make", iteration=iteration, time=NOW)


# ---- done

BOTH = {"items": ITEMS, "verify": {"command": "make"}}
SOME = {"items": {**ITEMS, "allow_empty": True}}


@pytest.mark.parametrize(
    ("done", "known", "expected"),
    [
        ({"items": ITEMS}, {"items": counted(closed=2)}, True),
        ({"items": ITEMS}, {"items": counted(closed=2, blocked=1)}, False),
        ({"items": ITEMS}, {"items": counted(closed=2, needs_review=1)}, False),
        ({"items": ITEMS}, {"items": None}, False),
        ({"items": ITEMS}, {"items": counted()}, False),
        (SOME, {"items": counted()}, True),
        (SOME, {"items": ItemList(error="no such file")}, False),
        ({"verify": {"command": "make"}}, {"verification": passed()}, True),
        ({"verify": {"command": "make"}}, {"verification": passed(iteration=0)}, False),
        ({"verify": {"command": "make"}}, {"verification": passed(status="missing")}, False),
        ({"verify": {"command": "make"}}, {"verification": None}, False),
        (BOTH, {"items": counted(closed=1), "verification": passed()}, True),
        (BOTH, {"items": counted(open=1), "verification": passed()}, False),
        ({**BOTH, "promise": "OK"}, {"items": counted(closed=1), "verification": passed()}, False),
        ({**BOTH, "promise": "OK"}, {"items": counted(closed=1), "verification": passed(), "promised": True}, True),
    ],
)
def test_done(done: dict[str, Any], known: dict[str, Any], *, expected: bool) -> None:
    assert decisions.is_done(request(done=done), CarriedState(iteration=1).model_copy(update=known)) is expected


# ---- holds


@pytest.mark.parametrize(
    ("outcome", "known", "kind"),
    [
        (IterationOutcome("finished"), {}, None),
        (IterationOutcome("interrupted"), {}, "paused"),
        (IterationOutcome("stopped_by_hand", error="its run was stopped"), {}, "paused"),
        (IterationOutcome("rate_limited"), {"rate_limits": 1}, "rate_limit"),
        (IterationOutcome("failed", error="x"), {"failures": 1}, "sleep"),
        (IterationOutcome("finished"), {"mode": "checkpoint"}, "decision"),
        (IterationOutcome("failed"), {"mode": "checkpoint"}, "decision"),
        (IterationOutcome("rate_limited"), {"mode": "checkpoint", "rate_limits": 1}, "rate_limit"),
        (IterationOutcome("finished"), {"mode": "batch", "since_decision": 4}, None),
        (IterationOutcome("finished"), {"mode": "batch", "since_decision": 5}, "decision"),
        (IterationOutcome("finished"), {"items": counted(blocked=1, closed=3)}, "decision"),
        (IterationOutcome("finished"), {"items": counted(blocked=1, in_progress=1)}, None),
        (IterationOutcome("finished"), {"items": counted(closed=3)}, None),
    ],
)
def test_what_holds_the_next_iteration_up(outcome: IterationOutcome, known: dict[str, Any], kind: str | None) -> None:
    hold = decisions.wait_after(request(pause_between_s=0), CarriedState().model_copy(update=known), outcome, NOW)
    assert (hold.kind if hold else None) == kind
    assert hold is None or hold.timed == (hold.kind in ("sleep", "rate_limit"))


@pytest.mark.parametrize(
    ("resets_at", "times", "minutes"),
    [
        (None, 1, 1),
        (None, 3, 4),
        (None, 99, 60),
        (NOW + timedelta(hours=5), 1, 300),
        (NOW + timedelta(hours=5), 9, 300),
        (NOW - timedelta(hours=5), 1, 0),
        (NOW - timedelta(hours=5), 3, 4),
        (datetime.max.replace(tzinfo=UTC), 1, 8 * 24 * 60),
        (datetime.min.replace(tzinfo=UTC), 1, 0),
    ],
)
def test_how_long_a_rate_limit_is_waited_for(resets_at: datetime | None, times: int, minutes: int) -> None:
    hold = decisions.wait_after(
        request(), CarriedState(rate_limits=times), IterationOutcome("rate_limited", resets_at=resets_at), NOW
    )
    assert hold is not None
    assert hold.until is not None
    assert timedelta(0) <= hold.until - (NOW + timedelta(minutes=minutes)) <= timedelta(seconds=2)


@pytest.mark.parametrize(
    ("failures", "pause", "seconds"), [(1, 0, 1), (4, 0, 8), (9, 10, 600), (99, 0, 600), (2, 3600, 3600)]
)
def test_how_long_a_failure_backs_off(failures: int, pause: float, seconds: int) -> None:
    hold = decisions.wait_after(
        request(pause_between_s=pause), CarriedState(failures=failures), IterationOutcome("failed"), NOW
    )
    assert hold is not None
    assert hold.until == NOW + timedelta(seconds=seconds)


# ---- limits


@pytest.mark.parametrize(
    ("limit", "known", "reason"),
    [
        ({}, {}, None),
        ({"iterations": 3}, {"totals": Totals(iterations=3)}, StopReason.ITERATIONS),
        ({"iterations": 3}, {"totals": Totals(iterations=3), "unfinished": True}, None),
        ({"cost_usd": 0.3}, {"totals": Totals(cost_usd=0.1 + 0.1 + 0.1 - 1e-16)}, StopReason.COST),
        ({"cost_usd": 0.3}, {"totals": Totals(cost_usd=0.29)}, None),
        ({"tokens": 10}, {"totals": Totals(usage=Usage(cache_read_tokens=6, output_tokens=4))}, StopReason.TOKENS),
        ({"duration_s": 60}, {}, StopReason.DURATION),
        ({"failures": 2}, {"failures": 2}, StopReason.FAILURES),
        ({"failures": 0}, {"failures": 99}, None),
        ({"no_progress": 2}, {"no_progress": 2}, StopReason.NO_PROGRESS),
        ({"no_progress": 0}, {"no_progress": 99}, None),
        ({"failures": 1, "cost_usd": 1}, {"failures": 1, "totals": Totals(cost_usd=1)}, StopReason.COST),
    ],
)
def test_which_limit_is_reached(limit: dict[str, Any], known: dict[str, Any], reason: StopReason | None) -> None:
    memory = CarriedState(limits=LoopLimits(**limit)).model_copy(update=known)
    found = decisions.reached_limit(memory, active_s=60.0)
    assert (found[0] if found else None) == reason


def test_what_is_left_for_a_run() -> None:
    template = {"agent": "claude", "workspace": {"path": "/w"}, "limits": {"cost_usd": 2, "turns": 5}}
    used = Totals(cost_usd=0.75, usage=Usage(output_tokens=30))
    memory = CarriedState(
        limits=LoopLimits(cost_usd=1, tokens=100, duration_s=500, iteration_duration_s=60), totals=used
    )
    left = decisions.remaining_limits(request(run=template), memory, 450.0)
    assert (left.cost_usd, left.tokens, left.duration_s, left.idle_s, left.turns) == (0.25, 70, 50, None, 5)
    free = decisions.remaining_limits(request(run=template), CarriedState(), 450.0)
    assert (free.cost_usd, free.tokens, free.duration_s) == (2, None, None)


@pytest.mark.parametrize("agent", FIELDS)
def test_what_is_left_is_asked_of_no_agent_that_cannot_hold_it(agent: str) -> None:
    """A loop's own wish for an agent's patience had each run of Codex and Hermes refused."""
    given = {name: value for name, value in FIELDS[agent].items() if name != "prompt"}
    asked = request(run={"workspace": {"path": "/w"}, **given})
    run = asked.run.model_copy(update={"limits": decisions.remaining_limits(asked, CarriedState(), 0.0)})
    assert (run.limits.rate_limit_s is not None) == (agent == "claude")
    kind = AGENTS[agent]
    kind.check(run)
    with suppress(AgentNotInstalled):
        kind.make({}, frozenset()).check(run)


@pytest.mark.parametrize("second", [{"agent": "codex"}, {"agent": "acp", "command": ["true"]}, {"agent": "gemini"}])
def test_nor_of_one_that_goes_on(second: dict[str, Any]) -> None:
    asked = request(run={"agent": "claude", "workspace": {"path": "/w"}, "fallback": [second]})
    run = asked.run.model_copy(update={"limits": decisions.remaining_limits(asked, CarriedState(), 0.0)})
    sent = parse_request(run.model_dump(mode="json") | {"prompt": "p"})
    assert (sent.limits.rate_limit_s, sent.of_part(1).limits.rate_limit_s) == (60, None)


# ---- how runs and verifications end


def result(**fields: Any) -> RunResult:
    return RunResult.model_validate({"status": "failed", "started_at": NOW, "ended_at": NOW, **fields})


@pytest.mark.parametrize(
    ("back", "session"),
    [
        ({"status": "failed", "lost": True}, None),
        ({"status": "failed", "lost": True, "ref": "refs/steersman/backups/r"}, "s-1"),
        ({"status": "failed"}, "s-1"),
    ],
)
def test_a_session_that_went_with_a_lost_copy_is_not_gone_on_with(back: dict[str, Any], session: str | None) -> None:
    ended = result(session_id="s-1", turns=2, finalize=back)
    found = outcomes.of_iteration("run", ApplicationError("the pod is gone", ended, type="PlaceError"))
    assert (found.session_id, found.reached_agent) == (session, session is not None)


def crashed(kind: str, **facts: Any) -> ApplicationError:
    return ApplicationError("it fell over", result(facts=facts, text="the output"), type=kind)


@pytest.mark.parametrize(
    ("closed", "how"),
    [
        (result(status="succeeded"), "finished"),
        (result(status="succeeded", stop_reason="interrupted"), "interrupted"),
        (crashed("AgentFailed"), "failed"),
        (crashed("AgentFailed", rate_limit={"resets_at": None}), "rate_limited"),
        (crashed("AgentFailed", rate_limit="soon"), "failed"),
        (ApplicationError("x", {"no": "result"}, type="AgentFailed"), "failed"),
        (ApplicationError("x", type="InvalidRequest"), "failed"),
        (CancelledError("x"), "stopped_by_hand"),
        (TerminatedError("x"), "stopped_by_hand"),
    ],
)
def test_how_a_run_ended(closed: outcomes.ChildResult, how: str) -> None:
    assert outcomes.of_iteration("run", closed).how == how
    assert outcomes.was_stopped(closed) == (how == "stopped_by_hand")


@pytest.mark.parametrize(
    ("closed", "status"),
    [
        (result(status="succeeded", text="fine"), "passed"),
        (crashed("AgentCrashed", exit_code=1), "failed"),
        (crashed("AgentCrashed", signal="SIGSEGV"), "failed"),
        (crashed("AgentCrashed", exit_code=127), "missing"),
        (crashed("AgentCrashed", exit_code=126), "missing"),
        (crashed("RunTimedOut"), "timed_out"),
        (crashed("AgentNotInstalled"), "missing"),
        (crashed("WorkspaceError"), "missing"),
        (crashed("InvalidRequest"), "missing"),
    ],
)
def test_what_a_verification_says(closed: outcomes.ChildResult, status: str) -> None:
    found = outcomes.of_verification(Verify(command="make"), closed, 3, "run-verify", NOW)
    assert (found.status, found.command, found.iteration, found.run) == (status, "make", 3, "run-verify")
    assert found.output == ("fine" if status == "passed" else "the output")


def test_an_older_loop_that_closed_as_stopped_is_read_as_exited() -> None:
    times = {"started_at": "2026-01-01T00:00:00Z", "ended_at": "2026-01-01T00:00:01Z"}
    assert LoopResult.model_validate({"status": "stopped", "stop_reason": "exit", **times}).status == "exited"
    assert LoopState.model_validate({"status": "stopped"}).status == "exited"
    with pytest.raises(ValidationError):
        LoopState.model_validate({"status": "halted"})
