"""What the activities of workflows return, and what is made of an answer that is none: whoever completes an activity by
hand may give it any. The SDK fails a workflow with such an answer at once, whatever its agent is at.

Which activity is called when, and how often it is tried, must not live here.
"""

from collections.abc import Mapping
from typing import Final

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import RetryState
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import PydanticJSONPlainPayloadConverter

from steersman.contracts import names
from steersman.contracts.activities import CarriedBack, Claim, Delivered, Finalized, RunOutcome
from steersman.contracts.errors import ActivityErrorType, why_unreadable
from steersman.contracts.loop_activities import Dropped, ForkPoint, Restored, Survey
from steersman.contracts.run import CarriedWorkspace, RunState, StopReport
from steersman.contracts.workspace_hold import WorkspaceHeld

JSON: Final = b"json/plain"
NOTHING: Final = b"binary/null"
_CONVERTER: Final = PydanticJSONPlainPayloadConverter()
RESULTS: Final[Mapping[str, type]] = {
    names.CLAIM_HOST: Claim,
    names.HOLD_WORKSPACE: WorkspaceHeld,
    names.CARRY_OUT: CarriedWorkspace,
    names.RUN_AGENT: RunOutcome,
    names.DELIVER_MESSAGES: Delivered,
    names.STOP_AGENT: StopReport,
    names.CARRY_BACK: CarriedBack,
    names.FINALIZE_RUN: Finalized,
    names.SURVEY_WORKSPACE: Survey,
    names.RESTORE_CHECKPOINT: Restored,
    names.DROP_CHECKPOINTS: Dropped,
    names.READ_FORK_POINT: ForkPoint,
    names.LOOK_AT_RUN: RunState,
}
MAY_BE_NOTHING: Final = frozenset({names.FINALIZE_RUN})
"""Workers of before there was a result answer so."""


def not_readable(activity: str, result: Payload) -> Failure | None:
    """The failure of an activity whose result is nothing, or JSON of another shape. What is neither, as a codec leaves
    what it cannot decode, is the data converter's.
    """
    expected, encoding = RESULTS.get(activity), result.metadata.get("encoding")
    if expected is None:
        return None
    if encoding in (None, NOTHING):
        return None if activity in MAY_BE_NOTHING else _failure(activity, expected, "nothing")
    if encoding != JSON:
        return None
    try:
        _CONVERTER.from_payload(result, expected)
    except ValueError as error:
        return _failure(activity, expected, why_unreadable(error))
    return None


def _failure(activity: str, expected: type, why: str) -> Failure:
    failure = Failure(message="Activity task failed")
    failure.activity_failure_info.activity_type.name = activity
    failure.activity_failure_info.retry_state = RetryState.RETRY_STATE_NON_RETRYABLE_FAILURE
    failure.cause.message = f"what {activity} was completed with is no {expected.__name__}: {why}"
    failure.cause.application_failure_info.type = ActivityErrorType.UNREADABLE_RESULT
    failure.cause.application_failure_info.non_retryable = True
    return failure
