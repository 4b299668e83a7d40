"""`steer steer`, `interrupt`, `stop`, `approve`, `deny`: one request each to an open run."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from steersman.cli.connection import run_with_client
from steersman.cli.exits import Exit
from steersman.cli.formatting import deadline_phrase, flat, stop_result_phrase
from steersman.cli.options import AsJson, Attach, OpenRun, Reason, StopReason
from steersman.cli.output import console, emit, remark, write_line
from steersman.cli.request import attachments, optional_text, text_of
from steersman.cli.targets import NEWEST, resolve_loop, resolve_run, warn_unsent_reason
from steersman.cli.unserved import stopped_loop, untaken_stop_told

if TYPE_CHECKING:
    from steersman.client import Steersman
    from steersman.contracts.messages import MessageReceipt
    from steersman.reports import StopResult

ApprovalId = Annotated[str | None, typer.Argument(metavar="ID", help="Needed if more than one waits.")]
Remember = Annotated[bool, typer.Option("--remember", help="And this tool for the rest of the run.")]
MessageId = Annotated[str | None, typer.Option("--id", help="The same id twice is one message.")]


def steer(
    ctx: typer.Context,
    run: OpenRun,
    text: Annotated[str, typer.Argument(help="What to say; - reads stdin, @FILE a file.")],
    attach: Attach = None,
    message_id: MessageId = None,
    as_json: AsJson = False,
) -> None:
    """Say something into the running turn, without stopping it."""
    said, files = text_of(text), attachments(attach)

    async def work(steersman: "Steersman") -> Exit:
        run_id = await resolve_run(steersman, run, among_open=True)
        return _receipt(await steersman.steer(run_id, said, attachments=files, id=message_id), as_json=as_json)

    run_with_client(ctx, work)


def interrupt(
    ctx: typer.Context,
    run: OpenRun,
    text: Annotated[str | None, typer.Argument(help="Go on with this; - reads stdin, @FILE a file.")] = None,
    attach: Attach = None,
    reason: Reason = None,
    end: Annotated[bool, typer.Option("--end", help="End the run with the turn; its session is kept.")] = False,
    message_id: MessageId = None,
    as_json: AsJson = False,
) -> None:
    """End the running turn at once and keep the session; with a text, go on with that."""
    said, files = optional_text(text), attachments(attach)

    async def work(steersman: "Steersman") -> Exit:
        run_id = await resolve_run(steersman, run, among_open=True)
        receipt = await steersman.interrupt(run_id, said, attachments=files, id=message_id, reason=reason, end=end)
        return _receipt(receipt, as_json=as_json)

    run_with_client(ctx, work)


def _receipt(receipt: "MessageReceipt", *, as_json: bool) -> Exit:
    if as_json:
        emit(receipt)
    else:
        how = f" ({receipt.how})" if receipt.how else ""
        write_line(flat(f"{receipt.state}{how} after {receipt.latency_ms} ms"))
    return Exit.REFUSED if receipt.state in ("rejected", "too_late") else Exit.OK


def stop(
    ctx: typer.Context,
    run: OpenRun,
    reason: StopReason = "",
    as_json: AsJson = False,
) -> None:
    """Stop a run, or a loop and its run, wait until nothing of it is left, and say what that took."""

    async def work(steersman: "Steersman") -> Exit:
        warn_unsent_reason(steersman, reason)
        answer, what = await _stopped(steersman, await resolve_run(steersman, run, among_open=True), reason), "run"
        if answer.outcome == "not_found" and run != NEWEST:
            of_loop = await stopped_loop(steersman, await resolve_loop(steersman, run), reason)
            if of_loop.outcome != "not_found":
                answer, what = of_loop, "loop"
        if as_json:
            emit(answer)
        else:
            console().print(stop_result_phrase(answer, what))
        return {"not_found": Exit.NOT_FOUND, "unverified": Exit.FAILED}.get(answer.outcome, Exit.OK)

    run_with_client(ctx, work)


async def _stopped(steersman: "Steersman", run: str, reason: str) -> "StopResult":
    """The answer of the stop. A person is told where it waits for a worker of the run's host."""
    async with untaken_stop_told(steersman, run):
        return await steersman.stop(run, reason=reason)


def approve(
    ctx: typer.Context,
    run: OpenRun,
    approval: ApprovalId = None,
    remember: Remember = False,
    as_json: AsJson = False,
) -> None:
    """Allow what the agent asks to do."""
    _decide(ctx, run, approval, "allow", None, remember=remember, as_json=as_json)


def deny(
    ctx: typer.Context,
    run: OpenRun,
    approval: ApprovalId = None,
    message: Annotated[str | None, typer.Option("--message", "-m", help="Told to the agent.")] = None,
    remember: Remember = False,
    as_json: AsJson = False,
) -> None:
    """Deny what the agent asks to do."""
    _decide(ctx, run, approval, "deny", message, remember=remember, as_json=as_json)


def _decide(
    ctx: typer.Context,
    run: str,
    approval: str | None,
    decision: Literal["allow", "deny"],
    message: str | None,
    *,
    remember: bool,
    as_json: bool,
) -> None:
    async def work(steersman: "Steersman") -> Exit:
        from steersman.contracts.text import main_argument

        run_id = await resolve_run(steersman, run, among_open=True)
        approval_id = approval or await _only_approval(steersman, run_id)
        if isinstance(approval_id, Exit):
            return approval_id
        receipt = await steersman.decide(run_id, approval_id, decision, message, remember=remember)
        if as_json:
            emit(receipt)
        else:
            word = "allowed" if decision == "allow" else "denied"
            console().print(f"{word} {flat(receipt.tool)}: {main_argument(receipt.input)}")
        return Exit.OK

    run_with_client(ctx, work)


async def _only_approval(steersman: "Steersman", run: str) -> str | Exit:
    from steersman.contracts.text import main_argument
    from steersman.errors import RunNotRunning

    state = await steersman.state(run)
    if state.phase == "closed":
        raise RunNotRunning(f"run {run} has already closed")
    waiting = state.approvals
    if len(waiting) == 1:
        return waiting[0].id
    remark("nothing waits for approval" if not waiting else "several wait for approval; give the id of one:", "yellow")
    for each in waiting:
        remark(f"  {each.id}  {flat(each.tool)}, {deadline_phrase(each)}: {main_argument(each.input)}", "")
    return Exit.NOT_FOUND if waiting else Exit.REFUSED
