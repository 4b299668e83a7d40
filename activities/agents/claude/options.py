"""The options of agent "claude" in a request."""

import json
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from steersman.contracts.errors import InvalidRequest, sentence
from steersman.contracts.model import AbsolutePath, JsonObject, StrictModel, Text
from steersman.contracts.request import RunRequest


class ClaudeOptions(StrictModel):
    """RunRequest.options for agent "claude"."""

    mcp_servers: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")], JsonObject] = Field(default_factory=dict)
    """As in Claude Code's MCP configuration. A value of `env` or `headers` may be {"from_env": NAME}."""
    add_dirs: tuple[AbsolutePath, ...] = ()
    fallback_model: Text | None = None
    setting_sources: tuple[Literal["user", "project", "local"], ...] | None = None


def options_of(request: RunRequest) -> ClaudeOptions:
    """Raises InvalidRequest naming the wrong field."""
    try:
        return ClaudeOptions.model_validate_json(json.dumps(request.options))
    except ValidationError as error:
        raise InvalidRequest(sentence(error, "RunRequest", under=("options",))) from error
