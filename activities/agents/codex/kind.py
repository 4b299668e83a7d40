"""The row of agent "codex": how it is made, the variables it guards, and what the doctor checks of it."""

from collections.abc import Mapping, Sequence

from activities.agents import programs
from activities.agents.agent_kind import AgentKind, Finding
from activities.agents.codex import records
from activities.agents.codex.agent import HINT, CodexAgent

KEYS = ("OPENAI_API_KEY", "CODEX_API_KEY")


def _findings(environ: Mapping[str, str]) -> Sequence[Finding]:
    """Nothing is wrong with a host that has no Codex: only runs that ask for it are refused there."""
    program = CodexAgent(environ).program
    return programs.findings("codex", program, lambda path: (path, "--version"), lambda: _key(environ), HINT)


def _key(environ: Mapping[str, str]) -> Finding:
    found = [key for key in KEYS if environ.get(key)]
    own = records.home(environ)
    if own and (own / "auth.json").is_file():
        found.append(str(own / "auth.json"))
    # No failure: the worker of another terminal may have a key, or config.toml names a provider with another one.
    none = "none in this environment; where the worker is started, set OPENAI_API_KEY or log in with `codex login`"
    return Finding("key for codex", ", ".join(found) or none, lacks=not found)


CODEX = AgentKind(
    name="codex",
    make=lambda environ, _lent: CodexAgent(environ),
    findings=_findings,
    home=lambda directory: {"CODEX_HOME": str(directory)},
    guarded_prefixes=("CODEX_", "OPENAI_"),
)
