"""A run in a copy, its agent's sessions on the leader and at a place that is reached by programs alone.

The agent is a claude, a codex or a gemini, whose process nobody starts: its files are written as the program does.
"""

import os
import sys
from pathlib import Path
from typing import Any

from activities.agents.claude.agent import ClaudeAgent
from activities.agents.codex.agent import CodexAgent
from activities.agents.gemini.agent import GeminiAgent
from activities.ports.agent import Agent
from activities.returned_sessions import AgentEnvironments
from activities.run_sessions import RunSessions
from activities.runtimes.machine import ChildMachine
from activities.runtimes.shim_runtime import ShimRuntime
from activities.store.kept_copies import CopyLocation, KeptCopies
from activities.store.ownership import Ownership
from activities.store.run_directory import key_of_part
from activities.store.runs import RunStore
from activities.store.session_locks import SessionLocks
from activities.workspaces.carry.copies import WorkspaceCopy
from steersman.contracts.activities import CarriedBack, RunKey
from steersman.contracts.request import parse_request
from steersman.contracts.run import Finalize

SESSION = "0b2c9e54-3c35-4d2f-9e3d-2f6f7f0f7c11"
FIRST = b'{"type":"user","cwd":"/work"}\n' + b"x" * 3_000_000 + b"\n"
"""A conversation of several reads."""
MORE = b'{"type":"assistant"}\n'


class SessionCarrying:
    """`here`, `there`: the agent's own directories. `python`: a program in place of the place's interpreter."""

    name = "claude"
    variable = "CLAUDE_CONFIG_DIR"
    is_here = True
    parts: tuple[int, ...] = (0,)
    """Those of the run that the agent has."""

    def __init__(
        self, root: Path, *, python: str = sys.executable, session: str | None = SESSION, run: str = "run"
    ) -> None:
        self.workspace, self.copy = root / "work", root / "there" / "copy"
        self.here, self.there = root / "here" / self.name, root / "there" / self.name
        for each in (self.workspace, self.copy, self.here):
            each.mkdir(parents=True, exist_ok=True)
        self.agent = self.made()
        self.store = RunStore(root / "state", Ownership("cluster", "default"))
        self.runtime = ShimRuntime(self.store, "host")
        self.machine = ChildMachine(root / "there", {"PATH": os.environ["PATH"]})
        self.run = self.store.create(RunKey(run=run, execution="e"))
        self.python = python
        self.sessions = self._sessions_of(self)
        fields: dict[str, Any] = {} if session is None else {"session": session}
        workspace = {"path": str(self.workspace), "isolation": "copy"}
        self.request = parse_request({"agent": self.name, "prompt": "x", "workspace": workspace, **fields})

    def made(self) -> Agent:
        """The agent."""
        return ClaudeAgent({})

    def _sessions_of(self, *works: "SessionCarrying") -> RunSessions:
        kept = KeptCopies(self.store.state, self.store.owner)
        agents = {each.name: each.agent for each in works}
        return RunSessions(agents, kept, self._copy_at, self.store, self.runtime)

    def share(self, other: "SessionCarrying") -> None:
        """Both are agents of one run."""
        self.sessions = other.sessions = self._sessions_of(self, other)

    async def _copy_at(self, where: CopyLocation) -> WorkspaceCopy:
        return WorkspaceCopy(self.machine, str(self.copy), self.python, is_here=self.is_here)

    def ours(self, session: str = SESSION) -> Path:
        """The conversation on the leader; its folder has the name without `.jsonl`."""
        return self._place(self.here, self.workspace, session)

    def theirs(self, session: str = SESSION) -> Path:
        """The conversation at the place."""
        return self._place(self.there, self.copy, session)

    def _place(self, home: Path, directory: Path, session: str) -> Path:
        files = self.agent.sessions.files(session, directory) if self.agent.sessions else None
        assert files
        return home / files.conversation

    @property
    def begun(self) -> str:
        """The session that the run's first process begins, where it begins one."""
        assert self.agent.sessions
        begun = self.agent.sessions.begun(key_of_part(self.run.agent_key, self.parts[0]), 1)
        assert begun
        return begun

    @property
    def kept(self) -> str:
        """The id of SESSION as the run left it, where somebody else has gone on with it."""
        assert self.agent.sessions
        return self.agent.sessions.kept(self.run.agent_key, SESSION)

    def hold(self, conversation: Path, text: bytes = FIRST, **inner: bytes) -> None:
        """A session is held, or gone on with: as agents do, what is there is added to."""
        for name, data in inner.items():
            _hold(conversation.with_suffix("") / "subagents" / f"agent-{name}.jsonl", data)
        _hold(conversation, text)

    async def out(self, backup: Path | None = None) -> None:
        """Before the first process, which there is from then on."""
        here, there = ({self.variable: str(each)} for each in (self.here, self.there))
        environments = AgentEnvironments(self.request, here, there, self.parts)
        await self.sessions.out(self.run, environments, self.workspace, str(self.copy), backup)

    def started(self) -> None:
        self.run.attempt(1).mkdir(parents=True)
        (self.run.attempt(1) / "journal").touch()

    async def lock(self, session: str) -> None:
        """The agent has said that it has this session."""
        await SessionLocks(self.store, self.runtime).take(self.name, session, self.run)

    async def back(self, *, keep: bool = False) -> Finalize:
        await self.sessions.back(self.run, keep=keep)
        return (await self.sessions.told(self.run, CarriedBack(finalize=Finalize(status="none")))).finalize

    async def close(self) -> None:
        await self.machine.aclose()


