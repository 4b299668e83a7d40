"""`steer`: the table of commands, and the one place where errors become exit codes."""

import contextlib
import gc
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TextIO

import typer

import steersman
from steersman.cli.connection import ConnectionOptions
from steersman.cli.dashed_command import DashedCommand
from steersman.cli.exits import Exit, code_of, epilog
from steersman.cli.lazy_group import LazyCommand, LazyGroup
from steersman.cli.output import complain

RUNS, TALK, SERVICE = "Runs", "Talk to a run", "Server, workers, upkeep"
COMMANDS = "steersman.cli.commands"
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
GC_THRESHOLD = 250_000
"""Python looks for garbage after this many allocations. A start makes 110,000 objects and hardly any garbage: one look
at them takes a twenty-fifth of the start. `run_with_client` has it look sooner, once all is loaded."""


class SteerGroup(LazyGroup):
    """The commands, in the order of the help."""

    table = {  # noqa: RUF012 - a ClassVar by its base class
        "run": LazyCommand(f"{COMMANDS}.run", "run", RUNS, DashedCommand),
        "attach": LazyCommand(f"{COMMANDS}.run", "attach", RUNS),
        "list": LazyCommand(f"{COMMANDS}.status", "list_runs", RUNS),
        "show": LazyCommand(f"{COMMANDS}.status", "show", RUNS),
        "result": LazyCommand(f"{COMMANDS}.status", "result", RUNS),
        "workspaces": LazyCommand(f"{COMMANDS}.workspaces", "workspaces", RUNS),
        "stop": LazyCommand(f"{COMMANDS}.control", "stop", RUNS),
        "diff": LazyCommand(f"{COMMANDS}.changes", "diff", RUNS),
        "undo": LazyCommand(f"{COMMANDS}.changes", "undo", RUNS),
        "checkpoints": LazyCommand(f"{COMMANDS}.checkpoints", "checkpoints", RUNS),
        "workspace": LazyCommand(f"{COMMANDS}.workspace", "app", RUNS),
        "replay": LazyCommand(f"{COMMANDS}.replay", "replay", RUNS),
        "export": LazyCommand(f"{COMMANDS}.export", "export", RUNS),
        "steer": LazyCommand(f"{COMMANDS}.control", "steer", TALK),
        "interrupt": LazyCommand(f"{COMMANDS}.control", "interrupt", TALK),
        "approve": LazyCommand(f"{COMMANDS}.control", "approve", TALK),
        "deny": LazyCommand(f"{COMMANDS}.control", "deny", TALK),
        "dev": LazyCommand(f"{COMMANDS}.dev", "dev", SERVICE, settings=PASS_ON),
        "demo": LazyCommand(f"{COMMANDS}.demo", "demo", SERVICE),
        "worker": LazyCommand(f"{COMMANDS}.worker", "worker", SERVICE, settings=PASS_ON),
        "acp": LazyCommand(f"{COMMANDS}.acp", "acp", SERVICE, DashedCommand),
        "agents": LazyCommand(f"{COMMANDS}.agents", "app", SERVICE),
        "trust": LazyCommand(f"{COMMANDS}.trust", "trust", SERVICE),
        "doctor": LazyCommand(f"{COMMANDS}.doctor", "doctor", SERVICE),
        "prune": LazyCommand(f"{COMMANDS}.prune", "prune", SERVICE),
        "loop": LazyCommand("steersman.cli.loop.group", "app", RUNS),
        "schema": LazyCommand(f"{COMMANDS}.schema", "schema", SERVICE),
        "codec": LazyCommand(f"{COMMANDS}.codec", "app", SERVICE),
    }
    aliases = {"say": "steer"}  # noqa: RUF012 - a ClassVar by its base class

    def invoke(self, ctx: Any) -> Any:
        """See click.Group. What is wrong with an option is said in words of this command's own."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            from steersman.contracts.errors import plain

            error.message = plain(error.message)
            raise


app = typer.Typer(
    name="steer",
    cls=SteerGroup,
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
    """Keep the connection options for the command."""
    ctx.obj = ConnectionOptions(profile, address, namespace)


def run() -> NoReturn:
    """The console script."""
    sys.stdin = sys.stdin or _nowhere("r")
    sys.stdout, sys.stderr = sys.stdout or _nowhere("w"), sys.stderr or _nowhere("w")
    gc.set_threshold(GC_THRESHOLD)
    code = _code()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # Temporal's native threads can crash the interpreter while it shuts down; nothing is left to clean up.
    os._exit(code)


def _nowhere(mode: Literal["r", "w"]) -> TextIO:
    """In place of a stream that was closed by whoever started this (`2>&-`)."""
    return Path(os.devnull).open(mode)


def _code() -> int:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        app(prog_name="steer")
    except SystemExit as ending:
        if isinstance(ending.__context__, BrokenPipeError):  # typer ends so
            return _closed_by_reader()
        return ending.code if isinstance(ending.code, int) else Exit.USAGE if ending.code else Exit.OK
    except KeyboardInterrupt:
        return Exit.DETACHED
    except BrokenPipeError:
        return _closed_by_reader()
    except Exception as error:  # noqa: BLE001 - the outermost handler
        return _code_of_failure(error)
    return Exit.OK


def _closed_by_reader() -> int:
    """The reader has closed its end (`steer list | head`)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.OK


def _is_no_text(word: str) -> bool:
    """Whether it has bytes that are no UTF-8, which Python gives as surrogates."""
    return any("\ud800" <= each <= "\udfff" for each in word)


def _code_of_failure(error: Exception) -> int:
    code = code_of(error)
    if code is not None:
        complain(str(error))
        return code
    if isinstance(error, UnicodeEncodeError) and (word := next(filter(_is_no_text, sys.argv[1:]), None)):
        complain(f"{word!a} is no text in UTF-8")
        return Exit.USAGE
    if isinstance(error, FileNotFoundError) and error.filename is None:
        complain("the directory that this was called in is gone")
        return Exit.USAGE
    if isinstance(error, OSError) and error.strerror:
        # Of a file, or of where the output goes: what else can fail is one of the client's errors.
        complain(f"{error.filename}: {error.strerror}" if error.filename else error.strerror)
        return Exit.FAILED
    import traceback

    traceback.print_exception(error)
    return Exit.BUG
