"""What is said of messages is so: at any moment of a run, also at its very end, after crashes, takeovers and stops.

Many messages at random moments to real agents; the scripted model tells which of them the agent has read. With
STEERSMAN_TRIES=10000 as many are said.
"""

import asyncio
import contextlib
import logging
import os
import random
from collections import Counter
from datetime import UTC, datetime

import pytest

from activities.agents.interrupts import BESIDE_S
from activities.running.controller import RunController
from steersman.contracts.activities import DeliverInput, RunOutcome, Settlement
from steersman.contracts.messages import Message
from steersman.contracts.run import FINAL_STATES
from tests.agents.kits import ClaudeKit
from tests.agents.stage import Stage, deliver, message
from tests.scripted_model import Hold, Say, answer, say
from tests.scripted_model.requests import Request
from tests.scripted_model.steps import Step
from tests.support.processes import until
from workflows.agent_run.messages import Mailbox

log = logging.getLogger(__name__)

pytestmark = [pytest.mark.integration]

TRIES = int(os.environ.get("STEERSMAN_TRIES", "60"))
MESSAGES = 8
"""In each run."""
ENDS = ("by itself", "by itself", "by itself", "takeover", "crash", "stop")


def now() -> datetime:
    return datetime.now(UTC)


class Correspondence:
    """The messages of one run as its workflow keeps them, with the session beneath replaced now and then."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.mailbox = stage, Mailbox()
        self.session: RunController | None = None
        self._told = 0

    async def say(self, name: str) -> None:
        self.mailbox.accept("steer", Message(id=name, text=f"word {name}."), now())
        await self.carry()

    async def carry(self) -> None:
        """Once, as a delivery of the workflow's."""
        parcel = DeliverInput(key=self.stage.key, messages=self.mailbox.unsent(), patience_s=0.25)
        if self.session is None or not parcel.messages:
            return
        self.mailbox.mark_tried(parcel.messages)
        delivered = await self.session.deliver(parcel)
        if delivered.here:
            self.mailbox.mark_sent(parcel.messages)
        self.mailbox.settle(delivered.messages, now())
        self.hear()

    def hear(self) -> None:
        """What the session has told by signal since."""
        self.mailbox.settle(self.stage.listener.settlements[self._told :], now())
        self._told = len(self.stage.listener.settlements)

    def close(self, outcome: RunOutcome) -> None:
        self.hear()
        self.mailbox.settle(outcome.messages, now())
        self.mailbox.close(now(), journal_read=outcome.journal_read)


async def test_an_acknowledged_message_was_read_and_one_that_is_too_late_was_not(claude: ClaudeKit) -> None:
    seed = int(os.environ.get("STEERSMAN_SEED", str(random.SystemRandom().randrange(1 << 32))))
    log.warning("STEERSMAN_SEED=%d", seed)
    chance = random.Random(seed)
    came_to: Counter[str] = Counter()
    for number in range(0, TRIES, MESSAGES):
        came_to.update(await _one_run(claude, chance, number))
    log.warning("%s", dict(came_to))
    assert set(came_to) <= set(FINAL_STATES)
    assert came_to["acknowledged"]


async def _one_run(claude: ClaudeKit, chance: random.Random, number: int) -> list[str]:
    end, turns = chance.choice(ENDS), chance.randint(1, 3)

    def play(request: Request) -> Step | None:
        if request.number <= turns:
            return say(f"turn {request.number}", chunks=chance.randint(1, 4), delay_s=chance.random() * 0.02)
        return say("well")

    async with claude.run(play) as stage:
        letters = Correspondence(stage)
        letters.session, task = stage.start()
        await stage.wait_for("init")
        saying = asyncio.create_task(_speak(letters, chance, number))
        if end != "by itself":
            await asyncio.sleep(chance.random() * 0.6)
            task = await _happens(letters, task, end)
        async with asyncio.timeout(60):
            await asyncio.wait({task})
            await saying
        with contextlib.suppress(TimeoutError):
            letters.close(task.result())
        records, asked = letters.mailbox.records, claude.script.requests
        read = {each.id for each in records if any(request.saw(f"word {each.id}.") for request in asked)}
        for each in records:
            known = (end, each.id, each.state, each.how, task.result())
            assert not (each.state in ("too_late", "rejected") and each.id in read), known
            # Whoever is killed after it has said that it reads a message may not have come to ask the model.
            assert end in ("stop", "crash") or each.state != "acknowledged" or each.id in read, known
            assert end in ("stop", "crash") or each.state != "unverified", known
        return [each.state for each in records]


async def _speak(letters: Correspondence, chance: random.Random, number: int) -> None:
    for index in range(MESSAGES):
        await asyncio.sleep(chance.expovariate(8))
        await letters.say(f"m{number + index}")


async def _happens(letters: Correspondence, task: "asyncio.Task[RunOutcome]", end: str) -> "asyncio.Task[RunOutcome]":
    stage = letters.stage
    if task.done():
        return task
    if end == "stop":
        assert letters.session is not None
        await letters.session.stop("enough")
        return task
    if end == "crash":
        with contextlib.suppress(ProcessLookupError):
            os.kill(stage.listener.handles[-1][0].pid, 9)
        letters.mailbox.resend()
        await asyncio.sleep(0.3)
        await letters.carry()
        return task
    letters.session = None
    await stage.detach()
    if task.done() and not task.cancelled():
        return task
    letters.session, task = stage.start()
    letters.mailbox.resend()
    await letters.carry()
    return task


async def test_a_message_that_comes_while_the_agent_ends_is_not_answered_by_a_guess(claude: ClaudeKit) -> None:
    """It was delivered to the worker before, and read; the new one sees the agent end, and is handed it again."""
    async with claude.run(answer(Say("first"), Hold(), Say(" answer")), say("second answer")) as stage:
        session, task = stage.start()
        await claude.script.wait_held()
        await deliver(session, message("steer", "and now?"))
        await claude.script.release()
        async with asyncio.timeout(60):
            await until(lambda: stage.said("message", text="second answer"))
            answers: list[Settlement] = []
            while not task.done():
                answers += (await session.deliver(message("steer", "and now?"))).messages
                await asyncio.sleep(0.005)
    assert {each.state for each in answers} == {"acknowledged"}


async def test_the_second_of_two_interrupts_says_that_the_first_was_at_work(claude: ClaudeKit) -> None:
    async with claude.run(answer(Say("long"), Hold(), Say(" story"))) as stage:
        session, _ = stage.start()
        await claude.script.wait_held()
        first = asyncio.create_task(deliver(session, message("interrupt", None, "i-1")))
        await asyncio.sleep(0.01)
        second = await deliver(session, message("interrupt", None, "i-2"))
        (one,), (two,) = (await first).messages, second.messages
        assert (one.state, one.how) == ("acknowledged", "interrupted")
        assert (two.state, two.how) == ("acknowledged", "i-1 was at work")
        await until(lambda: bool(stage.said("progress", text="the turn was interrupted")))
        await asyncio.sleep(BESIDE_S + 0.1)
        (late,) = (await deliver(session, message("interrupt", None, "i-3"))).messages
        assert (late.state, late.how) == ("acknowledged", "nothing was running")
