"""The port Agent for Gemini CLI (measured with 0.61.0): `gemini --acp`, with settings of the run beside the user's.

Two files beside the process are all that is set: what overrides the user's settings, and what is a default below them.
The mode is always "default", in which Gemini asks before it does anything: the answers are the run's, and an untrusted
folder would refuse the others.
"""

import json
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import ClassVar

from activities.agents import programs
from activities.agents.acp.agent import AcpAgent
from activities.agents.acp.conversation import AcpConversation
from activities.agents.acp.session_start import Setting
from activities.agents.acp.transcript import AcpTranscript
from activities.agents.gemini import trust
from activities.agents.gemini.conversation import GeminiConversation
from activities.agents.gemini.sessions import GeminiSessions, wait_s
from activities.agents.gemini.transcript import GeminiTranscript
from activities.ports.admission import Admission, Program, WorkspaceFiles
from activities.ports.agent import Resumption
from activities.ports.place import PlaceInfo
from activities.ports.runtime import Launch
from activities.ports.sessions import AgentSessions
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import InvalidRequest, PlaceError
from steersman.contracts.request import RunRequest

EXECUTABLE = "gemini"
HINT = "npm install -g @google/gemini-cli"

FILES = WorkspaceFiles(
    instructions=("GEMINI.md", ".gemini/GEMINI.md"),
    programs=(
        ".gemini/settings.json",
        ".gemini/.env",
        ".env",
        ".gemini/agents",
        ".gemini/commands",
        ".gemini/extensions",
        ".gemini/hooks",
        ".gemini/policies",
        ".gemini/skills",
        ".gemini/system.md",
    ),
    from_root=(".gemini/.env", ".env"),
)
"""Files of a workspace that Gemini CLI loads by itself, where its folder is trusted."""

OVERRIDES, DEFAULTS, FOLDERS = "gemini-settings.json", "gemini-defaults.json", "gemini-folders.json"

_SETTINGS = {
    "general": {
        "enableAutoUpdate": False,
        "enableAutoUpdateNotification": False,
        # With it a session that is resumed in another minute than it began in is deleted (measured).
        "sessionRetention": {"enabled": False},
    },
    "security": {"folderTrust": {"enabled": True}},
    "tools": {"autoAccept": False},
}


class GeminiAgent(AcpAgent):
    """Agent "gemini". `environ` is the worker's environment."""

    name = "gemini"
    files = FILES
    conversation_kind: ClassVar[type[AcpConversation]] = GeminiConversation
    transcript_kind: ClassVar[type[AcpTranscript]] = GeminiTranscript
    sessions: AgentSessions | None = GeminiSessions()

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def check(self, request: RunRequest) -> None:
        """Raises InvalidRequest, AgentNotInstalled."""
        if request.options:
            raise InvalidRequest(f'options.{next(iter(request.options))}: agent "gemini" has no options')
        self._check_common(request)
        if request.runtime.kind == "local":
            self.program()

    def program(self, place: PlaceInfo | None = None) -> str:
        """The program's path, on this machine or another one. Raises AgentNotInstalled."""
        return programs.on_path(EXECUTABLE, self._environ, place, HINT)

    def arguments(self, request: RunRequest, admission: Admission) -> tuple[str, ...]:
        """The command line. Raises AgentNotInstalled."""
        model = (f"--model={request.model}",) if request.model else ()
        return (self.program(admission.place), "--acp", "--approval-mode=default", *model)

    def own_files(self, request: RunRequest, admission: Admission) -> dict[str, bytes]:
        """Settings above the user's and below them, and whether the folder is trusted."""
        trusted = "DO_NOT_TRUST" if admission.untrusted else "TRUST_FOLDER"
        has_key = "GEMINI_API_KEY" in admission.environment
        defaults = {"security": {"auth": {"selectedType": "gemini-api-key"}}} if has_key else {}
        texts = {OVERRIDES: _SETTINGS, DEFAULTS: defaults, FOLDERS: {str(admission.directory): trusted}}
        return {name: json.dumps(value).encode() for name, value in texts.items()}

    def own_environment(self, request: RunRequest, admission: Admission, files: PurePath) -> dict[str, str]:
        """Where those files are, and that the program is not to start itself again, as a child that hears no signal."""
        return {
            "GEMINI_CLI_NO_RELAUNCH": "1",
            "GEMINI_CLI_SYSTEM_SETTINGS_PATH": str(files / OVERRIDES),
            "GEMINI_CLI_SYSTEM_DEFAULTS_PATH": str(files / DEFAULTS),
            "GEMINI_CLI_TRUSTED_FOLDERS_PATH": str(files / FOLDERS),
            "PWD": str(admission.directory),
        }

    def launch(
        self, key: RunKey, request: RunRequest, admission: Admission, files: PurePath, resumption: Resumption | None
    ) -> Launch:
        """See ports.Agent. Raises PlaceError where Gemini CLI would read no settings, and this run needs them."""
        needed = admission.untrusted or request.session or (resumption and resumption.session_id)
        if needed and not admission.place and (shared := _shared_directory(Path(files))):
            raise PlaceError(
                f"gemini: {shared} is writable by others, so Gemini CLI reads no settings from below it, "
                "and would load the workspace's, or lose its session: move the worker's state directory (--state-dir)"
            )
        return super().launch(key, request, admission, files, resumption)

    def settings(self, request: RunRequest) -> tuple[Setting, ...]:
        """None: mode and model are arguments, and its list of models lacks some that it takes."""
        return ()

    def executables(self, request: RunRequest) -> tuple[str, ...]:
        """`gemini`."""
        return (EXECUTABLE,)

    def trusts(self, directory: Path) -> bool:
        """By Gemini CLI's own record of trusted folders."""
        return trust.accepted(directory, self._environ)

    def programs(self, request: RunRequest) -> tuple[Program, ...]:
        """None that the request names."""
        return ()

    def session_wait_s(self, request: RunRequest, session: str) -> float:
        """A session that is loaded in the minute in which it began is lost (measured); one that was brought began long
        ago by its name.
        """
        if request.is_carried and session == request.session:
            return 0.0
        is_here = request.runtime.kind == "local" and request.home == "user"
        return wait_s(session, self._environ, is_here=is_here)


def _shared_directory(directory: Path) -> Path | None:
    """The nearest directory on the way to this one that others can write to, as Gemini CLI looks for them."""
    around = (each for each in (directory, *directory.parents) if each.exists())
    return next((each for each in around if each.stat().st_mode & 0o022), None)
