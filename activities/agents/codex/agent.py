"""The port Agent for Codex: what a request may ask of it, and how its processes are launched and read."""

import importlib.util
import json
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePath

from activities.agents.codex import api_key, frames, records
from activities.agents.codex.conversation import CodexConversation
from activities.agents.codex.options import check_supported, options_of
from activities.agents.codex.sessions import CodexSessions
from activities.agents.codex.transcript import CodexTranscript
from activities.ports.admission import Admission, Program, WorkspaceFiles
from activities.ports.agent import CONTINUE_PROMPT, AnswerCheck, ApprovalRequester, Resumption, Transcript
from activities.ports.place import PlaceInfo
from activities.ports.runtime import Channel, Launch, StopTimes
from activities.ports.sessions import AgentSessions
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import AgentNotInstalled, InvalidRequest
from steersman.contracts.request import RunRequest

FILES = WorkspaceFiles(
    instructions=("AGENTS.override.md", "AGENTS.md"),
    programs=(".codex/config.toml", ".codex/hooks.json", ".codex/rules", ".codex/skills", ".agents/skills"),
)
"""Files that Codex loads of a workspace by itself; of an untrusted project skills alone, which are then hidden."""

EXECUTABLE = "codex"
VERSION = "1"
HINT = "pip install openai-codex-cli-bin, or put codex on PATH"
MAX_TEXT = 1_000_000
"""Characters of a schema and of instructions, which travel in one frame."""

SETTINGS = (
    "features.unbounded_connection_retries=false",  # a server that is down would be asked for ever
    "shell_environment_policy.ignore_default_excludes=false",  # or commands see keys, tokens and secrets
    "check_for_update_on_startup=false",
)


class CodexAgent:
    """Agent "codex". `environ` is the worker's environment, `cli` is another program than the one of the package
    openai-codex-cli-bin, or else on PATH.
    """

    name = "codex"
    files = FILES
    sessions: AgentSessions | None = CodexSessions()

    def __init__(self, environ: Mapping[str, str], cli: str | None = None) -> None:
        self._environ = environ
        self._cli = cli

    def load(self) -> None:
        """It takes nothing."""

    def check(self, request: RunRequest) -> None:
        """Raises InvalidRequest, AgentNotInstalled."""
        options_of(request)
        check_supported(request)
        if request.runtime.kind == "local":
            self.program()
        if len(json.dumps(request.output_schema)) + len(request.system_prompt or "") > MAX_TEXT:
            raise InvalidRequest("output_schema, system_prompt: together longer than 1,000,000 characters")
        if request.session is not None and not records.is_id(request.session):
            raise InvalidRequest("session: must be the id of one of Codex's threads, a UUID in small letters")

    def program(self, place: PlaceInfo | None = None) -> str:
        """The path of the program: the package's, else the one on PATH; on another machine that one. Raises
        AgentNotInstalled.
        """
        if place:
            if EXECUTABLE not in place.programs:
                raise AgentNotInstalled(f"codex: not on PATH of a login on {place.name}: install Codex there")
            return place.programs[EXECUTABLE]
        package = importlib.util.find_spec("codex_cli_bin")
        bundled = Path(package.origin).parent / "bin" / "codex" if package and package.origin else None
        if self._cli or (bundled and bundled.is_file()):
            return self._cli or str(bundled)
        found = shutil.which(EXECUTABLE, path=self._environ.get("PATH"))
        if found is None:
            raise AgentNotInstalled(f"codex: not on this host: {HINT}")
        return found

    def launch(
        self, key: RunKey, request: RunRequest, admission: Admission, files: PurePath, resumption: Resumption | None
    ) -> Launch:
        """See ports.Agent. The prompt follows once the thread is there (see conversation)."""
        argv = [self.program(admission.place), "app-server"]
        argv += [argument for setting in SETTINGS for argument in ("-c", setting)]
        resumed = resumption.session_id if resumption else None
        session = frames.session(request, admission, resumed)
        return Launch(
            argv=api_key.command(argv, admission.environment),
            cwd=str(admission.directory),
            env={"PWD": str(admission.directory)},
            first_input=(*frames.handshake(VERSION), (frames.SESSION, session)),
            stdin_has_authority=True,  # answers to its requests for permission
        )

    def directories(self, request: RunRequest) -> tuple[str, ...]:
        """options.add_dirs."""
        return options_of(request).add_dirs

    def executables(self, request: RunRequest) -> tuple[str, ...]:
        """`codex`."""
        return (EXECUTABLE,)

    def keeps(self, session: str, directory: Path) -> bool:
        """By Codex's own record of conversations."""
        return records.keeps(session, directory, self._environ)

    def trusts(self, directory: Path) -> bool:
        """By Codex's own config.toml."""
        return records.trusted(directory, self._environ)

    def programs(self, request: RunRequest) -> tuple[Program, ...]:
        """A request names none."""
        return ()

    def stop_times(self, request: RunRequest) -> StopTimes:
        """SIGTERM ends the app-server in about 50 ms (measured); its commands, in sessions of their own, get theirs at
        the same time.
        """
        return StopTimes.asked(request.stop, 0.0, 1.5)

    def transcript(self, key: RunKey, request: RunRequest, resumption: Resumption | None) -> CodexTranscript:
        """See ports.Agent."""
        opening: tuple[str, str] | None = (frames.PROMPT, request.prompt)
        if resumption and resumption.session_id:
            opening = (f"resume-{resumption.attempt}", CONTINUE_PROMPT)
        if resumption and resumption.parked:
            opening = None
        return CodexTranscript(opening, resumption, structured=request.output_schema is not None)

    def converse(
        self,
        key: RunKey,
        request: RunRequest,
        channel: Channel,
        transcript: Transcript,
        approvals: ApprovalRequester,
        check: AnswerCheck,
    ) -> CodexConversation:
        """See ports.Agent. Codex itself holds its answer against the schema."""
        assert isinstance(transcript, CodexTranscript)
        return CodexConversation(request, channel, transcript, approvals)
