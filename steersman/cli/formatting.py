"""Making text that an agent, a tool or a file said safe to print: it may move no cursor, change no color, hide no word.

Pure functions on strings. What is made visible: `steersman.contracts.text`.
"""

from steersman.contracts.text import flat, visible

__all__ = ["clean", "counted", "flat", "shortened"]

clean = visible


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters, the last of them an ellipsis where something was cut."""
    return text if len(text) <= limit else text[: limit - 1] + "\u2026"


def counted(count: int, noun: str) -> str:
    """1 turn, 2 turns."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
