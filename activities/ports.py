"""The seams: what an agent, a runtime and a session need from each other. Protocols and plain data only.

An agent never knows where its process runs; a runtime never knows which agent it carries. They meet in a Channel.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from steersman.contracts.activities import (
    ApprovalAsked,
    OutgoingDecision,
    OutgoingMessage,
    Progressed,
    RunKey,
    Settlement,
)
from steersman.contracts.errors import RunError
from steersman.contracts.events import EventBase
from steersman.contracts.model import JsonValue
from steersman.contracts.request import RunRequest
from steersman.contracts.run import Handle, StopReport, Usage

MAX_LINE = 16 * 1024 * 1024
"""Bytes of one line of an agent's output that a channel hands on; the rest of a longer one is left out."""

MAX_SNAPSHOT = 4 * 1024 * 1024
"""Bytes of a transcript's snapshot; of one that has come to more there is none."""

END = "end-"
"""The write with which a person ends a run together with its turn has the id `end-<message id>`. A process in whose
journal it stands is not followed by another: the run is over as interrupted, whatever became of the process.
"""


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
        """The command that caused it, empty for none."""
        ...


@dataclass(frozen=True)
class Ladder:
    """When a stop becomes rougher, in seconds from the request."""

    terminate_after_s: float
    kill_after_s: float

    def after(self, elapsed: timedelta) -> "Ladder":
        """What is left of it, at least half of each time: clocks of two machines may differ."""
        gone = max(elapsed.total_seconds(), 0.0)
        return Ladder(
            max(self.terminate_after_s - gone, self.terminate_after_s / 2),
            max(self.kill_after_s - gone, self.kill_after_s / 2),
        )


HURRIED = Ladder(0, 1.5)
"""Of a stop that nobody waits for politely any more: a second cancel, a terminate."""


@dataclass(frozen=True)
class Launch:
    """A process to start. `env` is complete; it and `first_input` may hold secrets and are never logged. `cwd` is
    absolute and resolved: a process that would find itself elsewhere, by a symlink put there since, is not started.
    """

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    first_input: tuple[tuple[str, str], ...] = ()
    """(command id, data) pairs written to stdin at once."""
    close_stdin: bool = False
    stdin_has_authority: bool = False
    """What is written to stdin decides what the agent may do: nobody else of the user may be able to write there."""
    ladder: Ladder = Ladder(0.25, 1.5)
    lease_s: float = 900


class Channel(Protocol):
    """A process's bytes, in and out, wherever it runs. Survives reconnects; each write id is written once."""

    @property
    def handle(self) -> Handle | None:
        """The process; None of one that has ended."""
        ...

    @property
    def known(self) -> int:
        """The journal's last number when this channel was opened: what comes after it is live."""
        ...

    @property
    def offset(self) -> int:
        """The byte of the journal after the last batch of `records`."""
        ...

    def may_enter(self, after: int) -> bool:
        """Whether the journal may have come so far that it can be read on after this record."""
        ...

    def records(self, after: int = 0, offset: int = 0) -> AsyncGenerator[Sequence[Record], None]:
        """All records after this one, in batches; ends after the process has, or where its shim was lost. Pieces of a
        long line come joined in the record of its end, cut at MAX_LINE; the records of the pieces before it are empty.

        `offset`: the byte after that record, so that it needs not be searched; a wrong one costs time alone.
        """
        ...

    async def write(self, command: str, data: str | None) -> bool:
        """Write once under this id; None closes stdin. False if it was written before. Raises ChannelClosed."""
        ...

    async def stop(self, ladder: Ladder, reason: str) -> StopReport:
        """Stop this process, not the run. The report's phase is "running"."""
        ...

    async def close(self) -> None:
        """Let go; the process works on."""
        ...


class ChannelClosed(Exception):
    """The process has ended or no longer reads."""


class Fenced(Exception):
    """A newer worker holds the run: this one must let go without touching it."""


class Incompatible(Exception):
    """The process is led by a program of another version: it is left at work for a worker that speaks with it."""


class AlreadyStopped(Exception):
    """The run was stopped before this process could start."""


