"""`steer diff` and `undo`: what a run changed in its workspace, and taking it back."""

from typing import TYPE_CHECKING, Annotated

import typer

from steersman.cli.connection import run_with_client
from steersman.cli.exits import Exit
from steersman.cli.formatting import changes_phrase, counted, duration, flat
from steersman.cli.options import AsJson, Run, Yes
from steersman.cli.output import console, emit, print_diff, remark
from steersman.cli.targets import resolve_run

if TYPE_CHECKING:
    from steersman.client import Steersman
    from steersman.contracts.run import RunState
    from steersman.contracts.workspace import Undone

LATE_S = 10.0
"""A person is told where the files at a run's end were kept more seconds after its close."""


def diff(
    ctx: typer.Context,
    run: Run,
    stat: Annotated[bool, typer.Option("--stat", help="Files and counts alone.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a run changed in its workspace; of an open run, so far."""

    async def work(steersman: "Steersman") -> None:
        run_id = await resolve_run(steersman, run)
        found = await steersman.diff(run_id)
        if as_json:
            emit(found)
            return
        state = await steersman.state(run_id)
        if state.closed_as and found.now:
            remark("the files at its end were not kept: this is what has changed since it began, by whomever", "yellow")
        _remark_late(state)
        print_diff(found, stat=stat)

    run_with_client(ctx, work)


def undo(ctx: typer.Context, run: Run, yes: Yes = False, as_json: AsJson = False) -> None:
    """Take back what a closed run changed in its workspace; what was changed since is left, and named."""

    async def work(steersman: "Steersman") -> Exit:
        from steersman.cli.terminal.confirmation import confirm
        from steersman.contracts.workspace import Undone

        run_id = await resolve_run(steersman, run)
        if not yes:
            if (changed := await _undoable(steersman, run_id)) is None:
                if as_json:
                    emit(Undone())
                else:
                    remark(f"run {run_id} changed no file: there is nothing to undo")
                return Exit.OK
            if not await confirm(f"undo the changes of run {run_id}: {changed}.", "undo", yes=yes):
                return Exit.DETACHED
        undone = await steersman.undo(run_id)
        if as_json:
            emit(undone)
        else:
            _print_undone(undone)
        return Exit.FAILED if undone.conflicts else Exit.OK

    run_with_client(ctx, work)


async def _undoable(steersman: "Steersman", run: str) -> str | None:
    """What an undo takes back, looked up before the person is asked; None: the run changed nothing.

    Raises as `Steersman.undo`.
    """
    from steersman.errors import AlreadyRunning, NothingKept

    state = await steersman.state(run)
    if state.closed_as is None:
        raise AlreadyRunning(f"run {run} is still at work: stop it first")
    found = await steersman.diff(run)
    if found.now:
        why = state.changes.error if state.changes else None
        raise NothingKept(f"run {run}: the files at its end were not kept{f': {why}' if why else ''}")
    await _refuse_at_work(steersman, run, state)
    _remark_late(state)
    if not found.stat:
        return None
    changes = state.changes
    return changes_phrase(changes) if changes and changes.after else found.stat.splitlines()[-1].strip()


async def _refuse_at_work(steersman: "Steersman", run: str, state: "RunState") -> None:
    """Raises ServerRefused where a run or loop is at work in the workspace: the host would refuse, too."""
    from steersman.contracts.workspace_holder import overlap
    from steersman.errors import ServerRefused

    workspace = state.worktree.directory if state.worktree else state.workspace or ""
    for each in (await steersman.workspaces(state.host or "")).holders:
        if not each.waits and each.path and overlap(each.path, workspace):
            raise ServerRefused(f"run {run}: {each.name} is at work in the workspace: stop it first")


def _remark_late(state: "RunState") -> None:
    late_s = state.changes.late_s if state.changes else 0.0
    if late_s >= LATE_S:
        remark(
            f"its files were kept {duration(late_s)} after it was closed: what anybody did until then counts as its",
            "yellow",
        )


def _print_undone(undone: "Undone") -> None:
    if undone.files or undone.conflicts:
        console().print(flat(f"{counted(undone.files, 'file')} as before the run again"))
    else:
        console().print("all files are as before the run already")
    for path in undone.conflicts:
        remark(f"left as it is, for it has changed since, or something is in the way: {path}", "yellow")
    if undone.unnamed_conflicts:
        remark(f"and {undone.unnamed_conflicts} more", "yellow")
    if undone.ref:
        remark(f"the files as they were are kept: git show {undone.ref}")
