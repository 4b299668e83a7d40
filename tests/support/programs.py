"""Agents' own programs that tests run, where they are installed: no test installs one."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

DIRECTORIES = "STEERSMAN_TEST_PROGRAMS"
"""Names directories, separated as in PATH, that are searched before it."""

NODE_MODULES = Path(sys.prefix) / "agents" / "node_modules"
HERMES = Path(sys.prefix) / "agents" / "hermes" / "bin"
"""Where `make agents` installs Hermes, whose dependencies are pinned to other versions than ours."""
AGENTS = (str(NODE_MODULES / ".bin"), str(NODE_MODULES / "opencode-linux-x64" / "bin"), str(HERMES))
"""Where `make agents` installs those that come from npm, and Hermes."""


def installed(name: str) -> str | None:
    """The absolute path of a program; for `codex` the one in the package `openai-codex-cli-bin`, where that is there:
    npm's comes without its binary.
    """
    package = importlib.util.find_spec("codex_cli_bin") if name == "codex" else None
    bundled = Path(package.origin).parent / "bin" / "codex" if package and package.origin else None
    if bundled and bundled.exists():
        return str(bundled)
    path = os.pathsep.join(filter(None, (os.environ.get(DIRECTORIES), *AGENTS, os.environ.get("PATH"))))
    return shutil.which(name, path=path)


def program(name: str) -> str:
    """The same; the test is skipped where the program is not installed."""
    found = installed(name)
    if found is None:
        import pytest  # noqa: PLC0415 - not where only `steer demo` needs this module

        pytest.skip(f"{name} is not installed: make agents, or put it on PATH")
    return found
