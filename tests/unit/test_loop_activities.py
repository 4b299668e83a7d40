"""What is said of a loop's activity that failed."""

import pytest
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType
from temporalio.exceptions import TimeoutError as TemporalTimeout

from workflows.agent_loop.activities import reason_of

UNTAKEN = TemporalTimeout(
    "activity ScheduleToStart timeout", type=TimeoutType.SCHEDULE_TO_START, last_heartbeat_details=()
)


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (UNTAKEN, "no worker of the loop's host answered in time"),
        (ApplicationError("the repository is locked", type="GitFailed"), "the repository is locked"),
    ],
)
def test_the_reason_has_none_of_temporals_words(cause: Exception, reason: str) -> None:
    failed = ActivityError(
        "Activity task failed",
        scheduled_event_id=1,
        started_event_id=2,
        identity="",
        activity_type="drop_checkpoints",
        activity_id="1",
        retry_state=None,
    )
    failed.__cause__ = cause
    assert reason_of(failed) == reason
