"""The host's name and its state directory.

A host is one machine, one user and one state directory: only a worker with all three the same can take over its runs.
Reads the environment and the system; must not be imported by workflow code.
"""

import getpass
import hashlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path


def state_directory(env: Mapping[str, str] = os.environ) -> Path:
    """STEERSMAN_STATE_DIR, else ${XDG_STATE_HOME:-~/.local/state}/steersman; absolute. It may not exist yet."""
    if explicit := env.get("STEERSMAN_STATE_DIR"):
        return Path(explicit).expanduser().absolute()
    base = env.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    return Path(base).absolute() / "steersman"


def host_name(state: Path, env: Mapping[str, str] = os.environ) -> str:
    """STEERSMAN_HOST, else the machine's name and 8 hex digits of a hash of machine id, user and state directory."""
    if explicit := env.get("STEERSMAN_HOST"):
        return explicit
    try:
        machine = Path("/etc/machine-id").read_text().strip()
    except OSError:
        machine = ""
    user = os.getuid() if hasattr(os, "getuid") else getpass.getuser()  # Windows has no numbers for them
    identity = f"{machine}|{user}|{state.absolute()}"
    return f"{socket.gethostname()[:60]}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"
