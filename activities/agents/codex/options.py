"""The options of agent "codex" in a request."""

import json
from typing import Literal

from pydantic import ValidationError

from steersman.contracts.errors import InvalidRequest, sentence
from steersman.contracts.model import AbsolutePath, StrictModel
from steersman.contracts.request import Permissions, RunRequest


class CodexOptions(StrictModel):
    """RunRequest.options for agent "codex"."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    """How much the model reasons; null: as Codex's own configuration has it."""
    add_dirs: tuple[AbsolutePath, ...] = ()
    """Directories beside the workspace that the agent may write in."""


def options_of(request: RunRequest) -> CodexOptions:
    """Raises InvalidRequest naming the wrong field."""
    try:
        return CodexOptions.model_validate_json(json.dumps(request.options))
    except ValidationError as error:
        raise InvalidRequest(sentence(error, "RunRequest", under=("options",))) from error


def check_supported(request: RunRequest) -> None:
    """Raises InvalidRequest for what Codex cannot hold to: it has no rules for tools, and no word of a limit's end."""
    rules = Permissions(mode=request.permissions.mode)
    if request.permissions != rules:
        raise InvalidRequest('permissions.allow, permissions.deny: agent "codex" has no rules for single tools')
    if request.limits.rate_limit_s is not None:
        raise InvalidRequest('limits.rate_limit_s: agent "codex" does not say when a limit ends')
