"""`steer workspaces`: who has which workspace on a machine, and who waits for one."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from steersman.cli.connection import run_with_client
from steersman.cli.formatting import duration, flat, shortened
from steersman.cli.options import AsJson
from steersman.cli.output import console, emit, remark, table

if TYPE_CHECKING:
    from steersman.client import Steersman
    from steersman.contracts.run import RunState
    from steersman.contracts.workspace_holder import WorkspaceHolder


def workspaces(
    ctx: typer.Context,
    host: Annotated[str | None, typer.Option(help="Which machine; default: this one.")] = None,
    as_json: AsJson = False,
) -> None:
    """List who has which workspace on a machine, and who waits for one, in order."""
    from steersman.hosts import host_name, state_directory

    where = host or host_name(state_directory())

    async def work(steersman: "Steersman") -> None:
        found = await steersman.workspaces(where)
        if as_json:
            emit(found)
        elif found.holders:
            _print(found.holders)
        else:
            remark(f"nobody has a workspace on {where}")

    run_with_client(ctx, work)


def _print(holders: "Sequence[WorkspaceHolder]") -> None:
    from rich.text import Text

    shown = table("WORKSPACE", "WHO", "", "SINCE")
    now = datetime.now(UTC)
    for each in holders:
        shown.add_row(
            Text(shortened(flat(each.path), 80)),
            Text(flat(each.name)),
            Text(f"waits ({each.on_overlap})" if each.waits else "has it", style="magenta" if each.waits else "green"),
            Text(duration((now - each.since).total_seconds())),
        )
    console().print(shown)


async def wait_line(steersman: "Steersman", run: str, state: "RunState") -> str | None:
    """For whom a run waits that waits for its workspace, as its host says now; else as it was when the run came."""
    if state.closed_as:
        return None
    from steersman.errors import SteersmanError

    try:
        before = (await steersman.workspaces(state.host or "")).before(run)
    except SteersmanError:
        before = state.workspace_held_by
    return ", ".join(f"{each.name} {'waits before it' if each.waits else 'has it'}" for each in before) or None
