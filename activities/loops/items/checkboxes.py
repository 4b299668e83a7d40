"""Checkboxes in Markdown.

A box is a list item that begins with `[ ]` (open), `[x]` (closed), `[~]` or `[/]` (in progress), `[-]` or `[!]`
(blocked) or `[?]` (needs review), at any depth, outside code fences. Its id is what stands after `^` at the end of the
line, else `#` and its number in the file. `(blocked by: ID, ID)` in its text names others of the file.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

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

_BOX = re.compile(r"^((?:\s|>)*(?:[-*+]|\d{1,9}[.)])\s+)\[([ \u00a0xX~/!?-]?)\](?:\s+(.*))?$")
_FENCE = re.compile(r"^(?:\s|>)*(?:(?:[-*+]|\d{1,9}[.)])\s+)*(`{3,}|~{3,})(.*)$")
_ID = re.compile(r"(?:^|\s)\^([A-Za-z0-9][A-Za-z0-9._-]{0,99})$")
_BLOCKED_BY = re.compile(r"\(blocked by:?\s{1,9}([^()]{1,500})\)", re.IGNORECASE)
_LINE_END = re.compile(r"\r\n|\n|\r")


class UnclosedFence(Exception):
    """A code fence is never closed, so it is unknown which checkboxes count. The message names the line."""


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
    for line in _checked_lines(text):
        if not (match := _BOX.match(line)):
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
    for line in _LINE_END.split(text):
        fence = _after(line, fence)
        lines.append(line if fence else _BOX.sub(lambda box: f"{box[1]}[ ] {box[3] or ''}", line).rstrip())
    return "\n".join(lines).rstrip("\n")


def lines_outside_fences(text: str) -> Iterator[str]:
    """The lines outside code fences; an unclosed fence ends with the text."""
    fence = ""
    for line in _LINE_END.split(text):
        was, fence = fence, _after(line, fence)
        if not was and not fence:
            yield line


def _checked_lines(text: str) -> Iterator[str]:
    fence, opened = "", 0
    for number, line in enumerate(_LINE_END.split(text), 1):
        was, fence = fence, _after(line, fence)
        if fence and not was:
            opened = number
        if not was and not fence:
            yield line
    if fence:
        raise UnclosedFence(f"the code fence of line {opened} is never closed")


def _after(line: str, fence: str) -> str:
    """The marker of the fence that is open after this line, empty for none."""
    match = _FENCE.match(line)
    if not match:
        return fence
    mark, rest = match[1], match[2]
    if not fence:
        # A line of inline code such as ```` ```x``` ```` opens nothing.
        return "" if mark[0] == "`" and "`" in rest else mark
    closes = mark[0] == fence[0] and len(mark) >= len(fence) and not rest.strip()
    return "" if closes else fence


def _checkbox(text: str, state: ItemState, number: int) -> Checkbox:
    ident, text = f"#{number}", text.rstrip()
    if named := _ID.search(text[-110:]):
        ident, text = named[1], text[: -len(named[0])]
    blocked_by: tuple[str, ...] = ()
    if match := _BLOCKED_BY.search(text):
        blocked_by = tuple(each.strip().lstrip("^") for each in match[1].split(",") if each.strip())
        text = f"{text[: match.start()].rstrip()}{text[match.end() :]}"
    return Checkbox(ident, text.strip(), state, blocked_by)
