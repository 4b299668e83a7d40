"""The row of agent "gemini": how it is made, the variables it guards, and what the doctor checks of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from activities.agents import programs
from activities.agents.agent_kind import AgentKind, Finding
from activities.agents.gemini.agent import HINT, GeminiAgent

KEYS = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_APPLICATION_CREDENTIALS")


def _findings(environ: Mapping[str, str]) -> Sequence[Finding]:
    program = GeminiAgent(environ).program
    return programs.findings("gemini", program, lambda path: (path, "--version"), lambda: _key(environ), HINT)


def _key(environ: Mapping[str, str]) -> Finding:
    found = [key for key in KEYS if environ.get(key)]
    login = Path(environ.get("GEMINI_CLI_HOME") or Path.home(), ".gemini", "oauth_creds.json")
    if login.is_file():
        found.append(str(login))
    none = "none in this environment; where the worker is started, set GEMINI_API_KEY or log in with `gemini`"
    return Finding("key for gemini", ", ".join(found) or none, lacks=not found)


GEMINI = AgentKind(
    name="gemini",
    make=lambda environ, _lent: GeminiAgent(environ),
    findings=_findings,
    home=lambda directory: {"GEMINI_CLI_HOME": str(directory)},
    guarded_prefixes=("GEMINI_", "GOOGLE_"),
)
