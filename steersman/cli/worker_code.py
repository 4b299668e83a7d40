"""Where the code of workers is: in a directory of its own within the installed package, or in the checkout around it.

Nothing of it is imported here, or by clients: it runs as a program of its own, with that directory as its first place
to import from. So its top-level names, `activities` and `workflows`, are in nobody's way.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import typer

import steersman
from steersman.cli.exits import Exit
from steersman.cli.output import complain

INSTALLED = Path(steersman.__file__).resolve().parent / "_worker"
"""As wheels have it: see pyproject.toml."""
CHECKOUT = Path(steersman.__file__).resolve().parent.parent
_NEEDED = ("claude_agent_sdk", "jsonschema")
"""What the extra `worker` brings."""


def worker_command(*arguments: str) -> list[str]:
    """The command line of worker.py under this Python. Ends the command where there is none, and on Windows."""
    return [sys.executable, str(_worker_script()), *arguments]


def demo_command(agent: str) -> tuple[list[str], Path]:
    """The command line of the demonstration, and the directory in which it is run. Ends the command as above."""
    return [sys.executable, "-m", "bench.demo", agent], _worker_script().parent


def suite_command(agent: str, *arguments: str) -> tuple[list[str], Path]:
    """The command line of the conformance suite on one agent, and the directory in which it is run. Ends the command
    where there is no checkout, or the suite's tools are missing.
    """
    checkout = CHECKOUT
    suite = checkout / "tests" / "agents" / "test_conformance.py"
    tools = [name for name in ("pytest", "pytest_asyncio", "pytest_timeout", "xdist") if find_spec(name) is None]
    if tools or not suite.is_file():
        what = f"{', '.join(tools)} cannot be imported" if tools else f"{suite} does not exist"
        where = "the suite is run from a checkout of Steersman (make setup, or pip install -e '.[worker,conformance]')"
        complain(f"{what}: {where}")
        raise typer.Exit(Exit.USAGE)
    reaper = str(checkout / "tests" / "support" / "reaper.py")
    # Another package's warnings are its own affair, and the order is that of the file: a person reads this.
    options = ("-p", "no:cacheprovider", "-p", "no:randomly", "-W", "default", "--no-showlocals", "--agent", agent)
    pytest = [sys.executable, "-m", "pytest", str(suite), *options, *arguments]
    return [sys.executable, "-I", "-S", reaper, *pytest], checkout


def has_worker() -> bool:
    """Whether a worker could be run here."""
    return hasattr(os, "fork") and _script().is_file() and not _missing()


def _script() -> Path:
    return (INSTALLED if INSTALLED.is_dir() else CHECKOUT) / "worker.py"


def _missing() -> list[str]:
    return [name for name in _NEEDED if find_spec(name) is None]


def _worker_script() -> Path:
    if not hasattr(os, "fork"):
        complain(
            "workers run on Linux and macOS, and so does this command; from here runs can be followed and talked to"
        )
        raise typer.Exit(Exit.USAGE)
    script = _script()
    if not script.is_file():
        complain(f"{script} does not exist: install steersman anew, from its wheel or a whole checkout")
        raise typer.Exit(Exit.USAGE)
    if missing := _missing():
        complain(f"{', '.join(missing)} cannot be imported: install 'steersman[worker]' for this command")
        raise typer.Exit(Exit.USAGE)
    return script


def become_worker(arguments: list[str], environment: dict[str, str]) -> None:
    """Replace this process by the worker, so that signals reach the worker alone."""
    command = worker_command(*arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, {**os.environ, **environment})  # noqa: S606 - a shell would take the signals
