"""The client's exceptions, beside contracts.errors.RunError, and the translation of Temporal's errors into them.

Loops raise the same ones; where it says run, read loop.

    Exception
    ├── contracts.errors.RunError      the run failed; `.result` is a RunResult (LoopResult) with status "failed"
    │   ├── InvalidRequest             also raised by the client before it sends anything (`.result` is None then)
    │   └── AgentFailed, AgentCrashed, RunTimedOut, BudgetExceeded, WorkspaceError, AgentNotInstalled,
    │       AuthenticationFailed, LoopFailed
    └── SteersmanError
        ├── RunCancelled               somebody ended the run; `.reason`, `.stop_report`, `.code` "interrupted"
        │   ├── RunInterrupted         by Temporal's cancel, as `stop` and a thread's `interrupt` do
        │   └── RunTerminated          the server closed the workflow without telling it
        ├── RunNotFound                no run of that id
        ├── RunNotRunning              the run has closed
        ├── NothingKept                nothing is known of what the run changed
        ├── AlreadyRunning             a run of that id is open
        │   └── ThreadBusy             a run of the thread is open; `.run`, `.execution`
        ├── CannotFork                 the thread has no session that could be forked
        ├── MessageRefused             the run refused the message or decision; `.reason`
        │   └── AlreadyDecided         the approval was decided or withdrawn
        ├── Unreachable                trying again later may help
        │   ├── ServerUnreachable      `.address`
        │   │   └── NamespaceNotFound  the server has no such namespace
        │   ├── NoWorker               no worker polls `.queue`
        │   └── HostUnreachable        no worker of `.host` answers
        ├── BadProfile                 the connection's profile, or its configuration file, cannot be used
        ├── BadCodec                   STEERSMAN_CODEC, or what it names, cannot be used
        ├── UnreadablePayload          a payload cannot be decoded here
        │   ├── MissingKey             it is encrypted with a key that is not in the file here
        │   └── TamperedPayload        it does not fit the key that it names: changed, cut or forged
        └── ServerRefused              any other refusal, with the server's message

Nothing here talks to a server.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from steersman.contracts.run import StopReport


class SteersmanError(Exception):
    """The base of the exceptions here; the message is a sentence for a person."""


class RunCancelled(SteersmanError):
    """The run was cancelled or terminated: the subclass says which.

    `reason`: what whoever did it said, "" where nothing was. `stop_report`: what stopping the agent found, None where
    that is unknown. `of`: e.g. "run run-1".
    """

    code = "interrupted"
    """As RunError.code: a person ended the run."""
    _how = "was cancelled"

    def __init__(self, of: str, reason: str = "", stop_report: StopReport | None = None) -> None:
        super().__init__(of, reason, stop_report)
        self.of, self.reason, self.stop_report = of, reason, stop_report

    def __str__(self) -> str:
        return f"{self.of} {self._how}" + (f": {self.reason}" if self.reason else "")


class RunInterrupted(RunCancelled):
    """The run was cancelled, or was not started because whoever wanted it had taken that back.

    Of a thread: its session is kept, and the next run goes on with it.
    """


class RunTerminated(RunCancelled):
    """The server closed the workflow without telling it. The host notices, and stops the agent."""

    _how = "was terminated"


class RunNotFound(SteersmanError):
    """The server has no run of that id (any more)."""


class RunNotRunning(SteersmanError):
    """The run has closed: it takes no messages."""


class NothingKept(SteersmanError):
    """Nothing is known of what the run changed: the message says why that may be."""


class AlreadyRunning(SteersmanError):
    """A run of that id is open."""


class ThreadBusy(AlreadyRunning):
    """A run of the thread is open. `run`: its id, which is the thread's; `execution`: Temporal's run id of it."""

    def __init__(self, run: str, execution: str) -> None:
        super().__init__(run, execution)
        self.run, self.execution = run, execution

    def __str__(self) -> str:
        return (
            f"run {self.run} of this thread is at work (execution {self.execution}): interrupt it, or wait for its end"
        )


class CannotFork(SteersmanError):
    """The thread's agent cannot go on with a copy of a session, or the thread has no session yet."""


class MessageRefused(SteersmanError):
    """The run refused the message or decision, and is unchanged. `reason`: why, in a sentence."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class AlreadyDecided(MessageRefused):
    """The approval was decided or withdrawn, or there is none of that id."""


class Unreachable(SteersmanError):
    """A server, worker or host does not answer; trying again later may help."""

    def __str__(self) -> str:
        return str(self.args[0])  # the others are there for copies: pickle makes an exception of its arguments


class ServerUnreachable(Unreachable):
    """No Temporal server answers at `address`."""

    def __init__(self, message: str, address: str = "") -> None:
        super().__init__(message, address)
        self.address = address


class NamespaceNotFound(ServerUnreachable):
    """The server has no such namespace."""


class NoWorker(Unreachable):
    """No worker polls the task queue `queue`."""

    def __init__(self, message: str, queue: str) -> None:
        super().__init__(message, queue)
        self.queue = queue


class HostUnreachable(Unreachable):
    """No worker of `host` answers: event logs and checkpoints there cannot be read now."""

    def __init__(self, message: str, host: str) -> None:
        super().__init__(message, host)
        self.host = host


class BadProfile(SteersmanError):
    """The profile, the configuration file that holds it, or the server's address cannot be used."""


class BadCodec(SteersmanError):
    """The payload codec, or the file of its keys, cannot be used."""


class UnreadablePayload(SteersmanError):
    """A payload cannot be decoded here: it is encrypted and there is no codec or key for it, or it was changed."""


class MissingKey(UnreadablePayload):
    """The payload names a key that is not here. The key may be added later; or the payload is forged."""


class TamperedPayload(UnreadablePayload):
    """The payload can never be decoded: it was changed, cut, or made without the key that it names."""


class ServerRefused(SteersmanError):
    """The server, or a host's activity, refused, for the reason in the message."""


class UpdatesUsedUp(ServerRefused):
    """The workflow has had as many updates as Temporal takes for one, 2,000 by default: signals do the same."""


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
"""gRPC codes after which the same call may succeed."""


def no_worker(queue: str) -> NoWorker:
    """The exception for a task queue that no worker polls."""
    return NoWorker(f"no worker answers on task queue {queue!r}; start one with `steer worker` (or `steer dev`)", queue)


def translate(error: RPCError, *, of: str | None = None, address: str = "") -> SteersmanError:
    """The exception that stands for a gRPC error. `of`: what was called, e.g. "run run-1"; `address`: the server's."""
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
    kind = UpdatesUsedUp if "total number of distinct updates" in error.message else ServerRefused
    return kind(f"the Temporal server refused: {error.message}")


@contextmanager
def translated(*, of: str | None = None, address: str = "") -> Iterator[None]:
    """Raises Temporal's errors of the block as those of this module, chained. Arguments as of `translate`."""
    try:
        yield
    except WorkflowAlreadyStartedError as error:
        raise AlreadyRunning(f"{of} is already running") from error
    except RPCError as error:
        raise translate(error, of=of, address=address) from error
