"""`steer loop checkpoints` and `cleanup`: show a loop's checkpoints, delete them."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from steersman.cli import request
from steersman.cli.connection import run_with_client
from steersman.cli.exits import Exit
from steersman.cli.formatting import flat, shortened
from steersman.cli.options import AsJson, Loop, Yes
from steersman.cli.output import complain, console, emit, print_diff, print_rows, remark
from steersman.cli.targets import resolve_loop

if TYPE_CHECKING:
    from steersman.client import Steersman
    from steersman.contracts.loop_messages import CleanupReceipt
    from steersman.contracts.loop_state import Checkpoint
    from steersman.contracts.workspace import Diff

Action = Literal["list", "show", "diff", "delete"]
MOST: dict[Action, int | None] = {"list": 0, "show": 1, "diff": 2, "delete": None}
"""How many numbers each action takes at most; all but `list` need one."""
SHOWN_NUMBERS = 12


def checkpoints(
    ctx: typer.Context,
    loop: Loop,
    action: Annotated[Action, typer.Argument(help="list; show N; diff A [B], B the files now; delete N ...")] = "list",
    numbers: Annotated[list[int] | None, typer.Argument(metavar="N", min=0, help="Of checkpoints.")] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """List a loop's checkpoints, show one, compare two, or delete some."""
    wanted = numbers or []
    most = MOST[action]
    if bool(wanted) == (action == "list") or (most is not None and len(wanted) > most):
        raise typer.BadParameter(f"{action} takes {_many(most)}")

    async def work(steersman: "Steersman") -> Exit | None:
        chosen = await resolve_loop(steersman, loop)
        if action == "delete":
            return await _delete(steersman, chosen, {"numbers": tuple(wanted)}, yes=yes, as_json=as_json)
        found = await steersman.loops.checkpoints(chosen)
        if action == "diff":
            for number in wanted:
                numbered(found, number)
            _show_diff(await steersman.loops.diff(chosen, *wanted), as_json=as_json)
            return None
        if action == "show":
            _show(numbered(found, wanted[0]), as_json=as_json)
            return None
        if as_json:
            emit(found)
        else:
            _print_list(found, await _deleted(steersman, chosen, found))
        return None

    run_with_client(ctx, work)


async def _deleted(steersman: "Steersman", loop: str, found: "list[Checkpoint]") -> set[int]:
    """The numbers of the checkpoints whose files were deleted; none where the host does not answer."""
    from steersman.errors import SteersmanError

    try:
        kept = {each.number for each in await steersman.loops.deletable(loop, found)}
    except SteersmanError as error:
        remark(f"which of them still have their files is not known: {error}", "yellow")
        return set()
    return {each.number for each in found if each.commit and each.number not in kept}


def _many(most: int | None) -> str:
    if most is None:
        return "the numbers of checkpoints"
    return {0: "no number", 1: "the number of a checkpoint", 2: "the numbers of one or two checkpoints"}[most]


def _print_list(found: "list[Checkpoint]", deleted: set[int]) -> None:
    from rich.text import Text

    from steersman.cli.loop.formatting import clock

    if not found:
        remark("no checkpoints")
        return
    rows = []
    for each in found:
        row = {
            "N": Text(str(each.number)),
            "WHAT": Text(each.kind),
            "ITERATION": Text(str(each.iteration)),
            "TIME": Text(clock(each.time)),
            "ITEMS LEFT": Text(f"{each.items.left} of {each.items.total}" if each.items else "-"),
            "VERIFIED": Text(each.verification or "-"),
            "COST": Text(f"${each.totals.cost_usd:.4f}" if each.totals.cost_usd else "-"),
            "COMMIT": Text("deleted" if each.number in deleted else flat(each.commit or "-")[:10]),
            "NOTE": Text(shortened(flat(each.error or each.note or ""), 60)),
        }
        rows.append(row)
    print_rows(rows, leave_out=("NOTE", "COST", "TIME", "ITERATION", "ITEMS LEFT", "VERIFIED"), cut=("NOTE",))


def numbered(found: "list[Checkpoint]", number: int) -> "Checkpoint":
    """The one of this number. Raises typer.Exit where there is none, having said so."""
    one = next((each for each in found if each.number == number), None)
    if one is None:
        complain(f"there is no checkpoint {number}")
        raise typer.Exit(Exit.NOT_FOUND)
    return one


def _show(one: "Checkpoint", *, as_json: bool) -> None:
    from rich.text import Text

    if as_json:
        emit(one)
        return
    for name, value in one.model_dump(mode="json", exclude_defaults=True).items():
        console().print(Text.assemble((f"{name.replace('_', ' '):<16}", "dim"), flat(_plain(value))))


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {_plain(each)}" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _show_diff(diff: "Diff", *, as_json: bool) -> None:
    if as_json:
        emit(diff)
    else:
        print_diff(diff)


def cleanup(
    ctx: typer.Context,
    loop: Loop,
    older_than: Annotated[str | None, typer.Option(metavar="AGE", help="e.g. 12h, 7d.")] = None,
    oldest: Annotated[int | None, typer.Option(metavar="N", min=1, help="So many of the oldest.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete checkpoints and the files that they keep, also of a loop that has ended."""
    said = request.given(older_than_s=request.seconds(older_than, "--older-than"), oldest=oldest, all=everything)
    if len(said) != 1:
        raise typer.BadParameter("give exactly one of --older-than, --oldest, --all")

    async def work(steersman: "Steersman") -> Exit | None:
        return await _delete(steersman, await resolve_loop(steersman, loop), said, yes=yes, as_json=as_json)

    run_with_client(ctx, work)


async def _delete(steersman: "Steersman", loop: str, said: dict[str, Any], *, yes: bool, as_json: bool) -> Exit | None:
    from datetime import UTC, datetime

    from steersman._client.checkpoint_selection import selected
    from steersman.cli.terminal.confirmation import confirm
    from steersman.contracts.loop_messages import Cleanup

    found = await steersman.loops.deletable(loop)
    numbers = selected(found, Cleanup.model_validate(said), datetime.now(UTC))
    if not numbers:
        remark("no such checkpoint" if "numbers" in said else "there is nothing to delete")
        return Exit.NOT_FOUND if "numbers" in said else None
    more = f" and {len(numbers) - SHOWN_NUMBERS} more" if len(numbers) > SHOWN_NUMBERS else ""
    which = ", ".join(map(str, numbers[:SHOWN_NUMBERS])) + more
    what = f"delete {len(numbers)} of {len(found)} checkpoints of loop {loop}: {which}. They cannot be had back."
    if not await confirm(what, "delete", yes=yes):
        return Exit.DETACHED
    # The numbers that were shown are deleted, however long the person took to answer.
    receipt: CleanupReceipt = await steersman.loops.clean(loop, numbers=numbers)
    if as_json:
        emit(receipt)
    else:
        console().print(f"deleted {len(receipt.deleted)}, kept {receipt.kept}")
    return None
