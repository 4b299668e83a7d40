"""`steer loop pause`, `resume`, `feedback`, `skip-wait`, `limits`, `exit`, `stop`: one request each to a loop."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from steersman.cli import request
from steersman.cli.connection import run_with_client
from steersman.cli.exits import Exit
from steersman.cli.formatting import flat, stop_result_phrase
from steersman.cli.loop import request as loop_request
from steersman.cli.loop.options import Mode
from steersman.cli.loop.receipt import print_receipt
from steersman.cli.options import AsJson, OpenLoop, Reason, StopReason
from steersman.cli.output import console, emit, remark
from steersman.cli.targets import resolve_loop, warn_unsent_reason
from steersman.cli.unserved import stopped_loop, tell_of_unserved_loop

if TYPE_CHECKING:
    from steersman.client import Steersman
    from steersman.contracts.loop_messages import LoopReceipt
    from steersman.loops import Loops


def _send(ctx: typer.Context, loop: str, verb: "Callable[[Loops, str], Awaitable[LoopReceipt]]", as_json: bool) -> None:
    """Send one request to an open loop and print its receipt."""

    async def work(steersman: "Steersman") -> None:
        loop_id = await resolve_loop(steersman, loop, among_open=True)
        print_receipt(await verb(steersman.loops, loop_id), as_json=as_json)
        await tell_of_unserved_loop(steersman, loop_id)

    run_with_client(ctx, work)


def pause(
    ctx: typer.Context,
    loop: OpenLoop,
    now: Annotated[bool, typer.Option("--now", help="End the agent's turn, keep its session if it has one.")] = False,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Pause when the iteration has ended, or now. A paused loop holds no process, for weeks if need be."""
    _send(ctx, loop, lambda loops, id: loops.pause(id, now=now, reason=reason), as_json)


def resume(
    ctx: typer.Context,
    loop: Annotated[str | None, typer.Argument(help="Its id, - for the newest; none: pick one of those here.")] = None,
    text: Annotated[str | None, typer.Argument(help="Feedback for the agent; - reads stdin, @FILE a file.")] = None,
    mode: Annotated[Mode | None, typer.Option(help="From now on.")] = None,
    session: Annotated[Literal["fresh"] | None, typer.Option(help="With a new session of the agent.")] = None,
    as_json: AsJson = False,
) -> None:
    """Go on after a pause, or take the decision that the loop waits for."""
    said = request.optional_text(text)

    async def work(steersman: "Steersman") -> Exit | None:
        from steersman.cli.loop.selection import pick_resumable

        picked: str | Exit
        if loop is None:
            picked = await pick_resumable(steersman)
        else:
            picked = await resolve_loop(steersman, loop, among_open=True)
        if isinstance(picked, Exit):
            return picked
        print_receipt(await steersman.loops.resume(picked, said, mode=mode, session=session), as_json=as_json)
        remark(f"follow it with: steer loop attach {picked}")
        await tell_of_unserved_loop(steersman, picked)
        return None

    run_with_client(ctx, work)


def feedback(
    ctx: typer.Context,
    loop: OpenLoop,
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
        _send(ctx, loop, lambda loops, id: loops.remove_feedback(id, remove), as_json)
    else:
        said = request.text_of(text or "")
        _send(ctx, loop, lambda loops, id: loops.feedback(id, said, id=feedback_id), as_json)


def _list_feedback(ctx: typer.Context, loop: str, as_json: bool) -> None:
    async def work(steersman: "Steersman") -> None:
        state = await steersman.loops.state(await resolve_loop(steersman, loop))
        notes = [*state.feedback_consumed, *state.feedback]
        if as_json:
            emit(notes)
        elif not notes:
            remark("no feedback")
        else:
            for each in notes:
                given = f"iteration {each.iteration}" if each.iteration is not None else "waits"
                console().print(flat(f"{each.id}  {given}  {each.text}"))

    run_with_client(ctx, work)


def skip_wait(ctx: typer.Context, loop: OpenLoop, as_json: AsJson = False) -> None:
    """Go on at once instead of waiting between iterations or for a rate limit."""
    _send(ctx, loop, lambda loops, id: loops.skip_wait(id), as_json)


def limits(
    ctx: typer.Context,
    loop: OpenLoop,
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
    """Change limits; 0 takes one away, but for --iterations. An iteration at work keeps those that it began with."""
    said = loop_request.limits(
        counts={"iterations": iterations, "tokens": tokens, "no_progress": no_progress, "failures": failures},
        cost_usd=cost,
        durations={"duration": duration, "iteration-duration": iteration_duration, "idle": idle},
    )
    if not said:
        raise typer.BadParameter("give at least one limit")
    _send(ctx, loop, lambda loops, id: loops.set_limits(id, **said), as_json)


def exit_loop(ctx: typer.Context, loop: OpenLoop, reason: Reason = None, as_json: AsJson = False) -> None:
    """End the loop as it stands (status exited), and keep everything."""
    _send(ctx, loop, lambda loops, id: loops.exit(id, reason=reason), as_json)


def stop(
    ctx: typer.Context,
    loop: OpenLoop,
    reason: StopReason = "",
    as_json: AsJson = False,
) -> None:
    """Cancel the loop and its run, wait until nothing of it is left, and say what that took."""

    async def work(steersman: "Steersman") -> Exit:
        warn_unsent_reason(steersman, reason)
        answer = await stopped_loop(steersman, await resolve_loop(steersman, loop, among_open=True), reason)
        if as_json:
            emit(answer)
        else:
            console().print(stop_result_phrase(answer, "loop"))
        return {"not_found": Exit.NOT_FOUND, "unverified": Exit.FAILED}.get(answer.outcome, Exit.OK)

    run_with_client(ctx, work)
