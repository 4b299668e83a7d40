"""`steer checkpoints`: what is kept of a workspace's files, of runs and loops alike."""

from typing import TYPE_CHECKING, Annotated

import typer

from steersman.cli.connection import run_with_client
from steersman.cli.formatting import counted, flat
from steersman.cli.options import AsJson, Limit
from steersman.cli.output import console, emit, remark
from steersman.cli.request import workspace_path

if TYPE_CHECKING:
    from steersman.client import Steersman
    from steersman.contracts.workspace import WorkspaceCheckpoint, WorkspaceCheckpointPage

HEAD = ("TIME", "WHOSE", "WHAT", "CHANGED", "COMMIT", "REF")


def checkpoints(
    ctx: typer.Context,
    workspace: Annotated[str | None, typer.Argument(help="A directory of the machine; default: here.")] = None,
    host: Annotated[str | None, typer.Option(help="Which machine; default: this one.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List what is kept of a workspace's files, newest first: by runs, undos, loops and merges with conflicts."""
    from steersman.hosts import host_name, state_directory

    where = host or host_name(state_directory())
    path = workspace_path(workspace)

    async def work(steersman: "Steersman") -> None:
        from steersman._client.server_checks import has_worker
        from steersman.errors import HostUnreachable

        if not await has_worker(steersman.temporal, where):
            raise HostUnreachable(f"no worker answers on host {where}: is it running there?", where)
        found = await steersman.checkpoints(where, path, limit=limit)
        if as_json:
            emit(found)
        else:
            _print(found)

    run_with_client(ctx, work)


def _print(found: "WorkspaceCheckpointPage") -> None:
    if not found.total:
        remark(f"nothing is kept in {found.repository}")
        return
    rows = [HEAD, *map(_row, found.checkpoints)]
    # No table of rich's: it would cut refs, which are longer than a line and are there to be copied.
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=True)]
        console().print("  ".join([*cells, row[-1]]), style="dim" if row is HEAD else None)
    if more := found.total - len(found.checkpoints):
        remark(f"and {more} more: --limit")


def _row(each: "WorkspaceCheckpoint") -> tuple[str, ...]:
    return (
        f"{each.time.astimezone():%Y-%m-%d %H:%M:%S}" if each.time else "-",
        _whose(each),
        each.kind if each.number is None else f"checkpoint {each.number}",
        _changed(each),
        flat(each.commit)[:10],
        flat(each.ref or "-"),
    )


def _whose(each: "WorkspaceCheckpoint") -> str:
    if each.run is not None:
        return f"run {flat(each.run)}"
    return f"loop {flat(each.loop)}" if each.loop is not None else "another namespace's"


def _changed(each: "WorkspaceCheckpoint") -> str:
    if each.files is None:
        return "-"
    return f"{counted(each.files, 'file')}, +{each.insertions} -{each.deletions}"
