"""Which lines of a plan in Markdown are checkboxes. What they say is read by workers, and must not live here."""

import re
from collections.abc import Iterator

BOX = re.compile(r"^((?:\s|>)*(?:[-*+]|\d{1,9}[.)])\s+)\[([ \u00a0xX~/!?-]?)\](?:\s+(.*))?$")
"""A checkbox: what is before it, its mark, its text."""
LINE_END = re.compile(r"\r\n|\n|\r")
_FENCE = re.compile(r"^(?:\s|>)*(?:(?:[-*+]|\d{1,9}[.)])\s+)*(`{3,}|~{3,})(.*)$")
_COMMENT = re.compile(r"^(?:\s|>)*<!(--.*)$")
_COMMENTED = "<!--"
"""In place of a fence's marker: in a comment."""


class UnclosedFence(Exception):
    """A code fence or comment is never closed, so it is unknown which boxes count. The message names the line."""


def shown_lines(text: str) -> Iterator[str]:
    """The lines outside code fences and comments. Raises UnclosedFence behind the last of them."""
    fence, opened = "", 0
    for number, line in enumerate(LINE_END.split(text), 1):
        was, fence = fence, fence_after(line, fence)
        if fence and not was:
            opened = number
        if not was and not fence:
            yield line
    if fence:
        what = "comment" if fence == _COMMENTED else "code fence"
        raise UnclosedFence(f"the {what} of line {opened} is never closed")


def fence_after(line: str, fence: str) -> str:
    """The marker of the fence or comment that is open after this line, empty for none."""
    if fence == _COMMENTED:
        return "" if "-->" in line else fence
    if not fence and (begun := _COMMENT.match(line)):
        return "" if "-->" in begun[1] else _COMMENTED
    match = _FENCE.match(line)
    if not match:
        return fence
    mark, rest = match[1], match[2]
    if not fence:
        # A line of inline code such as ```` ```x``` ```` opens nothing.
        return "" if mark[0] == "`" and "`" in rest else mark
    closes = mark[0] == fence[0] and len(mark) >= len(fence) and not rest.strip()
    return "" if closes else fence
