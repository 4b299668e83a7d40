"""The port Agent for Claude Code: what a request may ask of it, and how its processes are launched and read."""

import importlib
import importlib.util
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from activities.agents.claude import command_line, mcp, sessions, trust
from activities.agents.claude.command_line import MAX_ARGUMENT
from activities.agents.claude.frames import user_frame
from activities.agents.claude.options import options_of
from activities.agents.claude.sessions import ClaudeSessions
from activities.agents.claude.transcript import ClaudeTranscript
from activities.ports.admission import Admission, Program, WorkspaceFiles
from activities.ports.agent import CONTINUE_PROMPT, AnswerCheck, ApprovalRequester, Resumption, Transcript
from activities.ports.place import PlaceInfo
from activities.ports.runtime import Channel, Launch, StopTimes
from activities.ports.sessions import AgentSessions
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import AgentNotInstalled, InvalidRequest
from steersman.contracts.request import RunRequest

if TYPE_CHECKING:
    from activities.agents.claude.conversation import ClaudeConversation

FILES = WorkspaceFiles(
    instructions=("CLAUDE.md", ".claude/CLAUDE.md", "CLAUDE.local.md"),
    programs=(
        ".claude/settings.json",
        ".claude/settings.local.json",
        ".mcp.json",
        ".claude/agents",
        ".claude/commands",
        ".claude/hooks",
        ".claude/skills",
        ".claude/workflows",
        ".claude/output-styles",
        ".claude/rules",
    ),
    from_root=(".mcp.json",),
    from_top=(".claude/agents", ".claude/commands", ".claude/skills", ".claude/workflows"),
)
"""Files of a workspace that Claude Code loads by itself (with `--setting-sources` user: none, measured)."""

EXECUTABLE = "claude"

CONVERSATION = "activities.agents.claude.conversation"
"""The module that needs claude-agent-sdk."""


