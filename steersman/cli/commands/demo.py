"""`steer demo`: what Steersman does, shown with a real agent and a scripted model; nothing is left of it."""

import os
import sys
from typing import Annotated

import typer

from steersman.cli.worker_code import demo_command


def demo(
    agent: Annotated[str, typer.Argument(help="claude, codex, gemini, opencode, hermes or acp.")] = "claude",
) -> None:
    """Show a run that is steered, interrupted, orphaned, adopted, stopped: without a key, on servers of its own."""
    command, directory = demo_command(agent)
    os.chdir(directory)
    sys.stdout.flush()
    os.execv(command[0], command)  # noqa: S606 - a shell would take the signals
