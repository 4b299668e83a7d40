"""What a tool's input says of an edit, as lines of a difference. Pure functions; hostile input makes no error."""

import difflib
from collections.abc import Iterable, Mapping

_BEFORE = ("old_string", "oldString", "old_text", "oldText")
_AFTER = ("new_string", "newString", "new_text", "newText")
_PATCH = ("patch", "diff", "patchText", "unified_diff")
MAX_LINES = 2_000
"""Of either text: the comparison takes the product of both."""
_HEADS = ("---", "+++", "***")


def edit_lines(arguments: Mapping[str, object]) -> list[str]:
    """Lines that begin with "+", "-" or " "; empty where the input says of no edit.

    Known are a text and what replaces it, under the names that Claude Code, opencode, Gemini CLI and ACP use, and a
    patch under those of Codex and opencode; several of them under `edits` or `changes`.
    """
    parts: list[object] = [arguments]
    for name in ("edits", "changes"):
        parts += each if isinstance(each := arguments.get(name), list) else ()
    return [line for each in parts if isinstance(each, Mapping) for line in _replacement(each) or _patch(each)]


def _text(arguments: Mapping[str, object], names: Iterable[str]) -> str | None:
    return next((value for name in names if isinstance(value := arguments.get(name), str)), None)


def _replacement(arguments: Mapping[str, object]) -> list[str]:
    before, after = _text(arguments, _BEFORE), _text(arguments, _AFTER)
    if before is None or after is None:
        return []
    old, new = before.splitlines()[:MAX_LINES], after.splitlines()[:MAX_LINES]
    compared = difflib.SequenceMatcher(None, old, new, autojunk=True)
    found = []
    for kind, begin, end, begin_new, end_new in compared.get_opcodes():
        if kind == "equal":
            found += [f" {line}" for line in old[begin:end]]
        else:
            found += [f"-{line}" for line in old[begin:end]]
            found += [f"+{line}" for line in new[begin_new:end_new]]
    return found


def _patch(arguments: Mapping[str, object]) -> list[str]:
    patch = _text(arguments, _PATCH)
    if patch is None:
        return []
    return [line for line in patch.splitlines() if line[:1] in ("+", "-", " ") and not line.startswith(_HEADS)]
