"""`steer run` and `steer attach`: start a run, follow a run."""

import os
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from steersman.cli import request
from steersman.cli.exits import Exit
from steersman.cli.link import RUN_HELP, act, chosen, here
from steersman.cli.output import console, remark, write_line

if TYPE_CHECKING:
    from steersman.client import Steersman

Mode = Literal["read_only", "ask", "accept_edits", "full"]
AGENT_OPTIONS = "The agent"
LIMITS = "Limits"
AFTER_DASHES = "steersman.after_dashes"


class DashedCommand(TyperCommand):
    """Keeps what follows `--` apart: it is the agent's command line, never the prompt."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Split at the first `--`."""
        if "--" in args:
            at = args.index("--")
            ctx.meta[AFTER_DASHES] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Say so in the usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND ...]"]


def run(
    ctx: typer.Context,
    agent: Annotated[str | None, typer.Argument(help="claude or process: see `steer agents`.")] = None,
    prompt: Annotated[str | None, typer.Argument(help="What to do; - reads stdin, @FILE a file.")] = None,
    workspace: Annotated[str | None, typer.Option("--workspace", "-w", help="Where; default: here.")] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Print the run's id and return.")] = False,
    run_id: Annotated[str | None, typer.Option("--id", help="The run's id; default: a new one.")] = None,
    model: Annotated[str | None, typer.Option(rich_help_panel=AGENT_OPTIONS)] = None,
    mode: Annotated[
        Mode | None, typer.Option(help="What it may do unasked; default accept_edits.", rich_help_panel=AGENT_OPTIONS)
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="Allow a tool, e.g. 'Bash(git *)'.", rich_help_panel=AGENT_OPTIONS)
    ] = None,
    deny: Annotated[list[str] | None, typer.Option(help="Deny a tool.", rich_help_panel=AGENT_OPTIONS)] = None,
    session: Annotated[str | None, typer.Option(help="Go on with this session.", rich_help_panel=AGENT_OPTIONS)] = None,
    fork: Annotated[bool, typer.Option("--fork", help="On a copy of it.", rich_help_panel=AGENT_OPTIONS)] = False,
    system_prompt: Annotated[
        str | None, typer.Option(help="Added instructions, or @FILE.", rich_help_panel=AGENT_OPTIONS)
    ] = None,
    schema: Annotated[
        str | None, typer.Option(help="FILE: JSON Schema of the answer.", rich_help_panel=AGENT_OPTIONS)
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE | NAME=from_env:NAME | NAME=from_file:PATH.", rich_help_panel=AGENT_OPTIONS),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="NAME=JSON: particular to the agent.", rich_help_panel=AGENT_OPTIONS)
    ] = None,
    label: Annotated[list[str] | None, typer.Option(help="NAME=VALUE.")] = None,
    max_turns: Annotated[int | None, typer.Option(rich_help_panel=LIMITS)] = None,
    max_cost: Annotated[float | None, typer.Option(help="US dollars.", rich_help_panel=LIMITS)] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Of all kinds together.", rich_help_panel=LIMITS)] = None,
    max_duration: Annotated[str | None, typer.Option(help="e.g. 90, 15m, 2h.", rich_help_panel=LIMITS)] = None,
    idle: Annotated[str | None, typer.Option(help="Longest silence.", rich_help_panel=LIMITS)] = None,
    approval: Annotated[
        str | None,
        typer.Option(help="An approval nobody answers is denied after; default 1h; or never.", rich_help_panel=LIMITS),
    ] = None,
    lease: Annotated[
        str | None, typer.Option(help="Without a worker the agent is stopped after; 15m.", rich_help_panel=LIMITS)
    ] = None,
    host: Annotated[str | None, typer.Option(help="Which machine: its name in `steer doctor`.")] = None,
    request_file: Annotated[
        str | None, typer.Option("--request", help="FILE or -: a whole RunRequest; options go over it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines.")] = False,
) -> None:
    """Start a run and follow it. For agent "process", the command line comes after --."""
    said = request.given(
        agent=agent,
        prompt=request.text_of(prompt) if prompt is not None else None,
        workspace=_workspace(workspace, request_file),
        model=model,
        session=session,
        fork_session=fork,
        system_prompt=request.text_of(system_prompt) if system_prompt is not None else None,
        permissions=request.given(mode=mode, allow=allow, deny=deny),
        output_schema=request.json_of(schema) if schema is not None else None,
        env=request.environment(env or ()),
        labels=request.pairs(label or (), "--label"),
        options=request.options(option or ()),
        limits=request.given(
            turns=max_turns,
            cost_usd=max_cost,
            tokens=max_tokens,
            duration_s=request.seconds(max_duration, "--max-duration"),
            idle_s=request.seconds(idle, "--idle"),
            approval_s=request.patience(approval, "--approval"),
        ),
        lease_s=request.seconds(lease, "--lease"),
        runtime=request.given(host=host),
        command=ctx.meta.get(AFTER_DASHES),
    )
    asked = request.merged(request.json_of(request_file), said) if request_file is not None else said

    async def work(steersman: "Steersman") -> Exit | None:
        if isinstance(asked, dict) and not asked.get("runtime"):
            asked.update(await here(steersman))
        if detach:
            _announce(await steersman.start(asked, run_id=run_id), as_json=as_json, bare=True)
            return None
        from steersman.cli.following import follow
        from steersman.cli.keyboard import Keyboard

        # From before the start, so that no Ctrl-C leaves a run behind unsaid.
        with Keyboard(console()) as keyboard:
            started = await steersman.start(asked, run_id=run_id)
            _announce(started, as_json=as_json, bare=False)
            return await follow(steersman, started, keyboard, as_json=as_json)

    act(ctx, work)


def attach(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)],
    after: Annotated[int, typer.Option(min=0, help="Begin after the event of this number.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines, one an event.")] = False,
) -> None:
    """Follow a run: from its first event to its last, live or after the end."""

    async def work(steersman: "Steersman") -> Exit:
        from steersman.cli.following import follow
        from steersman.cli.keyboard import Keyboard

        chosen_run = await chosen(steersman, run)
        with Keyboard(console()) as keyboard:
            return await follow(steersman, chosen_run, keyboard, after=after, as_json=as_json)

    act(ctx, work)


def _workspace(path: str | None, request_file: str | None) -> dict[str, str] | None:
    if path is None and request_file is not None:
        return None
    return {"path": os.path.abspath(path or ".")}  # noqa: PTH100 - resolve() would follow links on this machine


def _announce(run: str, *, as_json: bool, bare: bool) -> None:
    if as_json:
        write_line(f'{{"type": "run", "id": "{run}"}}')
    elif bare:
        write_line(run)
        remark(f"follow it with: steer attach {run}")
    else:
        console().print(f"run {run}", style="bold")
