"""The port Agent for opencode (measured with 1.18.33): `opencode acp`, with a plugin of ours and a configuration of the
run above the user's.

Why not its HTTP server: that needs a client beside the process and a port and a password to reach it; over ACP the
journal has all that was said. What ACP leaves out, tokens of each step, what the model has read and why a turn failed,
opencode tells any plugin.
"""

import json
import os
import secrets
from collections.abc import Mapping
from importlib.resources import files as resources
from pathlib import Path, PurePath
from typing import Any, ClassVar
from urllib.parse import quote

from activities.agents import programs
from activities.agents.acp.agent import AcpAgent
from activities.agents.acp.conversation import AcpConversation
from activities.agents.acp.options import options_of
from activities.agents.acp.transcript import AcpTranscript
from activities.agents.opencode.archives import OpencodeArchives
from activities.agents.opencode.conversation import OpencodeConversation
from activities.agents.opencode.transcript import OpencodeTranscript
from activities.ports.admission import Admission, Program, Untrusted, WorkspaceFiles
from activities.ports.agent import Resumption
from activities.ports.archives import SessionArchives
from activities.ports.place import PlaceInfo
from activities.ports.runtime import Launch
from activities.untrusted_json import parse_object
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import InvalidRequest, WorkspaceError
from steersman.contracts.request import RunRequest

EXECUTABLE = "opencode"
HINT = "npm install -g opencode-ai"
PLUGIN = "steersman-opencode.js"
_LOCK = json.dumps({"lockfileVersion": 3, "packages": {"": {"dependencies": {"@opencode-ai/plugin": "*"}}}})
_SAY_INSTALLED = """
config="${XDG_CONFIG_HOME:-$HOME/.config}/opencode"
[ -e "$config/node_modules" ] || { mkdir -p "$config/node_modules" && printf %s "$0" >"$config/package-lock.json"; }
exec "$@"
"""
_WITHOUT_LIBRARY = ("/bin/sh", "-c", _SAY_INSTALLED, _LOCK)
"""Where it has installed nothing yet: told that its library for plugins is there. With any plugin, opencode installs
that first, which takes 7 s (measured), and more than six minutes where npm's registry does not answer. Ours needs none.
"""
CONTENT = "OPENCODE_CONFIG_CONTENT"

LOADED = (".opencode", "opencode.json", "opencode.jsonc")

FILES = WorkspaceFiles(
    instructions=("AGENTS.md", "CLAUDE.md", "CONTEXT.md"),
    programs=("opencode.json", "opencode.jsonc", ".opencode", ".claude/skills", ".agents/skills"),
    from_top=LOADED,
)
"""Files of a workspace that opencode loads by itself, unless it is told not to."""

_NOT_HERE = ("OPENCODE_ENABLE_QUESTION_TOOL", "OPENCODE_EXPERIMENTAL_BACKGROUND_SUBAGENTS")
"""Tools whose end nobody would see: a question that the protocol cannot ask, work that goes on after the turn."""
_UNTRUSTED = ("PROJECT_CONFIG", "CLAUDE_CODE_SKILLS", "EXTERNAL_SKILLS")


