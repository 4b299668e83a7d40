"""The options of agents that speak ACP in a request."""

import json

from pydantic import ValidationError

from steersman.contracts.errors import InvalidRequest, sentence
from steersman.contracts.model import StrictModel, Text
from steersman.contracts.request import RunRequest


class AcpOptions(StrictModel):
    """RunRequest.options for agent "acp"."""

    mode: Text | None = None
    """The session's mode, one of those that the agent offers."""


def options_of(request: RunRequest) -> AcpOptions:
    """Raises InvalidRequest naming the wrong field."""
    try:
        return AcpOptions.model_validate_json(json.dumps(request.options))
    except ValidationError as error:
        raise InvalidRequest(sentence(error, "RunRequest", under=("options",))) from error
