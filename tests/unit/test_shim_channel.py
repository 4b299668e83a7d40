"""A lease goes on being renewed, whatever comes between a worker and its shim for a while."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from activities.runtimes.shim_channel import ShimChannel
from activities.shim import client as shim
from tests.support.processes import until


class Broken:
    """A connection that the shim no longer answers."""

    hello = SimpleNamespace(seq=1, state="running", lease_left=timedelta(seconds=1))

    async def status(self) -> None:
        raise shim.ShimUnresponsive("no answer")

    async def aclose(self) -> None: ...


class Whole:
    """One that it answers."""

    renewed = 0

    async def status(self) -> None:
        self.renewed += 1

    async def aclose(self) -> None: ...


class Troubled:
    """A ShimHandle by which nothing can be asked at first."""

    def __init__(self, trouble: Exception) -> None:
        self.trouble: list[Exception] = [trouble]
        self.connection = Whole()

    async def connect(self, _epoch: int | None) -> Whole:
        if self.trouble:
            raise shim.ShimUnresponsive("no answer")
        return self.connection

    async def is_alive(self) -> bool:
        if self.trouble:
            raise self.trouble.pop()
        return True

    async def thaw(self) -> bool:
        raise shim.StartFailed("[Errno 24] Too many open files")


@pytest.mark.parametrize(
    "trouble",
    [
        shim.StartFailed("[Errno 24] Too many open files"),
        shim.AlreadyRunning("another one looks"),
        shim.MachineUnreachable("no way"),
    ],
)
async def test_a_look_that_says_nothing_ends_no_renewal(trouble: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.runtimes.shim_channel._PAUSE_S", 0.01)
    handle: Any = Troubled(trouble)
    broken: Any = Broken()

    async def nothing() -> shim.Clearance:
        return shim.Clearance(0)

    channel = ShimChannel(handle, nothing, None, 1, broken)
    await until(lambda: handle.connection.renewed > 1)
    async with asyncio.timeout(5):
        await channel.close()
