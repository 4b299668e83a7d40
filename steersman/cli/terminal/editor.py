"""The person's editor. What is written there is not lost where nothing could be done with it."""

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from steersman.cli.output import remark
from steersman.cli.terminal.signals import ending


@contextmanager
def edited(text: str) -> Iterator[str | None]:
    """The text as the person leaves it in $EDITOR; None where it is as it was.

    Where the editor fails, or the caller with what was written, that is kept in a file, which is named. Raises
    ClickException.
    """
    text += "\n" if text and not text.endswith("\n") else ""
    made, name = tempfile.mkstemp(prefix="steer-", suffix=".md")
    os.close(made)
    file = Path(name)
    file.write_text(text, encoding="utf-8")
    try:
        edit(file)
        written = _read(file)
        yield None if written == text else written
    except BaseException:
        if file.is_file() and file.read_bytes().strip() not in (b"", text.encode().strip()):
            remark(f"what you wrote is kept in {file}", "yellow")
        else:
            file.unlink(missing_ok=True)
        raise
    file.unlink()


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.ClickException("what you wrote is no text in UTF-8") from error


def edit(file: Path) -> None:
    """Have the person edit a file in $EDITOR. Raises ClickException where the editor is not there, or fails."""
    # Ctrl-C is for the editor alone: a key of its own, or a way out of one of its modes.
    theirs = [getattr(signal, name) for name in ("SIGINT", "SIGQUIT") if hasattr(signal, name)]
    before = {each: signal.signal(each, lambda *_: None) for each in theirs}
    try:
        with ending():
            click.edit(filename=str(file))
    except ValueError as error:  # a quotation mark too few
        raise click.ClickException(f"$EDITOR: {error}") from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
