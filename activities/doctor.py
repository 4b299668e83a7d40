"""What this machine has for a worker: `worker.py check`, shown by `steer doctor`."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import Field

from activities.agents.agent_kind import AgentKind, Finding
from activities.agents.entry_points import HINT, Catalog
from activities.shim import client as shim
from steersman.contracts.model import TolerantModel


class Check(TolerantModel):
    """One thing that was looked at. `hint`: what to do about it. `lacks`: see Finding."""

    check: str
    ok: bool = True
    detail: str
    hint: str = ""
    lacks: bool = Field(default=False, exclude=True)


async def check_host(
    host: str, state: Path, environ: Mapping[str, str], codec: str | None, catalog: Catalog
) -> list[Check]:
    """Name, state directory, shim, agents, keys and the payload codec, as this process sees them."""
    coded = Check(check="payload codec", detail=codec or "none: Temporal holds what runs say in the clear")
    named = Check(check="host", detail=f"{host} (workspace.host of requests for this machine)")
    checked = [named, _state(state), await _shim(state)]
    made, unmade = catalog.make(environ, frozenset())
    checked += [check for name in made for check in _findings(catalog.kinds[name], catalog, environ)]
    checked += [Check(**asdict(finding)) for finding in (*catalog.problems, *unmade)]
    return [*checked, _git(), coded]


def agents_here(catalog: Catalog, environ: Mapping[str, str]) -> dict[str, Any]:
    """The agents of other packages, by name, and what is wrong with others."""
    made, unmade = catalog.make(environ, frozenset())
    agents = {
        name: {
            "package": package,
            "capabilities": catalog.kinds[name].at_most.model_dump(),
            "asked_for": dict(catalog.kinds[name].asked_for),
        }
        for name, package in catalog.packages.items()
        if name in made
    }
    return {"agents": agents, "problems": [asdict(problem) for problem in (*catalog.problems, *unmade)]}


def _findings(kind: AgentKind, catalog: Catalog, environ: Mapping[str, str]) -> list[Check]:
    package = catalog.packages.get(kind.name)
    if package is None:
        return [Check(**asdict(finding)) for finding in kind.findings(environ)]
    name = f"agent {kind.name}"
    try:
        return [Check(**asdict(finding)) for finding in (Finding(name, f"of {package}"), *kind.findings(environ))]
    except Exception as error:  # noqa: BLE001 - another package's: the other checks go on
        text = f"of {package}: its check failed: {type(error).__name__}: {error}"
        return [Check(check=name, detail=text, ok=False, hint=HINT)]


def _state(state: Path) -> Check:
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = state / f".probe-{os.getpid()}"
        probe.touch(mode=0o600)
        probe.unlink()
    except OSError as error:
        hint = "make it writable, or set STEERSMAN_STATE_DIR"
        return Check(check="state directory", ok=False, detail=f"{state}: {error}", hint=hint)
    free = shutil.disk_usage(state).free / 1e9
    hint = "" if free > 1 else "free some space: journals live here"
    return Check(check="state directory", ok=free > 1, detail=f"{state}, {free:.0f} GB free", hint=hint)


_NO_SHIM = "it needs a state directory on a local disk that takes Unix sockets: STEERSMAN_STATE_DIR names another"


async def _shim(state: Path) -> Check:
    directory = state / f".probe-shim-{os.getpid()}"
    began = time.monotonic()
    try:
        await shim.start(directory, shim.Spec(argv=["true"], cwd="/", env={"PATH": os.environ.get("PATH", "/bin")}))
        stream = shim.records(directory)
        async for _record in stream:
            pass
        async with await shim.connect(directory, epoch=None) as connection:
            await connection.release()
    except (shim.ShimError, OSError) as error:
        return Check(check="shim", ok=False, detail=str(error), hint=_NO_SHIM)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    weaker = "" if sys.platform == "linux" else "; this system has no subreaper: a stop is weaker here"
    return Check(check="shim", detail=f"ran a process in {time.monotonic() - began:.2f} s{weaker}")


def _git() -> Check:
    try:
        version = subprocess.run(["git", "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        # Runs do without it: no failure, and not silent either.
        return Check(check="git", detail=f"none ({error}): checkpoints of loops hold no files", hint="install git")
    return Check(check="git", detail=version.strip())
