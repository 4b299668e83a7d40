"""`steer loop`: the commands put together."""

import typer

from steersman.cli.loop import keeping, looking, redoing, saying, starting
from steersman.cli.running import DashedCommand

FOLLOW, TALK, BACK = "Loops", "Say something to a loop", "Checkpoints"

app = typer.Typer(name="loop", help="Iterate an agent on a plan until it is proved done.", no_args_is_help=True)

app.command(name="start", cls=DashedCommand, rich_help_panel=FOLLOW)(starting.start)
app.command(name="attach", rich_help_panel=FOLLOW)(starting.attach)
app.command(name="status", rich_help_panel=FOLLOW)(looking.status)
app.command(name="list", rich_help_panel=FOLLOW)(looking.list_loops)
app.command(name="stop", rich_help_panel=FOLLOW)(saying.stop)
app.command(name="pause", rich_help_panel=TALK)(saying.pause)
app.command(name="resume", rich_help_panel=TALK)(saying.resume)
app.command(name="feedback", rich_help_panel=TALK)(saying.feedback)
app.command(name="revise", rich_help_panel=TALK)(redoing.revise)
app.command(name="restart", rich_help_panel=TALK)(redoing.restart)
app.command(name="skip-wait", rich_help_panel=TALK)(saying.skip_wait)
app.command(name="limits", rich_help_panel=TALK)(saying.limits)
app.command(name="exit", rich_help_panel=TALK)(saying.exit_loop)
app.command(name="checkpoints", rich_help_panel=BACK)(keeping.checkpoints)
app.command(name="rollback", rich_help_panel=BACK)(redoing.rollback)
app.command(name="fork", rich_help_panel=BACK)(redoing.fork)
app.command(name="cleanup", rich_help_panel=BACK)(keeping.cleanup)
