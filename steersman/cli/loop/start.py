"""`steer loop start` and `attach`: start a loop, follow a loop."""

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from steersman.cli import options, request
from steersman.cli.connection import run_with_client
from steersman.cli.dashed_command import AFTER_DASHES
from steersman.cli.exits import Exit
from steersman.cli.loop import request as loop_request
from steersman.cli.loop.options import Mode, Phase
from steersman.cli.options import AGENT_PANEL, LIMITS_PANEL
from steersman.cli.output import console, remark, write_line
from steersman.cli.targets import choose_host, resolve_loop
from steersman.cli.unserved import UNTAKEN_S, tell_of_unserved_loop, tell_of_unserved_start

if TYPE_CHECKING:
    from steersman.client import Steersman

DONE_PANEL, PACE_PANEL = "When it is done", "Pace"

Plan = Annotated[
    str | None, typer.Argument(help="What to do: text, or a file or directory in the workspace; - reads stdin.")
]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Print the loop's id and return.")]
LoopId = Annotated[str | None, typer.Option("--id", help="The loop's id; default: a new one.")]
Prompt = Annotated[
    str | None, typer.Option(help="Template of each iteration's prompt, or @FILE; {plan}, {feedback} ...")
]
RequestFile = Annotated[
    str | None, typer.Option("--from-file", help="FILE or -: a whole LoopRequest; options go over it.")
]
Items = Annotated[
    str | None,
    typer.Option(
        help="none | checkboxes[:PATH] | beads:ID,ID | json:PATH | command:CMD; default: a plan file's checkboxes.",
        rich_help_panel=DONE_PANEL,
    ),
]
Verify = Annotated[
    str | None, typer.Option(help="Shell command that must exit with 0, e.g. 'make test'.", rich_help_panel=DONE_PANEL)
]
VerifyTimeout = Annotated[
    str | None, typer.Option(help="Longest it may take; default 15m.", rich_help_panel=DONE_PANEL)
]
Promise = Annotated[
    str | None, typer.Option(help="Last line that the agent must end with, too.", rich_help_panel=DONE_PANEL)
]
StartMode = Annotated[
    Mode | None, typer.Option(help="When it waits for your decision; default autonomous.", rich_help_panel=PACE_PANEL)
]
BatchSize = Annotated[
    int | None, typer.Option(help="Iterations between decisions; default 5.", rich_help_panel=PACE_PANEL)
]
Session = Annotated[
    Literal["continue", "fresh"] | None,
    typer.Option(help="Each iteration's; default continue, where the agent can.", rich_help_panel=PACE_PANEL),
]
PauseBetween = Annotated[str | None, typer.Option(help="Between iterations; default 10s.", rich_help_panel=PACE_PANEL)]
RateLimit = Annotated[
    Literal["wait", "stop"] | None,
    typer.Option(help="At the provider's limit; default wait.", rich_help_panel=PACE_PANEL),
]
Agent = Annotated[str | None, typer.Option(help="Default claude; see `steer agents`.", rich_help_panel=AGENT_PANEL)]
Iterations = Annotated[int | None, typer.Option(help="Default 100.", rich_help_panel=LIMITS_PANEL)]
Cost = Annotated[
    float | None,
    typer.Option(help="US dollars; default 25 where the agent reports it, 0: any.", rich_help_panel=LIMITS_PANEL),
]
Tokens = Annotated[int | None, typer.Option(rich_help_panel=LIMITS_PANEL)]
Duration = Annotated[str | None, typer.Option(help="At work in all, e.g. 90, 15m, 2h.", rich_help_panel=LIMITS_PANEL)]
IterationDuration = Annotated[str | None, typer.Option(help="Of one iteration.", rich_help_panel=LIMITS_PANEL)]
NoProgress = Annotated[
    int | None, typer.Option(help="Iterations without any change; default 3, 0: any.", rich_help_panel=LIMITS_PANEL)
]
Failures = Annotated[
    int | None, typer.Option(help="Failed iterations in a row; default 3, 0: any.", rich_help_panel=LIMITS_PANEL)
]
Isolated = Annotated[bool, typer.Option("--isolated", help="Each run in a copy of the workspace, merged at its end.")]
Ssh = Annotated[
    str | None,
    typer.Option(metavar="[USER@]ADDRESS[:PORT]", help="Runs on this machine, in copies that are merged at their end."),
]
Include = Annotated[list[str] | None, typer.Option(help="An ignored file or directory that the copies have, too.")]
Reuse = Annotated[
    bool | None,
    typer.Option("--reuse/--no-reuse", help="One copy for all runs (the default), or a new one for each."),
]


