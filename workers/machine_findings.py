"""What is found on a machine for runs, however it is reached: clock, disk, programs, and whether a shim works there.

How it is reached, and what is wrong with that, must not live here.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Iterable, Mapping
from pathlib import PurePath

from activities.doctor import Check
from activities.ports.machine import Machine
from activities.runtimes.remote_machine import RemoteMachine
from activities.shim import client as shim

SAMPLES = 5
LEAST_FREE = 1_000_000_000
AGENTS = ("claude",)
"""Agents whose program has to be on PATH there."""


async def said(machine: Machine, *argv: str) -> str:
    """What a program says there, at most a line."""
    stream = await machine.exec(*argv, stdin=b"")
    try:
        line = await stream.stdout.read(4096)
        await stream.wait()
    finally:
        stream.kill()
    return line.decode("utf-8", "replace").strip().partition("\n")[0]


async def round_trip_ms(machine: Machine) -> float:
    """Until a program has begun and ended there: the median of some."""
    return statistics.median([await _timed(machine) for _ in range(SAMPLES)])


async def _timed(machine: Machine) -> float:
    begun = time.monotonic()
    await said(machine, "true")
    return 1000 * (time.monotonic() - begun)


def clock(clock_ms: int) -> Check:
    """`clock_ms`: see RemoteMachine."""
    if not clock_ms:
        return Check(check="clock there", detail="agrees with the one here")
    ahead = "behind" if clock_ms > 0 else "ahead"
    return Check(check="clock there", detail=f"{abs(clock_ms) / 1000:.0f} s {ahead}: times of events are corrected")


def disk(directory: PurePath, free: object) -> Check:
    """`free`: bytes in the home, as the machine says."""
    known = free if isinstance(free, int) else 0
    hint = "free some space: copies of workspaces live there"
    detail = f"{known / 1e9:.0f} GB free in the home; {directory}"
    return Check(check="disk there", ok=known > LEAST_FREE, detail=detail, hint="" if known > LEAST_FREE else hint)


async def programs(
    machine: Machine, paths: Mapping[str, str], agents: Iterable[str], hints: tuple[str, str]
) -> list[Check]:
    """git, and these agents' programs. `paths`: where a login has them; `hints`: for git, and for the others."""
    found = [await _program(machine, "git", paths, hints[0])]
    return [*found, *[await _program(machine, name, paths, hints[1]) for name in AGENTS if name in agents]]


async def _program(machine: Machine, name: str, paths: Mapping[str, str], hint: str) -> Check:
    path = paths.get(name)
    if path is None:
        return Check(check=f"{name} there", ok=False, detail="not on PATH of a login", hint=hint)
    return Check(check=f"{name} there", detail=f"{await said(machine, path, '--version')} at {path}")


async def shim_runs(machine: RemoteMachine, directory: PurePath, path: str) -> Check:
    """A shim runs a process to its end. `path`: PATH of a login there."""
    place = directory / "places" / f"probe-{os.getpid()}-{time.time_ns()}"
    begun = time.monotonic()
    spec = shim.Spec(argv=["true"], cwd="/", env={"PATH": path})
    await machine.access.start(place / "1", spec)
    async for _record in shim.records(place / "1", access=machine.access):
        pass
    async with await shim.connect(place / "1", epoch=None, access=machine.access) as connection:
        await connection.release()
    took = time.monotonic() - begun
    for _ in range(SAMPLES * 4):
        try:
            await machine.access.ask("remove", place)
            break
        except shim.AlreadyRunning:
            await asyncio.sleep(0.05)
    return Check(check="shim there", detail=f"ran a process in {took:.2f} s")
