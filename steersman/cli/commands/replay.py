"""`steer replay`: whether the code at hand still makes the decisions that a recorded run made.

worker.py does the replay: only workers have the workflows.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steersman.cli.connection import run_with_client
from steersman.cli.exits import Exit
from steersman.cli.formatting import clean
from steersman.cli.json_output import last_json
from steersman.cli.options import AsJson
from steersman.cli.output import complain, console, emit, remark
from steersman.cli.targets import resolve_run
from steersman.cli.worker_code import worker_command

if TYPE_CHECKING:
    from steersman.client import Steersman


def replay(
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(metavar="RUN|FILE", help="A run's id, - for the newest, or a history file.")],
    export: Annotated[Path | None, typer.Option(help="Write the run's history to this file, too.")] = None,
    as_json: AsJson = False,
) -> None:
    """Replay a run's history with the code at hand; say where it diverges."""
    if source.endswith(".json") or "/" in source:
        if not Path(source).is_file():
            complain(f"no file {source}")
            raise typer.Exit(Exit.NOT_FOUND)
        if export:
            raise typer.BadParameter("--export is for a run, and this is a file already")
        raise typer.Exit(_replay(Path(source), as_json=as_json))

    async def work(steersman: "Steersman") -> Exit:
        import tempfile

        run = await resolve_run(steersman, source)
        history = await steersman.history(run)
        if export:
            _write_private(export, history)
            remark(f"history of {run} written to {export}")
        with tempfile.TemporaryDirectory(prefix="steer-") as scratch:
            file = Path(scratch) / "history.json"
            _write_private(file, history)
            return _replay(file, as_json=as_json)

    run_with_client(ctx, work)


def _write_private(path: Path, text: str) -> None:
    # A history has prompts in it.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def _replay(file: Path, *, as_json: bool) -> Exit:
    import subprocess

    done = subprocess.run(worker_command("replay", str(file)), capture_output=True, text=True, check=False)
    answer = last_json(done.stdout)
    if not isinstance(answer, dict) or "ok" not in answer:
        complain(f"the replay ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
        return Exit.BUG
    if as_json:
        emit(answer)
    else:
        _print(answer)
    return Exit.OK if answer["ok"] else Exit.FAILED


def _print(answer: dict[str, Any]) -> None:
    from rich.text import Text

    about = f"{answer.get('workflow')}: {answer.get('events')} events in {answer.get('took_ms')} ms"
    if answer["ok"]:
        console().print(Text(f"replays  {clean(about)}", style="green"))
    else:
        console().print(Text(f"diverges  {clean(about)}", style="bold red"))
        console().print(Text(clean(str(answer.get("divergence") or "")), style="red"))
