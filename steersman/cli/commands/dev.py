"""`steer dev`: a Temporal server with its Web UI on a file, and a worker, in the foreground of one terminal.

Nothing is restarted in silence: when one of them ends, dev says which, shows its last lines, ends the others and
exits with 1. Ctrl-C ends the worker first: a detach, its agents work on until the next worker comes or their lease
ends.
"""

import os
from pathlib import Path
from typing import Annotated

import typer

from steersman.cli.checkout import worker_command
from steersman.cli.exits import Exit
from steersman.cli.output import complain


def dev(
    ctx: typer.Context,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Of the Temporal server.")] = 7233,
    ui_port: Annotated[int, typer.Option(min=1, max=65535, help="Of the Web UI.")] = 8233,
    db: Annotated[Path | None, typer.Option(help="The server's database; default: in the state directory.")] = None,
    headless: Annotated[bool, typer.Option("--headless", help="Without the Web UI.")] = False,
    temporal: Annotated[
        Path | None,
        typer.Option(
            envvar="STEERSMAN_TEMPORAL",
            help="The `temporal` program; default: the one of the package, else the one on PATH.",
        ),
    ] = None,
) -> None:
    """Run a local Temporal server and a worker, until Ctrl-C. Further options go to the worker."""
    import asyncio

    from steersman.cli.child import Child
    from steersman.cli.dev_processes import DevProcesses, run_all
    from steersman.cli.devserver import (
        IP,
        DevServerError,
        NoProgramError,
        blocked_ports,
        proxy_command,
        server_command,
        temporal_program,
    )
    from steersman.codec import codec_of
    from steersman.hosts import state_directory

    codec_of(os.environ)  # a wrong one is told before anything is started
    state = state_directory()
    try:
        program = temporal_program(temporal)
        worker = worker_command(*ctx.args)
        for number, option in ((port, "--port"), *(() if headless else ((ui_port, "--ui-port"),))):
            _check_free(number, option)
        hidden, metrics = blocked_ports(2, {port, ui_port})
    except DevServerError as error:
        complain(str(error))
        raise typer.Exit(Exit.NOT_FOUND if isinstance(error, NoProgramError) else Exit.FAILED) from error
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    database = (db or state / "dev.db").absolute()
    server = server_command(program, port, database, None if headless else hidden, metrics)
    environment = _environment(f"{IP}:{port}")
    web = Child("Web UI's proxy", proxy_command(ui_port, hidden), state / "dev-web.log", environment)
    cast = DevProcesses(
        server=Child("Temporal server", server, state / "dev-server.log", environment),
        web=None if headless else web,
        worker=Child("worker", worker, state / "dev-worker.log", environment),
    )
    raise typer.Exit(asyncio.run(run_all(cast, port, ui_port)))


# What the children need.


def _environment(address: str) -> dict[str, str]:
    """The worker talks to this server, whatever profile the user has for others."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")}
    return {
        **kept,
        "TEMPORAL_ADDRESS": address,
        "TEMPORAL_NAMESPACE": "default",
        "TEMPORAL_CONFIG_FILE": os.devnull,
    }


def _check_free(port: int, option: str) -> None:
    import socket

    from steersman.cli.devserver import IP

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((IP, port))
        except OSError as error:
            complain(
                f"port {port} cannot be used ({error.strerror}): is another `steer dev` running? Choose with {option}"
            )
            raise typer.Exit(Exit.FAILED) from error
