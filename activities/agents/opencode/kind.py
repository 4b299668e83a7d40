"""The row of agent "opencode": how it is made, the variables it guards, and what the doctor checks of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from activities.agents import programs
from activities.agents.agent_kind import AgentKind, Finding
from activities.agents.opencode.agent import HINT, OpencodeAgent
from steersman.contracts.agents import AGENT_VARIABLES


def _findings(environ: Mapping[str, str]) -> Sequence[Finding]:
    program = OpencodeAgent(environ).program
    return programs.findings("opencode", program, lambda path: (path, "--version"), lambda: _key(environ), HINT)


def _key(environ: Mapping[str, str]) -> Finding:
    found = sorted(key for key in AGENT_VARIABLES["opencode"] if key.endswith("_KEY") and environ.get(key))
    data = environ.get("XDG_DATA_HOME") or Path(environ.get("HOME") or Path.home(), ".local", "share")
    login = Path(data, "opencode", "auth.json")
    if login.is_file():
        found.append(str(login))
    none = "none in this environment; where the worker is started, set its provider's key or run `opencode auth login`"
    return Finding("key for opencode", ", ".join(found) or none, lacks=not found)


def _home(directory: PurePath) -> Mapping[str, str]:
    """Its cache stays the user's: programs that it has fetched, and nothing that anybody has set or said."""
    own = {f"XDG_{what}_HOME": str(directory / what.lower()) for what in ("CONFIG", "DATA", "STATE")}
    return {**own, "OPENCODE_CONFIG": "", "OPENCODE_CONFIG_DIR": ""}


OPENCODE = AgentKind(
    name="opencode",
    make=lambda environ, _lent: OpencodeAgent(environ),
    findings=_findings,
    home=_home,
    guarded_prefixes=("OPENCODE_",),
    guarded_names=frozenset({"OPENROUTER_API_KEY"}),
)
