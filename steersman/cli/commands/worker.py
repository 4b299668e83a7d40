"""`steer worker`: become worker.py."""

import typer

from steersman.cli.connection import connection_options
from steersman.cli.worker_code import become_worker


def worker(ctx: typer.Context) -> None:
    """Run a worker on this machine. All options are worker.py's: see `steer worker -- --help`."""
    become_worker(ctx.args, connection_options(ctx).environment())
