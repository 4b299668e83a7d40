"""The client's side of the shim: start one, and find everything else.

What must not live here: decisions about when to start, stop or adopt an agent.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from activities.shim.connection import Connection, Written, connect
from activities.shim.errors import (
    AgentExited,
    AgentNotExecutable,
    AgentNotFound,
    AgentRunning,
    AlreadyRunning,
    AlreadyUsed,
    CommandRefused,
    Fenced,
    InvalidCommand,
    InvalidSpec,
    JournalCorrupt,
    JournalFull,
    NoDirectory,
    NotController,
    ProtocolMismatch,
    ShimError,
    ShimGone,
    ShimUnresponsive,
    StartFailed,
    StartRefused,
    StdinClosed,
    Tombstoned,
    error_of,
)
from activities.shim.journal import Line, LineJoiner, Record, RecordParser
from activities.shim.lock import entomb, is_alive
from activities.shim.marked import Clearance, kill_marked
from activities.shim.records import RecordStream, records
from activities.shim.reports import ExitReport, Input, Spec, Status, StopReport

__all__ = [
    "AgentExited",
    "AgentNotExecutable",
    "AgentNotFound",
    "AgentRunning",
    "AlreadyRunning",
    "AlreadyUsed",
    "Clearance",
    "CommandRefused",
    "Connection",
    "ExitReport",
    "Fenced",
    "Input",
    "InvalidCommand",
    "InvalidSpec",
    "JournalCorrupt",
    "JournalFull",
    "Line",
    "LineJoiner",
    "NoDirectory",
    "NotController",
    "ProtocolMismatch",
    "Record",
    "RecordParser",
    "RecordStream",
    "ShimError",
    "ShimGone",
    "ShimUnresponsive",
    "Spec",
    "StartFailed",
    "StartRefused",
    "Status",
    "StdinClosed",
    "StopReport",
    "Tombstoned",
    "Written",
    "connect",
    "entomb",
    "is_alive",
    "kill_marked",
    "records",
    "start",
]

# Imported rather than run, the program comes compiled from its cache: 3 MB less for each shim's life.
_RUN = "import sys; sys.path.insert(0, sys.argv[1]); import shim; sys.exit(shim.main(sys.argv[2:]))"


_CARRY_THROUGH_S = 10.0


async def start(
    directory: str | os.PathLike[str], spec: Spec, *, python: str = sys.executable, processes: str | None = None
) -> Status:
    """Start a shim and its agent in this directory (made with mode 0700). Neither is a child of this process.

    A start that is cancelled is carried through before the CancelledError goes on: the shim is there, or it is not.

    Args:
        directory: used once: a second shim in it is refused.
        spec: what to start.
        python: the interpreter to run the shim with, 3.9 or newer.
        processes: how the shim finds the agent's processes, "proc" or "ps"; by itself it takes the better one.

    Raises:
        StartRefused: nothing was started; its subclasses say why.
    """
    command = _command(Path(directory), python, processes)
    launch = asyncio.ensure_future(_launch(command, json.dumps(spec.to_wire()).encode()))
    try:
        answer = await asyncio.shield(launch)
    except asyncio.CancelledError:
        await asyncio.wait({launch}, timeout=_CARRY_THROUGH_S)
        launch.cancel()
        await asyncio.gather(launch, return_exceptions=True)
        raise
    if not answer.get("ok"):
        raise error_of(answer)
    return Status.from_wire(answer["status"])


def _command(directory: Path, python: str, processes: str | None) -> list[str]:
    command = [python, "-I", "-S", "-c", _RUN, str(Path(__file__).parent), "run", str(directory.absolute())]
    return command if processes is None else [*command, "--processes", processes]


async def _launch(command: list[str], spec: bytes) -> dict[str, Any]:
    pipe = asyncio.subprocess.PIPE
    try:
        launcher = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    except OSError as error:
        raise StartFailed(f"{command[0]}: {error.strerror}") from error
    try:
        output, errors = await launcher.communicate(spec)
    except asyncio.CancelledError:
        launcher.kill()
        raise
    try:
        answer: dict[str, Any] = json.loads(output)
    except ValueError:
        last = errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise StartFailed(f"the shim's launcher said nothing (exit code {launcher.returncode}): {last}") from None
    return answer
