"""What ends an attempt at an activity so that another one goes on with it, here or at another worker."""

from datetime import timedelta

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from steersman.contracts.errors import ActivityErrorType

SOON = timedelta(milliseconds=50)
"""The server takes none for no further attempt, and is up to a second late: its timers look that far ahead at once
(`history.timerProcessorMaxTimeShift`; 8 to 1,006 ms, measured).
"""


def detached(why: str, again: timedelta = SOON) -> ApplicationError:
    """The failure of that attempt; the next one is due after `again`, where the server still wants it."""
    return ApplicationError(
        why, type=ActivityErrorType.DETACHED, next_retry_delay=again, category=ApplicationErrorCategory.BENIGN
    )
