"""The row of agent "hermes": how it is made, the variables it guards, and what the doctor checks of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from activities.agents import programs
from activities.agents.agent_kind import AgentKind, Finding
from activities.agents.hermes import gateway, relay
from activities.agents.hermes.agent import HermesAgent, home
from activities.agents.hermes.interpreter import HINT, interpreter
from steersman.contracts.agents import AGENT_VARIABLES

_VERSION = "from importlib.metadata import version; print(version('hermes-agent'))"


def _findings(environ: Mapping[str, str]) -> Sequence[Finding]:
    """Nothing is wrong with a host that has no Hermes: only runs that ask for it are refused there."""
    found = programs.findings("hermes", HermesAgent(environ).program, _version_of, lambda: _key(environ), HINT)
    return (*found, gateway.finding(environ)) if environ.get(relay.URL) else found


def _version_of(script: str) -> Sequence[str]:
    return (interpreter(script), "-I", "-c", _VERSION)


def _key(environ: Mapping[str, str]) -> Finding:
    found = [name for name in sorted(AGENT_VARIABLES["hermes"]) if name.endswith("_KEY") and environ.get(name)]
    own = home(environ)
    found += [str(own / name) for name in (".env", "auth.json", "config.yaml") if own and Path(own, name).is_file()]
    # No failure: the worker of another terminal may have a key.
    none = "none in this environment; as the user who starts the worker, run `hermes setup`"
    return Finding("key for hermes", ", ".join(found) or none, lacks=not found)


HERMES = AgentKind(
    name="hermes",
    make=lambda environ, _lent: HermesAgent(environ),
    findings=_findings,
    home=lambda directory: {"HERMES_HOME": str(directory)},
    private_variables=frozenset({relay.KEY, relay.URL}),
    narrow=gateway.narrow,
    end_elsewhere=gateway.end_elsewhere,
    guarded_prefixes=("HERMES_", "_HERMES_", "OPENROUTER_", "NOUS_", "TERMINAL_"),
)
