"""Which runs a worker asks for, and which of those that come it leads."""

import asyncio
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.worker import SlotPermit, SlotReleaseContext

from activities.takeover.run_slots import RunSlots
from steersman.contracts.activities import RunKey

CONTEXT: Any = None
NEW, ONE, OTHER = (RunKey(run=name, execution="e") for name in ("new", "one", "other"))


async def polls(slots: RunSlots, count: int) -> list[asyncio.Task[SlotPermit]]:
    """So many polls are asked for at once; those that have a slot are done."""
    asked = [asyncio.create_task(slots.reserve_slot(CONTEXT)) for _ in range(count)]
    await settled()
    return asked


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def reserved(asked: list[asyncio.Task[SlotPermit]]) -> int:
    return sum(each.done() for each in asked)


async def release(slots: RunSlots) -> None:
    await asyncio.to_thread(slots.release_slot, SlotReleaseContext(slot_info=None, permit=SlotPermit()))
    await settled()


async def test_as_many_as_there_is_room_for() -> None:
    slots = RunSlots(2)
    asked = await polls(slots, 5)
    assert reserved(asked) == 2
    await release(slots)
    assert reserved(asked) == 3


async def test_more_for_agents_at_work_that_nobody_leads_and_for_them_alone() -> None:
    slots = RunSlots(1)
    with slots.leading(NEW):
        asked = await polls(slots, 3)
        assert reserved(asked) == 1
        slots.expect([ONE, OTHER])
        await settled()
        assert reserved(asked) == 3
        await slots.refuse_without_place(ONE)
        with slots.leading(ONE):
            with pytest.raises(ApplicationError, match="agents at work go first"):
                await slots.refuse_without_place(RunKey(run="newer", execution="e"))
            await release(slots)
            # Led beyond its room, it asks for the one that is left.
            assert reserved(await polls(slots, 3)) == 1


async def test_a_place_is_kept_for_an_agent_at_work_until_somebody_leads_it() -> None:
    slots = RunSlots(1)
    slots.expect([ONE])
    with pytest.raises(ApplicationError):
        await slots.refuse_without_place(NEW)
    asked = asyncio.create_task(slots.refuse_without_place(NEW))
    await settled()
    slots.expect(())  # another worker leads it
    await asked


async def test_what_is_led_here_is_expected_no_more() -> None:
    slots = RunSlots(2)
    with slots.leading(ONE):
        slots.expect([ONE])
        await slots.refuse_without_place(NEW)
    with slots.leading(NEW):
        assert reserved(await polls(slots, 3)) == 2


async def test_no_further_polls_while_a_run_is_about_to_be_refused() -> None:
    slots = RunSlots(1)
    slots.expect([ONE])
    assert reserved(await polls(slots, 1)) == 1
    refusal = asyncio.create_task(slots.refuse_without_place(NEW))
    await settled()
    (asked,) = await polls(slots, 1)
    assert not asked.done()
    with pytest.raises(ApplicationError):
        await refusal
    await asked  # places are kept for one that may be there


async def test_a_place_that_is_free_again_is_asked_for_at_once() -> None:
    slots = RunSlots(1)
    with slots.leading(ONE):
        refusal = asyncio.create_task(slots.refuse_without_place(NEW))
        await settled()
    await refusal
    assert reserved(await polls(slots, 1)) == 1
