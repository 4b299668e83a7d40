"""What each agent can do. `steer agents` prints this table, RunState.capabilities holds a row of it, and the workflow's
validators refuse by it.
"""

from collections.abc import Mapping
from typing import Final, Literal

from steersman.contracts.model import TolerantModel


class Capabilities(TolerantModel):
    """What an agent can do natively; a request that needs what is missing is refused."""

    steer: bool
    """Takes a message into the running turn."""
    interrupt: bool
    """Ends the running turn and keeps the session."""
    resume: bool
    """Goes on with a session in a new process."""
    structured_output: bool
    """Answers to a JSON Schema."""
    permissions: bool
    """Asks before it uses a tool."""
    cost: bool
    """Reports turns and money."""


CAPABILITIES: Final[dict[str, Capabilities]] = {
    "claude": Capabilities(
        steer=True, interrupt=True, resume=True, structured_output=True, permissions=True, cost=True
    ),
    "process": Capabilities(
        steer=False, interrupt=False, resume=False, structured_output=False, permissions=False, cost=False
    ),
}

UNMETERED: Final = "it does not report what it uses; limit its duration instead"
"""Why an agent without `cost` takes no limit of that."""


def cannot(agent: str, can: Capabilities, verb: Literal["steer", "interrupt"]) -> str | None:
    """Why an agent takes no such message, and what to do instead; None where it does."""
    if can.steer if verb == "steer" else can.interrupt:
        return None
    instead = "interrupt it with that text" if can.interrupt else "stop the run, or wait for its end"
    return f'agent "{agent}" cannot {verb}: {instead}'


AGENT_VARIABLES: Final[Mapping[str, frozenset[str]]] = {
    "claude": frozenset(
        {
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_AUTH_TOKEN",
            "ANTHROPIC_BASE_URL",
            "ANTHROPIC_MODEL",
            "CLAUDE_CODE_OAUTH_TOKEN",
            "CLAUDE_CONFIG_DIR",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
            "DISABLE_AUTOUPDATER",
            "DISABLE_TELEMETRY",
            "IS_SANDBOX",
        }
    ),
    "process": frozenset(),
}
"""The agents' own variables: handed on from the worker's environment, and what `from_env` may name by default."""
