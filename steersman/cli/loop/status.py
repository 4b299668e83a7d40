"""`steer loop status` and `list`: the state of one loop, the loops as a table."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from steersman.cli.connection import run_with_client
from steersman.cli.formatting import duration, flat, shortened
from steersman.cli.options import AsJson, Limit, Loop
from steersman.cli.output import console, emit, print_rows, remark
from steersman.cli.targets import filter_judged, resolve_loop
from steersman.cli.unserved import tell_of_unserved_loop
from steersman.cli.waiting import print_waiting, print_waiting_of_loops

if TYPE_CHECKING:
    from steersman.client import Steersman
    from steersman.contracts.loop_state import LoopState
    from steersman.reports import LoopSummary


def status(
    ctx: typer.Context,
    loop: Loop,
    as_json: AsJson = False,
) -> None:
    """Show on one screen what a loop is doing, or was when it ended."""

    async def work(steersman: "Steersman") -> None:
        loop_id = await resolve_loop(steersman, loop)
        state = await steersman.loops.state(loop_id)
        if as_json:
            emit({"id": loop_id, **state.model_dump(mode="json")})
        else:
            _print_state(loop_id, state)
            if state.run:
                await print_waiting(steersman, [state.run], of_loops=True)
            await tell_of_unserved_loop(steersman, loop_id, state)

    run_with_client(ctx, work)


def _print_state(loop: str, state: "LoopState") -> None:
    from rich.text import Text

    from steersman.cli.loop.formatting import status_rows

    for name, value in status_rows(loop, state, datetime.now(UTC)):
        if value:
            console().print(Text.assemble((f"{name:<12}", "dim"), flat(value)))


def list_loops(
    ctx: typer.Context,
    query: Annotated[str | None, typer.Argument(help="Temporal's list filter, e.g. 'RunPhase=\"paused\"'.")] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List loops, the newest first."""

    async def work(steersman: "Steersman") -> None:
        with filter_judged(query):
            loops = await steersman.loops.list(query, limit=limit)
        if as_json:
            emit(loops)
        elif loops:
            _print_loops(loops)
            await print_waiting_of_loops(steersman, {each.id for each in loops})
        else:
            remark("no loops")

    run_with_client(ctx, work)


def _print_loops(loops: "list[LoopSummary]") -> None:
    from rich.text import Text

    from steersman.cli.loop.formatting import STATUS_STYLES, STATUS_WORDS

    now = datetime.now(UTC)
    rows = []
    for each in loops:
        word = each.status or "?"
        row = {
            "LOOP": Text(flat(each.id)),
            "AGENT": Text(flat(each.agent or "?")),
            "STATUS": Text(STATUS_WORDS.get(word, word), style=STATUS_STYLES.get(word, "")),
            "COST": Text(f"${each.cost_usd:.4f}" if each.cost_usd else "-"),
            "AGE": Text(duration((now - each.started_at).total_seconds())),
            "WORKSPACE": Text(shortened(flat(each.workspace or ""), 50)),
            "PLAN": Text(shortened(flat(each.plan or ""), 50)),
        }
        rows.append(row)
    print_rows(rows, leave_out=("PLAN", "WORKSPACE", "COST", "AGE", "AGENT"), cut=("WORKSPACE", "PLAN"))
