"""The port Agent for Hermes: what a request may ask of it, and how its processes are launched and read."""

from collections.abc import Mapping
from pathlib import Path, PurePath

from activities.agents import programs
from activities.agents.hermes import frames, gateway, interpreter
from activities.agents.hermes.archives import DATABASE, HermesArchives
from activities.agents.hermes.conversation import HermesConversation
from activities.agents.hermes.interpreter import EXECUTABLE, HINT
from activities.agents.hermes.transcript import HermesTranscript
from activities.agents.structured import asking
from activities.ports.admission import Admission, Program, WorkspaceFiles
from activities.ports.agent import AnswerCheck, ApprovalRequester, Resumption, Transcript, continue_prompt
from activities.ports.archives import SessionArchives
from activities.ports.place import PlaceInfo
from activities.ports.runtime import Channel, Launch, StopTimes
from activities.ports.sessions import AgentSessions
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.request import RunRequest

FILES = WorkspaceFiles(
    instructions=(".hermes.md", "HERMES.md", "AGENTS.md", "agents.md", "CLAUDE.md", "claude.md", ".cursorrules"),
    programs=(".cursor/rules",),
)
"""Files that Hermes loads of a workspace by itself; of an untrusted one none."""

MANAGED = "config.yaml"
"""Settings that go before the user's, in the directory that HERMES_MANAGED_DIR names."""
_QUIET = b'{"lsp": {"enabled": false}}\n'
"""No language servers, which build what they look at."""

# `-m` would look for the module in the workspace first, and Hermes starts a helper of its own so: both from elsewhere.
_GATEWAY = (
    "import os, runpy, sys\n"
    "files = sys.argv.pop()\n"
    'if "HERMES_MANAGED_DIR" in os.environ and os.path.isdir("/etc/hermes"):\n'
    '    sys.exit("/etc/hermes decides here what Hermes loads: it takes no untrusted workspace")\n'
    'os.chdir("/")\n'
    f'if "{DATABASE}" in os.environ:\n'
    "    import hermes_constants, hermes_state\n"
    f'    hermes_state.DEFAULT_DB_PATH = hermes_constants.get_hermes_home() / os.environ["{DATABASE}"]\n'
    "try:\n"
    "    from tools.environments.local import LocalEnvironment\n"
    "    begin = LocalEnvironment.init_session\n"
    "except (ImportError, AttributeError):\n"
    "    pass\n"
    "else:\n"
    "    def init_session(self):\n"
    "        os.makedirs(files, 0o700, exist_ok=True)\n"
    '        self._snapshot_path = os.path.join(files, f"snapshot-{id(self)}.sh")\n'
    "        begin(self)\n"
    "    LocalEnvironment.init_session = init_session\n"
    "try:\n"
    "    import tui_gateway.server, gateway.session_context\n"  # the server first: it reads `.env` before the others
    "    gateway.session_context.async_delivery_supported = lambda: False\n"
    "except ImportError:\n"
    "    pass\n"
    'runpy.run_module("tui_gateway.entry", run_name="__main__", alter_sys=True)\n'
)
"""`files`: the run's own. There it keeps its shell's variables, which it leaves when it is stopped: keys among them.

A run ends with its turn, as `hermes -z` does, and Hermes is told so: else what it delegates works in the background,
and would end with the run, as a command would whose end it is to be told of.
"""


def home(environ: Mapping[str, str]) -> Path | None:
    """Hermes's own directory; None where the environment does not tell."""
    if own := environ.get("HERMES_HOME"):
        return Path(own)
    return Path(environ["HOME"], ".hermes") if environ.get("HOME") else None


