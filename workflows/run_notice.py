"""RunNotice: one notice of a run, sent until somebody takes it. The run neither waits for it nor ends it."""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from steersman.contracts import names
    from steersman.contracts.notices import NoticeAnswer, NoticeInput


@workflow.defn(name=names.NOTICE_WORKFLOW)
class RunNotice:
    """Input: a NoticeInput. Result: what came back. It fails where nobody has taken it in time, or ever would."""

    @workflow.run
    async def run(self, given: NoticeInput) -> NoticeAnswer:
        """Send it."""
        answer: NoticeAnswer = await workflow.execute_activity(
            names.SEND_NOTICE,
            given,
            task_queue=names.host_queue(given.host),
            result_type=NoticeAnswer,
            schedule_to_close_timeout=timedelta(seconds=given.expires_s),
            start_to_close_timeout=timedelta(seconds=30),
            retry_policy=RetryPolicy(
                initial_interval=timedelta(seconds=1), backoff_coefficient=2, maximum_interval=timedelta(minutes=5)
            ),
            summary=f"{given.notice.type} of {given.notice.run}",
        )
        return answer
