"""Markdown on the terminal. Slow to load: only where a text has any."""

import re
from typing import Any, ClassVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import (  # type: ignore[attr-defined]  # its parser's class is not named as its own
    CodeBlock,
    Heading,
    Markdown,
    MarkdownIt,
    TableElement,
)
from rich.table import Table

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


class _Table(TableElement):
    """A word that is longer than its column goes on in the next line, and is not cut."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            if isinstance(table, Table):
                for column in table.columns:
                    column.overflow = "fold"
            yield table


class _Markdown(Markdown):
    elements: ClassVar[dict[str, Any]] = {
        **Markdown.elements,
        "fence": _Code,
        "code_block": _Code,
        "heading_open": _Heading,
        "table_open": _Table,
    }

    def __init__(self, text: str) -> None:
        super().__init__("", code_theme="ansi_dark", hyperlinks=False)
        # As there, but for definitions of links, of which nothing is shown: `[WARN]: old` looks like one.
        parser = MarkdownIt().enable(["strikethrough", "table"]).disable("reference")
        self.markup, self.parsed = text, parser.parse(text)
        for token in self.parsed:
            _uncover(token)


def _uncover(token: Any) -> None:
    """HTML stays as it is written, for `List<String>` looks like it, too; a picture, with its address."""
    if token.type == "html_block":
        token.type = "code_block"
    elif token.type == "html_inline":
        token.type = "text"
    elif token.type == "image":
        token.content = f"![{token.content}]({token.attrs['src']})"
        token.type, token.tag, token.children = "text", "", None
    for child in token.children or ():
        _uncover(child)


def print_markdown(console: Console, text: str, width: int) -> None:
    """Print it, its words wrapped. The text is clean already: links are shown, none is hidden behind a word."""
    with console.capture() as captured:
        console.print(_Markdown(text), width=width, soft_wrap=False)
    console.file.write(_PADDING.sub("", captured.get()))
    console.file.flush()
