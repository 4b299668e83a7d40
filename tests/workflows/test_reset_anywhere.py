"""Whatever is said to a run or a loop, in whichever order, and wherever it is reset: its histories replay."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.service import RPCError

from steersman.contracts import names
from steersman.contracts.activities import Delivered, DeliverInput, MessagesSettled, Progressed, Settlement
from tests.workflows.fake_host import QUIET, FakeHost, done, replays, until
from tests.workflows.fake_loop_host import HELD, FakeLoopHost, exits
from tests.workflows.test_reset import reset

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive, QUIET]

SEEDS = range(40)
Workflow = WorkflowHandle[Any, Any]
NONDETERMINISM = "TMPRL1100"


class Talk:
    """Says things to a workflow at random, by updates that nobody waits for and by signals."""

    def __init__(
        self, chance: random.Random, told: Workflow, sayings: list[Callable[["Talk"], Awaitable[None]]]
    ) -> None:
        self.chance, self.told, self._sayings = chance, told, sayings
        self.number = 0
        """Of what is said next; it is in its id."""
        self._answers: list[asyncio.Task[None]] = []

    async def say(self, times: int) -> None:
        """So many things, by turns at once and after a while."""
        for _ in range(times):
            with suppress(RPCError):
                await self.chance.choice(self._sayings)(self)
            self.number += 1
            await asyncio.sleep(self.chance.choice([0, 0, 0, 0.01, 0.05]))

    def known(self) -> int:
        """The number of something that was said, or is about to be."""
        return self.chance.randrange(self.number + 1)

    async def update(self, name: str, said: dict[str, Any] | None = None) -> None:
        self._answers.append(asyncio.create_task(self._updated(name, said or {})))

    async def _updated(self, name: str, said: dict[str, Any]) -> None:
        with suppress(WorkflowUpdateFailedError, RPCError, TimeoutError):
            async with asyncio.timeout(5):
                await self.told.execute_update(name, said)

    async def signal(self, name: str, said: Any) -> None:
        await self.told.signal(name, said)

    async def query(self) -> None:
        await self.told.query(names.STATE_QUERY)

    async def answered(self) -> None:
        await asyncio.gather(*self._answers)


async def reset_somewhere(client: Client, talk: Talk) -> Workflow | None:
    """Reset it to any of its workflow tasks, often to an early one; the new execution."""
    tasks = [
        event.event_id
        async for event in talk.told.fetch_history_events()
        if event.HasField("workflow_task_completed_event_attributes")
    ]
    with suppress(RPCError):
        if tasks:
            return await reset(
                client, talk.told, talk.chance.choice(tasks[:3] + tasks), told=talk.chance.random() < 0.8
            )
    return None


async def closed(told: Workflow) -> bool:
    return (await told.describe()).close_time is not None


async def hold(executions: list[Workflow | None]) -> None:
    """Each of them replays, and did so whenever a worker had it anew."""
    for each in filter(None, executions):
        await replays(each)
        async for event in each.fetch_history_events():
            assert NONDETERMINISM not in event.workflow_task_failed_event_attributes.failure.message


def decision(talk: Talk) -> dict[str, Any]:
    return {"id": f"a-{talk.chance.randrange(4)}", "decision": talk.chance.choice(["allow", "deny"])}


def words_to_run(fake: FakeHost) -> list[Callable[[Talk], Awaitable[None]]]:
    """What clients, its agent and its workers say to a run."""

    def message(number: int, **more: Any) -> dict[str, Any]:
        return {"text": "words", "id": f"m-{number}", **more}

    async def ask(talk: Talk) -> None:
        long_ago = datetime.now(UTC) - timedelta(hours=3)
        since = talk.chance.choice([None, long_ago])
        withdrawn = talk.chance.random() < 0.3
        await fake.ask(talk.told.id, f"a-{talk.chance.randrange(4)}", since=since, withdrawn=withdrawn)

    async def begin(talk: Talk) -> None:
        chance = talk.chance.randrange
        await fake.began(talk.told.id, pid=4711 + chance(2), attempt=1 + chance(2), epoch=chance(3))

    async def settle(talk: Talk) -> None:
        settlement = Settlement(id=f"m-{talk.known()}", state="acknowledged", how="mid_turn")
        await talk.signal(names.MESSAGES_SETTLED, MessagesSettled(messages=(settlement,)))

    async def end(talk: Talk) -> None:
        if talk.chance.random() < 0.15:
            await talk.signal(names.INTERRUPT, message(talk.number, end=True))

    return [
        ask,
        ask,
        begin,
        settle,
        end,
        Talk.query,
        lambda talk: talk.update(names.STEER, message(talk.number)),
        lambda talk: talk.update(names.STEER, message(talk.known())),
        lambda talk: talk.update(names.STEER, {"text": "words"}),
        lambda talk: talk.signal(names.STEER, message(talk.number)),
        lambda talk: talk.update(names.INTERRUPT, message(talk.number)),
        lambda talk: talk.signal(names.INTERRUPT, message(talk.number)),
        lambda talk: talk.update(names.DECIDE, decision(talk)),
        lambda talk: talk.signal(names.DECIDE, decision(talk)),
        lambda talk: talk.signal(names.PROGRESSED, Progressed(attempt=1, turns=talk.number)),
    ]


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_run_is_reset_anywhere(fake: FakeHost, seed: int) -> None:
    chance = random.Random(seed)

    async def take(delivery: DeliverInput) -> Delivered:
        if chance.random() < 0.25:
            return Delivered(here=False)
        states = [chance.choice(["acknowledged", "delivered"]) for _ in delivery.messages]
        taken = [
            Settlement.model_validate({"id": each.id, "state": state, "how": "mid_turn"})
            for each, state in zip(delivery.messages, states, strict=True)
        ]
        return Delivered(here=True, messages=tuple(taken))

    fake.play_delivery = take  # type: ignore[method-assign]
    async with fake.at_work(cached=chance.choice([0, 100, 100]), local=chance.random() < 0.5):
        run = await fake.start(limits=chance.choice([{}, {"approval_s": 3600}, {"approval_s": 1}, {"duration_s": 600}]))
        newest = fake.client.get_workflow_handle(run.id)
        if chance.random() < 0.7:
            await until(lambda: fake.runs)
        talk = Talk(chance, newest, words_to_run(fake))
        await talk.say(chance.randrange(3, 14))
        executions = []
        for _ in range(chance.randrange(1, 3)):
            executions.append(await reset_somewhere(fake.client, talk))
            await talk.say(chance.randrange(8))
        if chance.random() < 0.5:
            with suppress(RPCError):  # it may have ended
                await newest.cancel()
        fake.ending.set_result(done())
        await until(lambda: closed(newest), 30)
        await talk.answered()
        await hold(executions)


def words_to_loop(fake: FakeLoopHost) -> list[Callable[[Talk], Awaitable[None]]]:
    """What clients say to a loop, and runs of its that end."""

    async def release(_: Talk) -> None:
        fake.release()

    return [
        release,
        release,
        Talk.query,
        lambda talk: talk.update(names.FEEDBACK, {"text": "words", "id": f"f-{talk.number}"}),
        lambda talk: talk.signal(names.FEEDBACK, {"text": "words", "id": f"f-{talk.number}"}),
        lambda talk: talk.update(names.REMOVE_FEEDBACK, {"id": f"f-{talk.known()}"}),
        lambda talk: talk.update(names.SET_LIMITS, {"cost_usd": talk.chance.randrange(2, 9)}),
        lambda talk: talk.signal(names.SET_LIMITS, {"iterations": talk.chance.randrange(3, 9)}),
        lambda talk: talk.update(names.REVISE, {"plan": f"plan {talk.number}"}),
        lambda talk: talk.signal(names.REVISE, {"plan": f"plan {talk.number}"}),
        lambda talk: talk.update(names.PAUSE),
        lambda talk: talk.update(names.PAUSE, {"now": True}),
        lambda talk: talk.signal(names.PAUSE, {}),
        lambda talk: talk.update(names.RESUME),
        lambda talk: talk.signal(names.RESUME, {}),
        lambda talk: talk.update(names.ROLLBACK, {"number": talk.chance.randrange(3)}),
        lambda talk: talk.update(names.RESTART),
    ]


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_loop_is_reset_anywhere(temporal: Client, seed: int) -> None:
    chance = random.Random(seed)
    fake = FakeLoopHost(temporal)
    fake.script = [HELD] * chance.randrange(1, 6)
    fake.verdicts = [exits(1, "not yet")] * 30
    async with fake.at_work(cached=chance.choice([0, 100, 100])):
        pauses: dict[str, Any] = chance.choice([{}, {"pause_between_s": 1}])
        loop = await fake.start(limits={"iterations": 30, "cost_usd": 5}, **pauses)
        newest = temporal.get_workflow_handle(loop.id)
        await fake.at_hold()
        talk = Talk(chance, newest, words_to_loop(fake))
        await talk.say(chance.randrange(3, 14))
        executions = []
        for _ in range(chance.randrange(1, 3)):
            executions.append(await reset_somewhere(temporal, talk))
            await talk.say(chance.randrange(8))
        if chance.random() < 0.5:
            await talk.update(names.EXIT, {"reason": "enough"})
        with suppress(RPCError):  # it may have ended
            await newest.cancel()

        async def over() -> bool:
            fake.release()
            return await closed(newest)

        await until(over, 30)
        await talk.answered()
        await hold(executions)
