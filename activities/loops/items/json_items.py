"""Items in JSON: from a file, a command, or beads.

A list, or an object with a list named `items`, `issues`, `tasks`, `stories` and the like. An item is a string, or an
object with `id`, `title`, a `status` or booleans such as `done` and `passes`, and `blocked_by`. It is closed only if
its status and all its booleans say so.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from activities import untrusted_json
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
"""A status of any other word, e.g. "open" or "todo", means open."""

_LINKS = frozenset({"blocks", "conditional-blocks", "waits-for", ""})
"""Types of a dependency in beads that block an issue; a parent or a related issue does not."""


class MalformedItems(Exception):
    """The text holds no items. The message is the end of a sentence that begins with the source's name."""


@dataclass(frozen=True)
class JsonItem:
    """One item as written. `waits_for`: ids of its blockers, each with its state if the item gives that."""

    id: str | None
    text: str
    state: ItemState
    phase: str | None = None
    waits_for: tuple[tuple[str, ItemState | None], ...] = ()


def parse_items(text: str) -> list[JsonItem]:
    """The items in a JSON text. Raises MalformedItems."""
    try:
        data = untrusted_json.parse(text)
    except ValueError as error:
        raise MalformedItems(f"is no JSON: {error}") from error
    return [_item(each, number) for number, each in enumerate(_item_list(data), 1)]


def _item_list(data: Any) -> list[Any]:
    if isinstance(data, list):
        return data
    if isinstance(data, dict):
        for name in LISTS:
            if isinstance(data.get(name), list):
                return list(data[name])
    raise MalformedItems(f"must be a list, or an object with a list named {', '.join(LISTS[:4])}")


def _item(data: Any, number: int) -> JsonItem:
    if isinstance(data, str):
        return JsonItem(None, data, "open")
    if not isinstance(data, dict):
        raise MalformedItems(f"entry {number} is neither a text nor an object")
    ident = _first_text(data, IDS)
    phase = data.get("phase")
    return JsonItem(
        id=ident.strip() or None,
        text=_first_text(data, TEXTS),
        state=_state(data),
        phase=phase if isinstance(phase, str) and phase else None,
        waits_for=tuple(_blockers(data)),
    )


def _first_text(data: Mapping[str, Any], names: Iterable[str]) -> str:
    """The first of these fields that holds a text or a number, as text; empty for none."""
    for name in names:
        value = data.get(name)
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
    return ""


def _state(data: Mapping[str, Any]) -> ItemState:
    stated: list[ItemState] = [state_of(data[name]) for name in WORDS if data.get(name) is not None]
    flags: list[ItemState] = [
        "closed" if data[name] is True else "open" for name in FLAGS if data.get(name) is not None
    ]
    undone = [state for state in (*stated, *flags) if state != "closed"]
    if undone:
        return next((state for state in undone if state != "open"), "open")
    return "closed" if stated or flags else "open"


def state_of(word: object) -> ItemState:
    """The state that a status word means, however it is spelled."""
    if not isinstance(word, str):
        return "open"
    return STATES.get(re.sub(r"[\s_-]+", "_", word.strip().lower().replace("'", "")), "open")


def _blockers(data: Mapping[str, Any]) -> Iterable[tuple[str, ItemState | None]]:
    for name in BLOCKERS:
        value = data.get(name)
        for each in value.split(",") if isinstance(value, str) else value if isinstance(value, list) else ():
            if isinstance(each, str | int) and not isinstance(each, bool) and str(each).strip():
                yield str(each).strip(), None
            elif isinstance(each, dict) and _blocks(each):
                ident = _first_text(each, ("depends_on_id", *IDS))
                if ident:
                    yield ident, state_of(each["status"]) if each.get("status") else None


def _blocks(link: Mapping[str, Any]) -> bool:
    return link.get("dependency_type", link.get("type", "") if "depends_on_id" in link else "") in _LINKS
