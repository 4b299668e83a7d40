"""Feedback: kept until an iteration is given it, once, and recorded with it."""

import pytest

from tests.workflows.fake_loop_host import HELD, FakeLoopHost
from tests.workflows.loop_client import checkpoints, ended, reaches, refused, state, tell
from tests.workflows.loop_results import exits, fails, limited, never_began, result

pytestmark = pytest.mark.integration


async def test_it_is_listed_removed_given_once_and_recorded(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = [exits(1), exits(1)]
    loop = await loop_fake.start(mode="checkpoint")
    await reaches(loop, "waiting_for_decision")
    assert (await tell(loop, "feedback", text="use tabs")).id == "feedback-1"
    assert (await tell(loop, "feedback", text="no, spaces", id="feedback-2")).id == "feedback-2"
    assert (await tell(loop, "feedback", text="and a test")).id == "feedback-3"
    again = await tell(loop, "feedback", text="said twice", id="feedback-2")
    assert (again.id, again.note) == ("feedback-2", "it was given before")
    await tell(loop, "remove_feedback", id="feedback-1")
    now = await state(loop)
    assert [(each.id, each.text, each.iteration) for each in now.feedback] == [
        ("feedback-2", "no, spaces", None),
        ("feedback-3", "and a test", None),
    ]

    await tell(loop, "resume")
    now = await reaches(loop, lambda now: now.iteration == 2 and now.status == "waiting_for_decision")
    assert now.feedback == ()
    assert [(each.id, each.iteration) for each in now.feedback_consumed] == [("feedback-2", 2), ("feedback-3", 2)]
    assert await refused(loop, "remove_feedback", {"id": "feedback-2"}) == (
        "Refused",
        "iteration 2 was given feedback feedback-2 already",
    )
    assert await refused(loop, "remove_feedback", {"id": "x"}) == ("Refused", "there is no feedback x")
    await tell(loop, "resume")
    await ended(loop)
    prompts = [each["prompt"] for each in loop_fake.asked]
    assert "- no, spaces\n- and a test" in prompts[1]
    assert "use tabs" not in prompts[1]
    assert "no, spaces" not in prompts[2]
    assert [each.feedback for each in await checkpoints(loop)] == [(), (), ("feedback-2", "feedback-3"), ()]


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", ["failed", "never began", "limited before it began"])
async def test_it_is_given_again_where_the_agent_may_not_have_read_it(loop_fake: FakeLoopHost, first: str) -> None:
    ends = {
        "failed": fails(),
        "never began": never_began(),
        "limited before it began": limited(session_id=None, turns=0),
    }
    loop_fake.verdicts = [exits(1)]
    loop_fake.script = [result(), ends[first], result()]
    loop = await loop_fake.start(mode="checkpoint", limits={"failures": 0})
    await reaches(loop, "waiting_for_decision")
    await tell(loop, "feedback", text="use tabs")
    await tell(loop, "resume", mode="autonomous")
    now = await reaches(loop, lambda now: now.wakes_at)
    assert [each.id for each in now.feedback] == ["feedback-1"]
    assert now.feedback_consumed == ()
    await tell(loop, "skip_wait")
    await ended(loop)
    assert ["use tabs" in each["prompt"] for each in loop_fake.asked] == [False, True, True]
    assert [each.feedback for each in await checkpoints(loop)][2:] == [("feedback-1",), ("feedback-1",)]


async def test_it_is_not_said_twice_to_a_session_that_heard_it(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [limited("2026-01-01T00:00:00Z")]
    loop = await loop_fake.start()
    await loop.signal("feedback", {"text": "use tabs"})
    outcome = await ended(loop)
    assert outcome.iterations in (1, 2)  # the signal may come after the first prompt was made
    assert sum("use tabs" in each["prompt"] for each in loop_fake.asked) == 1


async def test_it_wakes_a_loop_that_waits(loop_fake: FakeLoopHost) -> None:
    loop_fake.verdicts = [exits(1), exits(1)]
    loop_fake.script = [result(), limited()]
    loop = await loop_fake.start(pause_between_s=3600)
    await reaches(loop, lambda now: now.wakes_at and now.iteration == 1)
    await tell(loop, "feedback", text="use tabs")
    now = await reaches(loop, "waiting_rate_limit")
    assert now.iteration == 2
    await tell(loop, "feedback", text="use tabs now")
    now = await reaches(loop, lambda now: now.status == "running" and now.wakes_at)
    assert now.iteration == 2
    assert "use tabs now" in loop_fake.asked[2]["prompt"]
    await tell(loop, "skip_wait")
    await ended(loop)


async def test_it_does_not_end_a_pause(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [HELD]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    await tell(loop, "pause", now=True)
    receipt = await tell(loop, "feedback", text="use tabs")
    assert (receipt.status, receipt.note) == ("paused", "for the next iteration")
    assert (await state(loop)).status == "paused"


@pytest.mark.exhaustive
async def test_there_is_only_so_much_room(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [HELD]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    for number in range(5):
        await tell(loop, "feedback", text="x" * 20_000, id=f"long-{number}")
    full = "too much feedback waits already: put it in a file and give its path"
    assert await refused(loop, "feedback", {"text": "x"}) == ("Refused", full)
    await tell(loop, "pause", now=True)
    assert await refused(loop, "resume", {"text": "x"}) == ("Refused", full)
    assert (await tell(loop, "feedback", text="again", id="long-0")).note == "it was given before"
    await tell(loop, "remove_feedback", id="long-0")
    for number in range(96):
        await tell(loop, "feedback", text="x", id=f"short-{number}")
    assert await refused(loop, "feedback", {"text": "x"}) == ("Refused", "100 pieces of feedback wait already")
