"""Starts RunNotice, for runs and loops alike: a workflow of its own, which outlives whom it is of."""

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ChildWorkflowError, WorkflowAlreadyStartedError

from steersman.contracts import names
from steersman.contracts.notices import Notice, NoticeAnswer, NoticeInput, NoticeKind, Webhook

EXPIRES = timedelta(days=1)
LEAST_S = 1.0
BY_CHANCE = "notice-ids-by-chance"
MAX_ID = 800
"""Characters of a run's id in that of a notice: Temporal takes 1,000, and a longer one would hold up the run."""

Sending = workflow.ChildWorkflowHandle[Any, NoticeAnswer]
Receivers = tuple[tuple[Webhook | None, tuple[NoticeKind, ...]], ...]
"""Who is told, and of what. None: the webhook of the host's operator."""


def receivers(notify: tuple[Webhook, ...], of_operator: tuple[NoticeKind, ...]) -> Receivers:
    """Those that a request names, and the operator's own where there is one."""
    own = ((None, of_operator),) if of_operator else ()
    return (*((each, each.on) for each in notify), *own)


async def start(
    host: str, notice: Notice, webhook: Webhook | None, number: int, expires: timedelta = EXPIRES
) -> Sending | None:
    """Begin to send it. None where that had begun already. `number`: of this run or loop, as its id."""
    # A reset begins to count anew, and tells what waits once more: by another id, as receivers take one of each.
    chance = f"-{workflow.random().getrandbits(32):08x}" if workflow.patched(BY_CHANCE) else ""
    given = NoticeInput(
        host=host, notice=notice, webhook=webhook, expires_s=max(min(expires, EXPIRES).total_seconds(), LEAST_S)
    )
    try:
        sending: Sending = await workflow.start_child_workflow(
            names.NOTICE_WORKFLOW,
            given,
            id=f"{notice.run[:MAX_ID]}:notice-{notice.execution[-12:]}-{number}{chance}",
            result_type=NoticeAnswer,
            cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
        )
    except (WorkflowAlreadyStartedError, ChildWorkflowError):
        return None
    return sending
