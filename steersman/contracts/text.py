"""Untrusted text made safe to show: control and invisible characters become visible, Markdown stays literal.

Pure functions on strings, for terminals (`steersman.cli.formatting`) and for what the Temporal Web UI renders.
"""

import json
import re
from collections.abc import Mapping
from typing import Final

_MAIN_ARGUMENTS: Final = (
    *("command", "file_path", "path", "notebook_path", "pattern"),
    *("url", "query", "description", "prompt"),
)

_HIDDEN: Final = (
    *("\x00-\x08", "\x0b-\x1f", "\x7f-\x9f", "\ud800-\udfff"),
    # Separators of lines, marks and overrides of direction, zero-width characters.
    *("\u061c", "\u200b", "\u200e\u200f", "\u2028-\u202e", "\u2060-\u206f", "\ufeff", "\U0001bca0-\U0001bca3"),
    # Fillers: letters and signs that show nothing.
    *("\u00ad", "\u034f", "\u115f\u1160", "\u17b4\u17b5", "\u180b-\u180f", "\u2800", "\u3164", "\uffa0"),
    *("\U0001d159", "\U0001d173-\U0001d17a"),
    # Variation selectors (those for emoji aside), annotations, tags, noncharacters, private use.
    *("\ufe00-\ufe0d", "\ufff0-\ufffb", "\ufdd0-\ufdef", "\ufffe\uffff", "\U000e0000-\U000e0fff"),
    *("\ue000-\uf8ff", "\U000f0000-\U0010ffff"),
)
# Joiners have an effect between letters from Arabic to Sinhala, one of them between pictographs; elsewhere they hide.
_LETTER: Final = "[\u0600-\u0dff]"
_SIGN: Final = "\u2190-\u2bff\U0001f000-\U0001faff"
_JOINER: Final = f"[\u200c\u200d](?!(?<={_LETTER}[\u200c\u200d]){_LETTER}|(?<=[{_SIGN}\ufe0e\ufe0f]\u200d)[{_SIGN}])"
_INVISIBLE: Final = re.compile(f"[{''.join(_HIDDEN)}]|{_JOINER}")

# A line that begins with one of these is no list, rule, heading's underline or code. `1.` and `1)` begin a list.
_BEGINNING: Final = r"(?!\d+[.)](?: |$))(?:[^\W_]|[/.($'\"\N{HORIZONTAL ELLIPSIS}])"
_PLAIN: Final = re.compile(rf"(?:{_BEGINNING}(?:[^\W_]|[ ,;:.?!'\"()/=$%+\N{{HORIZONTAL ELLIPSIS}}-])*)?")
_LINK: Final = re.compile(r"//|www\.", re.IGNORECASE)


def visible(text: str) -> str:
    """The text with every control or invisible character made visible, line ends and tabs excepted."""
    if text.isascii() and (text.isprintable() or text.replace("\n", "").replace("\t", "").isprintable()):
        return text  # as nearly all texts, in a tenth of the time
    return _INVISIBLE.sub(_shown, text.replace("\r\n", "\n"))


def flat(text: str) -> str:
    """As `visible`, on one line."""
    return visible(text).replace("\n", "\u23ce").replace("\t", " ")


def main_argument(arguments: Mapping[str, object]) -> str:
    """The most telling argument of a tool's use, on one line; all of them as JSON where none is known."""
    for name in _MAIN_ARGUMENTS:
        if isinstance(value := arguments.get(name), str) and value:
            return flat(value)
    return flat(json.dumps(arguments, ensure_ascii=False)) if arguments else ""


def literal(text: str, limit: int) -> str:
    """As `flat`, cut to `limit` characters, for Markdown: a code span where any of it has a meaning in Markdown."""
    line = flat(text)
    line = line if len(line) <= limit else line[: limit - 1] + "\N{HORIZONTAL ELLIPSIS}"
    if _PLAIN.fullmatch(line) and not _LINK.search(line):
        return line
    longest = max((len(run) for run in re.findall("`+", line)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def _shown(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"<{code:04X}>"
