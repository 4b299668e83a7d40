"""A question before a command acts: whether to go through with it."""

import typer
from rich.text import Text

from steersman.cli.exits import Exit
from steersman.cli.formatting import flat
from steersman.cli.output import console, remark
from steersman.cli.terminal.interactive import is_interactive
from steersman.cli.terminal.keyboard import Interrupted, Keyboard


async def confirm(what: str, word: str, *, yes: bool) -> bool:
    """Whether the person types the word that confirms. Raises BadParameter where nobody can be asked, and Exit at
    SIGTERM and SIGHUP.
    """
    if yes:
        return True
    if not is_interactive():
        raise typer.BadParameter(f"{what.removesuffix('.')}: needs --yes where nobody can be asked")
    console().print(Text(flat(what)))
    with Keyboard(console()) as keyboard:
        try:
            answer = await keyboard.ask(Text(f"Type {word} to do it >", style="bold"))
        except Interrupted:
            answer = None
    if answer == word:
        return True
    remark("nothing was done")
    if keyboard.terminated:
        raise typer.Exit(Exit.TERMINATED)
    return False
