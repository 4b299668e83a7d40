"""The client's side of the shim: start one, and find everything else.

What must not live here: decisions about when to start, stop or adopt an agent.
"""

from __future__ import annotations

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
    MachineGone,
    MachineUnreachable,
    MachineUnusable,
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
)
from activities.shim.client.journal import Line, LineJoiner, Record, RecordParser
from activities.shim.client.launching import ForkServer, start
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
    "ForkServer",
    "Input",
    "InvalidCommand",
    "InvalidSpec",
    "JournalCorrupt",
    "JournalFull",
    "Line",
    "LineJoiner",
    "MachineGone",
    "MachineUnreachable",
    "MachineUnusable",
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
