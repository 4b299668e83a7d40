"""`steer run` and `steer attach`: start a run, follow a run."""

from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steersman._client.futures import prefetched
from steersman.cli import completion, options, request
from steersman.cli.connection import run_with_client
from steersman.cli.dashed_command import AFTER_DASHES
from steersman.cli.exits import Exit
from steersman.cli.options import AGENT_PANEL, LIMITS_PANEL
from steersman.cli.output import console, remark, write_line
from steersman.cli.targets import choose_host, resolve_run
from steersman.cli.terminal.notices import Notify
from steersman.cli.unserved import tell_of_unserved_start

if TYPE_CHECKING:
    from steersman.client import Steersman
    from steersman.contracts.events import AgentEvent

    _Page = tuple[AgentEvent, ...]

NEWEST_RUNS = 200
"""Among this many runs `--continue` looks for one."""

Agent = Annotated[str | None, typer.Argument(help=options.AGENTS, autocompletion=completion.agents)]
Prompt = Annotated[str | None, typer.Argument(help="What to do; - reads stdin, @FILE a file.")]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Print the run's id and return.")]
RunId = Annotated[str | None, typer.Option("--id", help="The run's id; default: a new one.")]
RequestFile = Annotated[
    str | None, typer.Option("--request", help="FILE or -: a whole RunRequest; options go over it.")
]
Session = Annotated[str | None, typer.Option(help="Go on with this session.", rich_help_panel=AGENT_PANEL)]
Continue = Annotated[
    bool,
    typer.Option(
        "--continue", "-c", help="Go on with the newest session of this directory.", rich_help_panel=AGENT_PANEL
    ),
]
Fork = Annotated[bool, typer.Option("--fork", help="On a copy of it.", rich_help_panel=AGENT_PANEL)]
Schema = Annotated[str | None, typer.Option(help="FILE: JSON Schema of the answer.", rich_help_panel=AGENT_PANEL)]
MaxDuration = Annotated[str | None, typer.Option(help="e.g. 90, 15m, 2h.", rich_help_panel=LIMITS_PANEL)]
ApprovalTime = Annotated[
    str | None,
    typer.Option(
        help="An approval nobody answers is denied after; default 1h; or never.", rich_help_panel=LIMITS_PANEL
    ),
]
Lease = Annotated[
    str | None, typer.Option(help="Without a worker the agent is stopped after; 15m.", rich_help_panel=LIMITS_PANEL)
]
Worktree = Annotated[
    str | None, typer.Option(metavar="BRANCH", help="In a git worktree of that branch; both stay, nothing is merged.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Cut nothing of what tools are given and answer.")]
Notified = Annotated[
    Notify,
    typer.Option(
        "--notify",
        envvar="STEERSMAN_NOTIFY",
        help="How the terminal calls you at a question and at the end: bell, desktop (OSC 9) or none.",
    ),
]
After = Annotated[int, typer.Option(min=0, help="Begin after the event of this number.")]


def run(
    ctx: typer.Context,
    agent: Agent = None,
    prompt: Prompt = None,
    attach: options.Attach = None,
    workspace: options.Workspace = None,
    on_overlap: options.OnOverlap = None,
    detach: Detach = False,
    run_id: RunId = None,
    model: options.Model = None,
    mode: options.Mode = None,
    allow: options.Allow = None,
    deny: options.Deny = None,
    session: Session = None,
    go_on: Continue = False,
    fork: Fork = False,
    system_prompt: options.SystemPrompt = None,
    schema: Schema = None,
    env: options.Env = None,
    option: options.AgentOption = None,
    fallback: options.Fallback = None,
    home: options.Home = None,
    webhook: options.Webhook = None,
    label: options.Label = None,
    max_turns: options.MaxTurns = None,
    max_cost: options.CostLimit = None,
    max_tokens: options.MaxTokens = None,
    max_duration: MaxDuration = None,
    idle: options.Idle = None,
    approval: ApprovalTime = None,
    lease: Lease = None,
    host: options.Host = None,
    isolated: options.Isolated = False,
    ssh: options.Ssh = None,
    kubernetes: options.Kubernetes = None,
    image: options.Image = None,
    pod: options.PodFields = None,
    include: options.Include = None,
    worktree: Worktree = None,
    request_file: RequestFile = None,
    verbose: Verbose = False,
    notify: Notified = "bell",
    as_json: options.AsJsonLines = False,
) -> None:
    """Start a run and follow it. For agents "acp" and "process", the command line comes after --."""
    if go_on and session is not None:
        raise typer.BadParameter("--continue and --session: one of them")
    if go_on and prompt is None:  # the agent is that of the run that is gone on with
        agent, prompt = None, agent
    said = request.given(
        agent=agent,
        prompt=request.optional_text(prompt),
        attachments=request.attachments(attach),
        workspace=request.given(
            **_workspace(workspace, request_file),
            host=host,
            on_overlap=on_overlap,
            isolation="copy" if isolated else None,
            include=include,
            worktree=worktree,
        ),
        runtime=request.runtime(ssh, kubernetes, image, pod),
        session=session,
        fork_session=fork,
        permissions=request.given(mode=mode, allow=allow, deny=deny),
        **request.agent_fields(model, system_prompt, env, option, label, fallback, home, webhook),
        output_schema=request.json_of(schema) if schema is not None else None,
        limits=request.given(
            turns=max_turns,
            cost_usd=max_cost,
            tokens=max_tokens,
            duration_s=request.seconds(max_duration, "--max-duration"),
            idle_s=request.seconds(idle, "--idle"),
            approval_s=request.approval_time(approval, "--approval"),
        ),
        lease_s=request.seconds(lease, "--lease"),
        command=ctx.meta.get(AFTER_DASHES),
    )
    asked = request.merged(request.json_of(request_file), said) if request_file is not None else said
    _start(ctx, asked, run_id, go_on=go_on, detach=detach, verbose=verbose, notify=notify, as_json=as_json)


