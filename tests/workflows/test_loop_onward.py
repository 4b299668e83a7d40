"""A loop that goes on in new executions: whatever it is doing then, nothing is forgotten.

The server wants histories so short that it happens every few iterations.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.common import SearchAttributeKey
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from steersman.cli.devserver import SERVER_SETTINGS
from steersman.contracts.loop import LoopLimits
from steersman.contracts.loop_state import Checkpoint, PlanVersion
from steersman.contracts.names import LOOP_WORKFLOW, SEARCH_ATTRIBUTES
from steersman.converter import DATA_CONVERTER
from tests.support.temporal import binary
from tests.workflows.fake_host import replays
from tests.workflows.fake_loop_host import HELD, FakeLoopHost, Loop
from tests.workflows.loop_client import checkpoints, ended, executions, never_retried, reaches, state, tell
from tests.workflows.loop_results import exits, items, limited, result
from workflows.agent_loop.carried_state import CarriedState

pytestmark = pytest.mark.integration

SHORT = 60
NOW = datetime.now(UTC)
ITEMS = {"items": {"kind": "json", "path": "x"}}


@pytest.fixture
async def hasty() -> AsyncIterator[Client]:
    """A server that suggests a new execution after some 60 events."""
    attributes: list[SearchAttributeKey[Any]] = [
        SearchAttributeKey.for_float(name) if kind == "Double" else SearchAttributeKey.for_keyword(name)
        for name, kind in SEARCH_ATTRIBUTES.items()
    ]
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=binary("temporal"),
        data_converter=DATA_CONVERTER,
        search_attributes=attributes,
        dev_server_extra_args=[
            *("--dynamic-config-value", f"limit.historyCount.suggestContinueAsNew={SHORT}"),
            *(word for each in SERVER_SETTINGS for word in ("--dynamic-config-value", each)),
        ],
    ) as environment:
        yield environment.client


@pytest.mark.exhaustive
async def test_iterations_that_fail_pause_wait_and_end(hasty: Client) -> None:
    fake = FakeLoopHost(hasty)
    fake.script = [result(), result(), limited("2026-01-01T00:00:00Z"), result(), HELD, result(), result()]
    fake.verdicts = [exits(1, f"red {number}") for number in range(1, 7)]
    async with fake.at_work(cached=0):
        loop = await fake.start(limits={"iterations": 7, "no_progress": 0, "cost_usd": 1}, mode="batch")
        await fake.at_hold()
        await tell(loop, "feedback", text="use tabs", id="mine")
        await tell(loop, "pause", now=True)
        await tell(loop, "resume", mode="autonomous")
        outcome = await ended(loop)
        made = await checkpoints(loop)
        now = await state(loop)
    assert (outcome.stop_reason, outcome.iterations, outcome.checkpoints) == ("done", 7, len(made))
    assert [each.number for each in made] == list(range(10))
    assert made[-1].totals.cost_usd == outcome.cost_usd == pytest.approx(0.09)
    assert outcome.usage.input_tokens == 900
    assert [each["limits"]["cost_usd"] for each in fake.asked] == pytest.approx([1 - 0.01 * n for n in range(9)])
    assert [each["session"] for each in fake.asked[1:]] == ["s-1"] * 8
    assert [each.feedback for each in made if each.feedback] == [("mine",)]
    assert [(each.id, each.iteration) for each in now.feedback_consumed] == [("mine", 4)]
    chain = await executions(loop, hasty)
    assert len(chain) > 2
    assert now.execution == chain[-1].run_id
    assert now.started_at == outcome.started_at
    for each in chain:
        await replays(each)
        await never_retried(each)


@workflow.defn(name="Before", sandboxed=False)
class Before:
    """Execution before the first of a loop: only a loop's own continue-as-new gives it a state."""

    @workflow.run
    async def run(self, queue: str, request: Any, carried: Any) -> None:
        workflow.continue_as_new(args=[request, carried], task_queue=queue, workflow=LOOP_WORKFLOW)