class OpencodeAgent(AcpAgent):
    """Agent "opencode". `environ` is the worker's environment."""

    name = "opencode"
    files = FILES
    archives: SessionArchives = OpencodeArchives()
    conversation_kind: ClassVar[type[AcpConversation]] = OpencodeConversation
    transcript_kind: ClassVar[type[AcpTranscript]] = OpencodeTranscript

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def check(self, request: RunRequest) -> None:
        """Raises InvalidRequest, AgentNotInstalled."""
        options_of(request)
        self._check_common(request)
        if request.runtime.kind == "local":
            self.program()

    def program(self, place: PlaceInfo | None = None) -> str:
        """The program's path, on this machine or another one. Raises AgentNotInstalled."""
        return programs.on_path(EXECUTABLE, self._environ, place, HINT)

    def arguments(self, request: RunRequest, admission: Admission) -> tuple[str, ...]:
        """The command line. Raises AgentNotInstalled."""
        has_fresh_home = admission.home is not None or request.runtime.kind == "kubernetes"
        return (*(_WITHOUT_LIBRARY if has_fresh_home else ()), self.program(admission.place), "acp")

    def own_files(self, request: RunRequest, admission: Admission) -> dict[str, bytes]:
        """The plugin."""
        return {PLUGIN: resources("activities.agents.opencode").joinpath("plugin.js").read_bytes()}

    def own_environment(self, request: RunRequest, admission: Admission, files: PurePath) -> dict[str, str]:
        """The configuration, and a password for the server that `opencode acp` opens on the loopback interface, which
        is any local user's otherwise. On another machine it has a database alone: the run's sessions go with that.
        """
        own = self.archives.database(admission.directory) if admission.place else {}
        off = _UNTRUSTED if admission.untrusted else ()
        return {
            **own,
            **{f"OPENCODE_DISABLE_{what}": "1" for what in ("AUTOUPDATE", *off)},
            "OPENCODE_PURE": "0",  # "1" loads no plugins
            **dict.fromkeys(_NOT_HERE, "false"),
            "BUN_TMPDIR": str(files),  # each process unpacks a library of 6 MB there, and leaves it
            "OPENCODE_SERVER_PASSWORD": secrets.token_urlsafe(32),
            CONTENT: json.dumps(_configuration(request, admission.environment.get(CONTENT, ""), files / PLUGIN)),
        }

    def launch(
        self, key: RunKey, request: RunRequest, admission: Admission, files: PurePath, resumption: Resumption | None
    ) -> Launch:
        """See ports.Agent. Raises WorkspaceError where opencode would load programs of a workspace nobody trusts."""
        if admission.untrusted:
            _refuse_programs(admission, admission.untrusted, resumption)
        return super().launch(key, request, admission, files, resumption)

    def executables(self, request: RunRequest) -> tuple[str, ...]:
        """`opencode`."""
        return (EXECUTABLE,)

    def trusts(self, directory: Path) -> bool:
        """None: it keeps no record of what its user trusts."""
        return False

    def programs(self, request: RunRequest) -> tuple[Program, ...]:
        """None that the request names."""
        return ()


def _refuse_programs(admission: Admission, untrusted: Untrusted, resumption: Resumption | None) -> None:
    """Told to load no project's configuration, opencode loads plugins of it all the same, from here up to the root."""
    trust = f"to trust it: steer trust {untrusted.to_trust or admission.directory}"
    if admission.place:
        found = [each for each in untrusted.left_out if each in LOADED]
        if resumption:
            raise WorkspaceError(
                f"opencode would load what its last process may have left in {admission.directory} on "
                f"{admission.place.name}, and nobody trusts that; {trust}"
            )
    else:
        directory, home = Path(admission.directory), Path(admission.environment.get("HOME", "/")).resolve()
        around = [each for each in (directory, *directory.parents) if each != home]
        found = [str(path) for each in around for name in LOADED if os.path.lexists(path := each / name)]
    if found:
        raise WorkspaceError(f"opencode loads {', '.join(found)} whether or not it is trusted, and it is not; {trust}")


def _configuration(request: RunRequest, given: str, plugin: PurePath) -> dict[str, Any]:
    """What counts above the user's own configuration. `given`: the same from the environment. Raises InvalidRequest.

    Titles of sessions are made by a request to the model that nobody counts.
    """
    try:
        found = parse_object(given) if given else {}
    except ValueError as error:
        raise InvalidRequest(f"{CONTENT} in the agent's environment: {error}") from error
    plugins = found.get("plugin")
    agents = found.get("agent")
    found["plugin"] = [*(plugins if isinstance(plugins, list) else ()), f"file://{quote(str(plugin))}"]
    found["agent"] = {**(agents if isinstance(agents, dict) else {}), "title": {"disable": True}}
    if request.permissions.mode != "full":
        found["permission"] = {"*": "ask"}
    return found
