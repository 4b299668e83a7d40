"""The options of an agent in a request, as a model of that agent's."""

import json
from typing import TypeVar

from pydantic import ValidationError

from steersman.contracts.errors import InvalidRequest, sentence
from steersman.contracts.model import StrictModel
from steersman.contracts.request import RunRequest

Options = TypeVar("Options", bound=StrictModel)


def parse_options(model: type[Options], request: RunRequest) -> Options:
    """Raises InvalidRequest naming the wrong field."""
    try:
        return model.model_validate_json(json.dumps(request.options))
    except ValidationError as error:
        raise InvalidRequest(sentence(error, "RunRequest", under=("options",))) from error
