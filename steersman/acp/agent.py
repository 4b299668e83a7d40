"""The agent that an editor sees: ACP's methods, and the sessions that they are about."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import acp
from acp.exceptions import RequestError
from acp.interfaces import Agent, Client
from acp.schema import (
    AgentCapabilities,
    Implementation,
    InitializeResponse,
    ListSessionsResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PromptCapabilities,
    PromptResponse,
    ResumeSessionResponse,
    SessionCapabilities,
    SessionInfo,
    SessionListCapabilities,
    SessionMode,
    SessionModeState,
    SessionResumeCapabilities,
    SetSessionModeResponse,
)

from steersman import __version__
from steersman.acp.errors import as_request_errors
from steersman.acp.prompts import Block, images_of, text_of
from steersman.acp.session import Cursor, Session
from steersman.acp.transport import EditorTransport
from steersman.client import Steersman
from steersman.contracts.agents import at_most
from steersman.contracts.request import PermissionMode
from steersman.reports import RunSummary
from steersman.threads import Thread

LISTED: Final = 100
"""Sessions that are listed, the newest: an id that is not among them is loaded all the same."""
NOT_PASSED_ON: Final = "Steersman does not pass the editor's MCP servers on to the agent: {names}"
MODES: Final[dict[PermissionMode, tuple[str, str]]] = {
    "read_only": ("Read only", "It changes nothing"),
    "ask": ("Ask", "It asks before it changes files or runs commands"),
    "accept_edits": ("Accept edits", "It edits files unasked, and asks before it runs commands"),
    "full": ("Full", "It asks nobody"),
}


class SteersmanAgent:
    """Serves one editor, over one connection."""

    def __init__(self, steersman: Steersman, fields: Mapping[str, Any]) -> None:
        """`fields`: of the RunRequest of new sessions' runs, as JSON. `workspace.path` is the editor's `cwd`."""
        self._steersman = steersman
        self._fields = dict(fields)
        self._sessions: dict[str, Session] = {}
        self._client: Client | None = None

    def on_connect(self, conn: Client) -> None:
        """Take the editor's side of the connection."""
        self._client = conn

    async def aclose(self) -> None:
        """Leave all sessions. Nothing is stopped."""
        await asyncio.gather(*(each.aclose() for each in self._sessions.values()))

    async def initialize(self, protocol_version: int, **_: Any) -> InitializeResponse:
        """Say what this agent can: texts and images in, sessions that are loaded, resumed, listed; no MCP servers."""
        return InitializeResponse(
            protocol_version=acp.PROTOCOL_VERSION,
            agent_capabilities=AgentCapabilities(
                load_session=True,
                prompt_capabilities=PromptCapabilities(embedded_context=True, image=self._sees),
                session_capabilities=SessionCapabilities(
                    list=SessionListCapabilities(), resume=SessionResumeCapabilities()
                ),
            ),
            agent_info=Implementation(name="steersman", title="Steersman", version=__version__),
        )

    async def new_session(
        self,
        cwd: str,
        mcp_servers: Sequence[Any] | None = None,
        additional_directories: Sequence[str] | None = None,
        **_: Any,
    ) -> NewSessionResponse:
        """A new thread; the server knows of it from its first prompt on."""
        if additional_directories:
            raise RequestError.invalid_params({"details": "additionalDirectories: a run has one workspace"})
        with as_request_errors():
            session = self._opened(self._thread(cwd))
        self._note(session, mcp_servers)
        return NewSessionResponse(session_id=session.id, modes=_modes(session))

    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: Sequence[Any] | None = None, **meta: Any
    ) -> LoadSessionResponse:
        """Join a thread, or any run, and hear what has been. `meta`: `steersman.cursor`, after which to begin."""
        try:
            after = Cursor.of(meta)
        except ValueError:
            raise RequestError.invalid_params({"details": "_meta.steersman.cursor: none of ours"}) from None
        session = await self._known(session_id, mcp_servers)
        with as_request_errors():
            await session.load(after)
        return LoadSessionResponse(modes=_modes(session))

    async def resume_session(
        self, cwd: str, session_id: str, mcp_servers: Sequence[Any] | None = None, **_: Any
    ) -> ResumeSessionResponse:
        """Join a thread, or any run, without what has been."""
        session = await self._known(session_id, mcp_servers)
        with as_request_errors():
            await session.join()
        return ResumeSessionResponse(modes=_modes(session))

    async def list_sessions(self, cwd: str | None = None, cursor: str | None = None, **_: Any) -> ListSessionsResponse:
        """The newest runs that a session can go on with, of the directory, or of all."""
        with as_request_errors():
            # A loop's runs are its own.
            runs = await self._steersman.list("ParentWorkflowId IS NULL", limit=LISTED)
        newest: dict[str, RunSummary] = {}
        for run in runs:
            if run.workspace is None or not at_most(str(run.agent)).resume:
                continue
            if cwd is None or _same(cwd, run.workspace):
                newest.setdefault(run.id, run)
        return ListSessionsResponse(sessions=[_info(run) for run in newest.values()])

    async def set_session_mode(self, session_id: str, mode_id: str, **_: Any) -> SetSessionModeResponse:
        """What the agent may do unasked, from the next run on. `mode_id`: a permission mode."""
        session = self._session(session_id)
        mode = next((each for each in MODES if each == mode_id), None)
        if mode is None:
            raise RequestError.invalid_params({"details": f"modeId: one of {', '.join(MODES)}"})
        with as_request_errors():
            permissions = session.thread.template.permissions.model_copy(update={"mode": mode})
            session.thread = session.thread.with_options(permissions=permissions)
        return SetSessionModeResponse()

    async def prompt(self, session_id: str, prompt: Sequence[Block], **_: Any) -> PromptResponse:
        """See Session.prompt."""
        session = self._session(session_id)
        with as_request_errors():
            text, images = text_of(prompt), images_of(prompt)
        return await session.prompt(text, images)

    async def cancel(self, session_id: str, **_: Any) -> None:
        """See Session.cancel. A session that is not open here is left alone."""
        if session_id in self._sessions:
            await self._sessions[session_id].cancel()

    @property
    def _sees(self) -> bool:
        """Whether the agent of new sessions can be given images, as far as that is known without asking a worker."""
        return at_most(str(self._fields.get("agent"))).images

    def _thread(self, cwd: str) -> Thread:
        workspace = {**self._fields.get("workspace", {}), "path": cwd}
        return self._steersman.thread(**{**self._fields, "workspace": workspace})

    async def _known(self, session_id: str, mcp_servers: Sequence[Any] | None) -> Session:
        """A session of any client. One that was open here is left, and begins anew."""
        with as_request_errors():
            thread = await self._steersman.resume_thread(session_id)
        if (before := self._sessions.pop(session_id, None)) is not None:
            await before.aclose()
        session = self._opened(thread)
        self._note(session, mcp_servers)
        return session

    def _opened(self, thread: Thread) -> Session:
        if self._client is None:
            raise RequestError.internal_error({"details": "no editor is connected"})
        session = self._sessions[thread.id] = Session(self._steersman, self._client, thread)
        return session

    def _session(self, session_id: str) -> Session:
        try:
            return self._sessions[session_id]
        except KeyError:
            raise RequestError.resource_not_found(session_id) from None

    def _note(self, session: Session, mcp_servers: Sequence[Any] | None) -> None:
        """An agent's MCP servers are of the machine where it works, and their secrets would stand in the history."""
        if mcp_servers:
            names = ", ".join(str(each.name) for each in mcp_servers)
            session.note = NOT_PASSED_ON.format(names=names)


