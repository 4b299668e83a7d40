"""A plan in the workspace, a Markdown file or a directory of phases: its hash, its phases, its items."""

import hashlib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from activities.loops.items import phase_order as order
from activities.loops.items.checkboxes import Checkbox, parse_checkboxes, unticked
from activities.loops.items.item_list import SourceItem, from_checkboxes
from activities.loops.items.phase_files import PhaseFile, is_overview, is_phase, without_status
from activities.workspaces.files import MAX_FILE, Unreadable, list_names, read_text
from steersman.contracts.checkbox_lines import UnclosedFence
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.loop_state import Phase

MAX_PHASES = 500
"""A plan of more phases is not read."""


@dataclass(frozen=True)
class Plan:
    """A plan as it is now. A plan with an `error` is never taken as done."""

    hash: str = ""
    """Of its text, whichever checkboxes are ticked."""
    phases: tuple[Phase, ...] = ()
    items: tuple[SourceItem, ...] = ()
    error: str | None = None


def check_plan(workspace: Path, path: str, phase: str | None, field: str) -> None:
    """Raises InvalidRequest for a plan that is missing or cannot be followed. `field` is its name in the request."""
    try:
        files = _files(workspace, path)
        if files is None:
            parse_checkboxes(read_text(workspace, path))
            if phase is not None:
                raise InvalidRequest(f"{field}.phase: {path} is one file and has no phases")
            return
        ordering = order.in_order(order.parse_phases(files))
        for name, text in files.items():
            _checkboxes(f"{path}/{name}", text)
    except (Unreadable, order.PhaseOrderError, UnclosedFence) as error:
        raise InvalidRequest(f"{field}.path: {error}") from error
    if phase is not None and order.position_of(ordering, phase) is None:
        names = ", ".join(each.name for each in ordering[:20])
        raise InvalidRequest(f"{field}.phase: there is no phase {phase} in {path} ({names})")


def read_plan(workspace: Path, path: str, phase: str | None = None) -> Plan:
    """The plan as it is now. It begins at `phase`: phases before that one count as closed. Never raises."""
    try:
        files = _files(workspace, path)
        if files is None:
            text = read_text(workspace, path)
            plan = Plan(hash=_hash({"": unticked(text)}))
            try:
                return replace(plan, items=tuple(from_checkboxes(_checkboxes(path, text))))
            except UnclosedFence as error:
                return replace(plan, error=str(error))
        return _in_phases(path, files, phase)
    except Unreadable as error:
        return Plan(error=str(error))


def _in_phases(path: str, files: Mapping[str, str], start: str | None) -> Plan:
    plan = Plan(hash=_hash({name: without_status(unticked(text)) for name, text in files.items()}))
    found = order.parse_phases(files)
    try:
        found = order.in_order(found)
        boxes = {each.name: _checkboxes(f"{path}/{each.name}.md", files[f"{each.name}.md"]) for each in found}
    except (order.PhaseOrderError, UnclosedFence) as error:
        shown = tuple(Phase(name=each.name, title=each.title, depends_on=each.depends_on) for each in found)
        return replace(plan, phases=shown, error=f"{error}")
    first = 0 if start is None else order.position_of(found, start)
    if first is None:
        plan, first = replace(plan, error=f"there is no phase {start} in {path}"), 0
    states = order.phase_states(found, boxes, {each.name for each in found[:first]})
    items: list[SourceItem] = []
    for each in found:
        own = _items(each, boxes[each.name])
        if states[each.name] == "closed":
            own = [replace(item, state="closed") for item in own]
        else:
            waits = tuple((name, states[name]) for name in each.depends_on if states[name] != "closed")
            own = [replace(item, waits_for=(*item.waits_for, *waits)) for item in own]
        items += own
    return replace(
        plan,
        phases=tuple(
            Phase(name=each.name, title=each.title, state=states[each.name], depends_on=each.depends_on)
            for each in found
        ),
        items=tuple(items),
    )


def _items(phase: PhaseFile, boxes: list[Checkbox]) -> list[SourceItem]:
    """The items of a phase; one without checkboxes is an item itself."""
    return from_checkboxes(boxes, phase.name) or [SourceItem(phase.name, phase.title, phase.status, phase.name)]


def _files(workspace: Path, path: str) -> dict[str, str] | None:
    """The Markdown files of a directory of phases; None if the path is a file. Raises Unreadable."""
    names = list_names(workspace, path)
    if names is None:
        return None
    names = [name for name in names if is_phase(name) or is_overview(name)]
    if not any(is_phase(name) for name in names):
        raise Unreadable(f"{path} holds no phases (01-*.md, 02-*.md)")
    if any(unicodedata.category(each) in ("Cc", "Cs") for name in names for each in name):
        raise Unreadable(f"{path} holds a phase whose name cannot be shown")
    if len(names) > MAX_PHASES:
        raise Unreadable(f"{path} holds more than {MAX_PHASES} phases")
    files = {}
    for name in names:
        files[name] = read_text(workspace, f"{path}/{name}")
        if sum(map(len, files.values())) > 8 * MAX_FILE:
            raise Unreadable(f"{path} is larger than {8 * MAX_FILE // 1024 // 1024} MiB")
    return files


def _checkboxes(path: str, text: str) -> list[Checkbox]:
    try:
        return parse_checkboxes(text)
    except UnclosedFence as error:
        raise UnclosedFence(f"{path}: {error}") from None


def _hash(texts: Mapping[str, str]) -> str:
    digest = hashlib.sha256()
    for name, text in sorted(texts.items()):
        digest.update(f"{name}\0{len(text)}\0{text}".encode("utf-8", "replace"))
    return digest.hexdigest()[:16]
