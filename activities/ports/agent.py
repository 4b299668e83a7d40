"""The seam to an agent: its command line, what its journal means, and the talk with its process.

An agent never knows where its process runs. It meets its runtime in a Channel.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Protocol

from activities.ports.admission import Admission, Program, WorkspaceFiles
from activities.ports.runtime import Channel, Launch, Record, StopTimes
from activities.ports.sessions import AgentSessions
from steersman.contracts.activities import ApprovalAsked, OutgoingDecision, OutgoingMessage, RunKey, Settlement
from steersman.contracts.errors import RunError
from steersman.contracts.events import EventBase
from steersman.contracts.model import JsonValue
from steersman.contracts.request import RunRequest
from steersman.contracts.run import StopReport, Usage

MAX_SNAPSHOT = 4 * 1024 * 1024
"""A transcript's snapshot has at most this many bytes; a transcript that needs more has none."""

MAX_STRUCTURED = 512 * 1024
"""A structured answer may have this many characters of JSON."""

CONTINUE_PROMPT = (
    "Your process ended unexpectedly and was started again; this conversation was kept. "
    "Check what was done already, then go on with your task where you left off."
)
"""What an agent is told that is resumed."""


def continue_prompt(unsaved: Sequence[str]) -> str:
    """The same, where it has forgotten with its process what people had told it."""
    told = "".join(f"\n\n{each}" for each in unsaved)
    return f"{CONTINUE_PROMPT} You had been told meanwhile:{told}" if unsaved else CONTINUE_PROMPT


END_PREFIX = "end-"
"""A person's message that ends the run with its turn is written under the id `end-<message id>`. No process follows one
in whose journal that id stands: the run is over as interrupted, whatever became of the process.
"""


@dataclass
class Progress:
    """What one process of the agent has come to. Its transcript fills it, in the journal's order."""

    session_id: str | None = None
    usage: Usage = field(default_factory=Usage)
    cost_usd: float = 0.0
    turns: int = 0
    text: str = ""
    said: str = ""
    """The agent's last words, also in a turn that did not come to its end."""
    structured: JsonValue = None
    stop_reason: str | None = None


@dataclass(frozen=True)
class ExitFact:
    """How a process ended. `lost`: its shim vanished, so nobody saw the end."""

    code: int | None = None
    signal: int | None = None
    reason: str = "exited"
    """exited, stopped, lease (no worker for too long), terminated (the machine went down), lost."""
    why: str | None = None
    """The reason that the stop was given."""
    lost: bool = False
    stderr: tuple[str, ...] = ()
    time_ms: int = 0
    """When the process was over, in ms since 1970; 0 where nobody saw it."""
    stop: StopReport | None = None
    """The report of the stop that ended the process, or that cleared away what it had left behind."""
    cause: str = ""
    """What its place says of why it ended."""


@dataclass(frozen=True)
class Verdict:
    """What the end of a process means: success (error None), a failure, or a crash that may be resumed."""

    error: RunError | None = None
    resumable: bool = False
    start_over: bool = False
    """Resumable without its session: it had none yet."""
    unproven: bool = False
    """What it has begun where no process of it is may still be at work."""
    unsaved: tuple[str, ...] = ()
    """What people had told it that it has read, and that its session does not have."""


@dataclass(frozen=True)
class Resumption:
    """Why a further process is started, and with which session; None where none was known yet."""

    attempt: int
    session_id: str | None
    parked: bool = False
    """The process waited for a person when it died: the next one must go on waiting."""
    unsaved: tuple[str, ...] = ()
    """See Verdict."""


