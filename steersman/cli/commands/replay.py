"""`steer replay`: whether the code at hand still makes the decisions that a recorded run made.

worker.py does the replay: only workers have the workflows.
"""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steersman.cli.connection import run_with_client
from steersman.cli.exits import Exit
from steersman.cli.formatting import clean
from steersman.cli.json_output import last_json
from steersman.cli.options import AsJson
from steersman.cli.output import complain, console, remark, write_line
from steersman.cli.targets import resolve_run
from steersman.cli.terminal.signals import ending
from steersman.cli.worker_code import worker_command
from steersman.private_files import write_private

AT_ONCE = 2000
"""Files that one worker is given: a command's line has room for as many of the longest names."""

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from steersman.client import Steersman


def replay(
    ctx: typer.Context,
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN|FILE", help="A run's id, - for the newest, a history, or a file of `steer export`."
        ),
    ] = None,
    all_open: Annotated[
        bool, typer.Option("--open", help="All open runs and loops: the check before an upgrade.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Step through the workflow's code in pdb.")] = False,
    export: Annotated[Path | None, typer.Option(help="Write the run's history to this file, too.")] = None,
    as_json: AsJson = False,
) -> None:
    """Replay a run's history with the code at hand; say where it diverges."""
    _check(source, all_open=all_open, with_file=export is not None, debug=debug, as_json=as_json)
    with ending():  # histories are in its scratch directory
        _replay_source(ctx, source, export, debug=debug, as_json=as_json)


def _replay_source(ctx: typer.Context, source: str | None, export: Path | None, *, debug: bool, as_json: bool) -> None:
    if source is not None and (source.endswith((".json", ".zip")) or "/" in source):
        if not Path(source).is_file():
            complain(f"no file {source}")
            raise typer.Exit(Exit.NOT_FOUND)
        if export:
            raise typer.BadParameter("--export is for a run, and this is a file already")
        raise typer.Exit(_of_file(Path(source), debug=debug, as_json=as_json))

    async def work(steersman: "Steersman") -> Exit:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="steer-") as scratch:
            if source is None:
                files = [file async for file in _open_histories(steersman, Path(scratch))]
                if not files and not as_json:
                    remark("nothing is open")
                return _replay(files, as_json=as_json, many=True)
            run = await resolve_run(steersman, source)
            history = await steersman.history(run)
            if export:
                _export(export, history)
                remark(f"history of {run} written to {export}")
            file = Path(scratch) / "history.json"
            write_private(file, history)
            return _debug(file) if debug else _replay([file], as_json=as_json, many=False)

    run_with_client(ctx, work)


def _check(source: str | None, *, all_open: bool, with_file: bool, debug: bool, as_json: bool) -> None:
    if (source is None) != all_open:
        raise typer.BadParameter("a run, a file, or --open: one of them")
    if all_open and (with_file or debug):
        raise typer.BadParameter("--export and --debug are for one run")
    if debug and as_json:
        raise typer.BadParameter("--debug is for a person: without --json")


async def _open_histories(steersman: "Steersman", directory: Path) -> "AsyncIterator[Path]":
    """The histories of all that is open, a file each, numbered. One that closes meanwhile is there all the same."""
    from steersman.contracts import names

    ours = " OR ".join(f'WorkflowType="{name}"' for name in (names.RUN_WORKFLOW, names.LOOP_WORKFLOW))
    number = 0
    async for found in steersman.temporal.list_workflows(f'ExecutionStatus="Running" AND ({ours})'):
        handle = steersman.temporal.get_workflow_handle(found.id, run_id=found.run_id)
        number += 1
        file = directory / f"{number}.json"
        write_private(file, (await handle.fetch_history()).to_json())
        yield file


def _export(path: Path, history: str) -> None:
    # A history has prompts in it.
    try:
        if os.path.lexists(path):  # as /dev/stdout: what is there is written to, also behind a link
            path.write_text(history)
        else:
            write_private(path, history)
    except OSError as error:
        complain(f"cannot write {path}: {error.strerror}")
        raise typer.Exit(Exit.FAILED) from error


def _of_file(file: Path, *, debug: bool, as_json: bool) -> Exit:
    import tempfile

    from steersman.bundle import has_encrypted, is_bundle, unpack_histories
    from steersman.codec import VARIABLE

    if not is_bundle(file):
        return _debug(file) if debug else _replay([file], as_json=as_json, many=False)
    with tempfile.TemporaryDirectory(prefix="steer-") as scratch:
        files = unpack_histories(file, Path(scratch))
        if not files:
            complain(f"{file} has no history")
            return Exit.USAGE
        if not has_encrypted(file):  # a codec may take it amiss what is in the clear
            os.environ.pop(VARIABLE, None)
        return _debug(files[0]) if debug else _replay(files, as_json=as_json, many=True)


def _debug(file: Path) -> Exit:
    """On this terminal: pdb's answers are no JSON."""
    import subprocess

    code = subprocess.run(worker_command("replay", "--debug", str(file)), check=False).returncode
    return Exit(code) if code in (Exit.OK, Exit.FAILED, Exit.USAGE) else Exit.BUG


def _replay(files: "Sequence[Path]", *, as_json: bool, many: bool) -> Exit:
    import subprocess

    answers: list[dict[str, Any]] = []
    for begin in range(0, len(files), AT_ONCE):
        some = files[begin : begin + AT_ONCE]
        done = subprocess.run(worker_command("replay", *map(str, some)), capture_output=True, text=True, check=False)
        answered = last_json(done.stdout)
        if not isinstance(answered, list) or len(answered) != len(some):
            complain(f"the replay ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
            return Exit.BUG
        answers += answered
    if as_json:
        write_line(json.dumps(answers if many else answers[0]))
    else:
        for answer in answers:
            _print(answer, named=many)
    if any(answer["error"] for answer in answers):
        return Exit.USAGE
    return Exit.OK if all(answer["ok"] for answer in answers) else Exit.FAILED


def _print(answer: dict[str, Any], *, named: bool) -> None:
    from rich.text import Text

    if answer["error"]:
        complain(clean(str(answer["error"])))
        return
    whose = f"{answer['id']}, " if named else ""
    about = f"{whose}{answer['workflow']}: {answer['events']} events in {answer['took_ms']} ms"
    if answer["ok"]:
        console().print(Text(f"replays  {clean(about)}", style="green"))
        return
    console().print(Text(f"diverges  {clean(about)}", style="bold red"))
    if at := answer["at"]:
        of = f" of {at['of']}" if at["of"] else ""
        text = f"the history has event {at['event']}, {at['type']}{of}; the code at hand does something else there"
        console().print(Text(clean(text), style="red"))
    for deed in answer["did"]:
        console().print(Text(clean(f"it does: {deed['what']}, at {', from '.join(deed['lines'])}"), style="red"))
    console().print(Text(clean(str(answer["divergence"] or "")), style="red"))
