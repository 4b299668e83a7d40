"""Coroutines run from code without an event loop."""

import gc
import os
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from steersman.portal import Portal
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
