"""`steer loop start` and `attach`: start a loop, follow a loop."""

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from steersman.cli import request
from steersman.cli.exits import Exit
from steersman.cli.link import act, chosen_loop, here
from steersman.cli.loop import planning
from steersman.cli.output import console, remark, write_line
from steersman.cli.running import AFTER_DASHES

if TYPE_CHECKING:
    from steersman.client import Steersman

LOOP_HELP = "The loop's id, or - for the newest."
Mode = Literal["checkpoint", "batch", "autonomous"]
AGENT, DONE, LIMITS, PACE = "The agent", "When it is done", "Limits", "Pace"


def start(
    ctx: typer.Context,
    plan: Annotated[
        str | None, typer.Argument(help="What to do: text, or a file or directory in the workspace; - reads stdin.")
    ] = None,
    workspace: Annotated[str | None, typer.Option("--workspace", "-w", help="Where; default: here.")] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Print the loop's id and return.")] = False,
    loop_id: Annotated[str | None, typer.Option("--id", help="The loop's id; default: a new one.")] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Template of each iteration's prompt, or @FILE; {plan}, {feedback} ...")
    ] = None,
    phase: Annotated[str | None, typer.Option(help="Of a plan that is a directory: where to start.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="NAME=VALUE.")] = None,
    host: Annotated[str | None, typer.Option(help="Which machine: its name in `steer doctor`.")] = None,
    request_file: Annotated[
        str | None, typer.Option("--from-file", help="FILE or -: a whole LoopRequest; options go over it.")
    ] = None,
    items: Annotated[
        str | None,
        typer.Option(
            help="none | checkboxes[:PATH] | beads:ID,ID | json:PATH | command:CMD; default: a plan file's checkboxes.",
            rich_help_panel=DONE,
        ),
    ] = None,
    verify: Annotated[
        str | None, typer.Option(help="Shell command that must exit with 0, e.g. 'make test'.", rich_help_panel=DONE)
    ] = None,
    verify_timeout: Annotated[
        str | None, typer.Option(help="Longest it may take; default 15m.", rich_help_panel=DONE)
    ] = None,
    promise: Annotated[
        str | None, typer.Option(help="Last line that the agent must end with, too.", rich_help_panel=DONE)
    ] = None,
    mode: Annotated[
        Mode | None, typer.Option(help="When it waits for your decision; default autonomous.", rich_help_panel=PACE)
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Iterations between decisions; default 5.", rich_help_panel=PACE)
    ] = None,
    session: Annotated[
        Literal["continue", "fresh"] | None,
        typer.Option(help="Each iteration's; default continue, where the agent can.", rich_help_panel=PACE),
    ] = None,
    pause_between: Annotated[
        str | None, typer.Option(help="Between iterations; default 10s.", rich_help_panel=PACE)
    ] = None,
    rate_limit: Annotated[
        Literal["wait", "stop"] | None,
        typer.Option(help="At the provider's limit; default wait.", rich_help_panel=PACE),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(help="Default claude; see `steer agents`.", rich_help_panel=AGENT)
    ] = None,
    model: Annotated[str | None, typer.Option(rich_help_panel=AGENT)] = None,
    permissions: Annotated[
        Literal["read_only", "ask", "accept_edits", "full"] | None,
        typer.Option(help="What it may do unasked; default accept_edits.", rich_help_panel=AGENT),
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="Allow a tool, e.g. 'Bash(git *)'.", rich_help_panel=AGENT)
    ] = None,
    deny: Annotated[list[str] | None, typer.Option(help="Deny a tool.", rich_help_panel=AGENT)] = None,
    system_prompt: Annotated[
        str | None, typer.Option(help="Added instructions, or @FILE.", rich_help_panel=AGENT)
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE | NAME=from_env:NAME | NAME=from_file:PATH.", rich_help_panel=AGENT),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="NAME=JSON: particular to the agent.", rich_help_panel=AGENT)
    ] = None,
    iterations: Annotated[int | None, typer.Option(help="Default 100.", rich_help_panel=LIMITS)] = None,
    cost: Annotated[float | None, typer.Option(help="US dollars.", rich_help_panel=LIMITS)] = None,
    tokens: Annotated[int | None, typer.Option(rich_help_panel=LIMITS)] = None,
    duration: Annotated[
        str | None, typer.Option(help="At work in all, e.g. 90, 15m, 2h.", rich_help_panel=LIMITS)
    ] = None,
    iteration_duration: Annotated[str | None, typer.Option(help="Of one iteration.", rich_help_panel=LIMITS)] = None,
    idle: Annotated[str | None, typer.Option(help="Longest silence.", rich_help_panel=LIMITS)] = None,
    no_progress: Annotated[
        int | None, typer.Option(help="Iterations without any change; default 3, 0: any.", rich_help_panel=LIMITS)
    ] = None,
    failures: Annotated[
        int | None, typer.Option(help="Failed iterations in a row; default 3, 0: any.", rich_help_panel=LIMITS)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines.")] = False,
) -> None:
    """Start a loop and follow it. For agent "process", the command line of each iteration comes after --."""
    base = request.json_of(request_file) if request_file is not None else None
    place = planning.workspace_of(workspace, base)
    made_plan = planning.plan_of(plan, place, phase) if plan is not None else None
    if phase is not None and made_plan is None:
        raise typer.BadParameter("--phase needs PLAN")
    verified = planning.verify_of(verify, verify_timeout)
    command = ctx.meta.get(AFTER_DASHES)
    said = request.given(
        run=request.given(
            agent=agent or (None if base is not None else "process" if command else "claude"),
            workspace={"path": str(place)} if workspace is not None or base is None else None,
            model=model,
            system_prompt=request.text_of(system_prompt) if system_prompt is not None else None,
            permissions=request.given(mode=permissions, allow=allow, deny=deny),
            env=request.environment(env or ()),
            labels=request.pairs(label or (), "--label"),
            options=request.options(option or ()),
            runtime=request.given(host=host),
            command=command,
        ),
        plan=made_plan,
        prompt=request.text_of(prompt) if prompt is not None else None,
        done=request.given(items=_items(items, made_plan, place, base, verified), verify=verified, promise=promise),
        mode=mode,
        batch_size=batch_size,
        session=session,
        pause_between_s=request.seconds(pause_between, "--pause-between"),
        rate_limit=rate_limit,
        limits=planning.limits(
            counts={"iterations": iterations, "tokens": tokens, "no_progress": no_progress, "failures": failures},
            cost_usd=cost,
            durations={"duration": duration, "iteration-duration": iteration_duration, "idle": idle},
        ),
    )
    asked = planning.merged(base, said) if base is not None else {"run": {}, "done": {}} | said
    if plan is None and base is None:
        raise typer.BadParameter("PLAN is missing: a text, or a file or directory in the workspace")
    _begin(ctx, asked, loop_id, detach=detach, as_json=as_json)


def _items(word: str | None, plan: Any, place: Any, base: Any, verified: Any) -> dict[str, Any] | None:
    if word is not None:
        return None if word == "none" else planning.items_of(word)
    if base is not None or plan is None:
        return None
    found = planning.items_by_default(plan, place, verified=bool(verified))
    if found is None and isinstance(plan, dict):
        remark(f"{plan['path']} has no checkboxes: --verify alone says when the loop is done")
    return found


def _begin(ctx: typer.Context, asked: Any, loop_id: str | None, *, detach: bool, as_json: bool) -> None:
    async def work(steersman: "Steersman") -> Exit | None:
        run = asked.get("run") if isinstance(asked, dict) else None
        if isinstance(run, dict) and not run.get("runtime"):
            run.update(await here(steersman))
        if detach:
            announce(await steersman.loops.start(asked, loop_id=loop_id), as_json=as_json, bare=True)
            return None
        from steersman.cli.loop.following import follow

        async def begun() -> str:
            loop = await steersman.loops.start(asked, loop_id=loop_id)
            announce(loop, as_json=as_json, bare=False)
            return loop

        return await follow(steersman, begun, as_json=as_json)

    act(ctx, work)


def attach(
    ctx: typer.Context,
    loop: Annotated[str, typer.Argument(metavar="LOOP", help=LOOP_HELP)],
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines: states, runs, events, the result.")] = False,
) -> None:
    """Follow a loop from the iteration at work on, and talk to it by single keys: ? shows them."""

    async def work(steersman: "Steersman") -> Exit:
        from steersman.cli.loop.following import follow

        return await follow(steersman, lambda: chosen_loop(steersman, loop), as_json=as_json)

    act(ctx, work)


def announce(loop: str, *, as_json: bool, bare: bool) -> None:
    """Say which loop it is."""
    if as_json:
        write_line(json.dumps({"type": "loop", "id": loop}))
    elif bare:
        write_line(loop)
        remark(f"follow it with: steer loop attach {loop}")
    else:
        console().print(f"loop {loop}", style="bold")
