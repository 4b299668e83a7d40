"""What is left to do: items with their blockers settled, counted and listed. Pure; reading them must not live here."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from activities.loops.boxes import Box
from activities.loops.entries import Entry
from steersman.contracts.loop_state import Item, ItemCount, ItemList, ItemState

MAX_ITEMS = 5_000
MAX_LISTED = 200
MAX_TEXT = 300
MAX_ID = 200
MAX_BLOCKERS = 20


@dataclass(frozen=True)
class Found:
    """An item as its source has it. `waits_for`: ids of others, and their states where the source says those."""

    id: str
    text: str
    state: ItemState
    phase: str | None = None
    waits_for: tuple[tuple[str, ItemState | None], ...] = ()


def from_boxes(boxes: Iterable[Box], phase: str | None = None) -> list[Found]:
    """Items of one Markdown file. In a phase, ids by number begin with its name: `02-storage#3`."""
    prefix = phase or ""
    return [
        Found(
            id=prefix + box.id if box.id.startswith("#") else box.id,
            text=box.text,
            state=box.state,
            phase=phase,
            waits_for=tuple((prefix + each if each.startswith("#") else each, None) for each in box.blocked_by),
        )
        for box in boxes
    ]


def from_entries(entries: Iterable[Entry]) -> list[Found]:
    """Items of a JSON list; one without an id is called after its place in it."""
    return [
        Found(entry.id or f"#{number}", entry.text, entry.state, entry.phase, entry.waits_for)
        for number, entry in enumerate(entries, 1)
    ]


def listed(found: Sequence[Found], error: str | None = None) -> ItemList:
    """The items as the contract has them. With an error nothing counts as closed, whatever the numbers say."""
    if len(found) > MAX_ITEMS:
        error = error or f"there are {len(found)} items, more than {MAX_ITEMS}"
        found = found[:MAX_ITEMS]
    items = _settled(_distinct(found))
    digest = hashlib.sha256()
    states: dict[str, int] = {}
    for item in items:
        digest.update(f"{item.id}\0{item.state}\n".encode("utf-8", "surrogatepass"))
        states[item.state] = states.get(item.state, 0) + 1
    shown = sorted(items, key=lambda item: item.state == "closed")[:MAX_LISTED]
    return ItemList(
        count=ItemCount(**states),
        items=tuple(_shortened(item) for item in shown),
        digest=digest.hexdigest()[:16],
        error=error,
    )


def failed(error: str) -> ItemList:
    """A list that could not be read at all."""
    return ItemList(error=error, digest=hashlib.sha256(error.encode("utf-8", "surrogatepass")).hexdigest()[:16])


def _distinct(found: Sequence[Found]) -> list[Found]:
    taken: set[str] = set()
    result = []
    for number, item in enumerate(found, 1):
        ident = item.id if item.id not in taken else f"{item.id}#{number}"
        taken.add(ident)
        result.append(Found(ident, item.text, item.state, item.phase, item.waits_for))
    return result


def _settled(found: Sequence[Found]) -> list[Item]:
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


def _state(item: Found, states: Mapping[str, ItemState]) -> ItemState:
    if item.state not in ("open", "blocked"):
        return item.state
    known = [states.get(name, said) for name, said in item.waits_for]
    if any(state not in (None, "closed") for state in known):
        return "blocked"
    # Blocked for a reason that has gone; for one that is not written down here it stays blocked.
    return "open" if known and all(state == "closed" for state in known) else item.state


def _blockers(item: Found, states: Mapping[str, ItemState]) -> tuple[str, ...]:
    return tuple(name for name, said in item.waits_for if states.get(name, said) not in (None, "closed"))


def _shortened(item: Item) -> Item:
    return item.model_copy(
        update={
            "id": _cut(item.id, MAX_ID),
            "text": _cut(" ".join(item.text.split()), MAX_TEXT),
            "phase": _cut(item.phase, MAX_ID) if item.phase else None,
            "blocked_by": tuple(_cut(each, MAX_ID) for each in item.blocked_by[:MAX_BLOCKERS]),
        }
    )


def _cut(text: str, length: int) -> str:
    # Lone surrogates of a JSON text could not go over the wire.
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= length else f"{text[: length - 1]}…"
