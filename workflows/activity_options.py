"""Retry policies and timeouts that activities of runs and of loops share."""

from datetime import timedelta

from temporalio.common import RetryPolicy

RETRY_FOREVER = RetryPolicy(
    initial_interval=timedelta(milliseconds=100), backoff_coefficient=2, maximum_interval=timedelta(seconds=10)
)
HEARTBEAT_TIMEOUT = timedelta(seconds=10)