class CodexCarrying(SessionCarrying):
    """Codex keeps a thread by its id alone, in whichever directory it was held."""

    name = "codex"
    variable = "CODEX_HOME"

    def made(self) -> Agent:
        return CodexAgent({"CODEX_HOME": str(self.here)})

    def _place(self, home: Path, directory: Path, session: str) -> Path:
        return rollout(home, session)


class GeminiCarrying(SessionCarrying):
    """Gemini CLI keeps a session in a directory that it has named for the one in which it was held. `here` and `there`
    are homes of the user.
    """

    name = "gemini"
    variable = "GEMINI_CLI_HOME"
    named = "work"
    """The name that the leader's has for the workspace."""

    def made(self) -> Agent:
        return GeminiAgent({"GEMINI_CLI_HOME": str(self.here)})

    def _place(self, home: Path, directory: Path, session: str) -> Path:
        if home == self.here:
            return chat(home, self.named, session)
        return chat(home, "copy", session, BROUGHT)


BROUGHT = "2000-01-01T00-00"
"""The minute of a conversation that was brought."""


def chat(home: Path, name: str, session: str, minute: str = "2026-11-26T02-32") -> Path:
    """The file of a session of Gemini CLI, in the directory of that name."""
    return home / ".gemini" / "tmp" / name / "chats" / f"session-{minute}-{session[:8]}.jsonl"


def begun_chat(session: str) -> bytes:
    """The beginning of each file of a session, as Gemini CLI writes it."""
    first = f'{{"sessionId":"{session}","projectHash":"e7","startTime":"2026-11-26T06:09:02.042Z","kind":"main"}}\n'
    context = '{"$set":{"messages":[{"id":"d0","type":"user","content":[{"text":"<session_context>"}]}]}}\n'
    return f"{first}{context}".encode()


def said_chat(session: str, text: str = "the first word") -> bytes:
    """What a process adds that goes on with one, or begins it: it says the id once more."""
    again = f'{{"$set":{{"sessionId":"{session}"}}}}\n'
    return f'{again}{{"id":"75","type":"user","content":[{{"text":"{text}"}}]}}\n'.encode()


def rollout(home: Path, thread: str, time: str = "2026-11-26T02-32-54") -> Path:
    """The file of a thread."""
    return home.joinpath("sessions", *time[:10].split("-"), f"rollout-{time}-{thread}.jsonl")


def thread(name: str, *, cwd: str = "/work", forked_from: str | None = None, more: str = "") -> bytes:
    """The beginning of a thread, as Codex writes it."""
    forked = f'"forked_from_id":"{forked_from}",' if forked_from else ""
    header = f'"session_id":"{name}","id":"{name}",{forked}{more}"cwd":"{cwd}"'
    first = f'{{"timestamp":"2026-11-26T02:32:54.358Z","ordinal":0,"type":"session_meta","payload":{{{header}}}}}\n'
    return f'{first}{{"type":"event_msg","payload":{{"thread_id":"{name}"}}}}\n'.encode()


def _hold(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    has = path.read_bytes() if path.exists() else b""
    if data.startswith(has):
        with path.open("ab") as file:
            file.write(data[len(has) :])
    else:
        path.write_bytes(data)
