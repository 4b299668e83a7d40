"""`steer loop pause`, `resume`, `feedback`, `skip-wait`, `limits`, `exit`, `stop`: one verb each."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from steersman.cli import request
from steersman.cli.clean import flat
from steersman.cli.exits import Exit
from steersman.cli.link import act, chosen_loop, withheld
from steersman.cli.loop import planning
from steersman.cli.loop.starting import Mode
from steersman.cli.output import console, emit, remark

if TYPE_CHECKING:
    from steersman.client import Steersman
    from steersman.contracts.loop_messages import LoopReceipt
    from steersman.loops import Loops

Loop = Annotated[str, typer.Argument(metavar="LOOP", help="The loop's id, or - for the newest open one.")]
AsJson = Annotated[bool, typer.Option("--json", help="The answer as JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Reason = Annotated[str | None, typer.Option(help="Why, for the record.")]


def say(ctx: typer.Context, loop: str, verb: "Callable[[Loops, str], Awaitable[LoopReceipt]]", as_json: bool) -> None:
    """One verb to the loop that is meant; its receipt."""

    async def work(steersman: "Steersman") -> None:
        chosen = await chosen_loop(steersman, loop, among_open=True)
        print_receipt(await verb(steersman.loops, chosen), as_json=as_json)

    act(ctx, work)


def print_receipt(receipt: "LoopReceipt", *, as_json: bool) -> None:
    """What came of a verb."""
    from steersman.cli.loop.wording import WORDS, clock

    if as_json:
        emit(receipt)
        return
    facts = [
        f"{WORDS.get(receipt.status, receipt.status)}, iteration {receipt.iteration}",
        receipt.note,
        f"feedback {receipt.id}" if receipt.id else None,
        f"plan version {receipt.plan_version}" if receipt.plan_version else None,
        f"checkpoint {receipt.checkpoint}" if receipt.checkpoint is not None else None,
        f"what was there is kept as checkpoint {receipt.rescue}" if receipt.rescue is not None else None,
        f"goes on {clock(receipt.wakes_at)}" if receipt.wakes_at else None,
    ]
    console().print(flat(" · ".join(filter(None, facts))))


def pause(
    ctx: typer.Context,
    loop: Loop,
    now: Annotated[bool, typer.Option("--now", help="End the agent's turn, keep its session if it has one.")] = False,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Pause when the iteration has ended, or now. A paused loop holds no process, for weeks if need be."""
    say(ctx, loop, lambda loops, id: loops.pause(id, now=now, reason=reason), as_json)


def resume(
    ctx: typer.Context,
    loop: Annotated[str | None, typer.Argument(help="Its id, - for the newest; none: pick one of those here.")] = None,
    text: Annotated[str | None, typer.Argument(help="Feedback for the agent; - reads stdin, @FILE a file.")] = None,
    mode: Annotated[Mode | None, typer.Option(help="From now on.")] = None,
    session: Annotated[Literal["fresh"] | None, typer.Option(help="With a new session of the agent.")] = None,
    as_json: AsJson = False,
) -> None:
    """Go on after a pause, or take the decision that the loop waits for."""
    said = request.text_of(text) if text is not None else None

    async def work(steersman: "Steersman") -> Exit | None:
        from steersman.cli.loop.choosing import which_to_resume

        picked: str | Exit
        if loop is None:
            picked = await which_to_resume(steersman)
        else:
            picked = await chosen_loop(steersman, loop, among_open=True)
        if isinstance(picked, Exit):
            return picked
        print_receipt(await steersman.loops.resume(picked, said, mode=mode, session=session), as_json=as_json)
        remark(f"follow it with: steer loop attach {picked}")
        return None

    act(ctx, work)


