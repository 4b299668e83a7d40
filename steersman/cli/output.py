"""Where output goes: answers to stdout, remarks to stderr, JSON for programs."""

import contextlib
import functools
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import typer

from steersman.cli.exits import Exit
from steersman.cli.formatting import flat

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from steersman.contracts.workspace import Diff

PIPED_WIDTH = 160


@functools.cache
def console(*, stderr: bool = False) -> "Console":
    """A console that colors only terminals, honours NO_COLOR, and interprets nothing in what it prints."""
    return terminal_console(sys.stderr if stderr else sys.stdout)


def terminal_console(stream: TextIO) -> "Console":
    """The same kind of console on another stream."""
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich's own ends the program, and gives stdout up where stderr is meant

    width = None if stream.isatty() else PIPED_WIDTH
    return Plain(file=stream, markup=False, emoji=False, highlight=False, soft_wrap=True, width=width)


@contextlib.contextmanager
def left_by_reader() -> "Iterator[None]":
    """Who follows a run leaves it where nobody reads the output any more (`| head`): how it ends is not known then.

    Raises typer.Exit.
    """
    try:
        yield
    except (BrokenPipeError, SystemExit) as error:  # typer raises SystemExit for it
        if not isinstance(error if isinstance(error, OSError) else error.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(Exit.DETACHED) from error


def table(*columns: str, cut: Sequence[str] = ()) -> "Table":
    """A table without lines. `cut`: the columns that are cut short where the others take the width."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in columns:
        made.add_column(name, no_wrap=name not in cut, overflow="ellipsis")
    return made


CUT_TO = 12
"""Characters of a column that is cut which are worth it."""


def print_rows(rows: "Sequence[Mapping[str, Text]]", *, leave_out: Sequence[str], cut: Sequence[str]) -> None:
    """A table of rows, at least one, of which all have the same columns. A narrow terminal lacks those of `leave_out`,
    in that order, and those of `cut` are cut before; the others keep their width.
    """
    out = console()
    widths = {name: max(len(name), *(row[name].cell_len for row in rows)) for name in rows[0]}
    widths |= {name: min(widths[name], CUT_TO) for name in cut}
    shown = list(widths)
    for name in leave_out:
        if sum(widths[each] + 2 for each in shown) <= out.width:
            break
        shown.remove(name)
    made = table(*shown, cut=cut)
    for row in rows:
        for name in cut:
            row[name].no_wrap, row[name].overflow = True, "ellipsis"
        made.add_row(*(row[name] for name in shown))
    out.print(made)


def remark(text: str, style: str = "dim") -> None:
    """Print a line for the person on stderr. A closed terminal is no error: the command goes on."""
    with contextlib.suppress(OSError):
        console(stderr=True).print(flat(text), style=style)


def complain(text: str) -> None:
    """Print an error on stderr. Where nobody can read it, the exit code still says what it was."""
    remark(f"error: {text}", "red")


def emit(answer: "BaseModel | Sequence[BaseModel] | Mapping[str, Any]") -> None:
    """Print an answer as one JSON value."""
    if isinstance(answer, Mapping):
        data: Any = answer
    elif isinstance(answer, Sequence):
        data = [each.model_dump(mode="json") for each in answer]
    else:
        data = answer.model_dump(mode="json")
    write_line(json.dumps(data, indent=2 if sys.stdout.isatty() else None))


def write_line(line: str, *, more: bool = False) -> None:
    """Print one line and flush it, for a program that reads line by line; `more`: another line follows at once."""
    sys.stdout.write(line + "\n")
    if not more:
        sys.stdout.flush()


DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def print_diff(diff: "Diff", *, stat: bool = False) -> None:
    """Print the statistics of a difference and, without `stat`, its patch. In a file or pipe tabs and ends of lines
    stay as they are: it is for `git apply`.
    """
    from rich.text import Text

    from steersman.cli.formatting import clean

    if not diff.stat.strip() and not diff.patch.strip():
        remark("nothing differs")
        return
    if not sys.stdout.isatty():
        text = diff.stat if stat else diff.stat + diff.patch
        write_line("\r\n".join(map(clean, text.split("\r\n"))).removesuffix("\n"))
    else:
        console().print(Text(clean(diff.stat.rstrip("\n"))))
        for line in [] if stat else clean(diff.patch).rstrip("\n").split("\n"):
            console().print(Text(line, style=DIFF_STYLES.get(line[:1], "")))
    if diff.truncated and not stat:
        remark("the rest was cut: it is too long", "yellow")
