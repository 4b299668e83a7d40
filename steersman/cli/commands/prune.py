"""`steer prune`: remove the state of closed runs."""

from typing import TYPE_CHECKING, Annotated

import typer

from steersman.cli.connection import run_with_client
from steersman.cli.formatting import counted, flat
from steersman.cli.options import AsJson
from steersman.cli.output import console, emit

if TYPE_CHECKING:
    from steersman.client import Steersman


def prune(
    ctx: typer.Context,
    keep_days: Annotated[float, typer.Option(min=0, help="Of runs that closed longer ago than this.")] = 30,
    host: Annotated[str | None, typer.Option(help="Which machine; default: this one.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove the state that closed runs left on a machine (event logs, journals). An open run's is never touched."""
    from steersman.hosts import host_name, state_directory

    where = host or host_name(state_directory())

    async def work(steersman: "Steersman") -> None:
        swept = await steersman.prune(where, keep_days, dry_run=dry_run)
        if as_json:
            emit(swept)
            return
        verb = "would remove" if dry_run else "removed"
        console().print(f"{verb} {counted(len(swept.pruned), 'run')} on {where}, {swept.bytes_freed / 1e6:.1f} MB")
        for run in swept.pruned:
            console().print(f"  {flat(run)}")

    run_with_client(ctx, work)
