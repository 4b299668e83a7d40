"""`steer dev`: a Temporal server with its Web UI on a file, and a worker, in the foreground of one terminal.

Nothing is restarted in silence: when one of them ends, dev says which and shows its last lines. A worker is replaced,
unless it ends again and again; else the others are ended, and dev exits with 1. Ctrl-C ends the worker first: a detach,
its agents work on until the next worker comes or their lease ends.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steersman.cli.exits import Exit
from steersman.cli.output import complain
from steersman.cli.worker_code import worker_command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steersman.cli.dev_processes import DevProcesses


SQLITE = b"SQLite format 3\0"
"""How a database of SQLite begins, as the server's is one."""


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

    from steersman.cli.dev_processes import run_all
    from steersman.cli.devserver import DevServerError, NoProgramError, blocked_ports, temporal_program
    from steersman.codec import codec_of
    from steersman.hosts import state_directory

    codec_of(os.environ)  # raises BadCodec before anything is started
    state = state_directory()
    try:
        program = temporal_program(temporal)
        worker = worker_command(*ctx.args)
        for number, option in ((port, "--port"), *(() if headless else ((ui_port, "--ui-port"),))):
            _check_free(number, option)
        hidden = blocked_ports(2, {port, ui_port})
    except DevServerError as error:
        complain(str(error))
        raise typer.Exit(Exit.NOT_FOUND if isinstance(error, NoProgramError) else Exit.FAILED) from error
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    ports = Ports(port, None if headless else ui_port, *hidden)
    database = (db or state / "dev.db").absolute()
    if wrong := _what_is_wrong(database):
        complain(wrong)
        raise typer.Exit(Exit.FAILED)
    with _held(database):
        raise typer.Exit(asyncio.run(run_all(_processes(program, worker, state, database, ports), port, ui_port)))


def _what_is_wrong(database: Path) -> str | None:
    """Why there cannot be the server's database: something else's file or directory is not to be touched."""
    try:
        if not database.parent.is_dir():
            return f"--db {database}: there is no directory {database.parent}"
        if not database.exists():
            return None
        if not database.is_file():
            return f"--db {database} is no file"
        with database.open("rb") as file:
            begins = file.read(len(SQLITE))
    except OSError as error:
        return f"--db {database}: {error.strerror}"
    return None if begins in (b"", SQLITE) else f"--db {database} is no database"


@contextlib.contextmanager
def _held(database: Path) -> "Iterator[None]":
    """No other `steer dev` has it meanwhile: two servers on one database stall each other's runs."""
    import fcntl

    real = database.resolve()  # a link is the same one
    with Path(f"{real}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            complain(f"another `steer dev` has {database}: give this one a database of its own with --db FILE")
            raise typer.Exit(Exit.FAILED) from error
        _close_to_others(real)
        yield


def _close_to_others(database: Path) -> None:
    """It has every prompt. One of an earlier version was as the umask had it."""
    for end in ("", "-wal", "-shm", "-journal"):
        with contextlib.suppress(OSError):
            path = Path(f"{database}{end}")
            path.chmod(path.stat().st_mode & 0o700)


@dataclass(frozen=True)
class Ports:
    """Where the processes listen."""

    server: int
    web: int | None
    """The proxy before the Web UI; None without one."""
    hidden_web: int
    """The Web UI itself, on a port that browsers do not connect to; the same of the metrics."""
    metrics: int


def _processes(program: str, worker: list[str], state: Path, database: Path, ports: Ports) -> "DevProcesses":
    from steersman.cli.child import Child
    from steersman.cli.dev_processes import DevProcesses
    from steersman.cli.devserver import IP, proxy_command, server_command

    hidden = ports.hidden_web if ports.web is not None else None
    server = server_command(program, ports.server, database, hidden, ports.metrics)
    environment = _environment(f"{IP}:{ports.server}")
    web = None
    if ports.web is not None:
        web = Child(
            "Web UI's proxy",
            proxy_command(ports.web, ports.hidden_web),
            state / f"{database.stem}-web.log",
            environment,
        )
    return DevProcesses(
        server=Child("Temporal server", server, state / f"{database.stem}-server.log", environment, private=True),
        web=web,
        worker=Child("worker", worker, state / f"{database.stem}-worker.log", environment),
    )


def _environment(address: str) -> dict[str, str]:
    """The environment of the processes: the worker connects to this server, whatever profile the user has."""
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
