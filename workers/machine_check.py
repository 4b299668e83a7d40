"""What another machine has for runs: `worker.py check --on`, shown by `steer doctor --runtime ssh`."""

import os
import shlex
import time

from activities.doctor import Check
from activities.ports.machine import Machine
from activities.runtimes.remote_machine import RemoteMachine
from activities.runtimes.ssh_machines import SshMachines
from activities.shim import client as shim
from steersman import timeouts
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.runtime import SshRuntime
from workers import machine_findings as findings
from workers.settings import Settings

ANSWER_S = 60.0
_PROGRAM_HINTS = (
    "workspaces cannot be copied there: install git",
    "install it there, so that a login shell finds it",
)
_LINGER = """
cd /etc/systemd 2>/dev/null || exit 0
cat logind.conf logind.conf.d/*.conf 2>/dev/null | grep -qix 'KillUserProcesses=\\(yes\\|true\\|on\\|1\\)' || exit 0
[ -e "/var/lib/systemd/linger/$(id -un)" ] || echo killed
"""


async def check_machine(runtime: SshRuntime, settings: Settings) -> list[Check]:
    """One machine, as this process reaches it. Ends at what makes all else impossible."""
    machines = SshMachines(lambda _: None, settings.policy.environ, settings.ssh_config)
    checks = [_allowed(runtime, settings)]
    try:
        async with timeouts.timeout(ANSWER_S):
            await _look(checks, machines.machine(runtime), machines.connection(runtime), settings)
    except (shim.ShimError, TimeoutError) as error:
        text = str(error) or f"no answer within {ANSWER_S:.0f} s"
        checks.append(Check(check=f"machine {runtime.name}", ok=False, detail=text, hint=_hint(error)))
    finally:
        await machines.aclose()
    return checks


async def _look(checks: list[Check], machine: RemoteMachine, plain: Machine, settings: Settings) -> None:
    begun = time.monotonic()
    await findings.said(plain, "true")
    reached = time.monotonic() - begun
    trip_ms = await findings.round_trip_ms(plain)
    what = f"reached in {reached:.2f} s; from then on a program there begins within {trip_ms:.0f} ms"
    checks.append(Check(check=f"machine {machine.name}", detail=what))
    answer = await machine.access.ask("info", '["git", "claude"]')
    directory = await machine.directory()
    checks.append(Check(check="python there", detail=str(answer.get("python"))))
    checks.append(findings.clock(await machine.clock_ms()))
    checks.append(findings.disk(directory, answer.get("free")))
    info = await machine.info(["git", *findings.AGENTS])
    checks += await findings.programs(plain, info.programs, settings.policy.agents, _PROGRAM_HINTS)
    checks.append(await _lingering(plain))
    checks.append(await findings.shim_runs(machine, directory, info.environ.get("PATH", os.defpath)))


def _allowed(runtime: SshRuntime, settings: Settings) -> Check:
    # No failure: the worker of another terminal may have been started with more.
    try:
        settings.policy.check_runtime(runtime)
    except InvalidRequest as error:
        flags = f"--allow-ssh {shlex.quote(runtime.name)}"
        text = f"a worker with the settings of this terminal refuses it, one with {flags} does not: {error.message}"
        return Check(check="policy", detail=text)
    return Check(check="policy", detail=f"{runtime.name} is allowed to requests in this environment")


def _hint(error: Exception) -> str:
    if isinstance(error, shim.MachineUnusable):
        return "see docs/ssh.md"
    return "is it up, and does ssh by hand reach it as the worker's user?"


async def _lingering(machine: Machine) -> Check:
    if await findings.said(machine, "sh", "-c", _LINGER) == "killed":
        hint = "loginctl enable-linger, as that user there"
        detail = "what a user has started ends with the last connection (KillUserProcesses)"
        return Check(check="sessions there", ok=False, detail=detail, hint=hint)
    return Check(check="sessions there", detail="what was started goes on without a connection")
