"""Blocks of a Markdown text that is still coming: which of them are whole. Pure functions."""

import re

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_SIGN = re.compile(r"[`*_|\[~]")
_BEGINNING = re.compile(r" {0,3}(?:#{1,6} |>|[-+] |\d{1,9}[.)] |---)| {4}|\t")
"""Of a line."""


def whole_blocks(text: str) -> tuple[str, str]:
    """Split a text that goes on before its last block: what follows an empty line, outside a fence, unindented.

    Only lines that have ended are looked at; either part may be empty.
    """
    at, fence, empty, split = 0, "", False, 0
    for line in text.splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        bare = line.strip()
        if not fence and empty and bare and not line[0].isspace():
            split = at
        if found := _FENCE.match(line):
            mark = found[1]
            if not fence:
                fence = mark
            elif mark[0] == fence[0] and len(mark) >= len(fence) and bare == mark:
                fence = ""
        empty = not bare
        at += len(line)
    if not fence and empty and at < len(text) and not text[at].isspace():
        split = at
    return text[:split], text[split:]


def is_plain(text: str) -> bool:
    """Whether Markdown would show the text as it is, but for its line ends."""
    return _SIGN.search(text) is None and not any(map(_BEGINNING.match, text.split("\n")))
