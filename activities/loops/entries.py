"""Items written as JSON: by a person's file, a command, or beads.

A list, or an object that holds one as `items`, `issues`, `tasks`, `stories` and the like. An entry is a text, or an
object: `id`, `title`, a `status` or booleans such as `done` and `passes`, and `blocked_by`. It is closed only if
everything it says of itself agrees that it is.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from steersman.contracts.loop_state import ItemState

LISTS = ("items", "issues", "tasks", "stories", "user_stories", "userStories", "features", "todos", "data")
IDS = ("id", "key", "number")
TEXTS = ("title", "text", "name", "description", "summary")
FLAGS = ("done", "passes", "passed", "completed", "complete", "closed")
WORDS = ("status", "state")
BLOCKERS = ("blocked_by", "blockedBy", "depends_on", "dependsOn", "dependencies")

STATES: Mapping[str, ItemState] = {
    "closed": "closed",
    "done": "closed",
    "complete": "closed",
    "completed": "closed",
    "finished": "closed",
    "fixed": "closed",
    "merged": "closed",
    "pass": "closed",
    "passed": "closed",
    "passes": "closed",
    "resolved": "closed",
    "verified": "closed",
    "canceled": "closed",
    "cancelled": "closed",
    "duplicate": "closed",
    "obsolete": "closed",
    "tombstone": "closed",
    "wont_fix": "closed",
    "wontfix": "closed",
    "active": "in_progress",
    "doing": "in_progress",
    "hooked": "in_progress",
    "in_progress": "in_progress",
    "started": "in_progress",
    "wip": "in_progress",
    "working": "in_progress",
    "blocked": "blocked",
    "deferred": "blocked",
    "on_hold": "blocked",
    "stuck": "blocked",
    "waiting": "blocked",
    "awaiting_review": "needs_review",
    "in_review": "needs_review",
    "needs_review": "needs_review",
    "review": "needs_review",
    "to_review": "needs_review",
}
"""Any other word, "open" and "todo" among them, is open."""

_LINKS = frozenset({"blocks", "conditional-blocks", "waits-for", ""})
"""The kinds of a dependency in beads that hold an issue up; a parent or a related issue does not."""


class Malformed(Exception):
    """The JSON says nothing that could be taken for items, in a sentence."""


@dataclass(frozen=True)
class Entry:
    """One item as it was written. `waits_for`: what it names as its blockers, and how they are where it says so."""

    id: str | None
    text: str
    state: ItemState
    phase: str | None = None
    waits_for: tuple[tuple[str, ItemState | None], ...] = ()


def entries(text: str) -> list[Entry]:
    """The items in a JSON text. Raises Malformed."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"is no JSON: {error}") from error
    return [_entry(each, number) for number, each in enumerate(_listed(data), 1)]


def _listed(data: Any) -> list[Any]:
    if isinstance(data, list):
        return data
    if isinstance(data, dict):
        for name in LISTS:
            if isinstance(data.get(name), list):
                return list(data[name])
    raise Malformed(f"must be a list, or an object with a list named {', '.join(LISTS[:4])}")


def _entry(data: Any, number: int) -> Entry:
    if isinstance(data, str):
        return Entry(None, data, "open")
    if not isinstance(data, dict):
        raise Malformed(f"entry {number} is neither a text nor an object")
    ident = _first(data, IDS)
    phase = data.get("phase")
    return Entry(
        id=ident.strip() or None,
        text=_first(data, TEXTS),
        state=_state(data),
        phase=phase if isinstance(phase, str) and phase else None,
        waits_for=tuple(_blockers(data)),
    )


def _first(data: Mapping[str, Any], names: Iterable[str]) -> str:
    for name in names:
        value = data.get(name)
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
    return ""


def _state(data: Mapping[str, Any]) -> ItemState:
    said: list[ItemState] = [state_of(data[name]) for name in WORDS if data.get(name) is not None]
    flags: list[ItemState] = [
        "closed" if data[name] is True else "open" for name in FLAGS if data.get(name) is not None
    ]
    undone = [state for state in (*said, *flags) if state != "closed"]
    if undone:
        return next((state for state in undone if state != "open"), "open")
    return "closed" if said or flags else "open"


def state_of(word: object) -> ItemState:
    """What a status means, however it is spelled."""
    if not isinstance(word, str):
        return "open"
    return STATES.get(re.sub(r"[\s_-]+", "_", word.strip().lower().replace("'", "")), "open")


def _blockers(data: Mapping[str, Any]) -> Iterable[tuple[str, ItemState | None]]:
    for name in BLOCKERS:
        value = data.get(name)
        for each in value.split(",") if isinstance(value, str) else value if isinstance(value, list) else ():
            if isinstance(each, str | int) and not isinstance(each, bool) and str(each).strip():
                yield str(each).strip(), None
            elif isinstance(each, dict) and _holds_up(each):
                ident = _first(each, ("depends_on_id", *IDS))
                if ident:
                    yield ident, state_of(each["status"]) if each.get("status") else None


def _holds_up(link: Mapping[str, Any]) -> bool:
    return link.get("dependency_type", link.get("type", "") if "depends_on_id" in link else "") in _LINKS
