"""`steer acp`: Steersman as an agent for editors, over the Agent Client Protocol on stdio."""

import os
import stat
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from steersman.cli import completion, options, request
from steersman.cli.connection import run_with_client
from steersman.cli.dashed_command import AFTER_DASHES
from steersman.cli.exits import Exit
from steersman.cli.output import complain, remark
from steersman.cli.targets import choose_host
from steersman.cli.terminal.signals import handle

if TYPE_CHECKING:
    from steersman.acp.transport import EditorTransport
    from steersman.client import Steersman

MISSING = 'steer acp needs the package "agent-client-protocol": install steersman[acp]'


def acp(
    ctx: typer.Context,
    agent: Annotated[str, typer.Argument(help=options.AGENTS, autocompletion=completion.agents)] = "claude",
    on_overlap: options.OnOverlap = None,
    model: options.Model = None,
    mode: options.Mode = None,
    allow: options.Allow = None,
    deny: options.Deny = None,
    system_prompt: options.SystemPrompt = None,
    env: options.Env = None,
    option: options.AgentOption = None,
    fallback: options.Fallback = None,
    label: options.Label = None,
    max_turns: options.MaxTurns = None,
    max_cost: options.CostLimit = None,
    max_tokens: options.MaxTokens = None,
    idle: options.Idle = None,
    host: options.Host = None,
    isolated: options.Isolated = False,
    ssh: options.Ssh = None,
    kubernetes: options.Kubernetes = None,
    image: options.Image = None,
    pod: options.PodFields = None,
    include: options.Include = None,
) -> None:
    """Serve an editor on stdio (ACP): its sessions are threads, its prompts runs, which go on when it is closed."""
    if not all(map(_can_be_waited_for, (sys.stdin, sys.stdout))):
        raise typer.BadParameter(
            "an editor speaks to it over pipes: neither stdin nor stdout can be a file or /dev/null"
        )
    if sys.stdin.isatty():
        remark("waiting for an editor, which speaks the Agent Client Protocol: docs/editors.md; Ctrl-C ends it")
    fields = request.given(
        agent=agent,
        workspace=request.given(
            host=host, on_overlap=on_overlap, isolation="copy" if isolated else None, include=include
        ),
        runtime=request.runtime(ssh, kubernetes, image, pod),
        permissions=request.given(mode=mode, allow=allow, deny=deny),
        **request.agent_fields(model, system_prompt, env, option, label, fallback),
        limits=request.given(
            turns=max_turns, cost_usd=max_cost, tokens=max_tokens, idle_s=request.seconds(idle, "--idle")
        ),
        command=ctx.meta.get(AFTER_DASHES),
    )

    run_with_client(ctx, partial(_serve, fields))


def _can_be_waited_for(stream: TextIO) -> bool:
    """Whether an event loop hears of it: of files and of devices it does not, and would wait for ever."""
    mode = os.fstat(stream.fileno()).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stream.isatty()


_CODES: dict[str, Exit] = {"SIGTERM": Exit.TERMINATED, "SIGHUP": Exit.TERMINATED, "SIGINT": Exit.DETACHED}


async def _serve(fields: dict[str, Any], steersman: "Steersman") -> Exit:
    """Until the editor leaves, or a signal comes, which counts as that."""
    try:
        from steersman.acp.agent import serve
    except ModuleNotFoundError as error:
        if error.name != "acp":
            raise
        complain(MISSING)
        return Exit.USAGE
    asked = {**fields, "workspace": fields.get("workspace", {})}
    await choose_host(steersman, asked)
    left: list[Exit] = []

    def handle_signals(transport: "EditorTransport") -> None:
        def leave(code: Exit) -> None:
            left.append(code)
            transport.leave()

        for name, code in _CODES.items():
            handle(name, partial(leave, code))

    await serve(steersman, asked, handle_signals)
    return left[0] if left else Exit.OK
