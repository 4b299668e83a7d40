"""What `steer dev` does once it knows what to start: server, then worker, ready, and all ended whatever happens."""

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
WORKER_GRACE_S = 60
WEB_GRACE_S = 5
SERVER_GRACE_S = 15
KEEP = timedelta(days=30)
"""As long as a worker keeps the state of closed runs by default; a new dev server forgets them after a day."""


@dataclass(frozen=True)
class DevProcesses:
    """The processes of one `steer dev`. `web`: the proxy before the Web UI; None without one."""

    server: Child
    web: Child | None
    worker: Child

    @property
    def members(self) -> list[Child]:
        """In the order in which they are started."""
        return [self.server, *([self.web] if self.web else []), self.worker]


async def run_all(cast: DevProcesses, port: int, ui_port: int) -> Exit:
    """Until a signal (0) or until one of them ends by itself (1)."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    try:
        for child in cast.members:
            await child.start()
            if not await _is_ready(_ready(cast, child, port), child, stop):
                return _report_end(child) if not stop.is_set() else Exit.OK
            console().print(f"{child.name} ready, log in {child.log}", style="dim")
        _print_addresses(port, ui_port if cast.web else None)
        ends = {child: asyncio.ensure_future(child.ended()) for child in cast.members}
        stopped = asyncio.ensure_future(_set(stop))
        await asyncio.wait({stopped, *ends.values()}, return_when=asyncio.FIRST_COMPLETED)
        fallen = next((child for child, end in ends.items() if end.done()), None)
        return _report_end(fallen) if fallen else Exit.OK
    finally:
        stop.clear()
        await _end(cast, stop)


def _ready(cast: DevProcesses, child: Child, port: int) -> Coroutine[None, None, None]:
    if child is cast.server:
        return _server_serves(port)
    return child.logged('"action": "worker_ready"' if child is cast.worker else "Uvicorn running on")


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
    """Whether it got ready, before it ended or somebody lost patience."""
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


async def _end(cast: DevProcesses, again: asyncio.Event) -> None:
    """The worker first, so that it can say goodbye. A second signal hurries them."""
    if cast.worker.alive:
        remark("ending the worker; agents at work go on by themselves")
    await cast.worker.end(WORKER_GRACE_S, again)
    if cast.web:
        await cast.web.end(WEB_GRACE_S, again)
    if cast.server.alive:
        remark("ending the Temporal server")
    await cast.server.end(SERVER_GRACE_S, again)


async def _server_serves(port: int) -> None:
    """Return once the server serves its namespace."""
    from steersman.cli.connection import silence_sdk_logs
    from steersman.client import Steersman
    from steersman.errors import SteersmanError
    from steersman.serverchecks import keep_closed_runs

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
