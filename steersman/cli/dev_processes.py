"""The processes of `steer dev`: each is started once the one before is ready, and all are ended at the end."""

import asyncio
import signal
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta

from steersman.cli.child import Child
from steersman.cli.devserver import IP
from steersman.cli.exits import Exit
from steersman.cli.output import complain, console, remark

READY_S = 60
"""Seconds within which each process must be ready."""
WORKER_GRACE_S = 60
"""Seconds from SIGTERM to SIGKILL; the same of the two below."""
WEB_GRACE_S = 5
SERVER_GRACE_S = 15
KEEP = timedelta(days=30)
"""The dev server keeps closed runs for so long: as a worker keeps their state by default. Its own default is a day."""


@dataclass(frozen=True)
class DevProcesses:
    """The processes of one `steer dev`. `web`: the proxy before the Web UI; None without one."""

    server: Child
    web: Child | None
    worker: Child

    @property
    def members(self) -> list[Child]:
        """All of them, in the order in which they are started."""
        return [self.server, *([self.web] if self.web else []), self.worker]


async def run_all(processes: DevProcesses, port: int, ui_port: int) -> Exit:
    """Run all until a signal comes (exit code 0), or until one of them ends by itself (1)."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    try:
        for child in processes.members:
            await child.start()
            if not await _is_ready(_ready(processes, child, port, ui_port), child, stop):
                return _report_end(child) if not stop.is_set() else Exit.OK
            console().print(f"{child.name} ready, log in {child.log}", style="dim")
        _print_addresses(port, ui_port if processes.web else None)
        ends = {child: asyncio.ensure_future(child.ended()) for child in processes.members}
        stopped = asyncio.ensure_future(_set(stop))
        await asyncio.wait({stopped, *ends.values()}, return_when=asyncio.FIRST_COMPLETED)
        ended = next((child for child, end in ends.items() if end.done()), None)
        return _report_end(ended) if ended else Exit.OK
    finally:
        stop.clear()
        await _end(processes, stop)


def _ready(processes: DevProcesses, child: Child, port: int, ui_port: int) -> Coroutine[None, None, None]:
    if child is processes.server:
        return _server_serves(port)
    return child.logged('"action": "worker_ready"') if child is processes.worker else _ui_serves(child, ui_port)


def _print_addresses(port: int, ui_port: int | None) -> None:
    out = console()
    if ui_port is not None:
        out.print(f"Web UI   http://{IP}:{ui_port}/namespaces/default/workflows", style="bold green")
    out.print(f"Temporal {IP}:{port}", style="bold green")
    where = "" if port == 7233 else f" --address {IP}:{port}"
    out.print(f"Try in another terminal: steer{where} run claude 'What is in this directory?'")
    out.print("Ctrl-C ends them all; agents at work go on until a worker comes back.", style="dim")


def _report_end(child: Child) -> Exit:
    complain(f"the {child.name} ended by itself ({child.ending()}); its last lines, from {child.log}:")
    for line in child.last_lines():
        remark(f"  {line}", "")
    return Exit.FAILED


async def _is_ready(ready: Coroutine[None, None, None], child: Child, stop: asyncio.Event) -> bool:
    """Whether the process is ready before it ends, `stop` is set, or `READY_S` are over."""
    done = asyncio.ensure_future(ready)
    waits = {done, asyncio.ensure_future(child.ended()), asyncio.ensure_future(_set(stop))}
    try:
        await asyncio.wait(waits, timeout=READY_S, return_when=asyncio.FIRST_COMPLETED)
        if done.done():
            await done
        return done.done()
    finally:
        for each in waits:
            each.cancel()


async def _set(event: asyncio.Event) -> None:
    await event.wait()


async def _end(processes: DevProcesses, again: asyncio.Event) -> None:
    """End all, the worker first, while the server still takes its last calls. A second signal kills them at once."""
    if processes.worker.alive:
        remark("ending the worker; agents at work go on by themselves")
    await processes.worker.end(WORKER_GRACE_S, again)
    if processes.web:
        await processes.web.end(WEB_GRACE_S, again)
    if processes.server.alive:
        remark("ending the Temporal server")
    await processes.server.end(SERVER_GRACE_S, again)


async def _server_serves(port: int) -> None:
    """Return once the server lists workflows of its namespace, and has been told how long to keep closed runs."""
    from steersman._client.server_checks import keep_closed_runs
    from steersman.cli.connection import silence_sdk_logs
    from steersman.client import Steersman
    from steersman.errors import SteersmanError

    silence_sdk_logs()
    while True:
        try:
            steersman = await Steersman.connect(address=f"{IP}:{port}", namespace="default")
            await steersman.list(limit=1)
            await keep_closed_runs(steersman.temporal, KEEP)
        except SteersmanError:
            await asyncio.sleep(0.1)
        else:
            return


async def _ui_serves(proxy: Child, port: int) -> None:
    """Return once the Web UI behind its proxy has reached the server.

    Before that, for up to a second, its pages are an "Internal Error" which stays until somebody reloads them.
    """
    import httpx2

    await proxy.logged("Uvicorn running on")
    async with httpx2.AsyncClient(trust_env=False) as client:
        while True:
            if (await client.get(f"http://{IP}:{port}/api/v1/cluster-info")).is_success:
                return
            await asyncio.sleep(0.05)