class HermesAgent:
    """Agent "hermes". `environ` is the worker's environment."""

    name = "hermes"
    files = FILES
    sessions: AgentSessions | None = None  # all of them are in one database
    archives: SessionArchives = HermesArchives()

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def load(self) -> None:
        """It takes nothing."""

    def check(self, request: RunRequest) -> None:
        """Raises InvalidRequest, AgentNotInstalled."""
        if request.limits.rate_limit_s is not None:
            raise InvalidRequest('limits.rate_limit_s: agent "hermes" does not say when a limit ends')
        if request.session is not None and not self.archives.is_id(request.session):
            raise InvalidRequest("session: must be the id of one of Hermes's sessions, as 20261125_020841_eb28f5")
        if request.session is not None and request.model is not None:
            raise InvalidRequest("model: a session of Hermes goes on with the model that it has")
        if gateway.asks_for_gateway(request):
            gateway.check(request, self._environ)
        elif request.runtime.kind == "local":
            interpreter.interpreter(self.program())

    def program(self, place: PlaceInfo | None = None) -> str:
        """The path of the command `hermes`, on this machine or another one. Raises AgentNotInstalled."""
        return programs.on_path(EXECUTABLE, self._environ, place, HINT)

    def launch(
        self, key: RunKey, request: RunRequest, admission: Admission, files: PurePath, resumption: Resumption | None
    ) -> Launch:
        """See ports.Agent. The prompt is not among the first input: the gateway has to name its session before."""
        resumed = resumption.session_id if resumption else None
        if gateway.asks_for_gateway(request):
            return gateway.launch(request, admission, self._environ, resumed)
        python = interpreter.command(self.program(admission.place), admission.place)
        environment = {
            "PWD": str(admission.directory),
            "HERMES_YOLO_MODE": "1",
            "HERMES_TUI_TOOL_PROGRESS": "verbose",  # else a call's beginning does not say what it was called with
            "TERMINAL_CWD": str(admission.directory),
            **(self.archives.database(admission.directory) if admission.place else {}),
            # Else it goes on for a second after SIGTERM, and asks its model about the tool that was stopped with it.
            "HERMES_TUI_GATEWAY_SHUTDOWN_GRACE_S": "0.001",
        }
        if admission.untrusted:
            # It looks for instructions below TERMINAL_CWD as its tools go there: where the session works it knows.
            environment |= {
                "HERMES_IGNORE_RULES": "1",
                "HERMES_MANAGED_DIR": str(files),
                "TERMINAL_CWD": str(files),
            }
        return Launch(
            argv=(*python, "-P", "-c", _GATEWAY, str(files)),
            cwd=str(admission.directory),
            env=environment,
            files={MANAGED: _QUIET} if admission.untrusted else {},
            first_input=((frames.SESSION, frames.session(request, admission, resumed)),),
            stdin_has_authority=True,  # whoever writes it is obeyed
        )

    def directories(self, request: RunRequest) -> tuple[str, ...]:
        """None: it has one working directory."""
        return ()

    def executables(self, request: RunRequest) -> tuple[str, ...]:
        """`hermes`."""
        return () if gateway.asks_for_gateway(request) else (EXECUTABLE,)

    def keeps(self, session: str, directory: Path) -> bool:
        """Nobody is asked: where requesters are restricted, nothing runs in mode "full", and so no Hermes."""
        return False

    def trusts(self, directory: Path) -> bool:
        """Hermes has no record of that."""
        return False

    def programs(self, request: RunRequest) -> tuple[Program, ...]:
        """A request names none."""
        return ()

    def stop_times(self, request: RunRequest) -> StopTimes:
        """SIGTERM to the gateway, its helper and its commands at once: each message is in its database by then."""
        if gateway.asks_for_gateway(request):
            return gateway.stop_times(request)
        return StopTimes.asked(request.stop, 0.0, 1.5)

    def transcript(self, key: RunKey, request: RunRequest, resumption: Resumption | None) -> HermesTranscript:
        """See ports.Agent."""
        asked = f"\n\n{asking(request.output_schema)}" if request.output_schema is not None else ""
        opening: tuple[str, str] | None = (frames.PROMPT, request.prompt + asked)
        if resumption and resumption.session_id:
            opening = (
                None if resumption.parked else (f"resume-{resumption.attempt}", continue_prompt(resumption.unsaved))
            )
        kind = gateway.GatewayTranscript if gateway.asks_for_gateway(request) else HermesTranscript
        return kind(opening, resumption, structured=request.output_schema is not None)

    def converse(
        self,
        key: RunKey,
        request: RunRequest,
        channel: Channel,
        transcript: Transcript,
        approvals: ApprovalRequester,
        check: AnswerCheck,
    ) -> HermesConversation:
        """See ports.Agent. Hermes asks for no approval in mode "full"."""
        assert isinstance(transcript, HermesTranscript)
        return HermesConversation(channel, transcript, check)
