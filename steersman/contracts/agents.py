"""The capabilities and environment variables of each agent that comes along.

The table says what an agent can at most: `steer agents` prints it, and requests are checked by it. What a run of a
request can do is the claiming host's answer, which RunState.capabilities has; messages are refused by that. Agents of
other packages are not in it: only workers know them, so a request of one is judged by the host that claims it.
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
    images: bool = False
    """Can be given images, with its prompt and with messages."""

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
        images=True,
    ),
    "codex": Capabilities(
        steer=True,
        interrupt=True,
        resume=True,
        fork=True,
        structured_output=True,
        permissions=True,
        turns=True,
        tokens=True,
        images=True,
    ),
    "gemini": Capabilities(
        steer=False,
        interrupt=True,
        resume=True,
        structured_output=True,
        permissions=True,
        turns=False,
        tokens=True,
        images=True,
    ),
    "opencode": Capabilities(
        steer=True,
        interrupt=True,
        resume=True,
        fork=True,
        structured_output=True,
        permissions=True,
        turns=True,
        tokens=True,
        cost=True,
        images=True,
    ),
    "hermes": Capabilities(
        steer=True,
        interrupt=True,
        resume=True,
        structured_output=True,
        permissions=False,
        turns=True,
        tokens=True,
    ),
    "acp": Capabilities(
        steer=True,
        interrupt=True,
        resume=True,
        fork=True,
        structured_output=True,
        permissions=True,
        turns=False,
        images=True,
    ),
    "process": Capabilities(
        steer=False,
        soft_steer=True,
        interrupt=False,
        resume=False,
        structured_output=True,
        permissions=False,
        turns=False,
    ),
}

UNKNOWN: Final = Capabilities(**dict.fromkeys(Capabilities.model_fields, True))
"""What an agent can at most of which only workers know: nothing is refused before a host has claimed the run."""


def at_most(agent: str) -> Capabilities:
    """What an agent of this name can at most, as far as that is known without asking a worker."""
    return CAPABILITIES.get(agent, UNKNOWN)


BOUND_BY_RATE_LIMIT: Final = frozenset({"claude"})
"""Agents that hold `limits.rate_limit_s`. Others do not say for how long they will wait."""

ONLY_FULL: Final = frozenset({"hermes"})
"""Agents that ask nobody before they act, though they can do everything: requests say so, by `permissions.mode` "full",
and an operator's `--max-permission` is held against that.
"""

WHERE_ASKED_FOR: Final[Mapping[str, Mapping[str, str]]] = {"process": {"soft_steer": "options.messages"}}
"""Agent -> capability -> the field of a request without which a run does not have it."""

REPORTS: Final[Mapping[str, str]] = {"cost_usd": "cost", "tokens": "tokens", "turns": "turns"}
"""The capability that a limit of this name takes."""

UNMETERED: Final = "it does not report what it uses; limit its duration instead"
"""Why limits of turns, tokens and cost are refused for an agent that does not report them."""


NO_IMAGES: Final = "it cannot be given images: put them into the workspace, where it may have a tool that reads them"
"""Why an attached image is refused for an agent that takes none."""


def cannot(agent: str, can: Capabilities, verb: Literal["steer", "interrupt"]) -> str | None:
    """Why an agent cannot take such a message, and what to do instead; None where it can."""
    if (can.steer or can.soft_steer) if verb == "steer" else can.interrupt:
        return None
    instead = "interrupt it with that text" if can.interrupt else "stop the run, or wait for its end"
    return f'agent "{agent}" cannot {verb}: {instead}'


def cannot_see(agent: str, can: Capabilities) -> str | None:
    """Why an agent is given no images, and what to do instead; None where it is."""
    return None if can.images else f'agent "{agent}": {NO_IMAGES}'


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
    "codex": frozenset({"CODEX_API_KEY", "CODEX_HOME", "OPENAI_API_KEY", "OPENAI_BASE_URL"}),
    "gemini": frozenset(
        {
            "GEMINI_API_KEY",
            "GEMINI_CLI_HOME",
            "GOOGLE_API_KEY",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "GOOGLE_CLOUD_LOCATION",
            "GOOGLE_CLOUD_PROJECT",
            "GOOGLE_GEMINI_BASE_URL",
            "GOOGLE_GENAI_USE_VERTEXAI",
        }
    ),
    "opencode": frozenset(
        {
            "ANTHROPIC_API_KEY",
            "GEMINI_API_KEY",
            "GOOGLE_GENERATIVE_AI_API_KEY",
            "OPENAI_API_KEY",
            "OPENCODE_API_KEY",
            "OPENCODE_CONFIG",
            "OPENCODE_CONFIG_CONTENT",
            "OPENCODE_CONFIG_DIR",
            "OPENCODE_DISABLE_MODELS_FETCH",
            "OPENROUTER_API_KEY",
        }
    ),
    "hermes": frozenset(
        {"ANTHROPIC_API_KEY", "HERMES_HOME", "OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENROUTER_API_KEY"}
    ),
    "acp": frozenset(),
    "process": frozenset(),
}
"""Each agent's own variables: passed on from the worker's environment, and what `from_env` may name by default."""

VARIABLES_OF_MACHINES: Final = frozenset(
    {
        "CLAUDE_CONFIG_DIR",
        "CODEX_HOME",
        "GEMINI_CLI_HOME",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "HERMES_HOME",
        "IS_SANDBOX",
        "OPENCODE_CONFIG",
        "OPENCODE_CONFIG_DIR",
    }
)
"""Those of them that say something of one machine: they are not passed on to another one."""
