"""`steer`: the commands put together, and the one place where errors become exit codes."""

import contextlib
import os
import sys
from typing import Annotated, NoReturn

import typer

import steersman
from steersman.cli import checking, codec, dev, looking, replaying, running, talking
from steersman.cli.checkout import become_worker
from steersman.cli.exits import Exit, code_of, epilog
from steersman.cli.link import Link, link_of
from steersman.cli.loop import main as loop
from steersman.cli.output import complain
from steersman.cli.trust import trust

RUNS, TALK, SERVICE = "Runs", "Say something to a run", "Server, workers, upkeep"
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}

app = typer.Typer(
    name="steer",
    help="Coding agents as durable Temporal workflows.",
    epilog=epilog(),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"steer {steersman.__version__}")
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    profile: Annotated[str | None, typer.Option(help="Profile of the Temporal CLI's configuration file.")] = None,
    address: Annotated[str | None, typer.Option(help="Temporal server; default 127.0.0.1:7233.")] = None,
    namespace: Annotated[str | None, typer.Option(help="Temporal namespace; default: default.")] = None,
    _asked: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which.")] = False,
) -> None:
    """What every command is told about the connection."""
    ctx.obj = Link(profile, address, namespace)


def worker(ctx: typer.Context) -> None:
    """Run a worker on this machine. All options are worker.py's: see `steer worker -- --help`."""
    become_worker(ctx.args, link_of(ctx).environment())


app.command(name="run", cls=running.DashedCommand, rich_help_panel=RUNS)(running.run)
app.command(name="attach", rich_help_panel=RUNS)(running.attach)
app.command(name="list", rich_help_panel=RUNS)(looking.list_runs)
app.command(name="show", rich_help_panel=RUNS)(looking.show)
app.command(name="stop", rich_help_panel=RUNS)(talking.stop)
app.command(name="replay", rich_help_panel=RUNS)(replaying.replay)
app.add_typer(loop.app, name="loop", rich_help_panel=RUNS)
app.command(name="say", rich_help_panel=TALK)(talking.say)
app.command(name="interrupt", rich_help_panel=TALK)(talking.interrupt)
app.command(name="approve", rich_help_panel=TALK)(talking.approve)
app.command(name="deny", rich_help_panel=TALK)(talking.deny)
app.command(name="dev", rich_help_panel=SERVICE, context_settings=PASS_ON)(dev.dev)
app.command(name="worker", rich_help_panel=SERVICE, context_settings=PASS_ON)(worker)
app.command(name="agents", rich_help_panel=SERVICE)(looking.agents)
app.command(name="trust", rich_help_panel=SERVICE)(trust)
app.command(name="doctor", rich_help_panel=SERVICE)(checking.doctor)
app.command(name="prune", rich_help_panel=SERVICE)(checking.prune)
app.add_typer(codec.app, name="codec", rich_help_panel=SERVICE)


def run() -> NoReturn:
    """The console script."""
    code = _code()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # Temporal's native threads can crash the interpreter while it shuts down; nothing is left to clean up.
    os._exit(code)


def _code() -> int:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        app(prog_name="steer")
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else Exit.USAGE if ending.code else Exit.OK
    except KeyboardInterrupt:
        return Exit.DETACHED
    except BrokenPipeError:
        # The reader has had enough (`steer list | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    except Exception as error:  # noqa: BLE001 - the last one to hear of it
        code = code_of(error)
        if code is None:
            import traceback

            traceback.print_exc()
            return Exit.BUG
        complain(str(error))
        return code
    return Exit.OK
