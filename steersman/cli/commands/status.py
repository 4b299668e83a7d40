"""`steer list` and `show`: the runs as a table, the state of one run."""

import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from steersman.cli.connection import run_with_client
from steersman.cli.formatting import (
    changes_phrase,
    clean,
    counted,
    duration,
    finalize_phrase,
    flat,
    sessions_phrase,
    shortened,
    stop_phrase,
    worktree_phrase,
)
from steersman.cli.options import AsJson, Limit, Run
from steersman.cli.output import console, emit, print_rows, remark, write_line
from steersman.cli.targets import filter_judged, resolve_run
from steersman.cli.unserved import tell_of_unserved_run
from steersman.cli.waiting import STYLE, awaited, print_waiting, print_waiting_of_loops

if TYPE_CHECKING:
    from temporalio.client import WorkflowExecutionDescription

    from steersman.client import Steersman
    from steersman.contracts.run import MessageRecord, RunResult, RunState
    from steersman.reports import RunSummary

SPELLED = {"canceled": "cancelled"}
"""Temporal's words as Steersman spells them."""
PHASE_STYLES = {
    "running": "green",
    "waiting": STYLE,
    "stopping": "yellow",
    "failed": "red",
    "cancelled": "yellow",
    "terminated": "red",
}


def list_runs(
    ctx: typer.Context,
    query: Annotated[
        str | None, typer.Argument(help="Temporal's list filter, e.g. 'AgentName=\"claude\" AND CostUsd > 1'.")
    ] = None,
    limit: Limit = 20,
    all_runs: Annotated[bool, typer.Option("--all", "-a", help="Those of loops, too, as a filter has them.")] = False,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first."""

    async def work(steersman: "Steersman") -> None:
        of_loops = all_runs or bool(query and query.strip())
        with filter_judged(query):
            runs = await steersman.list(query, limit=limit, of_loops=of_loops)
        if as_json:
            emit(runs)
        elif runs:
            _print_runs(runs)
            await print_waiting(steersman, [each.id for each in runs if each.phase == "waiting"])
            await _print_waits(steersman, [each.id for each in runs if each.phase == "queued"])
        else:
            remark("no runs")
        if not of_loops and not as_json:
            await print_waiting_of_loops(steersman)

    run_with_client(ctx, work)


def _print_runs(runs: "list[RunSummary]") -> None:
    from rich.text import Text

    now = datetime.now(UTC)
    rows = []
    for each in runs:
        phase = (each.phase or "?") if each.status == "running" else SPELLED.get(each.status, each.status)
        phase = "paused" if each.paused else phase
        row = {
            "RUN": Text(flat(each.id)),
            "AGENT": Text(flat(each.agent or "?")),
            "PHASE": Text(phase, style=PHASE_STYLES.get(phase, "")),
            "COST": Text(f"${each.cost_usd:.4f}" if each.cost_usd else "-"),
            "AGE": Text(duration((now - each.started_at).total_seconds())),
            "TOOK": Text(duration(((each.closed_at or now) - each.started_at).total_seconds())),
            "WORKSPACE": Text(_end_of(flat(each.workspace or ""), 40)),
            "TITLE": Text(shortened(flat(each.title or ""), 60)),
        }
        rows.append(row)
    left_out = ("TITLE", "WORKSPACE", "TOOK", "COST", "AGE", "AGENT")
    print_rows(rows, leave_out=left_out, cut=("WORKSPACE", "TITLE"))


def _end_of(path: str, limit: int) -> str:
    """The end of a path says more than its beginning."""
    return path if len(path) <= limit else f"\u2026{path[1 - limit :]}"


async def _print_waits(steersman: "Steersman", runs: list[str]) -> None:
    """Print for whom each of these runs waits that waits for its workspace; nothing of one that cannot be asked."""
    import asyncio

    from rich.text import Text

    from steersman.errors import SteersmanError

    async def wait(run: str) -> str | None:
        try:
            return await _wait_line(steersman, run, await steersman.state(run))
        except SteersmanError:
            return None

    for run, line in zip(runs, await asyncio.gather(*map(wait, runs)), strict=True):
        if line:
            console().print(Text(f"{flat(run)} waits for its workspace: {flat(line)}", style=PHASE_STYLES["waiting"]))


async def _wait_line(steersman: "Steersman", run: str, state: "RunState") -> str | None:
    if not state.workspace_held_by:
        return None
    from steersman.cli.commands.workspaces import wait_line

    return await wait_line(steersman, run, state)


async def _with_its_copy(steersman: "Steersman", run: str, state: "RunState") -> "tuple[RunState, bool]":
    """What became of a copy that the run's end could not merge, by now; and whether it waits. Where nobody says, as the
    run's end had it.
    """
    from steersman.errors import SteersmanError

    if state.unmerged is None:
        return state, False
    try:
        back = await steersman.describe_workspace(run)
    except SteersmanError:
        return state, True
    now = {"finalize": back.finalize, "changes": back.changes or state.changes}
    return state.model_copy(update=now), back.waits


def show(ctx: typer.Context, run: Run, as_json: AsJson = False) -> None:
    """Show what a run is doing, or was when it closed, and what came of it."""

    async def work(steersman: "Steersman") -> None:
        run_id = await resolve_run(steersman, run)
        state, waits = await _with_its_copy(steersman, run_id, await steersman.state(run_id))
        if as_json:
            emit({"id": run_id, **state.model_dump(mode="json")})
            return
        from rich.text import Text

        times = await steersman.temporal.get_workflow_handle(run_id).describe()
        wait = await _wait_line(steersman, run_id, state)
        _print_state(run_id, state, wait, await _of_workflow(times, state), copy_waits=waits)
        _print_paused(times)
        await tell_of_unserved_run(steersman, run_id, state)
        if state.closed_as == "succeeded":
            result = await steersman.result(run_id)
            console().print(Text.assemble(("result    ", "dim"), shortened(flat(_answer(result)), 500)))

    run_with_client(ctx, work)


def _print_paused(execution: "WorkflowExecutionDescription") -> None:
    """Say that nobody leads a run whose activity somebody has paused: its phase is as before that."""
    from steersman._client.execution_status import is_activity_paused

    if is_activity_paused(execution):
        why = "until `temporal activity unpause` messages wait, and limits do not hold"
        remark(f"the run's activity is paused in Temporal: {why}", style="yellow")


def result(ctx: typer.Context, run: Run, as_json: AsJson = False) -> None:
    """Print a run's answer, once it has closed: the structured one where the run has one."""

    async def work(steersman: "Steersman") -> None:
        found = await steersman.result(await resolve_run(steersman, run))
        if as_json:
            emit(found)
        else:
            write_line(clean(_answer(found)) if sys.stdout.isatty() else _answer(found))

    run_with_client(ctx, work)


def _answer(result: "RunResult") -> str:
    return result.text if result.structured is None else json.dumps(result.structured, ensure_ascii=False)


async def _of_workflow(execution: "WorkflowExecutionDescription", state: "RunState") -> list[tuple[str, str | None]]:
    """What Temporal knows of a run beside its state: what was asked, and when it began and ended, or is to begin."""
    from steersman.errors import UnreadablePayload

    try:
        title = (await execution.memo()).get("title")
    except UnreadablePayload:
        title = None
    began, ended = execution.start_time, execution.close_time
    of_memo = ("title", title if isinstance(title, str) else None)
    if state.phase == "queued" and (begins := execution.execution_time) and begins > datetime.now(UTC):
        return [of_memo, ("begins", f"{begins.astimezone():%Y-%m-%d %H:%M:%S}")]
    took = duration(((ended or datetime.now(UTC)) - began).total_seconds())
    return [
        of_memo,
        ("began", f"{began.astimezone():%Y-%m-%d %H:%M:%S}"),
        ("took", f"{took}, until {ended.astimezone():%Y-%m-%d %H:%M:%S}" if ended else f"{took} so far"),
    ]


def _print_state(
    run: str, state: "RunState", wait: str | None, of_workflow: "list[tuple[str, str | None]]", *, copy_waits: bool
) -> None:
    from rich.text import Text

    handle, last, use = state.handle, state.last_event, state.usage
    cached = f"{use.cache_read_tokens} read from the cache, {use.cache_write_tokens} written to it"
    rows = [
        ("run", run),
        *of_workflow,
        ("phase", f"closed, {state.closed_as}" if state.closed_as else state.phase),
        ("agent", state.agent),
        ("workspace", state.workspace),
        ("worktree", worktree_phrase(state.worktree) if state.worktree else None),
        ("waits for", wait),
        ("labels", ", ".join(f"{name}={value}" for name, value in state.labels.items())),
        ("session", state.session_id),
        ("host", state.host),
        ("process", f"pid {handle.pid}" if handle else None),
        ("place", handle.place if handle else None),
        ("attempt", str(state.attempt) if state.attempt else None),
        ("cost", f"${state.cost_usd:.4f}, {counted(state.turns, 'turn')}" if state.turns or state.cost_usd else None),
        ("tokens", f"{use.input_tokens} in, {use.output_tokens} out, {cached}" if use.output_tokens else None),
        ("last", f"{last.seq} {last.shown}" if last else None),
        *(("waits for", each) for each in awaited(state)),
        *((each.kind, _message(each)) for each in state.messages),
        ("messages", f"wait: {state.messages_wait}" if state.messages_wait else None),
        ("stop", stop_phrase(state.stop_report, _what_was_done(state)) if state.stop_report else None),
        ("copy", state.carried.directory if state.carried and state.closed_as is None else None),
        ("changed", changes_phrase(state.changes) if state.changes else None),
        ("copy", finalize_phrase(state.finalize, run, waits=copy_waits) if state.finalize else None),
        ("session", sessions_phrase(state.finalize) if state.finalize else None),
        ("error", state.error),
    ]
    for name, value in rows:
        if value:
            console().print(Text.assemble((f"{name:<10}", "dim"), flat(value)))


def _what_was_done(state: "RunState") -> str:
    """What had been done to a run that has a stop report."""
    if state.closed_as in ("succeeded", "failed"):
        return "stopped"
    return (state.closed_as or "cancelled").replace("_", " ")


def _message(message: "MessageRecord") -> str:
    how = f" ({message.how})" if message.how else ""
    files = "".join(f" [{each}]" for each in message.attachments)
    reason = f"  reason: {message.reason}" if message.reason else ""
    return f"{message.id}  {message.state}{how}  {message.text or ''}{files}{reason}"
