"""Whom a run tells of what happens, and what their answers do to it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import Client

from steersman.contracts import names
from steersman.contracts.activities import Claim
from steersman.contracts.notices import NoticeAnswer, NoticeInput
from tests.workflows.fake_host import (
    QUIET,
    FakeHost,
    Run,
    cancelled,
    done,
    event_types,
    failed,
    phase,
    state,
    succeeded,
    until,
)
from workflows.agent_run.notices import MAX_NOTICES

pytestmark = [pytest.mark.integration, QUIET]
URL = "https://hooks.example.com/"
ALL = ["approval", "decision", "end", "budget"]


@pytest.fixture
async def uncached(temporal: Client) -> AsyncIterator[FakeHost]:
    """Each workflow task replays its run from the first event. Not on the server that skips time: it does not hand out
    the last task of a run, some of the time, whose children are abandoned.
    """
    async with FakeHost(temporal).at_work(local=True, cached=0) as fake:
        yield fake


def told(fake: FakeHost) -> list[str]:
    """What was told, in its order."""
    return [each.notice.type for each in fake.notices]


async def asking(fake: FakeHost, *asked: str, **webhook: Any) -> Run:
    run = await fake.start(permissions={"mode": "ask"}, notify=[{"url": URL, "on": ALL, **webhook}])
    await phase(run, "running")
    for each in asked:
        await fake.ask(run.id, each)
    return run


async def decide(run: Run, name: str, decision: str = "allow") -> None:
    await run.execute_update(names.DECIDE, {"id": name, "decision": decision})


async def test_all_that_happens_is_told_once(uncached: FakeHost) -> None:
    run = await asking(uncached, "a-1")
    await until(lambda: told(uncached) == ["approval"])
    await decide(run, "a-1", "deny")
    await until(lambda: told(uncached) == ["approval", "decision"])
    uncached.ending.set_result(done("fine"))
    await succeeded(run)
    await until(lambda: told(uncached) == ["approval", "decision", "end"])
    approval, decision, end = (each.notice for each in uncached.notices)
    assert approval.approval
    assert (approval.run, approval.approval.id, approval.approval.input) == (run.id, "a-1", {"command": "ls"})
    assert decision.decision
    assert (decision.decision.id, decision.decision.tool, decision.decision.decision) == ("a-1", "Bash", "deny")
    assert end.result
    assert (end.result.status, end.result.text) == ("succeeded", "fine")
    assert {each.webhook.url for each in uncached.notices if each.webhook} == {URL}


async def test_an_answer_decides(uncached: FakeHost) -> None:
    async def allows(given: NoticeInput) -> NoticeAnswer:
        return NoticeAnswer(status=200, decision="allow", remember=True)

    uncached.play_notice = allows  # type: ignore[method-assign]
    run = await asking(uncached, "a-1", decides=True)
    await until(lambda: uncached.decisions() == [("a-1", "allow")])
    (delivery,) = uncached.deliveries
    assert [each.decision.remember for each in delivery.decisions] == [True]
    uncached.ending.set_result(done())
    await succeeded(run)


async def test_the_first_answer_counts_whoever_gives_it(fake: FakeHost) -> None:
    person_was_there = asyncio.Event()

    async def late(given: NoticeInput) -> NoticeAnswer:
        if given.notice.type == "approval":
            await person_was_there.wait()
        return NoticeAnswer(status=200, decision="allow")

    fake.play_notice = late  # type: ignore[method-assign]
    async with fake.at_work():
        run = await asking(fake, "a-1", decides=True)
        await decide(run, "a-1", "deny")
        person_was_there.set()
        await until(lambda: "decision" in told(fake) and fake.decisions() != [])
        fake.ending.set_result(done())
        await succeeded(run)
    assert fake.decisions() == [("a-1", "deny")]


async def test_an_answer_that_nobody_asked_for_decides_nothing(fake: FakeHost) -> None:
    async def allows(given: NoticeInput) -> NoticeAnswer:
        return NoticeAnswer(status=200, decision="allow")

    fake.play_notice = allows  # type: ignore[method-assign]
    async with fake.at_work():
        run = await asking(fake, "a-1")
        await until(lambda: told(fake) == ["approval"])
        fake.ending.set_result(done())
        await succeeded(run)
    assert fake.decisions() == []


async def test_a_question_that_another_worker_asks_again_is_told_once(fake: FakeHost) -> None:
    async with fake.at_work():
        run = await asking(fake, "a-1")
        await until(lambda: told(fake) == ["approval"])
        await fake.began(run.id, epoch=1)
        await fake.ask(run.id, "a-1")
        await fake.ask(run.id, "a-2")
        await until(lambda: told(fake) == ["approval", "approval"])
        fake.ending.set_result(done())
        await succeeded(run)
    asked = [each.notice.approval for each in fake.notices]
    assert [each.id for each in asked if each] == ["a-1", "a-2"]


async def test_how_it_ends_is_told_whichever_way(fake: FakeHost) -> None:
    async with fake.at_work():
        run = await asking(fake)
        await run.cancel(reason="enough")
        await cancelled(run)
        await until(lambda: told(fake) == ["end"])
        other = await asking(fake)
        fake.ending.set_result(done().model_copy(update={"status": "failed", "error": "AgentFailed", "message": "no"}))
        await failed(other)
        await until(lambda: told(fake) == ["end", "end"])
    results = [each.notice.result for each in fake.notices]
    assert [(each.status, each.error) for each in results if each] == [("cancelled", None), ("failed", "no")]


async def test_most_of_its_time_is_told(fake: FakeHost) -> None:
    async with fake.at_work():
        run = await fake.start(limits={"duration_s": 5}, notify=[{"url": URL, "on": ["budget", "end"]}])
        await until(lambda: told(fake) == ["budget", "end"])
    assert "longer than 5 s" in (await failed(run))[1]
    (budget,) = (each.notice.budget for each in fake.notices if each.notice.budget)
    assert (budget.of, budget.limit, budget.spent) == ("duration_s", 5, 4)


async def test_the_operator_is_told_of_every_run_and_of_no_address(fake: FakeHost) -> None:
    async def claim(request: Any) -> Claim:
        return Claim(host=fake.host, notices=("end",))

    fake.play_claim = claim  # type: ignore[method-assign]
    async with fake.at_work():
        run = await fake.start(permissions={"mode": "ask"})
        await phase(run, "running")
        await fake.ask(run.id, "a-1")
        fake.ending.set_result(done())
        await succeeded(run)
        await until(lambda: told(fake) == ["end"])
    assert fake.notices[0].webhook is None


async def test_who_is_told_nothing_costs_no_history(fake: FakeHost) -> None:
    async with fake.at_work():
        run = await fake.start(permissions={"mode": "ask"})
        await phase(run, "running")
        await fake.ask(run.id, "a-1")
        await decide(run, "a-1")
        fake.ending.set_result(done())
        await succeeded(run)
    assert not any("CHILD_WORKFLOW" in each for each in await event_types(run))
    assert fake.notices == []


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
async def test_a_run_that_asks_all_the_time_tells_so_much_and_its_end(fake: FakeHost) -> None:
    async with fake.at_work():
        run = await asking(fake, on=["approval", "end"])
        for number in range(MAX_NOTICES + 50):
            await fake.ask(run.id, f"a-{number}")
            await run.signal(names.DECIDE, {"id": f"a-{number}", "decision": "deny"})
            if number % 50 == 49:
                await until(lambda: _open(run, 0))
        fake.ending.set_result(done())
        await succeeded(run)
        await until(lambda: told(fake)[-1:] == ["end"])
    assert len(fake.notices) <= MAX_NOTICES + 1


async def _open(run: Run, count: int) -> bool:
    return len((await state(run)).approvals) == count
