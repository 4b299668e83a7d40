"""What an end means: which status, which error type, which terminal event."""

from datetime import UTC, datetime
from typing import Literal

import pytest
from temporalio import exceptions
from temporalio.exceptions import ActivityError, ApplicationError, RetryState, TimeoutType

from steersman.contracts.activities import RunOutcome
from steersman.contracts.errors import ERRORS, ErrorType, InvalidRequest
from steersman.contracts.events import CancelledEvent, DoneEvent, FailedEvent
from workflows.agent_run.ending import Ending, never_started, unverified

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def activity_error(cause: BaseException) -> ActivityError:
    error = ActivityError(
        "activity failed",
        scheduled_event_id=1,
        started_event_id=2,
        identity="w",
        activity_type="run_agent",
        activity_id="1",
        retry_state=RetryState.NON_RETRYABLE_FAILURE,
    )
    error.__cause__ = cause
    return error


def test_success_becomes_a_done_event_with_the_answer() -> None:
    outcome = RunOutcome(status="succeeded", text="42", structured={"a": 1}, stop_reason="end_turn", attempts=2)
    ending = Ending.of(outcome)
    assert (ending.status, ending.error) == ("succeeded", None)
    assert ending.terminal_event(NOW, None) == DoneEvent(
        time=NOW, attempt=2, text="42", structured={"a": 1}, stop_reason="end_turn"
    )


def test_an_interrupted_run_has_succeeded_and_says_why_it_ended() -> None:
    ended = Ending.of(RunOutcome(status="succeeded", text="so far", stop_reason="interrupted", attempts=1))
    before = Ending.interrupted(RunOutcome(status="stopped", error=ErrorType.AGENT_FAILED))
    assert (ended.status, ended.was_interrupted) == (before.status, before.was_interrupted) == ("succeeded", True)
    assert ended.terminal_event(NOW, None) == DoneEvent(
        time=NOW, attempt=1, text="so far", structured=None, stop_reason="interrupted"
    )
    assert not Ending.of(RunOutcome(status="succeeded", stop_reason="end_turn")).was_interrupted


@pytest.mark.parametrize("error", list(ErrorType))
def test_a_failure_keeps_its_type_and_sentence(error: ErrorType) -> None:
    ending = Ending.of(RunOutcome(status="failed", error=error, message="why", attempts=1))
    assert (ending.status, ending.error, ending.message) == ("failed", error, "why")
    assert ending.terminal_event(NOW, None) == FailedEvent(time=NOW, error=error, message="why")


@pytest.mark.parametrize(
    ("status", "message"), [("failed", "the agent failed"), ("stopped", "the agent was stopped, and not by this run")]
)
def test_an_outcome_that_says_nothing_is_still_a_failure(status: Literal["failed", "stopped"], message: str) -> None:
    ending = Ending.of(RunOutcome(status=status))
    assert (ending.status, ending.error, ending.message) == ("failed", ErrorType.AGENT_FAILED, message)


@pytest.mark.parametrize("error", list(ErrorType))
def test_a_refusing_activity_gives_the_run_its_type(error: ErrorType) -> None:
    ending = Ending.failed(activity_error(ApplicationError("the sentence", type=error)))
    assert (ending.error, ending.message) == (error, "the sentence")


def test_any_other_error_of_an_activity_is_a_failure_that_says_what_happened() -> None:
    ending = Ending.failed(
        activity_error(exceptions.TimeoutError("late", type=TimeoutType.START_TO_CLOSE, last_heartbeat_details=[]))
    )
    assert ending.error == ErrorType.AGENT_FAILED
    assert "late" in ending.message
    odd = Ending.failed(activity_error(ApplicationError("boom", type="ValueError")))
    assert odd.error == ErrorType.AGENT_FAILED
    assert "boom" in odd.message


def test_a_wrong_request_is_told_as_such() -> None:
    ending = Ending.failed(InvalidRequest("prompt: is required"))
    assert (ending.error, ending.message) == (ErrorType.INVALID_REQUEST, "prompt: is required")


def test_a_cancelled_run_ends_with_its_stop_report() -> None:
    report = never_started("queued")
    assert Ending("cancelled").terminal_event(NOW, report) == CancelledEvent(time=NOW, stop_report=report)


def test_reports_of_stops_without_a_process() -> None:
    assert never_started("preparing").model_dump(exclude={"left", "place"}) == {
        "outcome": "stopped",
        "phase": "preparing",
        "how": "exited",
        "processes": 0,
        "took_ms": 0,
        "reason": None,
    }
    assert unverified("running").outcome == "unverified"
    assert unverified("running").how is None


def test_every_error_type_has_a_class_of_its_own() -> None:
    assert set(ERRORS) == set(ErrorType)
    assert all(kind("x").type == error for error, kind in ERRORS.items())
