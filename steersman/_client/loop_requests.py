"""What the client works out about loops by itself: a fork's request, and which checkpoints a cleanup means.

Pure functions on data.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from steersman.contracts.loop_activities import ForkPoint
from steersman.contracts.loop_messages import Cleanup
from steersman.contracts.loop_state import Checkpoint

_OBJECTS = ("permissions", "limits", "env", "labels", "options")
"""Fields of a run's request that are laid over each other name by name."""


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """A loop's request with changes over it; where one of the two is no object, the change counts."""
    both = _over(base, over, ("run", "done", "limits"))
    if isinstance(base.get("run"), dict) and isinstance(over.get("run"), dict):
        both["run"] = _over(base["run"], over["run"], _OBJECTS)
    return both


def _over(base: dict[str, Any], over: dict[str, Any], objects: tuple[str, ...]) -> dict[str, Any]:
    both = {**base, **over}
    for name in objects:
        if isinstance(base.get(name), dict) and isinstance(over.get(name), dict):
            both[name] = {**base[name], **over[name]}
    return both


def forked(
    request: dict[str, Any], point: ForkPoint, loop: str, number: int, changes: dict[str, Any]
) -> dict[str, Any]:
    """The request of a loop that begins where another one was: with the plan of then, and the limits of now."""
    plan = point.plan
    where = {"path": plan.path, **({"phase": plan.phase} if plan.phase else {})}
    then = {"plan": plan.text if plan.text is not None else where, "prompt": plan.prompt}
    limits = point.limits.model_dump(mode="json", exclude_none=True)
    made = merged({**request, **then, "limits": limits}, changes)
    made["from_checkpoint"] = {"loop": loop, "number": number}
    if isinstance(made.get("run"), dict):
        # The session comes from the checkpoint.
        made["run"] = {name: value for name, value in made["run"].items() if name not in ("session", "fork_session")}
    return made


def chosen(checkpoints: Iterable[Checkpoint], cleanup: Cleanup, now: datetime) -> tuple[int, ...]:
    """The numbers that a cleanup means, oldest first."""
    found = list(checkpoints)
    if cleanup.oldest is not None:
        found = found[: cleanup.oldest]
    elif cleanup.older_than_s is not None:
        limit = cleanup.older_than_s
        found = [each for each in found if (now - each.time).total_seconds() > limit]
    elif not cleanup.all:
        found = [each for each in found if each.number in cleanup.numbers]
    return tuple(each.number for each in found)
