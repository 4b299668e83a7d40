"""JSON Schemas of all that goes over the wire, for clients in other languages: what they send, and what they get."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from steersman.contracts.activities import CarriedBack, EndRun, EventPage, PruneInput, ReadEvents, RunEnd, Swept
from steersman.contracts.events import AgentEvent
from steersman.contracts.loop import LoopRequest
from steersman.contracts.loop_messages import (
    CheckpointPage,
    CheckpointQuery,
    Cleanup,
    CleanupReceipt,
    Exit,
    Feedback,
    LoopReceipt,
    Pause,
    RemoveFeedback,
    Restart,
    Resume,
    Revise,
    Rollback,
    SetLimits,
)
from steersman.contracts.loop_state import LoopResult, LoopState
from steersman.contracts.messages import Decision, DecisionReceipt, Message, MessageReceipt
from steersman.contracts.notices import Notice
from steersman.contracts.request import RunRequest
from steersman.contracts.run import RunResult, RunState
from steersman.contracts.workspace import (
    Diff,
    ListWorkspaceCheckpoints,
    RunDiffInput,
    UndoInput,
    Undone,
    WorkspaceCheckpointPage,
)
from steersman.contracts.workspace_hold import Workspaces

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
EVENT: Final = "AgentEvent"

SENT: Final[tuple[type[BaseModel], ...]] = (
    RunRequest,
    Message,
    Decision,
    LoopRequest,
    Pause,
    Resume,
    Feedback,
    RemoveFeedback,
    Revise,
    Restart,
    SetLimits,
    Exit,
    Rollback,
    Cleanup,
    CheckpointQuery,
)
"""Inputs of workflows, updates, signals and queries: unknown fields are refused."""
RECEIVED: Final[tuple[type[BaseModel], ...]] = (
    RunResult,
    RunState,
    MessageReceipt,
    DecisionReceipt,
    LoopResult,
    LoopState,
    LoopReceipt,
    CleanupReceipt,
    CheckpointPage,
)
"""Results and answers: newer workers may add fields."""

OF_ACTIVITIES: Final[tuple[type[BaseModel], ...]] = (
    ReadEvents,
    EventPage,
    EndRun,
    RunEnd,
    RunDiffInput,
    Diff,
    UndoInput,
    Undone,
    Workspaces,
    ListWorkspaceCheckpoints,
    WorkspaceCheckpointPage,
    CarriedBack,
    PruneInput,
    Swept,
    Notice,
)
"""Of the standalone activities that clients execute, and of webhooks. Unknown fields are ignored, either way."""

NAMES: Final = (*(model.__name__ for model in (*SENT, *RECEIVED, *OF_ACTIVITIES)), EVENT)


def schemas() -> dict[str, Any]:
    """One JSON Schema with a definition for each model, those that others are made of included."""
    asked: list[tuple[type[BaseModel], JsonSchemaMode]] = [
        (model, "validation") for model in (*SENT, *RECEIVED, *OF_ACTIVITIES)
    ]
    _, every = models_json_schema(asked, ref_template="#/$defs/{model}")
    event = TypeAdapter[Any](AgentEvent).json_schema(ref_template="#/$defs/{model}")
    definitions = {**every["$defs"], **event.pop("$defs")}
    # Pydantic writes the union where it stands, as it has no name of its own.
    definitions[EventPage.__name__]["properties"]["events"]["items"] = {"$ref": f"#/$defs/{EVENT}"}
    return {"$schema": DIALECT, "$defs": dict(sorted({**definitions, EVENT: event}.items()))}


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of one model, whole. Raises KeyError."""
    every = schemas()["$defs"]
    wanted: Mapping[str, Any] = every[name]
    used = _used(wanted, every, set())
    return {"$schema": DIALECT, **wanted, "$defs": {each: every[each] for each in sorted(used)}}


def _used(value: Any, every: Mapping[str, Any], found: set[str]) -> set[str]:
    """The definitions that a schema refers to, and those that they refer to."""
    if isinstance(value, Mapping):
        name = str(value.get("$ref", "")).removeprefix("#/$defs/")
        if name in every and name not in found:
            found.add(name)
            _used(every[name], every, found)
        for each in value.values():
            _used(each, every, found)
    elif isinstance(value, list):
        for each in value:
            _used(each, every, found)
    return found
