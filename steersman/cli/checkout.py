"""The checkout beside the installed package: only `steersman` is a distribution, the worker runs from its sources."""

import os
import sys
from pathlib import Path

import typer

import steersman
from steersman.cli.exits import Exit
from steersman.cli.output import complain


def worker_command(*arguments: str) -> list[str]:
    """The command line of worker.py under this Python. Ends the command where there is no checkout, and on Windows."""
    return [sys.executable, str(_worker_script()), *arguments]


def _worker_script() -> Path:
    if not hasattr(os, "fork"):
        complain(
            "workers run on Linux and macOS, and so does this command; from here runs can be followed and talked to"
        )
        raise typer.Exit(Exit.USAGE)
    script = Path(steersman.__file__).resolve().parent.parent / "worker.py"
    if not script.is_file():
        complain(f"{script} does not exist: run steer from a checkout of Steersman (pip install -e .) for this command")
        raise typer.Exit(Exit.USAGE)
    return script


def become_worker(arguments: list[str], environment: dict[str, str]) -> None:
    """Replace this process by the worker, so that signals reach the worker alone."""
    command = worker_command(*arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, {**os.environ, **environment})  # noqa: S606 - a shell would take the signals
