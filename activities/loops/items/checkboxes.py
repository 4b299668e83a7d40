"""Checkboxes in Markdown.

A box is a list item that begins with `[ ]` (open), `[x]` (closed), `[~]` or `[/]` (in progress), `[-]` or `[!]`
(blocked) or `[?]` (needs review), at any depth, outside code fences and comments (`<!-- -->`). Its id is what stands
after `^` at the end of the line, else `#` and its number in the file. `(blocked by: ID, ID)` in its text names others
of the file.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from steersman.contracts.checkbox_lines import BOX, LINE_END, UnclosedFence, fence_after, shown_lines
from steersman.contracts.loop_state import ItemState

STATES: Mapping[str, ItemState] = {
    "": "open",
    " ": "open",
    "\u00a0": "open",  # which some keyboards give for a blank
    "x": "closed",
    "X": "closed",
    "~": "in_progress",
    "/": "in_progress",
    "-": "blocked",
    "!": "blocked",
    "?": "needs_review",
}

_ID = re.compile(r"(?:^|\s)\^([A-Za-z0-9][A-Za-z0-9._-]{0,99})$")
_BLOCKED_BY = re.compile(r"\(blocked by:?\s{1,9}([^()]{1,500})\)", re.IGNORECASE)


@dataclass(frozen=True)
class Checkbox:
    """One checkbox."""

    id: str
    text: str
    state: ItemState
    blocked_by: tuple[str, ...] = ()


def parse_checkboxes(text: str) -> list[Checkbox]:
    """The checkboxes of a Markdown text, with unique ids. Raises UnclosedFence."""
    found: list[Checkbox] = []
    ids: set[str] = set()
    for line in shown_lines(text):
        if not (match := BOX.match(line)):
            continue
        box = _checkbox(match[3] or "", STATES[match[2]], len(found) + 1)
        if box.id in ids:
            box = replace(box, id=f"#{len(found) + 1}")
        ids.add(box.id)
        found.append(box)
    return found


def unticked(text: str) -> str:
    """The text with every checkbox open, so that ticking one does not change it. Never raises for an unclosed fence."""
    lines = []
    fence = ""
    for line in LINE_END.split(text):
        fence = fence_after(line, fence)
        lines.append(line if fence else BOX.sub(lambda box: f"{box[1]}[ ] {box[3] or ''}", line).rstrip())
    return "\n".join(lines).rstrip("\n")


def lines_outside_fences(text: str) -> Iterator[str]:
    """The lines outside code fences and comments; one that is not closed ends with the text."""
    with suppress(UnclosedFence):
        yield from shown_lines(text)


def _checkbox(text: str, state: ItemState, number: int) -> Checkbox:
    ident, text = f"#{number}", text.rstrip()
    if named := _ID.search(text[-110:]):
        ident, text = named[1], text[: -len(named[0])]
    blocked_by: tuple[str, ...] = ()
    if match := _BLOCKED_BY.search(text):
        blocked_by = tuple(each.strip().lstrip("^") for each in match[1].split(",") if each.strip())
        text = f"{text[: match.start()].rstrip()}{text[match.end() :]}"
    return Checkbox(ident, text.strip(), state, blocked_by)
