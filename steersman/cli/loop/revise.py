"""`steer loop revise`, `restart`, `rollback`, `fork`: another plan, or back to an earlier state."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from steersman.cli import request
from steersman.cli.connection import run_with_client
from steersman.cli.exits import Exit
from steersman.cli.loop import request as loop_request
from steersman.cli.loop.checkpoints import numbered
from steersman.cli.loop.options import Mode, Phase
from steersman.cli.loop.receipt import print_receipt
from steersman.cli.loop.start import announce
from steersman.cli.options import AsJson, Label, OpenLoop, Yes
from steersman.cli.output import complain, remark
from steersman.cli.targets import resolve_loop
from steersman.cli.terminal.interactive import is_interactive

if TYPE_CHECKING:
    from pathlib import Path

    from steersman.client import Steersman
    from steersman.contracts.loop_messages import LoopReceipt
    from steersman.contracts.loop_state import LoopState, PlanVersion

Number = Annotated[int, typer.Argument(metavar="N", min=0, help="The checkpoint's number.")]


def revise(
    ctx: typer.Context,
    loop: OpenLoop,
    plan: Annotated[
        str | None, typer.Option(help="Text, or a file or directory in the workspace; - reads stdin.")
    ] = None,
    phase: Phase = None,
    prompt: Annotated[str | None, typer.Option(help="Template of each iteration's prompt, or @FILE.")] = None,
    as_json: AsJson = False,
) -> None:
    """Give the loop a new version of its plan; with nothing given, edit the one that it has."""
    template = request.optional_text(prompt)
    if phase is not None and plan is None:
        raise typer.BadParameter("--phase goes with --plan")
    if plan is None and template is None and not is_interactive():
        raise typer.BadParameter("give --plan or --prompt: there is nobody who could edit the plan")

    async def work(steersman: "Steersman") -> Exit | None:
        target = await resolve_loop(steersman, loop, among_open=True)
        if plan is None and template is None:
            return await _edit(steersman, target, as_json=as_json)
        said: str | dict[str, str] | None = None
        if plan is not None:
            state = await steersman.loops.state(target)
            said = loop_request.plan_of(plan, loop_request.workspace_of(state.workspace, None), phase)
        print_receipt(await steersman.loops.revise(target, said, template), as_json=as_json)
        return None

    run_with_client(ctx, work)


async def _edit(steersman: "Steersman", loop: str, *, as_json: bool) -> Exit | None:
    """Revise the plan as the person leaves it in $EDITOR. A file is edited in its place."""
    import click

    plan = (state := await _open(steersman, loop)).plan
    if plan is None:
        raise typer.BadParameter("the loop has no plan yet")
    try:
        if plan.path is None:
            receipt = await _edit_text(steersman, loop, plan)
        else:
            file = loop_request.workspace_of(state.workspace, None) / plan.path
            receipt = await _edit_file(steersman, loop, plan, file)
    except click.ClickException as error:  # the editor is not there, or has failed
        complain(f"{error.format_message()}: the plan is as it was for the loop")
        return Exit.FAILED
    if receipt is None:
        remark("the plan is as it was")
    else:
        print_receipt(receipt, as_json=as_json)
    return None


async def _edit_text(steersman: "Steersman", loop: str, plan: "PlanVersion") -> "LoopReceipt | None":
    """None where the person has changed nothing. What is refused is kept for another try."""
    from steersman.cli.terminal.editor import edited
    from steersman.errors import ServerRefused

    with edited(plan.text or "") as text:
        if text is None:
            return None
        now = (await _open(steersman, loop)).plan
        if now and now.number != plan.number:
            raise ServerRefused(f"somebody has revised the plan meanwhile: it is version {now.number} now")
        return await steersman.loops.revise(loop, text)


async def _edit_file(steersman: "Steersman", loop: str, plan: "PlanVersion", file: "Path") -> "LoopReceipt | None":
    """None where the person has changed nothing."""
    from steersman.cli.terminal.editor import edit

    if not file.is_file():
        raise typer.BadParameter(f"{file} is no file here: edit the plan where it is, or give --plan")
    before = file.read_bytes()
    edit(file)
    if file.read_bytes() == before:
        return None
    return await steersman.loops.revise(loop, {"path": plan.path} | ({"phase": plan.phase} if plan.phase else {}))


def restart(
    ctx: typer.Context,
    loop: OpenLoop,
    iteration: Annotated[
        int | None, typer.Option("--from-iteration", min=1, help="Start over from its beginning; default: from 1.")
    ] = None,
    keep_files: Annotated[bool, typer.Option("--keep-files", help="Leave the workspace's files as they are.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Start over from the beginning, or from that of one iteration. A rescue checkpoint is made first."""

    async def work(steersman: "Steersman") -> Exit | None:
        from steersman.cli.terminal.confirmation import confirm
        from steersman.errors import ServerRefused

        target = await resolve_loop(steersman, loop, among_open=True)
        state = await _open(steersman, target)
        if iteration is not None and iteration > state.iteration:
            raise ServerRefused(f"iteration {iteration} has not begun: the loop is at iteration {state.iteration}")
        where = f"the beginning of iteration {iteration}" if iteration else "the very beginning"
        files = "its files stay as they are" if keep_files else "its files are taken back, too"
        if not await confirm(f"loop {target} starts over from {where}; {files}", "restart", yes=yes):
            return Exit.DETACHED
        print_receipt(await steersman.loops.restart(target, iteration, files=not keep_files), as_json=as_json)
        return None

    run_with_client(ctx, work)


