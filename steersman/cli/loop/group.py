"""`steer loop`: the table of its commands."""

import typer

from steersman.cli.dashed_command import DashedCommand
from steersman.cli.lazy_group import LazyCommand, LazyGroup

FOLLOW, TALK, BACK = "Loops", "Say something to a loop", "Checkpoints"
LOOP = "steersman.cli.loop"


class LoopGroup(LazyGroup):
    """The commands, in the order of the help."""

    table = {  # noqa: RUF012 - a ClassVar by its base class
        "start": LazyCommand(f"{LOOP}.start", "start", FOLLOW, DashedCommand),
        "attach": LazyCommand(f"{LOOP}.start", "attach", FOLLOW),
        "status": LazyCommand(f"{LOOP}.status", "status", FOLLOW),
        "list": LazyCommand(f"{LOOP}.status", "list_loops", FOLLOW),
        "stop": LazyCommand(f"{LOOP}.control", "stop", FOLLOW),
        "pause": LazyCommand(f"{LOOP}.control", "pause", TALK),
        "resume": LazyCommand(f"{LOOP}.control", "resume", TALK),
        "feedback": LazyCommand(f"{LOOP}.control", "feedback", TALK),
        "revise": LazyCommand(f"{LOOP}.revise", "revise", TALK),
        "restart": LazyCommand(f"{LOOP}.revise", "restart", TALK),
        "skip-wait": LazyCommand(f"{LOOP}.control", "skip_wait", TALK),
        "limits": LazyCommand(f"{LOOP}.control", "limits", TALK),
        "exit": LazyCommand(f"{LOOP}.control", "exit_loop", TALK),
        "checkpoints": LazyCommand(f"{LOOP}.checkpoints", "checkpoints", BACK),
        "rollback": LazyCommand(f"{LOOP}.revise", "rollback", BACK),
        "fork": LazyCommand(f"{LOOP}.revise", "fork", BACK),
        "cleanup": LazyCommand(f"{LOOP}.checkpoints", "cleanup", BACK),
    }
    aliases = {"show": "status"}  # noqa: RUF012 - as above


app = typer.Typer(
    name="loop", cls=LoopGroup, help="Iterate an agent on a plan until it is proved done.", no_args_is_help=True
)
