"""What another machine has for runs: `worker.py check --on`, shown by `steer doctor --runtime ssh`."""

import asyncio
import os
import shlex
import statistics
import time
from collections.abc import Mapping
from pathlib import Path, PurePath

from activities.doctor import Check
from activities.ports.machine import Machine
from activities.runtimes.remote_machine import RemoteMachine
from activities.runtimes.ssh_machines import SshMachines
from activities.shim import client as shim
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.runtime import SshRuntime
from workers.settings import Settings

ANSWER_S = 60.0
SAMPLES = 5
LEAST_FREE = 1_000_000_000
AGENTS = ("claude",)
"""Agents whose program has to be on PATH there."""
_LINGER = """
cd /etc/systemd 2>/dev/null || exit 0
cat logind.conf logind.conf.d/*.conf 2>/dev/null | grep -qix 'KillUserProcesses=\\(yes\\|true\\|on\\|1\\)' || exit 0
[ -e "/var/lib/systemd/linger/$(id -un)" ] || echo killed
"""


async def check_machine(runtime: SshRuntime, settings: Settings) -> list[Check]:
    """One machine, as this process reaches it. Ends at what makes all else impossible."""
    machines = SshMachines(lambda _: _identity(runtime), settings.policy.environ, settings.ssh_config)
    checks = [_allowed(runtime, settings)]
    placement = runtime.model_dump(mode="json")
    try:
        async with asyncio.timeout(ANSWER_S):
            await _look(checks, machines.of(placement), machines.bulk(placement), settings)
    except (shim.ShimError, TimeoutError) as error:
        text = str(error) or f"no answer within {ANSWER_S:.0f} s"
        checks.append(Check(check=f"machine {runtime.name}", ok=False, detail=text, hint=_hint(error)))
    finally:
        await machines.aclose()
    return checks


async def _look(checks: list[Check], machine: RemoteMachine, plain: Machine, settings: Settings) -> None:
    begun = time.monotonic()
    await _said(plain, "true")
    reached = time.monotonic() - begun
    trips = [await _timed(plain) for _ in range(SAMPLES)]
    what = f"reached in {reached:.2f} s; from then on a program there begins within {statistics.median(trips):.0f} ms"
    checks.append(Check(check=f"machine {machine.name}", detail=what))
    answer = await machine.access.ask("info", '["git", "claude"]')
    directory = await machine.directory()
    checks.append(Check(check="python there", detail=str(answer.get("python"))))
    checks.append(_clock(await machine.clock_ms()))
    checks.append(_disk(directory, answer.get("free")))
    info = await machine.info(["git", *AGENTS])
    checks.append(await _program(plain, "git", info.programs, "workspaces cannot be copied there: install git"))
    for agent in AGENTS:
        if agent in settings.policy.agents:
            hint = "install it there, so that a login shell finds it"
            checks.append(await _program(plain, agent, info.programs, hint))
    checks.append(await _lingering(plain))
    checks.append(await _shim(machine, directory, info.environ.get("PATH", os.defpath)))


async def _said(machine: Machine, *argv: str) -> str:
    """What a program says there, at most a line."""
    stream = await machine.exec(*argv, stdin=b"")
    try:
        line = await stream.stdout.read(4096)
        await stream.wait()
    finally:
        stream.kill()
    return line.decode("utf-8", "replace").strip().partition("\n")[0]


async def _timed(machine: Machine) -> float:
    begun = time.monotonic()
    await _said(machine, "true")
    return 1000 * (time.monotonic() - begun)


def _allowed(runtime: SshRuntime, settings: Settings) -> Check:
    # No failure: the worker of another terminal may have been started with more.
    try:
        settings.policy.check_runtime(runtime)
    except InvalidRequest as error:
        flags = f"--allow-ssh {shlex.quote(runtime.name)}"
        text = f"a worker with the settings of this terminal refuses it, one with {flags} does not: {error.message}"
        return Check(check="policy", detail=text)
    return Check(check="policy", detail=f"{runtime.name} is allowed to requests in this environment")


def _identity(runtime: SshRuntime) -> Path | None:
    return Path(runtime.identity_file) if runtime.identity_file else None


def _hint(error: Exception) -> str:
    if isinstance(error, shim.MachineUnusable):
        return "see docs/ssh.md"
    return "is it up, and does ssh by hand reach it as the worker's user?"


def _clock(clock_ms: int) -> Check:
    if not clock_ms:
        return Check(check="clock there", detail="agrees with the one here")
    ahead = "behind" if clock_ms > 0 else "ahead"
    return Check(check="clock there", detail=f"{abs(clock_ms) / 1000:.0f} s {ahead}: times of events are corrected")


def _disk(directory: PurePath, free: object) -> Check:
    known = free if isinstance(free, int) else 0
    hint = "free some space: copies of workspaces live there"
    detail = f"{known / 1e9:.0f} GB free in the home; {directory}"
    return Check(check="disk there", ok=known > LEAST_FREE, detail=detail, hint="" if known > LEAST_FREE else hint)


async def _program(machine: Machine, name: str, paths: Mapping[str, str], hint: str) -> Check:
    path = paths.get(name)
    if path is None:
        return Check(check=f"{name} there", ok=False, detail="not on PATH of a login", hint=hint)
    return Check(check=f"{name} there", detail=f"{await _said(machine, path, '--version')} at {path}")


async def _lingering(machine: Machine) -> Check:
    if await _said(machine, "sh", "-c", _LINGER) == "killed":
        hint = "loginctl enable-linger, as that user there"
        detail = "what a user has started ends with the last connection (KillUserProcesses)"
        return Check(check="sessions there", ok=False, detail=detail, hint=hint)
    return Check(check="sessions there", detail="what was started goes on without a connection")


async def _shim(machine: RemoteMachine, directory: PurePath, path: str) -> Check:
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