async def _open(steersman: "Steersman", loop: str) -> "LoopState":
    """The state of an open loop, read before the person is asked. Raises RunNotRunning where the loop has ended."""
    from steersman.contracts.loop_state import CLOSED
    from steersman.errors import RunNotRunning

    state = await steersman.loops.state(loop)
    if state.status in CLOSED:
        raise RunNotRunning(f"loop {loop} has ended: {state.status}; `steer loop fork` goes on from a checkpoint")
    return state


def rollback(ctx: typer.Context, loop: OpenLoop, number: Number, yes: Yes = False, as_json: AsJson = False) -> None:
    """Take files and state back to a checkpoint, after making a rescue one. The loop is paused then."""

    async def work(steersman: "Steersman") -> Exit | None:
        from steersman.cli.terminal.confirmation import confirm

        target = await resolve_loop(steersman, loop, among_open=True)
        state = await _open(steersman, target)
        numbered(await steersman.loops.checkpoints(target), number)
        what = f"loop {target} and the files in {state.workspace} are taken back to checkpoint {number}"
        if not await confirm(what, "rollback", yes=yes):
            return Exit.DETACHED
        print_receipt(await steersman.loops.rollback(target, number), as_json=as_json)
        return None

    run_with_client(ctx, work)


def fork(
    ctx: typer.Context,
    loop: Annotated[str, typer.Argument(metavar="LOOP", help="The other loop's id, or - for the newest.")],
    number: Number,
    loop_id: Annotated[str | None, typer.Option("--id", help="The new loop's id; default: a new one.")] = None,
    workspace: Annotated[str | None, typer.Option("--workspace", "-w", help="Default: the other loop's.")] = None,
    mode: Annotated[Mode | None, typer.Option(help="When it waits for your decision.")] = None,
    model: Annotated[str | None, typer.Option()] = None,
    prompt: Annotated[str | None, typer.Option(help="Template of each iteration's prompt, or @FILE.")] = None,
    iterations: Annotated[int | None, typer.Option(help="What the other loop used up counts.")] = None,
    cost: Annotated[float | None, typer.Option(help="US dollars, the other loop's included.")] = None,
    label: Label = None,
    as_json: AsJson = False,
) -> None:
    """Start a new loop from a checkpoint of another one: files, agent session and state."""
    place = {"path": str(loop_request.workspace_of(workspace, None))} if workspace is not None else None
    labels = request.pairs(label or (), "--label")
    changes: dict[str, Any] = request.given(
        run=request.given(workspace=place, model=model, labels=labels),
        mode=mode,
        prompt=request.optional_text(prompt),
        limits=request.given(iterations=iterations, cost_usd=cost),
    )

    async def work(steersman: "Steersman") -> None:
        target = await resolve_loop(steersman, loop)
        forked = await steersman.loops.fork(target, number, changes, loop_id=loop_id)
        announce(forked, as_json=as_json, bare=True)

    run_with_client(ctx, work)
