"""What the client raises beside contracts.errors.RunError, and the one place where Temporal's errors become ours.

A loop raises the same: where it says run, read loop.

    Exception
    ├── contracts.errors.RunError      the run itself failed; `.result` is what a RunResult (LoopResult) would be
    │   ├── InvalidRequest             also raised by `start` before anything leaves the client (`.result` is then None)
    │   └── AgentFailed, AgentCrashed, RunTimedOut, BudgetExceeded, WorkspaceError, AgentNotInstalled,
    │       AuthenticationFailed
    └── SteersmanError
        ├── RunCancelled               the run was cancelled; `.reason`, `.stop_report`, `.code` "interrupted"
        │   └── RunTerminated          Temporal ended the workflow without asking it
        ├── RunNotFound                no run of that id
        ├── RunNotRunning              the run has closed
        ├── AlreadyRunning             a run of that id is open
        ├── MessageRefused             the run refused the message or decision; `.reason`
        │   └── AlreadyDecided         somebody answered the approval first, or it was withdrawn
        ├── Unreachable
        │   ├── ServerUnreachable      `.address`
        │   │   └── NamespaceNotFound  the server is there, the namespace is not; `.namespace`
        │   ├── NoWorker               nobody works on `.queue`
        │   └── HostUnreachable        no worker on `.host`
        ├── BadProfile                 the connection's profile or configuration cannot be used
        ├── BadCodec                   STEERSMAN_CODEC, or what it names, cannot be used
        ├── UnreadablePayload          what Temporal holds is encrypted, and not with a key that is here
        │   ├── MissingKey             a key that is not in the file here, and may come
        │   └── TamperedPayload        with a key that is here, and it is not what was encrypted
        └── ServerRefused              whatever else the server says no to, with its own words

Nothing here talks to a server.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from steersman.contracts.run import StopReport


class SteersmanError(Exception):
    """The base of everything here; the message is one sentence for a person."""


class RunCancelled(SteersmanError):
    """The run was cancelled: `reason` is what whoever did it said, "" where nothing was. `stop_report` is None where
    nobody could say. `of` is who it was, e.g. "run run-1".
    """

    code = "interrupted"
    """As RunError.code: a person ended it."""
    _how = "was cancelled"

    def __init__(self, of: str, reason: str = "", stop_report: StopReport | None = None) -> None:
        super().__init__(of, reason, stop_report)
        self.of, self.reason, self.stop_report = of, reason, stop_report

    def __str__(self) -> str:
        return f"{self.of} {self._how}" + (f": {self.reason}" if self.reason else "")


class RunTerminated(RunCancelled):
    """The workflow was terminated, so nobody was asked to stop the agent: its host notices, and does."""

    _how = "was terminated"


class RunNotFound(SteersmanError):
    """No run of that id, as far as the server remembers."""


class RunNotRunning(SteersmanError):
    """The run has closed: nothing can be said to it any more."""


class AlreadyRunning(SteersmanError):
    """A run of that id is open."""


class MessageRefused(SteersmanError):
    """The run did not take the message or decision, and changed nothing."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class AlreadyDecided(MessageRefused):
    """The approval is not open (any more)."""


class Unreachable(SteersmanError):
    """Somebody who is needed does not answer; trying again later may help."""


class ServerUnreachable(Unreachable):
    """No Temporal server answers at `address`."""

    def __init__(self, message: str, address: str = "") -> None:
        super().__init__(message)
        self.address = address


class NamespaceNotFound(ServerUnreachable):
    """The server has no such namespace."""


class NoWorker(Unreachable):
    """No worker polls `queue`."""

    def __init__(self, message: str, queue: str) -> None:
        super().__init__(message)
        self.queue = queue


class HostUnreachable(Unreachable):
    """No worker of `host` answers: what lives on that machine cannot be read for now."""

    def __init__(self, message: str, host: str) -> None:
        super().__init__(message)
        self.host = host


class BadProfile(SteersmanError):
    """The profile, or the configuration file that holds it, cannot be used."""


class BadCodec(SteersmanError):
    """The payload codec, or the file of its keys, cannot be used."""


class UnreadablePayload(SteersmanError):
    """What Temporal holds cannot be decoded here: encrypted where no codec is set, under another key, or changed."""


class MissingKey(UnreadablePayload):
    """It names a key that is not here. It may come, or nobody has it: whoever forges a payload names what they like."""


class TamperedPayload(UnreadablePayload):
    """It will never be readable: changed, cut, or made by somebody without the key that it names."""


class ServerRefused(SteersmanError):
    """The server said no, for the reason in the message."""


TRANSIENT = frozenset(
    {
        RPCStatusCode.UNAVAILABLE,
        RPCStatusCode.DEADLINE_EXCEEDED,
        RPCStatusCode.CANCELLED,  # what the SDK says of its own rpc_timeout
        RPCStatusCode.RESOURCE_EXHAUSTED,
        RPCStatusCode.ABORTED,
        RPCStatusCode.UNKNOWN,
        RPCStatusCode.INTERNAL,
    }
)
"""Codes after which the same call may well succeed."""


def no_worker(queue: str) -> NoWorker:
    """Nobody answers on that queue."""
    return NoWorker(f"no worker answers on task queue {queue!r}; start one with `steer worker` (or `steer dev`)", queue)


def translate(error: RPCError, *, of: str | None = None, address: str = "") -> SteersmanError:
    """The one table from gRPC codes to what they mean here. `of`: who was asked, e.g. "run run-1"."""
    if error.status == RPCStatusCode.NOT_FOUND:
        if "namespace" in error.message.lower():
            return NamespaceNotFound(f"{error.message.rstrip('.')} (server {address})", address)
        if "already completed" in error.message:
            return RunNotRunning(f"{of} has already closed")
        if of is not None:
            return RunNotFound(f"no {of}")
    if error.status == RPCStatusCode.ALREADY_EXISTS:
        return AlreadyRunning(f"{of} is already running")
    if error.status in TRANSIENT:
        return ServerUnreachable(f"the Temporal server at {address} does not answer: {error.message}", address)
    return ServerRefused(f"the Temporal server refused: {error.message}")


@contextmanager
def translated(*, of: str | None = None, address: str = "") -> Iterator[None]:
    """Temporal's errors inside the block come out as ours, chained."""
    try:
        yield
    except WorkflowAlreadyStartedError as error:
        raise AlreadyRunning(f"{of} is already running") from error
    except RPCError as error:
        raise translate(error, of=of, address=address) from error