class Transcript(Protocol):
    """A process's journal, understood. Deterministic: every worker that reads it makes the same events of it."""

    progress: Progress

    def feed(self, record: Record) -> list[EventBase]:
        """The events in this record. Never raises, whatever the agent wrote."""
        ...

    def snapshot(self) -> bytes | None:
        """The transcript's whole state, as JSON; None where that is more than MAX_SNAPSHOT."""
        ...

    def restore(self, snapshot: bytes) -> None:
        """Become the transcript that `snapshot` was taken of: the same events, settlements and verdict follow.

        The snapshot may be forged. Raises ValueError, after which this transcript is of no more use.
        """
        ...

    @property
    def working(self) -> bool:
        """It is the agent's turn to speak, so its silence counts against idle_s."""
        ...

    @property
    def finished(self) -> bool:
        """The agent owes nothing more: its stdin may be closed."""
        ...

    @property
    def hopeless(self) -> RunError | None:
        """The process would go on trying though only a person can help: it is stopped, and this is the verdict."""
        ...

    @property
    def parked(self) -> bool:
        """The agent waits for a person to go on."""
        ...

    def settlements(self) -> list[Settlement]:
        """What the journal so far says of each message."""
        ...

    def last_words(self) -> list[Settlement]:
        """The settlements once the process has ended: a message that the agent was given, and has not said that it
        read, is unverified.
        """
        ...

    def wrote(self, message_id: str) -> bool:
        """Whether the message was written to this process, all of it or a part."""
        ...

    def verdict(self, exit_fact: ExitFact) -> Verdict: ...


class Conversation(Protocol):
    """The talk with one live process."""

    async def open(self) -> None:
        """Take the talk over: everything known so far has been fed to the transcript."""
        ...

    async def hear(self, record: Record) -> None:
        """A live record, after the transcript was fed."""
        ...

    async def say(self, message: OutgoingMessage) -> Settlement: ...

    async def decide(self, decision: OutgoingDecision) -> None: ...

    async def close(self) -> None: ...


class ApprovalRequester(Protocol):
    """How a conversation asks people for an approval."""

    async def ask(self, asked: ApprovalAsked) -> None:
        """Ask, or take the question back. The id is that of the transcript's event: one question's of this process, the
        same one whichever worker asks it, and no other's. A model may give two calls of a tool one id.
        """
        ...


AnswerCheck = Callable[[JsonValue], Awaitable[str | None]]
"""Holds a structured answer against the request's `output_schema`: what is wrong with it, None where it fits."""


class Agent(Protocol):
    """One kind of agent: its command line, its protocol, its errors. See activities/agents."""

    name: str
    files: WorkspaceFiles
    sessions: AgentSessions | None
    """None for an agent that keeps none."""

    def load(self) -> None:
        """Import what only leading such a run takes. Blocks; called in a thread, once the worker polls."""
        ...

    def check(self, request: RunRequest) -> None:
        """Raise InvalidRequest for options that are wrong, AgentNotInstalled where the program is missing.

        What another machine has, on which the agent is to work, is looked at by `launch`.
        """
        ...

    def launch(
        self, key: RunKey, request: RunRequest, admission: Admission, files: PurePath, resumption: Resumption | None
    ) -> Launch:
        """The process to start. `files`: the directory in which it will find `Launch.files`; nothing is there yet.

        Raises RunError where what it takes is not on the machine that the admission names.
        """
        ...

    def executables(self, request: RunRequest) -> Sequence[str]:
        """The programs of the agent's own that are to be found on PATH, where it works on another machine."""
        ...

    def keeps(self, session: str, directory: Path) -> bool:
        """Whether the agent's own record has a conversation of this id, held in this directory (resolved)."""
        ...

    def trusts(self, directory: Path) -> bool:
        """Whether the agent's own record says that this user trusts the directory (resolved)."""
        ...

    def directories(self, request: RunRequest) -> Sequence[str]:
        """Directories beside the workspace that the request's options let the agent work in."""
        ...

    def programs(self, request: RunRequest) -> Sequence[Program]:
        """Programs that the request names and that run without anybody's permission."""
        ...

    def stop_times(self, request: RunRequest) -> StopTimes:
        """When a stop of the agent becomes rougher, as the request or else this agent has it."""
        ...

    def transcript(self, key: RunKey, request: RunRequest, resumption: Resumption | None) -> Transcript: ...

    def converse(
        self,
        key: RunKey,
        request: RunRequest,
        channel: Channel,
        transcript: Transcript,
        approvals: ApprovalRequester,
        check: AnswerCheck,
    ) -> Conversation: ...
