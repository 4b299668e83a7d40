"""The sources of items: checkboxes, a JSON file, a command, beads. How programs are run must not live here."""

import asyncio
import posixpath
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from activities.loops.items.checkboxes import parse_checkboxes
from activities.loops.items.item_list import MAX_ITEMS, from_checkboxes, from_json_items, item_list, unreadable_list
from activities.loops.items.json_items import JsonItem, MalformedItems, parse_items
from activities.loops.items.plans import Plan, check_plan, read_plan
from activities.loops.items.programs import ProgramFailed
from activities.workspaces.files import MissingFile, Unreadable, read_text, resolve_inside
from steersman.contracts.checkbox_lines import UnclosedFence
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.loop import Items, PlanFile
from steersman.contracts.loop_state import ItemList

Run = Callable[[Sequence[str]], Awaitable[bytes]]
"""Runs a program in the workspace; raises ProgramFailed."""


def check_items(items: Items, plan: PlanFile | None, workspace: Path) -> None:
    """Raises InvalidRequest for a file that cannot be used. A missing one may still be written."""
    path = items.path or (plan.path if plan else None)
    if items.kind not in ("checkboxes", "json") or path is None:
        return
    number = 0
    try:
        resolve_inside(workspace, path)
        if items.kind == "json":
            number = len(parse_items(read_text(workspace, path)))
    except MissingFile:
        return
    except Unreadable as error:
        raise InvalidRequest(f"done.items.path: {error}") from error
    except MalformedItems as error:
        raise InvalidRequest(f"done.items.path: {path} {error}") from error
    if items.kind == "checkboxes":
        if not _is_plan(path, plan):
            check_plan(workspace, path, None, "done.items")
        number = len(read_plan(workspace, path).items)
    if number > MAX_ITEMS:
        raise InvalidRequest(f"done.items: {path} has {number} items, and may have {MAX_ITEMS}")


async def read_items(items: Items, plan: PlanFile | None, found: Plan | None, workspace: Path, run: Run) -> ItemList:
    """The items as they are now. `found` is the plan, if it was read already. Never raises for what a source holds."""
    try:
        match items.kind:
            case "checkboxes":
                listed = await _from_plan(items, plan, found, workspace)
            case "json":
                listed = await asyncio.to_thread(_from_file, workspace, items.path or "")
            case "beads":
                output = await run(("bd", "show", *items.ids, "--json"))
                listed = await asyncio.to_thread(_from_beads, items, output)
            case _:
                listed = await asyncio.to_thread(_from_output, await run(argv(items)))
    except Unreadable as error:
        return unreadable_list(str(error))
    except (MalformedItems, ProgramFailed) as error:
        source = {"beads": "bd", "command": "done.items.command"}.get(items.kind, items.path)
        return unreadable_list(f"{source} {error}")
    return listed


def argv(items: Items) -> tuple[str, ...]:
    """The command line of a command."""
    command = items.command or ()
    return ("sh", "-c", command) if isinstance(command, str) else command


async def _from_plan(items: Items, plan: PlanFile | None, found: Plan | None, workspace: Path) -> ItemList:
    path = items.path or (plan.path if plan else "")
    if found is None or not _is_plan(path, plan):
        found = await asyncio.to_thread(read_plan, workspace, path, None)
    return await asyncio.to_thread(item_list, found.items, found.error)


def _is_plan(path: str, plan: PlanFile | None) -> bool:
    return plan is not None and posixpath.normpath(path) == posixpath.normpath(plan.path)


def _from_file(workspace: Path, path: str) -> ItemList:
    """From a file of JSON. Raises Unreadable, MalformedItems."""
    return item_list(from_json_items(parse_items(read_text(workspace, path))))


def _from_output(output: bytes) -> ItemList:
    """From the output of a command: JSON, or Markdown. Raises MalformedItems."""
    text = output.decode("utf-8", "replace").removeprefix("\ufeff")
    if text.lstrip().startswith(("[", "{")):
        return item_list(from_json_items(parse_items(text)))
    try:
        boxes = parse_checkboxes(text)
    except UnclosedFence as error:
        raise MalformedItems(f"printed Markdown that cannot be used: {error}") from error
    if not boxes and text.strip():
        raise MalformedItems("printed neither JSON nor checkboxes")
    return item_list(from_checkboxes(boxes))


def _from_beads(items: Items, output: bytes) -> ItemList:
    # bd leaves an issue that does not exist out of the list, and exits with 0.
    if not output.strip():
        raise MalformedItems(f"knows no issue {', '.join(items.ids[:5])}")
    found = parse_items(output.decode("utf-8", "replace"))
    missing = [ident for ident in items.ids if not any(_is_named(each, ident) for each in found)]
    listed = item_list(from_json_items(found))
    if missing:
        return listed.model_copy(update={"error": f"bd knows no issue {', '.join(missing[:5])}"})
    return listed


def _is_named(item: JsonItem, ident: str) -> bool:
    """Whether this id means the item: bd takes an id without its prefix, too."""
    return item.id is not None and (item.id == ident or item.id.endswith(f"-{ident}"))
