"""What this machine has for a worker: `worker.py check`, shown by `steer doctor`."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from activities.agents.claude import ClaudeAgent
from activities.shim import client as shim
from steersman.contracts.errors import RunError
from steersman.contracts.model import TolerantModel

KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")


class Check(TolerantModel):
    """One thing that was looked at. `hint`: what to do about it."""

    check: str
    ok: bool = True
    detail: str
    hint: str = ""


async def check_host(host: str, state: Path, environ: Mapping[str, str], codec: str | None) -> list[Check]:
    """Name, state directory, shim, agents, keys and the payload codec, as this process sees them."""
    coded = Check(check="payload codec", detail=codec or "none: Temporal holds what runs say in the clear")
    named = Check(check="host", detail=f"{host} (runtime.host of requests for this machine)")
    return [named, _state(state), await _shim(state), _claude(), _keys(environ), _git(), coded]


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
        return Check(check="shim", ok=False, detail=str(error), hint="see the README's troubleshooting")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    weaker = "" if sys.platform == "linux" else "; this system has no subreaper: a stop is weaker here"
    return Check(check="shim", detail=f"ran a process in {time.monotonic() - began:.2f} s{weaker}")


def _claude() -> Check:
    try:
        program = ClaudeAgent({}).program()
        version = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (RunError, OSError, subprocess.SubprocessError) as error:
        hint = "pip install claude-agent-sdk (make setup does)"
        return Check(check="agent claude", ok=False, detail=str(error), hint=hint)
    return Check(check="agent claude", detail=f"{version.strip()} at {program}")


def _git() -> Check:
    try:
        version = subprocess.run(["git", "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        # Runs do without it: no failure, and not silent either.
        return Check(check="git", detail=f"none ({error}): checkpoints of loops hold no files", hint="install git")
    return Check(check="git", detail=version.strip())


def _keys(environ: Mapping[str, str]) -> Check:
    found = [key for key in KEYS if environ.get(key)]
    config = Path(environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")
    if (config / ".credentials.json").is_file():
        found.append(str(config / ".credentials.json"))
    # Another terminal's worker may have one: to have none here is no failure, and must not be silent either.
    none = "none in this environment; where the worker is started, set ANTHROPIC_API_KEY or log in with `claude`"
    return Check(check="key for claude", detail=", ".join(found) or none)
