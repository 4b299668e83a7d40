"""Making text that an agent, a tool or a file said safe to print: it may move no cursor, change no color, hide no word.

Pure functions on strings.
"""

from typing import Final

_BIDI = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_INVISIBLE = (0x00AD, 0x180E, 0x200B, *range(0x2060, 0x2065), *range(0x206A, 0x2070), 0xFEFF, 0x115F, 0x1160, 0x3164)
_SEPARATORS = (0x0085, 0x2028, 0x2029)
_TAGS = range(0xE0000, 0xE0080)


def _table() -> dict[int, str]:
    table = {code: chr(0x2400 + code) for code in range(0x20)}
    table[0x7F] = "\u2421"
    for code in (*range(0x80, 0xA0), *_BIDI, *_INVISIBLE, *_SEPARATORS, *_TAGS, *range(0xD800, 0xE000)):
        table[code] = f"<{code:04X}>"
    del table[0x0A], table[0x09]
    return table


_VISIBLE: Final = _table()
_FLAT: Final = {**_VISIBLE, 0x0A: "\u23ce", 0x09: " "}


def clean(text: str) -> str:
    """The text with line ends and tabs kept, and every control or invisible character made visible."""
    return text.replace("\r\n", "\n").translate(_VISIBLE)


def flat(text: str) -> str:
    """The same on one line."""
    return text.replace("\r\n", "\n").translate(_FLAT)


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters, the last of them an ellipsis where something was cut."""
    return text if len(text) <= limit else text[: limit - 1] + "\u2026"


def counted(count: int, noun: str) -> str:
    """1 turn, 2 turns."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