def _start(
    ctx: typer.Context,
    asked: Any,
    run_id: str | None,
    *,
    go_on: bool,
    detach: bool,
    verbose: bool,
    notify: Notify,
    as_json: bool,
) -> None:
    async def work(steersman: "Steersman") -> Exit | None:
        if isinstance(asked, dict):
            if go_on:
                asked.update(await _continued(steersman, asked))
            await choose_host(steersman, asked)
        if detach:
            run = await steersman.start(asked, run_id=run_id)
            _announce(run, as_json=as_json, bare=True)
            await tell_of_unserved_start(steersman, asked, "run", f"steer stop {run}")
            return None
        from steersman.cli.terminal.run_follower import follow, waits_for_worker
        from steersman.errors import NoWorker

        started: list[str] = []

        async def begin() -> str:
            started.append(await steersman.start(asked, run_id=run_id))
            _announce(started[0], as_json=as_json, bare=False)
            await tell_of_unserved_start(steersman, asked, "run", f"steer stop {started[0]}")
            return started[0]

        try:
            return await follow(
                steersman, begin, as_json=as_json, offers=_is_here(asked), verbose=verbose, notify=notify
            )
        except NoWorker as error:
            for run in started:
                remark(waits_for_worker(run, error))
            raise

    run_with_client(ctx, work)


def _is_here(asked: Any) -> bool:
    """Whether `steer run --continue`, said here, goes on with the run."""
    workspace = asked.get("workspace") if isinstance(asked, dict) else None
    return isinstance(workspace, dict) and workspace.get("path") == str(Path.cwd())


async def _continued(steersman: "Steersman", asked: dict[str, Any]) -> dict[str, Any]:
    """Agent, session and host of the newest run in this directory that has a session, of the agent that is named."""
    from steersman.errors import AlreadyRunning, RunNotFound

    workspace, agent = asked.get("workspace"), asked.get("agent")
    path = workspace.get("path") if isinstance(workspace, dict) else None
    for each in await steersman.list(limit=NEWEST_RUNS, of_loops=False):
        if each.workspace != path or agent not in (None, each.agent):
            continue
        state = await steersman.state(each.id)
        if state.session_id is None:
            continue
        if each.status == "running":
            raise AlreadyRunning(f"run {each.id} is at work with the newest session of {path}: steer attach {each.id}")
        remark(f"goes on with the session of {each.id}")
        return {
            "agent": state.agent,
            "session": state.session_id,
            "workspace": {**(workspace or {}), **({"host": state.host} if state.host else {})},
        }
    of_agent = f" of {agent}" if agent else ""
    raise RunNotFound(f"no run{of_agent} in {path} has a session to go on with")


def attach(
    ctx: typer.Context,
    run: options.Run,
    after: After = 0,
    tail: Annotated[int | None, typer.Option(min=0, help="Begin with the last so many events.")] = None,
    verbose: Verbose = False,
    notify: Notified = "bell",
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines, one an event.")] = False,
) -> None:
    """Follow a run: from its first event to its last, live or after the end."""
    if tail is not None and after:
        raise typer.BadParameter("--tail and --after name two beginnings")

    async def work(steersman: "Steersman") -> Exit:
        run_id, begin = await resolve_run(steersman, run), after
        if tail is not None:
            known = [each for each in await steersman.events(run_id) if as_json or each.type != "tool_output"]
            begin = known[-tail - 1].seq if len(known) > tail else 0

        async def found() -> str:
            return run_id

        pages = steersman.attach_pages(run_id, after=begin)
        async with prefetched(anext(pages)) as first:
            from steersman.cli.terminal.run_follower import follow

            begun = _from_first(first, pages)
            return await follow(
                steersman, found, after=begin, as_json=as_json, verbose=verbose, notify=notify, begun=begun, first=first
            )

    run_with_client(ctx, work)


async def _from_first(first: "Awaitable[_Page]", others: "AsyncGenerator[_Page]") -> "AsyncGenerator[_Page]":
    async with aclosing(others):
        try:
            yield await first
        except StopAsyncIteration:
            return
        async for page in others:
            yield page


def _workspace(path: str | None, request_file: str | None) -> dict[str, str]:
    if path is None and request_file is not None:
        return {}
    return {"path": request.workspace_path(path)}


def _announce(run: str, *, as_json: bool, bare: bool) -> None:
    if as_json:
        write_line(f'{{"type": "run", "id": "{run}"}}')
    elif bare:
        write_line(run)
        remark(f"follow it with: steer attach {run}")
    else:
        console().print(f"run {run}", style="bold")