async def begun_before(client: Client, fake: FakeLoopHost, request: Any, carried: CarriedState) -> Loop:
    """A loop that goes on with this state."""
    id, queue = f"loop-{uuid.uuid4()}", f"before-{uuid.uuid4()}"
    async with Worker(client, task_queue=queue, workflows=[Before]):
        began = await client.start_workflow(Before.run, args=[fake.queue, request, carried], id=id, task_queue=queue)
        loop = client.get_workflow_handle(began.id)
        async with asyncio.timeout(20):
            while (await loop.describe()).workflow_type != LOOP_WORKFLOW:
                await asyncio.sleep(0.01)
    fake.loops.append(loop)
    return loop


async def test_a_large_request_beside_many_words_and_checkpoints(hasty: Client) -> None:
    """Temporal counts the request and what is carried together. A loop that is cut off there is stuck for good."""
    fake = FakeLoopHost(hasty)
    fake.items = items(0, 1)
    run = {"agent": "claude", "workspace": {"path": "/w"}, "env": {f"V{n}": "x" * 30_000 for n in range(28)}}
    request = {"run": run, "plan": "make it work", "done": ITEMS, "pause_between_s": 0}
    heard = [f"{number}-{note}".ljust(100, "x") for number in range(100) for note in range(100)]
    made = [
        Checkpoint(
            number=n,
            kind="iteration" if n else "baseline",
            time=NOW,
            iteration=n,
            feedback=tuple(heard[n * 100 : n * 100 + 100]),
        )
        for n in range(100)
    ]
    carried = CarriedState(
        host=fake.host,
        iteration=99,
        next_checkpoint=100,
        started_at=NOW,
        checkpoints=tuple(made),
        limits=LoopLimits(iterations=10, no_progress=0),
        plans=(PlanVersion(number=1, hash="h1", since=NOW, text="make it work"),),
    )
    async with fake.at_work():
        loop = await begun_before(hasty, fake, request, carried)
        refusals = []
        for number in range(15):
            try:
                await tell(loop, "feedback", text="\x01" * 9_000, id=f"f-{number}")
            except WorkflowUpdateFailedError as error:
                refusals.append(str(error.cause))
        outcome = await ended(loop)
        left = await checkpoints(loop)
    assert outcome.stop_reason == "iterations"
    assert refusals
    assert all("beside the request" in each for each in refusals)
    chain = await executions(loop, hasty)
    assert len(chain) > 3
    for each in chain[:-1]:
        await replays(each)
        await never_retried(each)
    numbers = [each.number for each in left]
    assert numbers[0] == 0, "the baseline stays"
    assert numbers[-10:] == list(range(numbers[-1] - 9, numbers[-1] + 1)), "the newest stay"


async def test_a_loop_that_is_paused_or_unverified(hasty: Client) -> None:
    fake = FakeLoopHost(hasty)
    fake.verdicts = [HELD]
    async with fake.at_work():
        loop = await fake.start()
        await fake.at_hold()
        await tell(loop, "pause", now=True, reason="lunch")
        for number in range(12):
            await tell(loop, "feedback", text="x", id=f"f-{number}")
            await tell(loop, "remove_feedback", id=f"f-{number}")
        now = await reaches(loop, lambda now: True)
        assert (now.status, now.waits_for, now.iteration, now.feedback) == ("paused", "lunch", 1, ())
        assert len(await executions(loop, hasty)) > 1
        await tell(loop, "resume")
        outcome = await ended(loop)
    assert (outcome.stop_reason, outcome.iterations) == ("done", 1)
    assert (len(fake.asked), len(fake.verified)) == (1, 2)


@pytest.mark.exhaustive
async def test_what_is_said_all_the_time_is_never_lost(hasty: Client) -> None:
    fake = FakeLoopHost(hasty)
    fake.items = items(0, 1)
    async with fake.at_work():
        loop = await fake.start(done=ITEMS, limits={"iterations": 30, "no_progress": 0})
        for number in range(20):
            await loop.signal("feedback", {"text": f"word {number}", "id": f"f-{number}"})
        outcome = await ended(loop)
        made = await checkpoints(loop)
    heard = [each for one in made for each in one.feedback]
    assert outcome.iterations == 30
    assert heard == [f"f-{number}" for number in range(20)]
    assert all(any(f"word {number}" in each["prompt"] for each in fake.asked) for number in range(20))
    assert len(await executions(loop, hasty)) > 5
