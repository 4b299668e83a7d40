"""Options and arguments that several commands take, as Typer's annotated types."""

from typing import Annotated, Literal

import typer

from steersman.cli import completion

AGENT_PANEL, LIMITS_PANEL = "The agent", "Limits"

RUN_HELP = "The run's id, or - for the newest."
LOOP_HELP = "The loop's id, or - for the newest."

Run = Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP, autocompletion=completion.runs)]
OpenRun = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="The run's id, or - for the newest open one.", autocompletion=completion.open_runs
    ),
]
Loop = Annotated[str, typer.Argument(metavar="LOOP", help=LOOP_HELP, autocompletion=completion.loops)]
OpenLoop = Annotated[
    str,
    typer.Argument(
        metavar="LOOP", help="The loop's id, or - for the newest open one.", autocompletion=completion.open_loops
    ),
]

AsJson = Annotated[bool, typer.Option("--json", help="The answer as JSON.")]
AsJsonLines = Annotated[bool, typer.Option("--json", help="JSON lines.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Reason = Annotated[str | None, typer.Option(help="Why, for the record.")]
StopReason = Annotated[str, typer.Option(help="Why, for the record.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000)]

# Of a request for a run, alone or in a loop.
PermissionMode = Literal["read_only", "ask", "accept_edits", "full"]
Workspace = Annotated[str | None, typer.Option("--workspace", "-w", help="Where; default: here.")]
OnOverlap = Annotated[
    Literal["reject", "queue", "interrupt", "steer", "rollback"] | None,
    typer.Option(help="Where another one is at work there; default reject."),
]
Label = Annotated[list[str] | None, typer.Option(help="NAME=VALUE.")]
Host = Annotated[str | None, typer.Option(help="Which machine: its name in `steer doctor`.")]
Kubernetes = Annotated[
    str | None,
    typer.Option(metavar="[CONTEXT/]NAMESPACE", help="In a pod, in a copy of the workspace; the operator allows it."),
]
Image = Annotated[str | None, typer.Option(help="The pod's image, with Python, git and the agent.")]
PodFields = Annotated[
    list[str] | None, typer.Option("--pod", metavar="FIELD=JSON", help="Of the pod: `runtime` in docs/wire.md.")
]
Model = Annotated[str | None, typer.Option(rich_help_panel=AGENT_PANEL)]
Fallback = Annotated[
    list[str] | None,
    typer.Option(
        metavar="AGENT[:MODEL]",
        help="Who goes on where the agent cannot: no key, a rate limit, an overload, not installed.",
        rich_help_panel=AGENT_PANEL,
    ),
]
Home = Annotated[
    Literal["user", "isolated"] | None,
    typer.Option(
        help="isolated: the agent begins with no settings, logins and sessions, and leaves none.",
        rich_help_panel=AGENT_PANEL,
    ),
]
Attach = Annotated[
    list[str] | None,
    typer.Option(
        "--attach",
        metavar="FILE",
        help="An image or a text that goes with what is said; as often as needed.",
    ),
]
Webhook = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL",
        help="Told what waits for approval, when most of a limit is spent, and the end; from_env:NAME of the worker.",
        rich_help_panel=AGENT_PANEL,
    ),
]
Permissions = Annotated[
    PermissionMode | None,
    typer.Option(help="What it may do unasked; default accept_edits.", rich_help_panel=AGENT_PANEL),
]
Mode = Annotated[
    PermissionMode | None,
    typer.Option(
        "--mode", "--permissions", help="What it may do unasked; default accept_edits.", rich_help_panel=AGENT_PANEL
    ),
]
"""As of a run, where loops have a mode of another kind."""
Allow = Annotated[list[str] | None, typer.Option(help="Allow a tool, e.g. 'Bash(git *)'.", rich_help_panel=AGENT_PANEL)]
Deny = Annotated[list[str] | None, typer.Option(help="Deny a tool.", rich_help_panel=AGENT_PANEL)]
SystemPrompt = Annotated[str | None, typer.Option(help="Added instructions, or @FILE.", rich_help_panel=AGENT_PANEL)]
Env = Annotated[
    list[str] | None,
    typer.Option(help="NAME=VALUE | NAME=from_env:NAME | NAME=from_file:PATH.", rich_help_panel=AGENT_PANEL),
]
AgentOption = Annotated[
    list[str] | None,
    typer.Option(help="NAME=JSON, or a word, which is a text: particular to the agent.", rich_help_panel=AGENT_PANEL),
]
Idle = Annotated[str | None, typer.Option(help="Longest silence.", rich_help_panel=LIMITS_PANEL)]
CostLimit = Annotated[
    float | None, typer.Option("--max-cost", "--cost", help="US dollars.", rich_help_panel=LIMITS_PANEL)
]
AGENTS = "claude, codex, gemini, opencode, hermes, acp or process: see `steer agents`."
MaxTurns = Annotated[int | None, typer.Option(rich_help_panel=LIMITS_PANEL)]
MaxTokens = Annotated[
    int | None,
    typer.Option("--max-tokens", "--tokens", help="Of all kinds together.", rich_help_panel=LIMITS_PANEL),
]
Isolated = Annotated[bool, typer.Option("--isolated", help="In a copy of the workspace, merged at the end.")]
Ssh = Annotated[
    str | None,
    typer.Option(metavar="[USER@]ADDRESS[:PORT]", help="On this machine, in a copy that is merged at the end."),
]
Include = Annotated[list[str] | None, typer.Option(help="An ignored file or directory that the copy has, too.")]
