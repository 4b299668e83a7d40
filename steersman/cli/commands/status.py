"""`steer list`, `show`, `agents`: tables and one run's particulars."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from steersman.cli.clean import counted, flat, shortened
from steersman.cli.exits import Exit
from steersman.cli.link import RUN_HELP, act, chosen
from steersman.cli.output import console, emit, remark

if TYPE_CHECKING:
    from rich.table import Table

    from steersman.client import Steersman
    from steersman.contracts.run import Approval, MessageRecord, RunState

AsJson = Annotated[bool, typer.Option("--json", help="The answer as JSON.")]
PHASE_STYLES = {
    "running": "green",
    "waiting": "magenta",
    "stopping": "yellow",
    "failed": "red",
    "canceled": "yellow",
    "terminated": "red",
}


def table(*columns: str) -> "Table":
    """A table without lines."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in columns:
        made.add_column(name, no_wrap=True)
    return made


def list_runs(
    ctx: typer.Context,
    query: Annotated[
        str | None, typer.Argument(help="Temporal's list filter, e.g. 'AgentName=\"claude\" AND CostUsd > 1'.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000)] = 20,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first."""

    async def work(steersman: "Steersman") -> None:
        from rich.text import Text

        from steersman.cli.render import duration

        runs = await steersman.list(query, limit=limit)
        if as_json:
            emit(runs)
            return
        if not runs:
            remark("no runs")
            return
        shown = table("RUN", "AGENT", "PHASE", "COST", "AGE", "TOOK", "WORKSPACE")
        now = datetime.now(UTC)
        for each in runs:
            phase = str(each.phase) if each.status == "running" else each.status
            phase = "paused" if each.paused else phase
            shown.add_row(
                Text(flat(each.id)),
                Text(flat(each.agent or "?")),
                Text(phase, style=PHASE_STYLES.get(phase, "")),
                Text(f"${each.cost_usd:.4f}" if each.cost_usd else "-"),
                Text(duration((now - each.started_at).total_seconds())),
                Text(duration(((each.closed_at or now) - each.started_at).total_seconds())),
                Text(shortened(flat(each.workspace or ""), 60)),
            )
        console().print(shown)
        for line in await _waiting(steersman, [each.id for each in runs if each.phase == "waiting"]):
            console().print(Text(line, style=PHASE_STYLES["waiting"]))

    act(ctx, work)


async def _waiting(steersman: "Steersman", runs: list[str]) -> list[str]:
    """What each of these runs waits for, and until when; nothing of one that nobody answers for."""
    import asyncio

    from steersman.errors import SteersmanError

    async def questions(run: str) -> list[str]:
        try:
            state = await steersman.state(run)
        except SteersmanError:
            return []
        return [f"{flat(run)} waits for {_asked(each)}" for each in state.approvals]

    return [line for lines in await asyncio.gather(*map(questions, runs)) for line in lines]


def _asked(approval: "Approval") -> str:
    from steersman.cli.render import deadline
    from steersman.contracts.text import main_argument

    return f"{flat(approval.id)}  {flat(approval.tool)}, {deadline(approval)}: {main_argument(approval.input)}"


def show(
    ctx: typer.Context, run: Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)], as_json: AsJson = False
) -> None:
    """Show what a run is doing, or was when it closed."""

    async def work(steersman: "Steersman") -> None:
        chosen_run = await chosen(steersman, run)
        state = await steersman.state(chosen_run)
        if as_json:
            emit({"id": chosen_run, **state.model_dump(mode="json")})
        else:
            _print_state(chosen_run, state)

    act(ctx, work)


def _print_state(run: str, state: "RunState") -> None:
    from rich.text import Text

    from steersman.cli.render import stopped

    handle, last, use = state.handle, state.last_event, state.usage
    rows = [
        ("run", run),
        ("phase", f"closed, {state.closed_as}" if state.closed_as else state.phase),
        ("agent", state.agent),
        ("workspace", state.workspace),
        ("labels", ", ".join(f"{name}={value}" for name, value in state.labels.items())),
        ("session", state.session_id),
        ("host", state.host),
        ("process", f"pid {handle.pid}" if handle else None),
        ("attempt", str(state.attempt) if state.attempt else None),
        ("cost", f"${state.cost_usd:.4f}, {counted(state.turns, 'turn')}" if state.turns or state.cost_usd else None),
        ("tokens", f"{use.input_tokens} in, {use.output_tokens} out" if use.output_tokens else None),
        ("last", f"{last.seq} {last.type}: {last.summary}" if last else None),
        *(("waits for", _asked(each)) for each in state.approvals),
        *(
            (
                each.kind,
                f"{each.id}  {each.state}{f' ({each.how})' if each.how else ''}  {each.text or ''}{_why(each)}",
            )
            for each in state.messages
        ),
        ("messages", f"wait: {state.messages_wait}" if state.messages_wait else None),
        ("stop", stopped(state.stop_report, _how(state)) if state.stop_report else None),
        ("error", state.error),
    ]
    for name, value in rows:
        if value:
            console().print(Text.assemble((f"{name:<10}", "dim"), flat(value)))


def _how(state: "RunState") -> str:
    """What had been done to a run that has a stop report."""
    if state.closed_as in ("succeeded", "failed"):
        return "stopped"
    return (state.closed_as or "cancelled").replace("_", " ")


def _why(message: "MessageRecord") -> str:
    return f"  reason: {message.reason}" if message.reason else ""


def agents(as_json: AsJson = False) -> None:
    """Show which agents there are, and what each can do."""
    from rich.text import Text

    from steersman.contracts.agents import CAPABILITIES, Capabilities

    if as_json:
        emit({name: can.model_dump() for name, can in CAPABILITIES.items()})
    else:
        names = list(Capabilities.model_fields)
        shown = table("AGENT", *(name.upper().replace("_", " ") for name in names))
        for agent, can in CAPABILITIES.items():
            marks = [Text("yes", style="green") if getattr(can, name) else Text("no", style="dim") for name in names]
            shown.add_row(Text(agent, style="bold"), *marks)
        console().print(shown)
    raise typer.Exit(Exit.OK)
