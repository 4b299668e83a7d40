"""`steer worker`: run the checkout's worker.py."""

import typer

from steersman.cli.checkout import become_worker
from steersman.cli.connection import connection_options


def worker(ctx: typer.Context) -> None:
    """Run a worker on this machine. All options are worker.py's: see `steer worker -- --help`."""
    become_worker(ctx.args, connection_options(ctx).environment())
