"""`steer loop status` and `list`."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from steersman.cli.clean import flat, shortened
from steersman.cli.link import act, chosen_loop
from steersman.cli.looking import table
from steersman.cli.loop.saying import AsJson
from steersman.cli.loop.starting import LOOP_HELP
from steersman.cli.output import console, emit, remark

if TYPE_CHECKING:
    from steersman.client import Steersman


def status(
    ctx: typer.Context,
    loop: Annotated[str, typer.Argument(metavar="LOOP", help=LOOP_HELP)],
    as_json: AsJson = False,
) -> None:
    """Show on one screen what a loop is doing, or was when it ended."""

    async def work(steersman: "Steersman") -> None:
        from rich.text import Text

        from steersman.cli.loop.wording import rows

        chosen = await chosen_loop(steersman, loop)
        state = await steersman.loops.state(chosen)
        if as_json:
            emit({"id": chosen, **state.model_dump(mode="json")})
            return
        for name, value in rows(chosen, state, datetime.now(UTC)):
            if value:
                console().print(Text.assemble((f"{name:<12}", "dim"), flat(value)))

    act(ctx, work)


def list_loops(
    ctx: typer.Context,
    query: Annotated[str | None, typer.Argument(help="Temporal's list filter, e.g. 'RunPhase=\"paused\"'.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000)] = 20,
    as_json: AsJson = False,
) -> None:
    """List loops, the newest first."""

    async def work(steersman: "Steersman") -> None:
        from rich.text import Text

        from steersman.cli.loop.wording import STYLES, WORDS
        from steersman.cli.render import duration

        loops = await steersman.loops.list(query, limit=limit)
        if as_json:
            emit(loops)
            return
        if not loops:
            remark("no loops")
            return
        shown = table("LOOP", "AGENT", "STATUS", "COST", "AGE", "WORKSPACE", "PLAN")
        now = datetime.now(UTC)
        for each in loops:
            word = each.status or "?"
            shown.add_row(
                Text(flat(each.id)),
                Text(flat(each.agent or "?")),
                Text(WORDS.get(word, word), style=STYLES.get(word, "")),
                Text(f"${each.cost_usd:.4f}" if each.cost_usd else "-"),
                Text(duration((now - each.started_at).total_seconds())),
                Text(shortened(flat(each.workspace or ""), 50)),
                Text(shortened(flat(each.plan or ""), 50)),
            )
        console().print(shown)

    act(ctx, work)
