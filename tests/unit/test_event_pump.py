"""The event pump: a bounded number of items ahead, in their order, and the event loop is never kept from its turn."""

import asyncio
import io
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest
from rich.console import Console

from steersman.cli.terminal.event_pump import READ_AHEAD, EventPump, Note, SourceEnded
from steersman.cli.terminal.keyboard import Keyboard

COUNT = 3 * READ_AHEAD


async def counted(read: list[int], at_once: int = 1) -> AsyncGenerator[list[int], None]:
    for number in range(0, COUNT, at_once):
        read += range(number, number + at_once)
        yield read[-at_once:]


async def taken_at_once(pump: EventPump[int]) -> object:
    found = pump.next_at_once()
    return await pump.next() if found is None else found


async def taken_in_turn(pump: EventPump[int]) -> object:
    return await pump.next()


@pytest.mark.parametrize("take", [taken_in_turn, taken_at_once])
async def test_what_nobody_takes_is_not_read_without_end(take: Callable[[EventPump[int]], Awaitable[object]]) -> None:
    read: list[int] = []
    noted: list[int] = []
    keyboard = Keyboard(Console(file=io.StringIO()))
    pump = EventPump(counted(read), keyboard, noted.append)
    for _ in range(50):
        await asyncio.sleep(0)
    assert READ_AHEAD <= len(read) <= READ_AHEAD + 1
    pump.run_beside(_note())
    taken: list[object] = []
    try:
        while True:
            taken.append(await take(pump))
            assert len(read) <= len(taken) + READ_AHEAD + 1
    except SourceEnded:
        pass
    assert [each for each in taken if not isinstance(each, Note)] == read == noted == list(range(COUNT))
    assert taken.count(Note("said")) == 1
    assert not pump.has_more
    await pump.close()


async def _note() -> Note:
    return Note("said")


@pytest.mark.parametrize("at_once", [1, 50, COUNT])
@pytest.mark.parametrize("take", [taken_in_turn, taken_at_once])
async def test_ctrl_c_is_heard_in_the_middle_of_many_items(
    take: Callable[[EventPump[int]], Awaitable[object]], at_once: int
) -> None:
    keyboard = Keyboard(Console(file=io.StringIO()))
    pump = EventPump[int](counted([], at_once), keyboard, lambda _: None)
    assert await take(pump) == 0
    asyncio.get_running_loop().call_soon(keyboard.interrupt)  # as a signal's handler
    taken = 1
    while await take(pump) is not None:
        taken += 1
    assert taken < READ_AHEAD // 2
    await pump.close()
