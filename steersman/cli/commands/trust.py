"""`steer trust`: whose settings, hooks and servers agents may load on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from steersman.cli.exits import Exit
from steersman.cli.output import complain, console, emit, remark

AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]


def trust(
    directory: Annotated[str | None, typer.Argument(help="A workspace, or a directory of them.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Trust it no longer.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let agents load what a workspace brings along: settings, hooks, servers, skills. Without DIRECTORY: list them.

    Of this machine's workers with this state directory. A directory stands for everything below it.
    """
    from steersman.hosts import state_directory
    from steersman.trust import FILE, distrust, trusted_directories
    from steersman.trust import trust as add

    if directory is not None and not directory.strip():  # to Path it is this one
        raise typer.BadParameter("DIRECTORY: must not be empty")
    state = state_directory()
    try:
        if directory is None:
            if remove:
                raise typer.BadParameter("--remove needs a DIRECTORY")
            _show([str(each) for each in trusted_directories(state)], as_json=as_json)
        elif remove:
            if not distrust(state, Path(directory)):
                complain(f"{directory} is not on the list: steer trust shows it")
                raise typer.Exit(Exit.NOT_FOUND)
            remark(f"{directory} is trusted no longer, from the next process of an agent on")
        else:
            real = add(state, Path(directory))
            remark(f"trusted: {real} and all below it. What is in there decides what runs unasked.")
    except OSError as error:
        if error.filename == str(state / FILE):
            complain(f"cannot write {error.filename}: {error.strerror}")
            raise typer.Exit(Exit.FAILED) from error
        complain(f"{directory}: {error.strerror or error}")
        raise typer.Exit(Exit.USAGE) from error


def _show(directories: list[str], *, as_json: bool) -> None:
    if as_json:
        emit({"directories": directories})
        return
    for each in directories:
        console().print(each)
    if not directories:
        remark("no directory is trusted here by `steer trust`")