class Runtime(Protocol):
    """A place where processes live."""

    def attempts(self, key: RunKey) -> int:
        """How many processes this run has had here."""
        ...

    async def open(self, key: RunKey, attempt: int, epoch: int, launch: Launch | None) -> Channel:
        """Attach to this attempt's process, dead or alive, or start it with `launch`. Raises RunError, Fenced,
        AlreadyStopped.
        """
        ...

    async def stop(self, key: RunKey, ladder: Ladder, reason: str, *, known: int = 0) -> StopReport:
        """Stop whatever of the run is there, and see to it that nothing more starts. From any worker on the host.

        `known`: so many processes the run has had; where less of it is found, what can be found is stopped, unverified.
        """
        ...

    async def release(self, key: RunKey) -> None:
        """The run is over: let go of what only kept its process readable."""
        ...

    def has_living(self, key: RunKey) -> bool:
        """Whether something of the run may still be there to be stopped."""
        ...


@dataclass
class Progress:
    """What one process of the agent has come to. Filled by its transcript, in order of the journal."""

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
class Verdict:
    """What the end of a process means: success (error None), a failure, or a crash that may be resumed."""

    error: RunError | None = None
    resumable: bool = False
    start_over: bool = False
    """Resumable without its session: there was none yet."""


@dataclass(frozen=True)
class ExitFact:
    """How a process ended. `lost`: its shim vanished, so nobody saw the end."""

    code: int | None = None
    signal: int | None = None
    reason: str = "exited"
    """exited, stopped, lease (no worker for too long), terminated (the machine went down), lost."""
    why: str | None = None
    """What the stop was asked for."""
    lost: bool = False
    stderr: tuple[str, ...] = ()
    time_ms: int = 0
    """When it was over, in ms since 1970; 0 where nobody saw it."""
    stop: StopReport | None = None
    """What a stop took, or clearing away what the process had left behind."""


class Transcript(Protocol):
    """A process's journal, understood: deterministic, so that every worker that reads it comes to the same events."""

    progress: Progress

    def feed(self, record: Record) -> list[EventBase]:
        """The events in this record. Never raises: whatever the agent wrote."""
        ...

    def snapshot(self) -> bytes | None:
        """All that it has come to, as JSON; None where that is more than MAX_SNAPSHOT."""
        ...

    def restore(self, snapshot: bytes) -> None:
        """Be as one that was fed all that the snapshot's was: the same events, state, settlements and verdict follow.
        The snapshot may be anybody's. Raises ValueError, and is of no use any more then.
        """
        ...

    @property
    def working(self) -> bool:
        """It is the agent's turn to speak (a silence counts against idle_s)."""
        ...

    @property
    def finished(self) -> bool:
        """The agent owes nothing more: its stdin may be closed."""
        ...

    @property
    def hopeless(self) -> RunError | None:
        """The process would go on trying though only a person can help: it is stopped and this is the verdict."""
        ...

    @property
    def parked(self) -> bool:
        """The agent waits for a person to go on."""
        ...

    def settlements(self) -> list[Settlement]:
        """What the journal so far says of each message."""
        ...

    def last_words(self) -> list[Settlement]:
        """The same once the process has ended: a message that it was given, and of which it has not said that it read
        it, is unverified.
        """
        ...

    def wrote(self, message_id: str) -> bool:
        """Whether the message was written to this process, all of it or a part."""
        ...

    def verdict(self, exit_fact: ExitFact) -> Verdict: ...


class Conversation(Protocol):
    """What is said to one live process."""

    async def open(self) -> None:
        """Take over the talk: everything known so far has been fed to the transcript."""
        ...

    async def hear(self, record: Record) -> None:
        """A live record, after the transcript was fed."""
        ...

    async def say(self, message: OutgoingMessage) -> Settlement: ...

    async def decide(self, decision: OutgoingDecision) -> None: ...

    async def close(self) -> None: ...


class Desk(Protocol):
    """What a conversation needs of its run: to ask people."""

    async def ask(self, asked: ApprovalAsked) -> None: ...


