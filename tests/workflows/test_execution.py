"""How an attempt of an activity stands with the server, after the attempts that took its place."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import uuid4

import pytest
from temporalio import activity, workflow
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetActivityRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.temporal.execution import is_current

pytestmark = pytest.mark.integration

ACTIVITY = "held"


@workflow.defn
class Holds:
    """Runs one activity, until an attempt of it succeeds."""

    @workflow.run
    async def run(self) -> int:
        done: int = await workflow.execute_activity(
            ACTIVITY,
            activity_id=ACTIVITY,
            start_to_close_timeout=timedelta(minutes=1),
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=10)),
        )
        return done


class Attempts:
    """The attempts of the activity, each at work until the test asks it how it stands."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.begun: list[int] = []
        """The number of each attempt, as the server counts."""
        self._asked: list[asyncio.Event] = []
        self._answers: list[asyncio.Task[bool]] = []

    @activity.defn(name=ACTIVITY)
    async def held(self) -> int:
        which, asked = len(self.begun), asyncio.Event()
        self._asked.append(asked)

        async def answer() -> bool:
            await asked.wait()
            return await is_current(self._client)

        self._answers.append(asyncio.create_task(answer()))
        self.begun.append(activity.info().attempt)
        if not await asyncio.shield(self._answers[which]):  # a frozen worker would not hear of a cancel
            # The server would take its result for that of the attempt that has its number now.
            await asyncio.Event().wait()
        return which

    async def stands(self, which: int) -> bool:
        """What `is_current` says in that attempt, which then ends if it is."""
        self._asked[which].set()
        return await self._answers[which]


@asynccontextmanager
async def held_by(attempts: Attempts, temporal: Client) -> AsyncIterator[WorkflowHandle[Holds, int]]:
    """A workflow whose activity these are, with a worker."""
    queue = f"execution-{uuid4()}"
    async with (
        asyncio.timeout(30),
        Worker(
            temporal,
            task_queue=queue,
            workflows=[Holds],
            activities=[attempts.held],
            workflow_runner=UnsandboxedWorkflowRunner(),
        ),
    ):
        yield await temporal.start_workflow(Holds.run, id=queue, task_queue=queue)


async def test_an_attempt_with_the_number_of_an_older_one_is_not_taken_for_it(temporal: Client) -> None:
    """`temporal activity reset` counts anew, while a frozen worker may still be at an attempt of before."""
    attempts = Attempts(temporal)
    async with held_by(attempts, temporal) as run:
        here = temporal.get_async_activity_handle(workflow_id=run.id, run_id=None, activity_id=ACTIVITY)
        await _until(lambda: attempts.begun == [1])
        await here.fail(ApplicationError("the next one, please"))
        await _until(lambda: attempts.begun == [1, 2])
        await temporal.workflow_service.reset_activity(
            ResetActivityRequest(
                namespace=temporal.namespace,
                execution=WorkflowExecution(workflow_id=run.id),
                id=ACTIVITY,
            )
        )
        await here.fail(ApplicationError("the next one, please"))
        await _until(lambda: attempts.begun == [1, 2, 2])
        assert not await attempts.stands(0)
        assert not await attempts.stands(1)
        assert await attempts.stands(2)
        assert await run.result() == 2


async def test_none_is_current_once_its_workflow_was_terminated(temporal: Client) -> None:
    """The server lists it among the pending activities of the closed workflow."""
    attempts = Attempts(temporal)
    async with held_by(attempts, temporal) as run:
        await _until(lambda: attempts.begun == [1])
        await run.terminate()
        assert not await attempts.stands(0)


async def _until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.01)
