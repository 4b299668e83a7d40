"""The event pump: a bounded number of items ahead, in their order, and the event loop is never kept from its turn."""

import asyncio
import io
from collections.abc import AsyncGenerator

from rich.console import Console

from steersman.cli.terminal.event_pump import READ_AHEAD, EventPump, Note, SourceEnded
from steersman.cli.terminal.keyboard import Keyboard

COUNT = 3 * READ_AHEAD


async def counted(read: list[int]) -> AsyncGenerator[int, None]:
    for number in range(COUNT):
        read.append(number)
        yield number


async def test_what_nobody_takes_is_not_read_without_end() -> None:
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
            taken.append(await pump.next())
            assert len(read) <= len(taken) + READ_AHEAD + 1
    except SourceEnded:
        pass
    assert [each for each in taken if not isinstance(each, Note)] == read == noted == list(range(COUNT))
    assert taken.count(Note("said")) == 1
    assert not pump.has_more
    await pump.close()


async def _note() -> Note:
    return Note("said")


async def test_ctrl_c_is_heard_in_the_middle_of_many_items() -> None:
    keyboard = Keyboard(Console(file=io.StringIO()))
    pump = EventPump(counted([]), keyboard, lambda _: None)
    assert await pump.next() == 0
    asyncio.get_running_loop().call_soon(keyboard.interrupt)  # as a signal's handler
    taken = 1
    while await pump.next() is not None:
        taken += 1
    assert taken < READ_AHEAD // 2
    await pump.close()