def feedback(
    ctx: typer.Context,
    loop: Loop,
    text: Annotated[str | None, typer.Argument(help="What to say; - reads stdin, @FILE a file.")] = None,
    show: Annotated[bool, typer.Option("--list", help="Show what waits and what was given.")] = False,
    remove: Annotated[str | None, typer.Option(metavar="ID", help="Take it back while it waits.")] = None,
    feedback_id: Annotated[str | None, typer.Option("--id", help="The same id twice is one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tell the next iteration something."""
    if sum((text is not None, show, remove is not None)) != 1:
        raise typer.BadParameter("give a TEXT, --list, or --remove ID")
    if show:
        _list_feedback(ctx, loop, as_json)
    elif remove is not None:
        say(ctx, loop, lambda loops, id: loops.remove_feedback(id, remove), as_json)
    else:
        said = request.text_of(text or "")
        say(ctx, loop, lambda loops, id: loops.feedback(id, said, id=feedback_id), as_json)


def _list_feedback(ctx: typer.Context, loop: str, as_json: bool) -> None:
    async def work(steersman: "Steersman") -> None:
        state = await steersman.loops.state(await chosen_loop(steersman, loop))
        notes = [*state.feedback_consumed, *state.feedback]
        if as_json:
            emit(notes)
        elif not notes:
            remark("no feedback")
        else:
            for each in notes:
                given = f"iteration {each.iteration}" if each.iteration is not None else "waits"
                console().print(flat(f"{each.id}  {given}  {each.text}"))

    act(ctx, work)


def skip_wait(ctx: typer.Context, loop: Loop, as_json: AsJson = False) -> None:
    """Go on at once instead of waiting between iterations or for a rate limit."""
    say(ctx, loop, lambda loops, id: loops.skip_wait(id), as_json)


def limits(
    ctx: typer.Context,
    loop: Loop,
    iterations: Annotated[int | None, typer.Option()] = None,
    cost: Annotated[float | None, typer.Option(help="US dollars.")] = None,
    tokens: Annotated[int | None, typer.Option()] = None,
    duration: Annotated[str | None, typer.Option(help="At work in all, e.g. 90, 15m, 2h.")] = None,
    iteration_duration: Annotated[str | None, typer.Option(help="Of one iteration.")] = None,
    idle: Annotated[str | None, typer.Option(help="Longest silence.")] = None,
    no_progress: Annotated[int | None, typer.Option(help="Iterations without any change.")] = None,
    failures: Annotated[int | None, typer.Option(help="Failed iterations in a row.")] = None,
    as_json: AsJson = False,
) -> None:
    """Change limits; 0 takes one away. An iteration at work keeps those that it began with."""
    said = planning.limits(
        counts={"iterations": iterations, "tokens": tokens, "no_progress": no_progress, "failures": failures},
        cost_usd=cost,
        durations={"duration": duration, "iteration-duration": iteration_duration, "idle": idle},
    )
    if not said:
        raise typer.BadParameter("give at least one limit")
    say(ctx, loop, lambda loops, id: loops.set_limits(id, **said), as_json)


def exit_loop(ctx: typer.Context, loop: Loop, reason: Reason = None, as_json: AsJson = False) -> None:
    """End the loop as stopped, and keep everything."""
    say(ctx, loop, lambda loops, id: loops.exit(id, reason=reason), as_json)


def stop(
    ctx: typer.Context,
    loop: Loop,
    reason: Annotated[str, typer.Option(help="Why, for the record.")] = "",
    as_json: AsJson = False,
) -> None:
    """Cancel the loop and its run, wait until nothing of it is left, and say what that took."""

    async def work(steersman: "Steersman") -> Exit:
        from steersman.cli.render import stop_outcome

        withheld(steersman, reason)
        answer = await steersman.loops.stop(await chosen_loop(steersman, loop, among_open=True), reason=reason)
        if as_json:
            emit(answer)
        else:
            console().print(stop_outcome(answer, "loop"))
        return {"not_found": Exit.NOT_FOUND, "unverified": Exit.FAILED}.get(answer.outcome, Exit.OK)

    act(ctx, work)
