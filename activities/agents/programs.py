"""The program of an agent that is found on PATH: where it is, and what the doctor says of it."""

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence

from activities.agents.agent_kind import Finding
from activities.ports.place import PlaceInfo
from steersman.contracts.errors import AgentNotInstalled, RunError

VERSION_S = 30
"""A program may take this many seconds to say its version."""


def on_path(name: str, environ: Mapping[str, str], place: PlaceInfo | None, hint: str) -> str:
    """The path of the program of this name, on this machine or another one. Raises AgentNotInstalled.

    `hint`: how it is installed.
    """
    where = f"a login on {place.name}" if place else "this host"
    found = place.programs.get(name) if place else shutil.which(name, path=environ.get("PATH"))
    if found is None:
        raise AgentNotInstalled(f"{name}: not on PATH of {where}: {hint}")
    return found


def findings(
    name: str,
    program: Callable[[], str],
    version_of: Callable[[str], Sequence[str]],
    key: Callable[[], Finding],
    hint: str,
) -> Sequence[Finding]:
    """What the doctor says of an agent's program and key. It starts a process.

    Args:
        name: the agent's. Where it is not installed that is no failure: a worker need not have every agent.
        program: its path. Raises RunError.
        version_of: the command line that prints its version, by its path. Raises RunError.
        key: what is said of the key of a program that runs.
        hint: how it is installed.
    """
    check = f"agent {name}"
    try:
        path = program()
    except RunError:
        return (Finding(check, f"not installed ({hint})"),)
    found = version(check, path, version_of, hint)
    return (found, key()) if found.ok else (found,)


def version(check: str, path: str, version_of: Callable[[str], Sequence[str]], hint: str) -> Finding:
    """What the doctor says of a program that is there, see `findings`. It starts a process."""
    try:
        argv = version_of(path)
        said = subprocess.run(argv, capture_output=True, text=True, timeout=VERSION_S, check=True).stdout
    except (RunError, OSError, subprocess.SubprocessError) as error:
        return Finding(check, f"{path}: {_reason(error)}", ok=False, hint=hint)
    return Finding(check, f"{said.strip()} at {path}")


def _reason(error: Exception) -> str:
    """Why a program could not be asked for its version: what it said itself, where it said something."""
    if isinstance(error, subprocess.CalledProcessError):
        said = str(error.stderr or error.stdout or "").strip().splitlines()
        code = error.returncode
        ended = f"ended with exit code {code}" if code >= 0 else f"was ended by signal {-code}"
        return f"{ended}: {said[-1][:200]}" if said else ended
    if isinstance(error, subprocess.TimeoutExpired):
        return f"did not say its version in {VERSION_S} s"
    return str(error)
