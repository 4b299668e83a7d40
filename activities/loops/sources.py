"""Where items come from: checkboxes, a JSON file, a command, beads. How programs are run must not live here."""

import asyncio
import posixpath
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from activities.loops import items as tally
from activities.loops.boxes import OpenFence, boxes
from activities.loops.entries import Entry, Malformed, entries
from activities.loops.plans import Plan, check_plan, read_plan
from activities.loops.programs import ProgramFailed
from activities.loops.reading import Missing, Unreadable, inside, read_text
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.loop import Items, PlanFile
from steersman.contracts.loop_state import ItemList

Run = Callable[[Sequence[str]], Awaitable[bytes]]
"""Runs a program in the workspace; raises ProgramFailed."""


def check_items(items: Items, plan: PlanFile | None, workspace: Path) -> None:
    """Raises InvalidRequest for a file that is there and cannot be used. One that is not there may still be written."""
    path = items.path or (plan.path if plan else None)
    if items.kind not in ("checkboxes", "json") or path is None or _is_plan(path, plan):
        return
    try:
        inside(workspace, path)
        if items.kind == "json":
            entries(read_text(workspace, path))
            return
    except Missing:
        return
    except Unreadable as error:
        raise InvalidRequest(f"done.items.path: {error}") from error
    except Malformed as error:
        raise InvalidRequest(f"done.items.path: {path} {error}") from error
    check_plan(workspace, path, None, "done.items")


async def read_items(items: Items, plan: PlanFile | None, found: Plan | None, workspace: Path, run: Run) -> ItemList:
    """The items as they are now. `found`: the plan, where it was read already. Never raises for what they say."""
    try:
        match items.kind:
            case "checkboxes":
                counted = await _ticked(items, plan, found, workspace)
            case "json":
                counted = await asyncio.to_thread(_written, workspace, items.path or "")
            case "beads":
                output = await run(("bd", "show", *items.ids, "--json"))
                counted = await asyncio.to_thread(_beads, items, output)
            case _:
                counted = await asyncio.to_thread(_printed, await run(argv(items)))
    except Unreadable as error:
        return tally.failed(str(error))
    except (Malformed, ProgramFailed) as error:
        who = {"beads": "bd", "command": "done.items.command"}.get(items.kind, items.path)
        return tally.failed(f"{who} {error}")
    return counted


def argv(items: Items) -> tuple[str, ...]:
    """The program of a command."""
    command = items.command or ()
    return ("sh", "-c", command) if isinstance(command, str) else command


async def _ticked(items: Items, plan: PlanFile | None, found: Plan | None, workspace: Path) -> ItemList:
    path = items.path or (plan.path if plan else "")
    if found is None or not _is_plan(path, plan):
        found = await asyncio.to_thread(read_plan, workspace, path, None)
    return await asyncio.to_thread(tally.listed, found.items, found.error)


def _is_plan(path: str, plan: PlanFile | None) -> bool:
    return plan is not None and posixpath.normpath(path) == posixpath.normpath(plan.path)


def _written(workspace: Path, path: str) -> ItemList:
    return tally.listed(tally.from_entries(entries(read_text(workspace, path))))


def _printed(output: bytes) -> ItemList:
    """What a command printed: JSON, or Markdown."""
    text = output.decode("utf-8", "replace").removeprefix("\ufeff")
    if text.lstrip().startswith(("[", "{")):
        return tally.listed(tally.from_entries(entries(text)))
    try:
        ticks = boxes(text)
    except OpenFence as error:
        raise Malformed(f"printed Markdown that cannot be used: {error}") from error
    if not ticks and text.strip():
        raise Malformed("printed neither JSON nor checkboxes")
    return tally.listed(tally.from_boxes(ticks))


def _beads(items: Items, output: bytes) -> ItemList:
    # An issue that is not there is only missing from the list, and bd ends well.
    if not output.strip():
        raise Malformed(f"knows no issue {', '.join(items.ids[:5])}")
    found = entries(output.decode("utf-8", "replace"))
    missing = [ident for ident in items.ids if not any(_is(each, ident) for each in found)]
    counted = tally.listed(tally.from_entries(found))
    if missing:
        return counted.model_copy(update={"error": f"bd knows no issue {', '.join(missing[:5])}"})
    return counted


def _is(entry: Entry, ident: str) -> bool:
    """Beads lets a person leave the prefix of an id away."""
    return entry.id is not None and (entry.id == ident or entry.id.endswith(f"-{ident}"))