class ClaudeAgent:
    """Agent "claude". `environ` is the worker's environment, `lent` names the variables of it that MCP servers may be
    given, `cli` is another binary than the SDK's own.
    """

    name = "claude"
    files = FILES
    sessions: AgentSessions | None = ClaudeSessions()

    def __init__(self, environ: Mapping[str, str], cli: str | None = None, lent: frozenset[str] = frozenset()) -> None:
        self._environ = environ
        self._cli = cli
        self._lent = {name: value for name, value in environ.items() if name in lent}

    def load(self) -> None:
        """See ports.Agent: claude-agent-sdk takes as long as everything else that a worker imports."""
        importlib.import_module(CONVERSATION)

    def check(self, request: RunRequest) -> None:
        """Raises InvalidRequest, AgentNotInstalled."""
        options = options_of(request)
        if request.runtime.kind == "local":
            self.program()
            _check_root(request, is_root=os.geteuid() == 0, environ=self._environ)
        self.load()
        if request.output_schema is not None and len(json.dumps(request.output_schema)) > MAX_ARGUMENT:
            raise InvalidRequest("output_schema: larger than Claude Code takes (120,000 characters)")
        if len(request.system_prompt or "") > MAX_ARGUMENT:
            raise InvalidRequest("system_prompt: longer than Claude Code takes (120,000 characters)")
        if request.session is not None and not sessions.is_id(request.session):
            raise InvalidRequest("session: must be the id of one of Claude Code's sessions, a UUID in small letters")
        if request.permissions.mode == "read_only" and options.setting_sources is not None:
            raise InvalidRequest("options.setting_sources: read_only runs load no settings")
        mcp.configuration(options.mcp_servers, self._lent)

    def program(self, place: PlaceInfo | None = None) -> str:
        """The path of the CLI: the SDK's own, else the one on PATH; on another machine that one. Raises
        AgentNotInstalled.
        """
        if place:
            if EXECUTABLE not in place.programs:
                raise AgentNotInstalled(f"claude: not on PATH of a login on {place.name}: install Claude Code there")
            return place.programs[EXECUTABLE]
        sdk = importlib.util.find_spec("claude_agent_sdk")
        bundled = Path(sdk.origin).parent / "_bundled" / "claude" if sdk and sdk.origin else None
        if self._cli or (bundled and bundled.is_file()):
            return self._cli or str(bundled)
        found = shutil.which(EXECUTABLE)
        if found is None:
            raise AgentNotInstalled("claude: neither in claude-agent-sdk's wheel nor on PATH of this host")
        return found

    def launch(
        self, key: RunKey, request: RunRequest, admission: Admission, files: PurePath, resumption: Resumption | None
    ) -> Launch:
        """See ports.Agent."""
        place, environ = admission.place, admission.environment if admission.place else self._environ
        if place:
            _check_root(request, is_root=place.is_root, environ=environ)
        argv = command_line.permission_arguments(self.program(place), request, environ)
        argv += command_line.session_arguments(key, request, resumption)
        argv += command_line.configuration_arguments(request, options_of(request), admission)
        private = command_line.private_files(request, options_of(request), admission, self._lent)
        argv += [each.argument(files) for each in private]
        name, text, images = "prompt", request.prompt, request.attachments
        if resumption and resumption.session_id:
            name, text, images = f"resume-{resumption.attempt}", CONTINUE_PROMPT, ()
        frame = json.dumps(user_frame(key, name, text, images)) + "\n"
        return Launch(
            argv=tuple(argv),
            cwd=str(admission.directory),
            env=command_line.environment(request, admission),
            files={each.name: each.data for each in private},
            first_input=() if resumption and resumption.parked else ((name, frame),),
            stdin_has_authority=True,  # answers to its requests for permission
        )

    def directories(self, request: RunRequest) -> tuple[str, ...]:
        """options.add_dirs."""
        return options_of(request).add_dirs

    def executables(self, request: RunRequest) -> tuple[str, ...]:
        """`claude`."""
        return (EXECUTABLE,)

    def keeps(self, session: str, directory: Path) -> bool:
        """By Claude Code's own record of conversations."""
        return sessions.is_of(directory, session, self._environ)

    def trusts(self, directory: Path) -> bool:
        """By Claude Code's own record of its trust dialog."""
        return trust.accepted(directory, self._environ)

    def programs(self, request: RunRequest) -> tuple[Program, ...]:
        """MCP servers that run a program, and the settings of the workspace."""
        options = options_of(request)
        named = {"project", "local"} & set(options.setting_sources or ())
        settings = (Program("options.setting_sources", of_workspace=True),) if named else ()
        return (*mcp.programs(options.mcp_servers), *settings)

    def stop_times(self, request: RunRequest) -> StopTimes:
        """SIGTERM to the whole tree at once ends Claude Code in about 0.1 s; a grace only delays it (measured)."""
        return StopTimes.asked(request.stop, 0.0, 1.5)

    def transcript(self, key: RunKey, request: RunRequest, resumption: Resumption | None) -> ClaudeTranscript:
        """See ports.Agent."""
        servers = tuple(options_of(request).mcp_servers)
        return ClaudeTranscript(resumption, request.limits.rate_limit_s, request.permissions.mode, servers)

    def converse(
        self,
        key: RunKey,
        request: RunRequest,
        channel: Channel,
        transcript: Transcript,
        approvals: ApprovalRequester,
        check: AnswerCheck,
    ) -> "ClaudeConversation":
        """See ports.Agent. Claude Code itself holds its answer against the schema."""
        from activities.agents.claude.conversation import ClaudeConversation  # noqa: PLC0415 - see `check`

        assert isinstance(transcript, ClaudeTranscript)
        return ClaudeConversation(key, request.permissions.mode, channel, transcript, approvals)


def _check_root(request: RunRequest, *, is_root: bool, environ: Mapping[str, str]) -> None:
    """Raises InvalidRequest where Claude Code would refuse the mode on this or another machine."""
    if request.permissions.mode == "full" and is_root and "IS_SANDBOX" not in environ:
        raise InvalidRequest(
            'permissions.mode: Claude Code refuses "full" as root; run the worker as another user, or log in as one '
            "where runtime is another machine, or set IS_SANDBOX=1 there for a machine that is a sandbox"
        )