class Notifier(Protocol):
    """The run's workflow, as a session sees it. `age_s`: how old the run was when this session began."""

    age_s: float

    async def preparing(self) -> None:
        """This worker has taken the run; no process exists yet."""
        ...

    async def started(self, handle: Handle, attempt: int, *, adopted: bool) -> None:
        """This worker leads the process of that attempt; `adopted`: an earlier worker had started it."""
        ...

    async def progressed(self, progress: Progressed) -> None: ...

    async def asked(self, asked: ApprovalAsked) -> None: ...

    async def settled(self, settlements: list[Settlement]) -> None: ...


@dataclass(frozen=True)
class Resumption:
    """Why a further process is started, and with which session; None where none was known yet."""

    attempt: int
    session_id: str | None
    parked: bool = False
    """It waited for a person when its process died: it must go on waiting."""


@dataclass(frozen=True)
class WorkspaceFiles:
    """Files of a workspace that an agent loads by itself, relative to it.

    `instructions` are texts for the model. `programs` name programs, variables or permissions: whoever wrote them
    decides what runs before anybody is asked, so they are for trusted workspaces alone.
    """

    instructions: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Untrusted:
    """What becomes of a workspace that nobody has trusted: its programs are not loaded, its texts are handed over."""

    left_out: tuple[str, ...] = ()
    """The files with programs that are there, relative to the workspace."""
    instructions: str = ""
    """What its instructions say, each file under its name."""
    git_runs_programs: bool = False
    """Its repository's configuration, or one within it, may make git run programs: no git command is harmless there."""
    leads_out: bool = False
    """Links in it lead elsewhere, and commands that are harmless would read what is there: no command is."""


@dataclass(frozen=True)
class Admission:
    """A request that may run on this machine, at this moment. The environment is complete and may hold secrets."""

    environment: Mapping[str, str] = field(repr=False)
    directory: Path
    """The workspace, symbolic links resolved: where the agent is started."""
    further: tuple[Path, ...] = ()
    """The other directories that the agent may work in, resolved."""
    untrusted: Untrusted | None = None
    """None: the operator, or the agent's own record of the operator's word, trusts the workspace."""
    restricted: bool = False
    """The operator allows requesters less than everything: a text must not reach the agent's own commands."""


class RunHost(Protocol):
    """The run's host, as a session sees it."""

    def admit(self) -> Admission:
        """What the run gets, at this moment. Looks through the workspace: not for an event loop. Raises RunError."""
        ...

    async def lock(self, session: str) -> None:
        """Keep other runs from this session of the agent, as far as that can be done."""
        ...


@dataclass(frozen=True)
class Program:
    """A program that a request names and that runs without anybody's permission. `words`: the whole command line; empty
    where what it runs cannot be told, which nobody can have allowed.
    """

    field: str
    words: tuple[str, ...] = ()
    of_workspace: bool = False
    """It is what the workspace's own files name."""


class Agent(Protocol):
    """One kind of agent: its command line, its protocol, its errors. One file (or few) in activities/agents."""

    name: str
    files: WorkspaceFiles

    def check(self, request: RunRequest) -> None:
        """Raise InvalidRequest for options that are wrong, AgentNotInstalled where the program is missing."""
        ...

    def launch(
        self, key: RunKey, request: RunRequest, admission: Admission, scratch: Path, resumption: Resumption | None
    ) -> Launch:
        """The process to start. `scratch`: a private directory of the run for files that argv must not hold."""
        ...

    def keeps(self, session: str, directory: Path) -> bool:
        """Whether the agent's own record has a conversation of this id, held in this directory (resolved)."""
        ...

    def trusts(self, directory: Path) -> bool:
        """Whether the agent's own record says that this user trusts the directory. `directory` is resolved."""
        ...

    def directories(self, request: RunRequest) -> Sequence[str]:
        """Directories beside the workspace that the request's options let the agent work in."""
        ...

    def programs(self, request: RunRequest) -> Sequence[Program]:
        """Programs that the request names and that run without anybody's permission."""
        ...

    def ladder(self, request: RunRequest) -> Ladder: ...

    def transcript(self, key: RunKey, request: RunRequest, resumption: Resumption | None) -> Transcript: ...

    def converse(
        self, key: RunKey, request: RunRequest, channel: Channel, transcript: Transcript, desk: Desk
    ) -> Conversation: ...
