"""Coroutines run from code without an event loop."""

import asyncio
import gc
import os
import random
import threading
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from steersman.portal import Portal, PortalClosed
from tests.support.processes import until


async def test_an_iterator_that_is_abandoned_is_closed_whoever_finds_it() -> None:
    """Python may find it in any thread, the portal's own among them."""
    closed: list[str] = []

    async def items(name: str) -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            closed.append(name)

    async def collect() -> None:
        gc.collect()

    portal = Portal()
    try:
        for name, find in (("here", gc.collect), ("there", lambda: portal.call(collect()))):
            abandoned: list[Any] = [portal.iterate(items(name))]
            assert next(abandoned[0]) == 1
            abandoned.append(abandoned)  # a cycle: only a collection finds it
            gc.disable()
            del abandoned
            find()
            gc.enable()
            await until(lambda: name in closed)  # noqa: B023 - called within the round
        portal.close()
        with pytest.raises(RuntimeError, match="closed"):
            portal.call(collect())
    finally:
        portal.close()


async def without_end() -> AsyncGenerator[int, None]:
    while True:
        await asyncio.sleep(0)
        yield 1


async def counted(number: int) -> int:
    await asyncio.sleep(0 if number % 100 else 3600)
    return number


def use(portal: Portal, how: str) -> None:
    if how == "iterates":
        for _ in portal.iterate(without_end()):
            pass
    number = 0
    while True:
        number = portal.call(counted(number + 1))


@pytest.mark.parametrize("uses", ["calls", "iterates"])
def test_whoever_waits_while_it_is_closed_is_told(uses: str) -> None:
    for _ in range(40):
        portal = Portal()
        with ThreadPoolExecutor(4) as threads:
            used = [threads.submit(use, portal, uses) for _ in range(4)]
            time.sleep(random.uniform(0, 0.02))
            closing = [threading.Thread(target=portal.close) for _ in range(2)]
            for each in closing:
                each.start()
            for each in closing:
                each.join(30)
                assert not each.is_alive()
            for future in used:
                with pytest.raises(PortalClosed, match="closed"):
                    future.result(30)


@pytest.mark.linux
def test_a_child_that_was_forked_is_told_that_it_has_none() -> None:
    """A fork takes no thread along: whoever waited for this one would do so for ever."""
    portal = Portal()

    async def work() -> None:
        pass

    child = os.fork()
    if child == 0:
        code = 1
        try:
            portal.call(work())
        except RuntimeError as error:
            portal.close()
            code = 0 if "another process" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    portal.close()
