"""A worker that gives up what it remembers of a run says "ask again": the client does, and does not for ever."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from steersman.client import Steersman
from steersman.contracts import names
from steersman.contracts.errors import ASK_AGAIN
from steersman.contracts.run import RunState
from steersman.errors import ServerRefused

pytestmark = pytest.mark.integration


@workflow.defn(name=names.RUN_WORKFLOW)
class Forgetful:
    """Answers once it has been asked more often than its memo says."""

    @workflow.init
    def __init__(self, _: Any) -> None:
        self._asked = 0

    @workflow.run
    async def run(self, _: Any) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.query(name=names.STATE_QUERY)
    def state(self) -> dict[str, Any]:
        self._asked += 1
        if self._asked <= workflow.memo_value("refusals", type_hint=int):
            raise ApplicationError(workflow.memo_value("words", type_hint=str))
        return RunState().model_dump(mode="json", by_alias=True)


@pytest.fixture
async def queue(client: Client) -> AsyncIterator[str]:
    """A task queue with a worker of the fake host's alone."""
    name = f"forgetful-{uuid.uuid4()}"
    async with Worker(client, task_queue=name, workflows=[Forgetful], workflow_runner=UnsandboxedWorkflowRunner()):
        yield name


DIVERGED = "[TMPRL1100] Nondeterminism error: No command scheduled for event HistoryEvent(id: 28, TimerStarted)"
"""What a worker says that was frozen while another one went on: it has forgotten the run by then, too."""


async def asked(client: Client, queue: str, refusals: int, words: str = ASK_AGAIN) -> RunState:
    id, memo = f"run-{uuid.uuid4()}", {"refusals": refusals, "words": words}
    await client.start_workflow(Forgetful.run, {}, id=id, task_queue=queue, memo=memo)
    return await Steersman(client).state(id)


@pytest.mark.parametrize("words", [ASK_AGAIN, DIVERGED])
@pytest.mark.parametrize("refusals", [1, 3])
async def test_it_asks_again(client: Client, queue: str, refusals: int, words: str) -> None:
    assert (await asked(client, queue, refusals, words)).phase == RunState().phase


@pytest.mark.parametrize(("words", "said"), [(ASK_AGAIN, "Ask again"), (DIVERGED, "TMPRL1100")])
async def test_one_that_never_answers_is_told_of(client: Client, queue: str, words: str, said: str) -> None:
    with pytest.raises(ServerRefused, match=said):
        await asked(client, queue, 1000, words)
