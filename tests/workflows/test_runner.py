"""A run that was asked something while events waited for it goes on from its history, and that history replays."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.client import Client
from temporalio.converter import PayloadCodec, SerializationContext, WithSerializationContext
from temporalio.worker import Worker

from steersman.codec import data_converter
from steersman.contracts import names
from steersman.contracts.activities import Delivered, DeliverInput, Settlement
from steersman.contracts.errors import ASK_AGAIN
from tests.workflows.fake_host import (
    QUIET,
    FakeHost,
    Run,
    done,
    event_types,
    phase,
    replays,
    state,
    succeeded,
    until,
)
from workers.wiring import workflow_runner
from workflows.agent_run import AgentRun
from workflows.runner import ReplaySafeRunner
from workflows.waiting import NO_EMPTY_TASKS, NO_TWO_EMPTY_TASKS

TRIES = 8


class Played:
    """A runner and its instance in one, which notes what it is given."""

    def __init__(self) -> None:
        self.activations: list[str] = []
        self.patch = ""
        self.commands: list[str] = []
        """What the workflow commands in each activation that follows, if anything."""

    def create_instance(self, det: Any) -> Any:
        return self

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        self.activations.append(",".join(str(job.WhichOneof("variant")) for job in act.jobs))
        completion = WorkflowActivationCompletion(run_id=act.run_id)
        completion.successful.SetInParent()
        if self.commands and (command := self.commands.pop(0)):
            added = completion.successful.commands.add()
            getattr(added, command).SetInParent()
            if command == "set_patch_marker":
                added.set_patch_marker.patch_id = self.patch
            if command == "update_response":
                added.update_response.rejected.message = "no"
        return completion


@pytest.fixture
def played() -> Played:
    return Played()


@pytest.fixture
def activate(played: Played) -> Callable[..., str]:
    """Give the guarded instance an activation of that time; why it refuses."""
    runner: Any = played
    detail: Any = None
    instance = ReplaySafeRunner(runner).create_instance(detail)

    def give(job: str, seconds: int = 0) -> str:
        act = WorkflowActivation(run_id="r")
        act.timestamp.seconds = seconds
        getattr(act.jobs.add(), job).SetInParent()
        return instance.activate(act).failed.failure.message

    return give


def test_what_came_between_two_workflow_tasks_is_given_up_with_the_next_one(
    activate: Callable[..., str], played: Played
) -> None:
    assert [activate("initialize_workflow", 1), activate("signal_workflow", 2)] == ["", ""]
    assert [activate("signal_workflow", 2), activate("query_workflow", 2), activate("query_workflow", 2)] == [""] * 3
    assert [activate("signal_workflow", 2), activate("fire_timer", 4)] == [ASK_AGAIN, ASK_AGAIN]
    assert activate("query_workflow", 4) == ""
    assert activate("remove_from_cache") == ""
    assert len(played.activations) == 7


def test_a_query_alone_and_a_task_of_several_activations_are_nothing_special(activate: Callable[..., str]) -> None:
    jobs = [("initialize_workflow", 1), ("query_workflow", 1), ("signal_workflow", 2), ("query_workflow", 2)]
    jobs += [("resolve_activity", 3), ("resolve_activity", 3), ("signal_workflow", 4), ("query_workflow", 4)]
    assert [activate(job, seconds) for job, seconds in [*jobs, ("fire_timer", 5)]] == [""] * 9


@pytest.mark.parametrize(
    ("jobs", "commands", "filled", "filled_earlier"),
    [
        (
            "signal_workflow fire_timer resolve_activity fire_timer",
            "",
            [0, 1, 2, 3],
            [1, 3],
        ),  # earlier: each second one
        ("signal_workflow fire_timer signal_workflow", " start_timer", [0, 2], []),
        # Of a refused update the history may have a task, or none.
        ("signal_workflow do_update fire_timer", " update_response", [0, 2], [2]),
        ("do_update signal_workflow signal_workflow,do_update", "update_response", [1, 2], [2]),
        ("signal_workflow progressed progressed fire_timer", "", [0, 3], [3]),
    ],
)
def test_no_task_that_an_event_has_brought_has_no_command(
    played: Played, jobs: str, commands: str, filled: list[int], filled_earlier: list[int]
) -> None:
    runner: Any = played
    detail: Any = None
    for patch, expected in ((NO_EMPTY_TASKS, filled), (NO_TWO_EMPTY_TASKS, filled_earlier), ("another", [])):
        instance = ReplaySafeRunner(runner).create_instance(detail)
        played.patch = patch
        played.commands = ["set_patch_marker", *commands.split(" ")]
        found = []
        for number, several in enumerate(["initialize_workflow", *jobs.split()]):
            act = WorkflowActivation(run_id="r")
            act.timestamp.seconds = number
            for name in several.split(","):
                job = act.jobs.add()
                getattr(job, "signal_workflow" if name == "progressed" else name).SetInParent()
                if name == "progressed":
                    job.signal_workflow.signal_name = names.PROGRESSED
            if any(c.HasField("modify_workflow_properties") for c in instance.activate(act).successful.commands):
                found.append(number - 1)
        assert found == expected, patch


def deciding(fake: FakeHost) -> Worker:
    """A worker for the workflows alone, as worker.py makes it."""
    return fake.worker(
        fake.queue,
        workflows=[AgentRun],
        activities=[fake.claim_host, fake.deliver_here],
        workflow_runner=workflow_runner(),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
    )


async def asked_while_nobody_was_there(fake: FakeHost, pause_s: float) -> Run:
    """Queries wait for a worker; before and after it comes, the run is told something."""
    async with fake.hosting():
        async with deciding(fake):
            run = await fake.start(permissions={"mode": "ask"})
            await phase(run, "running")
        queries = [asyncio.create_task(state(run)) for _ in range(3)]
        await asyncio.sleep(0.05)
        await fake.ask(run.id, "a-1")

        async def withdraw() -> None:
            await asyncio.sleep(pause_s)
            await fake.ask(run.id, "a-1", withdrawn=True)

        withdrawing = asyncio.create_task(withdraw())
        async with deciding(fake):
            await withdrawing
            await asyncio.gather(*queries, return_exceptions=True)
            await phase(run, "running")
            await until(lambda: _is_answered(run))
            fake.ending.set_result(done())
            await succeeded(run)
    return run


async def _is_answered(run: Run) -> bool:
    return not (await state(run)).approvals


@pytest.mark.exhaustive
@pytest.mark.integration
@QUIET
async def test_its_history_replays(fake: FakeHost) -> None:
    for number in range(TRIES):  # about every third one is taken too early
        run = await asked_while_nobody_was_there(FakeHost(fake.client), 0.04 + 0.01 * number)
        await replays(run)


async def told_while_nobody_decided(fake: FakeHost) -> Run:
    """Two workflow tasks in which nothing is to be done; then a worker that knows nothing yet is told two things."""
    async with fake.hosting():
        async with deciding(fake):
            run = await fake.start()
            await phase(run, "running")
            taken = asyncio.Event()

            async def take(delivery: DeliverInput) -> Delivered:
                await taken.wait()
                return Delivered(here=True, messages=tuple(_read(each.id) for each in delivery.messages))

            fake.play_delivery = take  # type: ignore[method-assign]
            await run.signal(names.STEER, {"id": "m-1", "text": "one"})
            await until(lambda: fake.deliveries)
            await fake.ask(run.id, "a-1", withdrawn=True)
            await until(lambda: _has_answered(run, tasks=4))
            taken.set()
            await until(lambda: _has_answered(run, tasks=5))
        update = asyncio.create_task(run.execute_update(names.STEER, {"id": "m-3", "text": "three"}))
        await until(lambda: _is_waiting(run))
        await run.signal(names.STEER, {"id": "m-2", "text": "two"})
        async with deciding(fake):
            await update
            fake.ending.set_result(done())
            await succeeded(run)
    return run


def _read(message: str) -> Settlement:
    return Settlement(id=message, state="acknowledged", how="mid_turn")


async def _has_answered(run: Run, tasks: int) -> bool:
    return (await event_types(run)).count("WORKFLOW_TASK_COMPLETED") >= tasks


async def _is_waiting(run: Run) -> bool:
    return (await run.describe()).raw_description.HasField("pending_workflow_task")


@pytest.mark.integration
async def test_a_run_that_is_told_something_after_tasks_without_a_command_replays(fake: FakeHost) -> None:
    await replays(await told_while_nobody_decided(fake))


class BoundCodec(PayloadCodec, WithSerializationContext):
    """Reads a payload only where it is read for the workflow that it was written for."""

    def __init__(self, workflow: str | None = None) -> None:
        self._workflow = workflow

    def with_context(self, context: SerializationContext) -> "BoundCodec":
        return BoundCodec(getattr(context, "workflow_id", None))

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        of = str(self._workflow).encode()
        return [Payload(metadata={**each.metadata, "of": of}, data=each.data) for each in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        assert [each.metadata["of"].decode() for each in payloads] == [str(self._workflow)] * len(payloads)
        return [Payload(metadata={"encoding": each.metadata["encoding"]}, data=each.data) for each in payloads]


async def test_a_codec_that_goes_by_what_payloads_are_for_is_told(fake: FakeHost) -> None:
    service = fake.client.service_client
    client = Client(service, namespace=fake.client.namespace, data_converter=data_converter(BoundCodec()))
    bound = FakeHost(client)
    async with bound.hosting(), deciding(bound):
        run = await bound.start()
        bound.ending.set_result(done("read"))
        assert (await succeeded(run)).text == "read"
    written = {
        payload.metadata["of"].decode()
        for event in (await run.fetch_history()).events
        for payload in (
            *event.activity_task_scheduled_event_attributes.input.payloads,
            *event.workflow_execution_completed_event_attributes.result.payloads,
        )
    }
    assert written == {run.id}
