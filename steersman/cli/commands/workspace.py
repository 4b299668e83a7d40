"""`steer workspace`: what a run changed in its copy and could not be merged into the workspace."""

from typing import TYPE_CHECKING

import typer

from steersman.cli.connection import run_with_client
from steersman.cli.exits import Exit
from steersman.cli.formatting import changes_phrase, finalize_phrase, flat
from steersman.cli.options import AsJson, Run, Yes
from steersman.cli.output import complain, emit, remark
from steersman.cli.targets import resolve_run

if TYPE_CHECKING:
    from steersman.client import Steersman

app = typer.Typer(
    name="workspace", help="Changes of isolated runs that could not be carried back.", no_args_is_help=True
)


@app.command()
def retry(ctx: typer.Context, run: Run, as_json: AsJson = False) -> None:
    """Carry a run's changes back once more, after what kept them from it was mended."""

    async def work(steersman: "Steersman") -> Exit:
        run_id = await resolve_run(steersman, run)
        back = await steersman.retry_workspace(run_id)
        if as_json:
            emit(back)
        elif back.finalize.status == "failed":
            complain(finalize_phrase(back.finalize, run_id, waits=back.waits))
        else:
            remark(
                finalize_phrase(back.finalize, run_id) + (f": {changes_phrase(back.changes)}" if back.changes else "")
            )
        return Exit.FAILED if back.finalize.status == "failed" else Exit.OK

    run_with_client(ctx, work)


@app.command()
def discard(ctx: typer.Context, run: Run, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove a run's copy of the workspace: what it changed there is lost."""

    async def work(steersman: "Steersman") -> Exit:
        from steersman.cli.terminal.confirmation import confirm

        run_id = await resolve_run(steersman, run)
        # Where nothing can be lost nobody is asked: the worker says what there is to do.
        if not yes and await _waits(steersman, run_id):
            what = f"discard what run {run_id} changed, for ever."
            if not await confirm(what, "discard", yes=yes):
                return Exit.DETACHED
        back = await steersman.discard_workspace(run_id)
        if as_json:
            emit(back)
        else:
            stays = back.finalize.error
            remark(f"discarded; {flat(stays)}" if stays else "discarded")
        return Exit.OK

    run_with_client(ctx, work)


async def _waits(steersman: "Steersman", run: str) -> bool:
    """Whether changes of the run may wait in its copy. Raises as `Steersman.discard_workspace`."""
    from steersman.errors import ServerRefused

    try:
        back = await steersman.describe_workspace(run)
    except ServerRefused:  # nothing is written down of it
        return True
    return back.finalize.status == "failed" and back.waits
