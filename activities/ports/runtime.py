"""The seam to a runtime: the place where an agent's process lives, and the bytes that go in and out of it.

A runtime never knows which agent it carries. What the bytes mean must not live here.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import PurePath
from typing import Protocol

from activities.ports.place import PlaceInfo
from steersman.contracts.activities import RunKey
from steersman.contracts.request import RequestedStopTimes
from steersman.contracts.run import Handle, StopReport

MAX_LINE = 16 * 1024 * 1024
"""A channel hands on at most this many bytes of one line of an agent's output and drops the rest of the line."""


class ChannelClosed(Exception):
    """The process has ended or no longer reads its stdin."""


class Fenced(Exception):
    """A worker with a newer epoch leads the run: this worker must let go without touching it."""


class Incompatible(Exception):
    """The process's shim speaks another protocol version: the process is left to a worker that speaks it too."""


class Unreachable(Exception):
    """The machine of the process cannot be asked now: whether it lives, nobody knows."""


class AlreadyStopped(Exception):
    """The run was stopped before this process could start."""


class Record(Protocol):
    """One numbered record of a process's journal: see activities/shim."""

    @property
    def seq(self) -> int: ...
    @property
    def time_ms(self) -> int: ...
    @property
    def stream(self) -> str: ...
    @property
    def data(self) -> bytes: ...
    @property
    def id(self) -> str:
        """The id of the command that caused the record, empty for none."""
        ...


@dataclass(frozen=True)
class StopTimes:
    """When a stop sends SIGTERM and when SIGKILL, in seconds from the request."""

    terminate_after_s: float
    kill_after_s: float

    @classmethod
    def asked(cls, requested: RequestedStopTimes, terminate_after_s: float, kill_after_s: float) -> "StopTimes":
        """What a request asks for, else the agent's own times."""
        terminate, kill = requested.terminate_after_s, requested.kill_after_s
        return cls(terminate_after_s if terminate is None else terminate, kill_after_s if kill is None else kill)

    def after(self, elapsed: timedelta) -> "StopTimes":
        """What is left of these times, at least half of each: the clocks of two machines may differ."""
        gone = max(elapsed.total_seconds(), 0.0)
        return StopTimes(
            max(self.terminate_after_s - gone, self.terminate_after_s / 2),
            max(self.kill_after_s - gone, self.kill_after_s / 2),
        )


HURRIED = StopTimes(0, 1.5)
"""The times of an impatient stop: a second cancel, a terminate."""

CLEANUP = StopTimes(0.25, 1.5)
"""The times of a stop of what a closed or failed run left at work."""


@dataclass(frozen=True)
class Launch:
    """A process to start.

    `env` is complete. `env`, `files` and `first_input` may hold secrets and are never logged. `cwd` is absolute and
    resolved: a process that would find itself elsewhere, because a symbolic link was put there since, is not started.
    """

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(repr=False)
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Name -> content; private to the user, in the directory that `Agent.launch` was given, until the run has ended."""
    first_input: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """(command id, data) pairs that the shim writes to stdin at once."""
    close_stdin: bool = False
    stdin_has_authority: bool = False
    """What is written to stdin decides what the agent may do: no other process of the user may be able to write it."""
    stop_times: StopTimes = StopTimes(0.25, 1.5)
    lease_s: float = 900


class Channel(Protocol):
    """The bytes of one process, in and out, wherever it runs. Survives reconnects; each write id is written once."""

    @property
    def handle(self) -> Handle | None:
        """The process; None where it has ended."""
        ...

    @property
    def known(self) -> int:
        """The journal's last record number when this channel was opened: later records are live."""
        ...

    @property
    def offset(self) -> int:
        """The byte of the journal after the last batch of `records`."""
        ...

    @property
    def is_cut(self) -> bool:
        """Nobody hears what the process says now: its machine cannot be reached."""
        ...

    def may_enter(self, after: int) -> bool:
        """Whether the journal may reach so far that reading can begin after this record number."""
        ...

    def records(self, after: int = 0, offset: int = 0) -> AsyncGenerator[Sequence[Record], None]:
        """All records after this number, in batches; ends after the process has ended, or where its shim was lost.

        The pieces of a long line come joined in the record of its end, cut at MAX_LINE; the records of the pieces
        before it are empty.

        Args:
            after: the number of the last record that the caller has.
            offset: the byte after that record, which saves the search for it; a wrong one costs time alone.
        """
        ...

    async def write(self, command: str, data: str | None) -> bool:
        """Write once under this command id; None closes stdin. False if it was written before. Raises ChannelClosed."""
        ...

    async def stop(self, times: StopTimes, reason: str) -> StopReport:
        """Stop this process, not the run. The report's phase is "running"."""
        ...

    async def cause(self) -> str:
        """What its place says of why the process ended, where its shim did not see it or was told to go; else empty."""
        ...

    async def close(self) -> None:
        """Let go; the process works on."""
        ...


class Runtime(Protocol):
    """A place where the processes of runs live."""

    def attempts(self, key: RunKey) -> int:
        """How many processes this run has had here."""
        ...

    async def info(self, key: RunKey, programs: Sequence[str]) -> PlaceInfo | None:
        """The machine of the run's processes, and which of these programs it has; None for this machine.

        Raises RunError, Unreachable.
        """
        ...

    async def loss(self, key: RunKey) -> str | None:
        """What a person is told of a place of the run's processes that is gone and has to be made anew, empty where it
        never was; None where it is there, or nobody can tell. Raises RunError.
        """
        ...

    async def files(self, key: RunKey, attempt: int) -> PurePath:
        """Where this attempt's process will find `Launch.files`. Raises RunError, Unreachable."""
        ...

    async def open(
        self, key: RunKey, attempt: int, epoch: int, launch: Launch | None, *, leads: bool = True
    ) -> Channel:
        """Attach to this attempt's process, dead or alive, or start it with `launch`.

        `leads`: False: only in order to read, beside whoever leads it.

        Raises RunError, Fenced, Incompatible, AlreadyStopped, Unreachable. A machine that cannot be used until a person
        has mended something (a key, a name, a missing program) is a RunError only where a process is to be started.
        """
        ...

    async def stop(
        self, key: RunKey, times: StopTimes, reason: str, *, known: int = 0, patient: bool = True
    ) -> StopReport:
        """Stop all processes of the run that are here, and keep others from starting. Any worker of the host may call.

        Args:
            key: the run.
            times: when the stop becomes rougher.
            reason: what the shim is told.
            known: how many processes the run is known to have had. Where the directory tells of fewer, the runtime
                stops the processes that it can find, and the report says `unverified`.
            patient: False: a machine that did not answer a moment ago is tried, and not waited for.
        """
        ...

    def is_silent(self, key: RunKey) -> bool:
        """Whether the run's machine did not answer a stop a moment ago."""
        ...

    async def release(self, key: RunKey) -> bool:
        """The run is over: let go of what only kept its processes readable. Whether one of this machine is at work."""
        ...

    def has_living(self, key: RunKey) -> bool:
        """Whether something of the run may still be there to be stopped."""
        ...
