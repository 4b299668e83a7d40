"""Loop requests, as JSON, made from other loops' requests. Pure functions."""

from typing import Any

from steersman.contracts.loop_activities import ForkPoint

_LOOP_OBJECTS = ("run", "done", "limits")
_RUN_OBJECTS = ("workspace", "permissions", "limits", "env", "labels", "options")
"""Fields of a request that are merged field by field."""


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A loop's request with `changes` merged into it; a change that is no object, or to none, replaces the field."""
    both = _merged(base, changes, _LOOP_OBJECTS)
    if isinstance(base.get("run"), dict) and isinstance(changes.get("run"), dict):
        both["run"] = _merged(base["run"], changes["run"], _RUN_OBJECTS)
    return both


def _merged(base: dict[str, Any], changes: dict[str, Any], objects: tuple[str, ...]) -> dict[str, Any]:
    both = {**base, **changes}
    for name in objects:
        if isinstance(base.get(name), dict) and isinstance(changes.get(name), dict):
            both[name] = {**base[name], **changes[name]}
    return both


def in_the_way(request: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether a loop of this request would be refused for a workspace that an open loop of `other` has from its start
    to its end. What lies inside another workspace only the host knows.
    """
    mine, its = (_parts(each) for each in (request, other))
    alone = all(
        runtime.get("kind", "local") == "local"
        and workspace.get("isolation") != "copy"
        and not workspace.get("worktree")
        for workspace, runtime in (mine, its)
    )
    waits = mine[0].get("on_overlap", "reject") != "reject"
    return alone and not waits and mine[0].get("path") == its[0].get("path") is not None


def _parts(request: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Its run's workspace and runtime, as far as they are what they should be."""
    run = request.get("run")
    found = [run.get(name) if isinstance(run, dict) else None for name in ("workspace", "runtime")]
    workspace, runtime = (each if isinstance(each, dict) else {} for each in found)
    return workspace, runtime


def forked(
    request: dict[str, Any], point: ForkPoint, loop: str, number: int, changes: dict[str, Any]
) -> dict[str, Any]:
    """The request of a loop that begins at checkpoint `number` of `loop`, whose own request is `request`.

    The plan is that of the checkpoint, the limits are those that `loop` has now, and `changes` are merged into both.
    """
    plan = point.plan
    file = {"path": plan.path, **({"phase": plan.phase} if plan.phase else {})}
    at_checkpoint = {"plan": plan.text if plan.text is not None else file, "prompt": plan.prompt}
    limits = point.limits.model_dump(mode="json", exclude_none=True)
    made = merged({**request, **at_checkpoint, "limits": limits}, changes)
    made["from_checkpoint"] = {"loop": loop, "number": number}
    if isinstance(made.get("run"), dict):
        # The session comes from the checkpoint.
        made["run"] = {name: value for name, value in made["run"].items() if name not in ("session", "fork_session")}
    return made
