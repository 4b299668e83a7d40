"""The processes of `steer dev`: each is started once the one before is ready, and all are ended at the end."""

import asyncio
import signal
import time
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta

from steersman import timeouts
from steersman.cli.child import Child
from steersman.cli.devserver import IP
from steersman.cli.exits import Exit
from steersman.cli.formatting import counted
from steersman.cli.output import complain, console, remark

READY_S = 60
"""Seconds within which each process must be ready."""
WORKER_GRACE_S = 60
"""Seconds from SIGTERM to SIGKILL; the same of the two below."""
WEB_GRACE_S = 5
SERVER_GRACE_S = 15
WORKER_READY = '"action": "worker_ready"'
MAX_ENDS, ENDS_WITHIN_S = 3, 60.0
"""A worker that ends so often within so many seconds is not replaced any more."""
AT_WORK = '("running", "waiting", "stopping")'
"""The phases of runs whose agents are there."""
COUNT_S = 2.0
"""The server may take this many seconds to say how many agents are at work."""
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
    """Run all until a signal comes (exit code 0), or until one of them ends by itself (1): see `_watch`."""
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
        return await _watch(processes, stop)
    finally:
        stop.clear()
        await _end(processes, port, stop)


async def _watch(processes: DevProcesses, stop: asyncio.Event) -> Exit:
    """Until a signal comes, or one of them ends by itself; a worker is replaced, unless it ends again and again."""
    ends: deque[float] = deque(maxlen=MAX_ENDS)
    stopped = asyncio.ensure_future(_set(stop))
    while True:
        watched = {child: asyncio.ensure_future(child.ended()) for child in processes.members}
        try:
            await asyncio.wait({stopped, *watched.values()}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in watched.values():
                each.cancel()
        ended = next((child for child in processes.members if not child.alive), None)
        if stop.is_set() or ended is None:
            return Exit.OK
        _report_end(ended)
        ends.append(time.monotonic())
        if ended is not processes.worker or (len(ends) == MAX_ENDS and ends[-1] - ends[0] < ENDS_WITHIN_S):
            return Exit.FAILED
        remark("starting another worker; agents at work go on")
        await ended.start()
        if not await _is_ready(ended.logged(WORKER_READY), ended, stop):
            return _report_end(ended) if not stop.is_set() else Exit.OK
        console().print(f"{ended.name} ready, log in {ended.log}", style="dim")


def _ready(processes: DevProcesses, child: Child, port: int, ui_port: int) -> Coroutine[None, None, None]:
    if child is processes.server:
        return _server_serves(port)
    return child.logged(WORKER_READY) if child is processes.worker else _ui_serves(child, ui_port)


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


async def _end(processes: DevProcesses, port: int, again: asyncio.Event) -> None:
    """End all, the worker first, while the server still takes its last calls. A second signal kills them at once."""
    if processes.worker.alive:
        remark(f"ending the worker; {await _at_work(port)}")
    await processes.worker.end(WORKER_GRACE_S, again)
    if processes.web:
        await processes.web.end(WEB_GRACE_S, again)
    if processes.server.alive:
        remark("ending the Temporal server")
    await processes.server.end(SERVER_GRACE_S, again)


async def _at_work(port: int) -> str:
    """How many agents go on without a worker, in words."""
    from temporalio.service import RPCError

    from steersman.client import Steersman
    from steersman.contracts.names import RUN_PHASE, RUN_WORKFLOW
    from steersman.errors import SteersmanError

    query = f'WorkflowType = "{RUN_WORKFLOW}" AND ExecutionStatus = "Running" AND {RUN_PHASE} IN {AT_WORK}'
    try:
        async with timeouts.timeout(COUNT_S):
            steersman = await Steersman.connect(address=f"{IP}:{port}", namespace="default")
            count = (await steersman.temporal.count_workflows(query)).count
    except (SteersmanError, RPCError, TimeoutError):
        return "agents at work go on by themselves"
    if not count:
        return "no agent is at work"
    goes = "goes on by itself" if count == 1 else "go on by themselves"
    return f"{counted(count, 'agent')} at work {goes} until a worker comes back, or their lease ends (15 minutes)"


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
