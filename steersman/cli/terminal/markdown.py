"""Markdown on the terminal. Slow to load: only where a text has any."""

import re
from typing import Any, ClassVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown

_PADDING = re.compile(r" +$", re.MULTILINE)


class _Code(CodeBlock):
    """Without highlighting: an agent's text chooses no lexer here, and some take for ever."""

    def __init__(self, _lexer_name: str, theme: str) -> None:
        super().__init__("text", theme)


class _Heading(Heading):
    """At the left, where lines begin that a program prints."""

    def __rich_console__(self, _console: Console, _options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Markdown(Markdown):
    elements: ClassVar[dict[str, Any]] = {
        **Markdown.elements,
        "fence": _Code,
        "code_block": _Code,
        "heading_open": _Heading,
    }


def print_markdown(console: Console, text: str, width: int) -> None:
    """Print it, its words wrapped. The text is clean already: links are shown, none is hidden behind a word."""
    with console.capture() as captured:
        console.print(_Markdown(text, code_theme="ansi_dark", hyperlinks=False), width=width, soft_wrap=False)
    console.file.write(_PADDING.sub("", captured.get()))
    console.file.flush()
