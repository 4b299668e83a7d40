"""The row of agent "claude": how it is made, the variables it guards, and what the doctor checks of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from activities.agents import programs
from activities.agents.agent_kind import AgentKind, Finding
from activities.agents.claude.agent import ClaudeAgent
from steersman.contracts.errors import RunError

KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")


def _make(environ: Mapping[str, str], lent: frozenset[str]) -> ClaudeAgent:
    return ClaudeAgent(environ, lent=lent)


def _findings(environ: Mapping[str, str]) -> Sequence[Finding]:
    return (_program(), _key(environ))


def _program() -> Finding:
    check, hint = "agent claude", "pip install claude-agent-sdk (make setup does)"
    try:
        program = ClaudeAgent({}).program()
    except RunError as error:
        return Finding(check, str(error), ok=False, hint=hint)
    return programs.version(check, program, lambda path: (path, "--version"), hint)


def _key(environ: Mapping[str, str]) -> Finding:
    found = [key for key in KEYS if environ.get(key)]
    config = Path(environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")
    if (config / ".credentials.json").is_file():
        found.append(str(config / ".credentials.json"))
    # No failure: the worker of another terminal may have a key.
    none = "none in this environment; where the worker is started, set ANTHROPIC_API_KEY or log in with `claude`"
    return Finding("key for claude", ", ".join(found) or none, lacks=not found)


CLAUDE = AgentKind(
    name="claude",
    make=_make,
    findings=_findings,
    home=lambda directory: {"CLAUDE_CONFIG_DIR": str(directory)},
    guarded_prefixes=("ANTHROPIC_", "CLAUDE", "MCP_"),
    guarded_names=frozenset({"DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY", "IS_SANDBOX"}),
)