async def serve(
    steersman: Steersman, fields: Mapping[str, Any], on_open: Callable[[EditorTransport], None] = lambda _: None
) -> None:
    """Serve the editor on this process's stdin and stdout until it leaves. `on_open` is given what it speaks over."""
    agent = SteersmanAgent(steersman, fields)
    transport = EditorTransport(*await acp.stdio_streams())
    on_open(transport)
    try:
        # The protocol class has methods that are announced to nobody: those are not there, and refused.
        await acp.run_agent(cast("Agent", agent), transport, use_unstable_protocol=True)
    finally:
        await agent.aclose()


def _same(one: str, other: str) -> bool:
    """Whether two directories are one, however an editor or a person ends its name."""
    return one.rstrip("/") == other.rstrip("/")


def _modes(session: Session) -> SessionModeState:
    known = [SessionMode(id=mode, name=name, description=about) for mode, (name, about) in MODES.items()]
    return SessionModeState(current_mode_id=session.thread.template.permissions.mode, available_modes=known)


def _info(run: RunSummary) -> SessionInfo:
    at = (run.closed_at or run.started_at).isoformat()
    return SessionInfo(
        session_id=run.id, cwd=str(run.workspace), title=run.title or f"{run.agent}, {run.phase}", updated_at=at
    )
