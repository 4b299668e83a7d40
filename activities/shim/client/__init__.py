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

from activities.shim.client.connection import Connection, Written, connect
from activities.shim.client.errors import (
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
    MachineUnreachable,
    Moved,
    NoDirectory,
    NotAdmitted,
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
from activities.shim.client.journal import Line, LineJoiner, Record, RecordParser
from activities.shim.client.launching import Spare, launched, launcher, spawn
from activities.shim.client.leftovers import (
    find_strays,
    has_stray,
    kill_marked,
    kill_strays,
    kill_unresponsive,
    thaw,
    waits_for_disk,
)
from activities.shim.client.records import RecordStream, records
from activities.shim.client.reports import ExitReport, Input, Spec, Status, StopReport
from activities.shim.program.leftovers import Clearance, has_ended
from activities.shim.program.lock import entomb, is_alive
from activities.shim.program.strays import tag_of

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
    "MachineUnreachable",
    "Moved",
    "NoDirectory",
    "NotAdmitted",
    "NotController",
    "ProtocolMismatch",
    "Record",
    "RecordParser",
    "RecordStream",
    "ShimError",
    "ShimGone",
    "ShimUnresponsive",
    "Spare",
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
    "find_strays",
    "has_ended",
    "has_stray",
    "is_alive",
    "kill_marked",
    "kill_strays",
    "kill_unresponsive",
    "records",
    "start",
    "tag_of",
    "thaw",
    "waits_for_disk",
]

_CARRY_THROUGH_S = 10.0


async def start(
    directory: str | os.PathLike[str],
    spec: Spec,
    *,
    python: str = sys.executable,
    processes: str | None = None,
    spare: Spare | None = None,
) -> Status:
    """Start a shim and its agent in this directory (made with mode 0700). Neither is a child of this process.

    A start that is cancelled is carried through before the CancelledError goes on: the shim is there, or it is not.

    Args:
        directory: used once: a second shim in it is refused.
        spec: what to start.
        python: the interpreter to run the shim with, 3.9 or newer.
        processes: how the shim finds the agent's processes, "proc" or "ps"; by itself it takes the better one.
        spare: a launcher in reserve, which saves the time that its interpreter takes to start.

    Raises:
        StartRefused: nothing was started; its subclasses say why.
    """
    place = str(Path(directory).absolute())  # noqa: ASYNC240 - asks the system for nothing but the current directory
    wire = json.dumps(spec.to_wire()).encode()
    waiting = spare.take() if spare else None
    if waiting is not None:
        launch = asyncio.ensure_future(launched(waiting, os.fsencode(place) + b"\n" + wire))
    else:
        options = ["--processes", processes] if processes is not None else []
        launch = asyncio.ensure_future(_launch([*launcher(python), "run", place, *options], wire))
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


async def _launch(command: list[str], wire: bytes) -> dict[str, Any]:
    try:
        process = await spawn(command)
    except OSError as error:
        raise StartFailed(f"{command[0]}: {error.strerror}") from error
    return await launched(process, wire)