def start(
    ctx: typer.Context,
    plan: Plan = None,
    workspace: options.Workspace = None,
    on_overlap: options.OnOverlap = None,
    detach: Detach = False,
    loop_id: LoopId = None,
    prompt: Prompt = None,
    phase: Phase = None,
    label: options.Label = None,
    host: options.Host = None,
    request_file: RequestFile = None,
    items: Items = None,
    verify: Verify = None,
    verify_timeout: VerifyTimeout = None,
    promise: Promise = None,
    mode: StartMode = None,
    batch_size: BatchSize = None,
    session: Session = None,
    pause_between: PauseBetween = None,
    rate_limit: RateLimit = None,
    agent: Agent = None,
    model: options.Model = None,
    permissions: options.Permissions = None,
    allow: options.Allow = None,
    deny: options.Deny = None,
    system_prompt: options.SystemPrompt = None,
    env: options.Env = None,
    option: options.AgentOption = None,
    fallback: options.Fallback = None,
    home: options.Home = None,
    webhook: options.Webhook = None,
    iterations: Iterations = None,
    cost: Cost = None,
    tokens: Tokens = None,
    duration: Duration = None,
    iteration_duration: IterationDuration = None,
    idle: options.Idle = None,
    isolated: Isolated = False,
    ssh: Ssh = None,
    kubernetes: options.Kubernetes = None,
    image: options.Image = None,
    pod: options.PodFields = None,
    include: Include = None,
    reuse: Reuse = None,
    no_progress: NoProgress = None,
    failures: Failures = None,
    as_json: options.AsJsonLines = False,
) -> None:
    """Start a loop and follow it. For agents "acp" and "process", the command line of each iteration comes after --."""
    base = loop_request.base_of(request_file, workspace)
    made_plan = loop_request.optional_plan(plan, base.workspace, phase)
    verified = loop_request.verify_of(verify, verify_timeout)
    command = ctx.meta.get(AFTER_DASHES)
    said = request.given(
        run=request.given(
            agent=agent or base.default("process" if command else "claude"),
            workspace=request.given(
                **base.chosen_workspace(workspace),
                host=host,
                on_overlap=on_overlap,
                isolation="copy" if isolated else None,
                include=include,
                reuse=reuse,
            ),
            runtime=request.runtime(ssh, kubernetes, image, pod),
            permissions=request.given(mode=permissions, allow=allow, deny=deny),
            command=command,
            **request.agent_fields(model, system_prompt, env, option, label, fallback, home, webhook),
        ),
        plan=made_plan,
        prompt=request.optional_text(prompt),
        done=request.given(items=_items(items, made_plan, base, verified), verify=verified, promise=promise),
        mode=mode,
        batch_size=batch_size,
        session=session,
        pause_between_s=request.seconds(pause_between, "--pause-between"),
        rate_limit=rate_limit,
        limits=loop_request.limits(
            counts={"iterations": iterations, "tokens": tokens, "no_progress": no_progress, "failures": failures},
            cost_usd=request.NEVER if cost == 0 else cost,
            durations={"duration": duration, "iteration-duration": iteration_duration, "idle": idle},
        ),
    )
    asked = loop_request.with_cost_limit(base.merged(said))
    if plan is None and not base.given:
        raise typer.BadParameter("PLAN is missing: a text, or a file or directory in the workspace")
    _start(ctx, asked, loop_id, detach=detach, as_json=as_json)


def _items(word: str | None, plan: Any, base: loop_request.Base, verified: dict[str, Any]) -> dict[str, Any] | None:
    if word is not None:
        return None if word == "none" else loop_request.items_of(word)
    if base.given or plan is None:
        return None
    found = loop_request.items_by_default(plan, base.workspace, verified=bool(verified))
    if found is None and isinstance(plan, dict):
        remark(f"{plan['path']} has no checkboxes: --verify alone says when the loop is done")
    return found


def _start(ctx: typer.Context, asked: Any, loop_id: str | None, *, detach: bool, as_json: bool) -> None:
    async def work(steersman: "Steersman") -> Exit | None:
        run = asked.get("run") if isinstance(asked, dict) else None
        if isinstance(run, dict):
            await choose_host(steersman, run)
        if detach:
            loop = await steersman.loops.start(asked, loop_id=loop_id)
            announce(loop, as_json=as_json, bare=True)
            _tell_bounds(asked, as_json=as_json)
            await tell_of_unserved_start(steersman, run, "loop", f"steer loop stop {loop}")
            return None
        from steersman.cli.loop.follower import follow

        async def begun() -> str:
            loop = await steersman.loops.start(asked, loop_id=loop_id)
            announce(loop, as_json=as_json, bare=False)
            _tell_bounds(asked, as_json=as_json)
            await tell_of_unserved_start(steersman, run, "loop", f"steer loop stop {loop}")
            return loop

        return await follow(steersman, begun, as_json=as_json)

    run_with_client(ctx, work)


def _tell_bounds(asked: Any, *, as_json: bool) -> None:
    if not as_json and (bounds := loop_request.bounds(asked)):
        remark(bounds)


def attach(
    ctx: typer.Context,
    loop: options.Loop,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines: states, runs, events, the result.")] = False,
) -> None:
    """Follow a loop from the iteration at work on, and talk to it by single keys: ? shows them."""

    async def work(steersman: "Steersman") -> Exit:
        from steersman import timeouts
        from steersman.cli.loop.follower import follow

        async def found() -> str:
            loop_id = await resolve_loop(steersman, loop)
            with suppress(TimeoutError):  # without any worker; the follower tells of that
                async with timeouts.timeout(UNTAKEN_S):
                    await tell_of_unserved_loop(steersman, loop_id)
            return loop_id

        return await follow(steersman, found, as_json=as_json)

    run_with_client(ctx, work)


def announce(loop: str, *, as_json: bool, bare: bool) -> None:
    """Print the id of a loop that was started. `bare`: the id alone on stdout, for a script."""
    if as_json:
        write_line(json.dumps({"type": "loop", "id": loop}))
    elif bare:
        write_line(loop)
        remark(f"follow it with: steer loop attach {loop}")
    else:
        console().print(f"loop {loop}", style="bold")
