"""What a login of this user has: its environment, and programs on its PATH.

What a connection gives to a program is less: profiles set PATH for a login shell. What must not live here: anything
that is not in the standard library of Python 3.9.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

LOGIN_S = 10.0
"""A profile may take this many seconds."""
MAX_ENVIRONMENT = 40_000
"""Bytes of an environment as JSON: what is largest beyond them is left out."""
_SAY = "import json,os;print({0!r}+json.dumps(dict(os.environ))+{0!r},flush=True)"


def environment() -> dict[str, str]:
    """The environment of a login shell; of this process, where such a shell does not tell."""
    shell = _shell()
    flags = ("-c",) if os.path.basename(shell) in ("csh", "tcsh") else ("-l", "-c")
    mark = os.urandom(16).hex()
    # Neither quotes of its own nor backslashes: it means the same to every shell.
    said = _SAY.format(mark).replace("'", '"')
    command = f"{shlex.quote(sys.executable)} -I -S -c {shlex.quote(said)}"
    try:
        found = json.loads(_output([shell, *flags, command], mark.encode()))
    except (OSError, ValueError, RecursionError):
        found = dict(os.environ)
    return _bounded(found)


def programs(names: Iterable[str], environ: dict[str, str]) -> dict[str, str]:
    """Name -> path, of those that are on the environment's PATH."""
    found = {name: shutil.which(name, path=environ.get("PATH", os.defpath)) for name in names if "/" not in name}
    return {name: path for name, path in found.items() if path is not None and os.path.isabs(path)}


def _shell() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
    except KeyError:
        return os.environ.get("SHELL") or "/bin/sh"


def _output(argv: list[str], mark: bytes) -> bytes:
    """What a program says between two marks. Raises OSError, ValueError where it does not in time."""
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert process.stdout
    said, until = b"", time.monotonic() + LOGIN_S
    try:
        while said.count(mark) < 2:
            left = until - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                raise ValueError("the login shell does not end")
            data = os.read(process.stdout.fileno(), 65536)
            if not data:
                raise ValueError("the login shell said nothing")
            said += data
    finally:
        process.stdout.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return said.split(mark)[1]


def _bounded(environ: dict[str, Any]) -> dict[str, str]:
    kept = {name: value for name, value in environ.items() if isinstance(value, str)}
    size = {name: len(json.dumps([name, value])) for name, value in kept.items()}
    for name in sorted(kept, key=lambda each: size[each], reverse=True):
        if sum(size.values()) <= MAX_ENVIRONMENT:
            break
        del kept[name], size[name]
    return kept
