"""What all runs of a thread have in common: a RunRequest without what is one run's own, as users give it. No I/O."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict

from pydantic import ConfigDict, TypeAdapter

from steersman.contracts.agents import at_most
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.model import JsonObject
from steersman.contracts.request import (
    Fallback,
    FallbackCause,
    Limits,
    Permissions,
    RequestedStopTimes,
    RunRequest,
    Workspace,
    parse_request,
)
from steersman.contracts.runtime import Runtime
from steersman.contracts.variables import EnvValue

_ANY: Final = TypeAdapter[Any](Any, config=ConfigDict(ser_json_inf_nan="constants"))
WorkspaceOption = Workspace | dict[str, Any] | str | os.PathLike[str]
"""A path, or what `workspace` of a RunRequest is."""


class ThreadOptions(TypedDict, total=False):
    """Fields of a RunRequest that hold for each run of a thread: models, or the same as JSON."""

    runtime: Runtime | dict[str, Any]
    model: str | None
    system_prompt: str | None
    permissions: Permissions | dict[str, Any]
    env: Mapping[str, EnvValue | dict[str, str]]
    limits: Limits | dict[str, Any]
    stop: RequestedStopTimes | dict[str, Any]
    lease_s: float
    labels: dict[str, str]
    options: JsonObject
    command: Sequence[str]
    fallback: Sequence[Fallback | dict[str, Any]]
    fallback_on: Sequence[FallbackCause]


_OWN: Final[dict[str, Any]] = {
    "prompt": "-",
    "attachments": (),
    "output_schema": None,
    "session": None,
    "fork_session": False,
}
"""What is one run's own, and what a template has in its place."""


def check_options(fields: Mapping[str, Any]) -> None:
    """Raises InvalidRequest for what is one run's own: it would be ignored."""
    if own := [name for name in _OWN if name in fields]:
        raise InvalidRequest(f"{own[0]}: is each run's own, so no option of a thread")


def thread_template(fields: Mapping[str, Any]) -> RunRequest:
    """What all runs have: a request without what is one run's own. Raises InvalidRequest."""
    template = parse_request({**as_json(dict(fields)), **_OWN})
    if not at_most(template.agent).resume:
        raise InvalidRequest(f'agent "{template.agent}" cannot resume a session, so it can have no threads')
    if template.home == "isolated":
        raise InvalidRequest("home: a session in an isolated home goes with its run, so it can have no threads")
    return template


def workspace_json(given: WorkspaceOption) -> Workspace | dict[str, Any]:
    return {"path": os.fspath(given)} if isinstance(given, str | os.PathLike) else given


def as_json(value: object) -> Any:
    """Models, and what has models in it, as JSON. Raises InvalidRequest for what cannot be."""
    try:
        return _ANY.dump_python(value, mode="json")
    except ValueError as error:
        raise InvalidRequest(f"RunRequest: is no JSON: {error}") from error
