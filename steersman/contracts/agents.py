"""The capabilities and environment variables of each agent.

`steer agents` prints the capabilities, RunState.capabilities has those of the run's agent, and the workflow's
validators refuse messages by them.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import model_validator

from steersman.contracts.model import TolerantModel


class Capabilities(TolerantModel):
    """What an agent supports; a request that needs more is refused."""

    steer: bool
    """Accepts messages during a turn, and acknowledges them."""
    soft_steer: bool = False
    """Accepts messages during a turn, and reads them at its next step, without a word about it."""
    interrupt: bool
    """Can end a turn and keep the session."""
    resume: bool
    """Can resume a session in a new process."""
    fork: bool = False
    """Can resume a copy of a session, and leave the session as it is."""
    structured_output: bool
    """Can answer by a JSON Schema."""
    permissions: bool
    """Asks for approval before it uses a tool."""
    turns: bool = False
    """Reports its turns."""
    tokens: bool = False
    """Reports the tokens that it uses."""
    cost: bool = False
    """Reports what it costs, in US dollars."""

    @model_validator(mode="before")
    @classmethod
    def _read_older(cls, row: Any) -> Any:
        """In rows of older versions `cost` meant turns and tokens, too, and `resume` meant `fork`."""
        if isinstance(row, dict) and "turns" not in row:
            return {"turns": row.get("cost", False), "tokens": row.get("cost", False), "fork": row.get("resume"), **row}
        return row


CAPABILITIES: Final[dict[str, Capabilities]] = {
    "claude": Capabilities(
        steer=True,
        interrupt=True,
        resume=True,
        fork=True,
        structured_output=True,
        permissions=True,
        turns=True,
        tokens=True,
        cost=True,
    ),
    "process": Capabilities(
        steer=False, interrupt=False, resume=False, structured_output=False, permissions=False, turns=False
    ),
}

REPORTS: Final[Mapping[str, str]] = {"cost_usd": "cost", "tokens": "tokens", "turns": "turns"}
"""The capability that a limit of this name takes."""

UNMETERED: Final = "it does not report what it uses; limit its duration instead"
"""Why limits of turns, tokens and cost are refused for an agent that does not report them."""


def cannot(agent: str, can: Capabilities, verb: Literal["steer", "interrupt"]) -> str | None:
    """Why an agent cannot take such a message, and what to do instead; None where it can."""
    if (can.steer or can.soft_steer) if verb == "steer" else can.interrupt:
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
"""Each agent's own variables: passed on from the worker's environment, and what `from_env` may name by default."""

VARIABLES_OF_MACHINES: Final = frozenset({"CLAUDE_CONFIG_DIR", "IS_SANDBOX"})
"""Those of them that say something of one machine: they are not passed on to another one."""
