"""`steer export`: a run or a loop in one file, for somebody else to look at, offline."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steersman.cli import completion
from steersman.cli.connection import run_with_client
from steersman.cli.exits import Exit
from steersman.cli.formatting import counted
from steersman.cli.options import AsJson
from steersman.cli.output import complain, emit, remark, write_line
from steersman.cli.targets import NEWEST, is_there, resolve_loop, resolve_run
from steersman.cli.terminal.signals import leaving

if TYPE_CHECKING:
    from steersman.client import Steersman


def export(
    ctx: typer.Context,
    target: Annotated[
        str,
        typer.Argument(metavar="RUN|LOOP", help="Its id, or - for the newest run.", autocompletion=completion.runs),
    ],
    file: Annotated[Path | None, typer.Argument(help="A new file; default: ID.zip here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write histories, events, journals and versions of a run or loop to one file, with what looks secret masked."""

    async def work(steersman: "Steersman") -> Exit:
        from steersman.bundle import file_name, write_bundle

        id = await _resolved(steersman, target)
        path = file or Path(file_name(id))
        try:
            with leaving():  # a half of it would be in the way of the next
                about = await write_bundle(steersman, id, path, os.environ)
        except FileExistsError:
            complain(f"{path} is there already")
            return Exit.USAGE
        except OSError as error:
            complain(f"{path}: {error.strerror or error}")
            return Exit.FAILED
        if as_json:
            emit({"file": str(path.absolute()), **about})
            return Exit.OK
        write_line(str(path))
        for each in about["missing"]:
            remark(f"missing: {each}", "yellow")
        remark(
            f"{counted(about['masked'], 'secret')} masked, by form or name. Prompts and answers are in it: "
            "read it before you hand it on"
        )
        return Exit.OK

    run_with_client(ctx, work)


async def _resolved(steersman: "Steersman", target: str) -> str:
    """A run's id, or else a loop's."""
    run = await resolve_run(steersman, target)
    # Without a worker there is a history all the same.
    return run if target == NEWEST or await is_there(steersman, run) else await resolve_loop(steersman, target)
