"""SweepHost: a schedule runs it on each worker host, so that no agent outlives its run."""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from steersman.contracts import names
    from steersman.contracts.activities import Swept


@workflow.defn(name=names.SWEEP_WORKFLOW)
class SweepHost:
    """Input: the host's name. Stops agents of closed runs, closes their event logs, prunes old state."""

    @workflow.run
    async def run(self, host: str) -> Swept:
        """Sweep the host once."""
        swept: Swept = await workflow.execute_activity(
            names.SWEEP_HOST,
            task_queue=names.host_queue(host),
            result_type=Swept,
            schedule_to_start_timeout=timedelta(minutes=2),
            start_to_close_timeout=timedelta(minutes=10),
            heartbeat_timeout=timedelta(minutes=1),  # the schedule begins no other one before this one is over
            retry_policy=RetryPolicy(maximum_attempts=1),
        )
        return swept
