"""What a shim says of itself and of its agent, as frozen values, and the spec that it is started with.

What must not live here: sockets and files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

PROTOCOL = 1
MIN_PROTOCOL = 1


@dataclass(frozen=True, slots=True)
class Input:
    """Something to write to the agent's stdin: once for each id. Bytes may be anything."""

    id: str
    data: str | bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Spec:
    """What a shim is to start.

    Attributes:
        argv: the program, looked up on the PATH of `env`, and its arguments.
        cwd: an absolute path.
        cwd_resolved: `cwd` has no symlink in it: the start is refused where it leads somewhere else by then.
        env: the agent's whole environment. It goes to the shim through a pipe and is never stored.
        files: name -> content, put into `files/` of the shim's directory before the agent starts.
        input: written to stdin at once, in this order.
        close_stdin: whether stdin is closed after that.
        stdin: a socket cannot be opened by a path of /proc, so nobody but the shim can write to it; a pipe can be
            opened as /dev/stdin, which some programs do.
        tag: up to 24 hexadecimal digits that the mark in the environment of the agent's processes begins with, so that
            they can be found without the directory.
        lease: without a word of a controller for longer than this the shim stops the agent.
        terminate_after: SIGTERM to every descendant, counted from the request of a stop.
        kill_after: SIGKILL to every descendant, counted from the same.
    """

    argv: Sequence[str]
    cwd: str | os.PathLike[str]
    env: Mapping[str, str] = field(repr=False)
    input: Sequence[Input] = field(default=(), repr=False)
    close_stdin: bool = False
    cwd_resolved: bool = False
    stdin: Literal["pipe", "socket"] = "pipe"
    files: Mapping[str, str | bytes] = field(default_factory=dict, repr=False)
    tag: str = ""
    lease: timedelta = timedelta(minutes=15)
    terminate_after: timedelta = timedelta(seconds=0.25)
    kill_after: timedelta = timedelta(seconds=1.5)

    def to_wire(self) -> dict[str, object]:
        """The JSON object that the shim reads."""
        return {
            "protocol": PROTOCOL,
            "argv": list(self.argv),
            "cwd": os.fspath(self.cwd),
            "env": dict(self.env),
            "input": [{"id": write.id, "data": as_text(write.data)} for write in self.input],
            "close_stdin": self.close_stdin,
            "cwd_resolved": self.cwd_resolved,
            "stdin": self.stdin,
            "files": {name: as_text(data) for name, data in self.files.items()},
            "tag": self.tag,
            "lease_s": self.lease.total_seconds(),
            "stop": {
                "terminate_after_s": self.terminate_after.total_seconds(),
                "kill_after_s": self.kill_after.total_seconds(),
            },
        }


@dataclass(frozen=True, slots=True)
class StopReport:
    """What a stop took, and whether anything is left.

    Attributes:
        outcome: "unverified" where processes were still there when the shim gave up.
        how: what it took: closing stdin, SIGTERM, or SIGKILL.
        processes: how many were alive at the request or signalled since.
        took_ms: from the request until none was left.
        left: ids of processes that are still there (at most 100).
    """

    outcome: Literal["stopped", "already_finished", "unverified"]
    how: Literal["exited", "terminated", "killed"]
    processes: int
    took_ms: int
    left: tuple[int, ...]

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> StopReport:
        return cls(wire["outcome"], wire["how"], wire["processes"], wire["took_ms"], tuple(wire["left"]))


@dataclass(frozen=True, slots=True)
class ExitReport:
    """How the agent ended.

    Attributes:
        code: its exit code; None where a signal ended it, or where it could not be ended.
        signal: the signal that ended it.
        reason: by itself, by a stop, for want of a controller, or because the shim was told to end by SIGTERM.
        stop: what the stop took, where there was one or where processes had to be cleared away.
        leftovers: how many of its processes lived on when it ended by itself (they were stopped).
    """

    code: int | None
    signal: int | None
    reason: Literal["exited", "stopped", "lease", "terminated"]
    stop: StopReport | None
    leftovers: int

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> ExitReport:
        stop = StopReport.from_wire(wire["stop"]) if wire["stop"] else None
        return cls(wire["code"], wire["signal"], wire["reason"], stop, wire["leftovers"])


@dataclass(frozen=True, slots=True)
class Status:
    """A shim and its agent at one moment.

    Attributes:
        pid: the agent's; with `start_time`, `host` and `boot_id` it names one process for all time.
        start_time: in clock ticks since boot (on macOS in seconds since 1970).
        started_at: UTC.
        seq: the journal's last record.
        epoch: the controller that is obeyed, None before the first.
        lease_left: until the agent is stopped for want of a controller; after its end, until the shim leaves.
        stdin_open: whether a write would be taken.
        exit: None while the agent lives.
        unwritten: whether records wait for room on the disk.
    """

    state: Literal["running", "stopping", "exited"]
    protocol: int
    shim_pid: int
    host: str
    boot_id: str
    pid: int
    start_time: int
    started_at: datetime
    program: str
    seq: int
    epoch: int | None
    lease_left: timedelta
    stdin_open: bool
    exit: ExitReport | None
    unwritten: bool = False

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Status:
        """Also of what a newer shim says: what is not known here is left out."""
        same = ("state", "protocol", "shim_pid", "host", "boot_id", "pid", "start_time", "program", "seq", "epoch")
        return cls(
            **{name: wire[name] for name in same},
            started_at=datetime.fromtimestamp(wire["started_at"], UTC),
            lease_left=timedelta(seconds=wire["lease_left_s"]),
            stdin_open=wire["stdin_open"],
            exit=ExitReport.from_wire(wire["exit"]) if wire["exit"] else None,
            unwritten=bool(wire.get("unwritten")),
        )


def as_text(data: str | bytes) -> str:
    """As JSON can carry it: bytes that are no UTF-8 become lone surrogates (PEP 383), which the shim turns back."""
    return data.decode("utf-8", "surrogateescape") if isinstance(data, bytes) else data
