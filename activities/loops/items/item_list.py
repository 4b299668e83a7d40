"""The list of a loop's items: counted, each with its state and open blockers. Pure; reading them must not live here."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from activities.loops.items.checkboxes import Checkbox
from activities.loops.items.json_items import JsonItem
from steersman.contracts.loop_state import Item, ItemCount, ItemList, ItemState

MAX_ITEMS = 5_000
"""Only this many items are counted; more are an error."""
MAX_LISTED = 200
"""A list shows this many items, open ones first; the counts and the digest are of all."""
MAX_TEXT = 300
MAX_ID = 200
MAX_BLOCKERS = 20


@dataclass(frozen=True)
class SourceItem:
    """An item as its source has it. `waits_for`: ids of its blockers, each with its state if the source gives that."""

    id: str
    text: str
    state: ItemState
    phase: str | None = None
    waits_for: tuple[tuple[str, ItemState | None], ...] = ()


def from_checkboxes(boxes: Iterable[Checkbox], phase: str | None = None) -> list[SourceItem]:
    """Items of one Markdown file. In a phase, ids by number begin with its name: `02-storage#3`."""
    prefix = phase or ""
    return [
        SourceItem(
            id=prefix + box.id if box.id.startswith("#") else box.id,
            text=box.text,
            state=box.state,
            phase=phase,
            waits_for=tuple((prefix + each if each.startswith("#") else each, None) for each in box.blocked_by),
        )
        for box in boxes
    ]


def from_json_items(entries: Iterable[JsonItem]) -> list[SourceItem]:
    """Items of a JSON list; one without an id is called after its place in it."""
    return [
        SourceItem(entry.id or f"#{number}", entry.text, entry.state, entry.phase, entry.waits_for)
        for number, entry in enumerate(entries, 1)
    ]


def item_list(found: Sequence[SourceItem], error: str | None = None) -> ItemList:
    """The items as the contract has them. A list with an error is never taken as done, whatever its counts."""
    if len(found) > MAX_ITEMS:
        error = error or f"there are {len(found)} items, more than {MAX_ITEMS}"
        found = found[:MAX_ITEMS]
    items = _with_states(_with_unique_ids(found))
    digest = hashlib.sha256()
    states: dict[str, int] = {}
    for item in items:
        digest.update(f"{item.id}\0{item.state}\n".encode("utf-8", "surrogatepass"))
        states[item.state] = states.get(item.state, 0) + 1
    shown = sorted(items, key=lambda item: item.state == "closed")[:MAX_LISTED]
    return ItemList(
        count=ItemCount(**states),
        items=tuple(_bounded(item) for item in shown),
        digest=digest.hexdigest()[:16],
        error=error,
    )


def unreadable_list(error: str) -> ItemList:
    """The list of a source that could not be read."""
    return ItemList(error=error, digest=hashlib.sha256(error.encode("utf-8", "surrogatepass")).hexdigest()[:16])


def _with_unique_ids(found: Sequence[SourceItem]) -> list[SourceItem]:
    ids: set[str] = set()
    result = []
    for number, item in enumerate(found, 1):
        ident = item.id if item.id not in ids else f"{item.id}#{number}"
        ids.add(ident)
        result.append(SourceItem(ident, item.text, item.state, item.phase, item.waits_for))
    return result


def _with_states(found: Sequence[SourceItem]) -> list[Item]:
    states = {item.id: item.state for item in found}
    return [
        Item(
            id=item.id,
            text=item.text,
            state=_state(item, states),
            phase=item.phase,
            blocked_by=() if item.state == "closed" else _blockers(item, states),
        )
        for item in found
    ]


def _state(item: SourceItem, states: Mapping[str, ItemState]) -> ItemState:
    if item.state not in ("open", "blocked"):
        return item.state
    known = [states.get(name, stated) for name, stated in item.waits_for]
    if any(state not in (None, "closed") for state in known):
        return "blocked"
    # With all known blockers closed it is open; without any known blocker it stays as its source says.
    return "open" if known and all(state == "closed" for state in known) else item.state


def _blockers(item: SourceItem, states: Mapping[str, ItemState]) -> tuple[str, ...]:
    return tuple(name for name, stated in item.waits_for if states.get(name, stated) not in (None, "closed"))


def _bounded(item: Item) -> Item:
    return item.model_copy(
        update={
            "id": _cut(item.id, MAX_ID),
            "text": _cut(" ".join(item.text.split()), MAX_TEXT),
            "phase": _cut(item.phase, MAX_ID) if item.phase else None,
            "blocked_by": tuple(_cut(each, MAX_ID) for each in item.blocked_by[:MAX_BLOCKERS]),
        }
    )


def _cut(text: str, length: int) -> str:
    # JSON can spell lone surrogates, which UTF-8 cannot.
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= length else f"{text[: length - 1]}…"
