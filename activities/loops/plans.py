"""A plan in the workspace, a Markdown file or a directory of phases: its version, its phases, the items in it."""

import hashlib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from activities.loops import phases as order
from activities.loops.boxes import Box, OpenFence, boxes, unticked
from activities.loops.items import Found, from_boxes
from activities.loops.phasefile import PhaseFile, is_overview, is_phase, without_status
from activities.loops.reading import MAX_FILE, Unreadable, names_in, read_text
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.loop_state import Phase

MAX_PHASES = 500


@dataclass(frozen=True)
class Plan:
    """A plan as it is now. With `error` it cannot be relied on: nothing of it counts as closed."""

    hash: str = ""
    """Of what it says, however its boxes are ticked."""
    phases: tuple[Phase, ...] = ()
    items: tuple[Found, ...] = ()
    error: str | None = None


def check_plan(workspace: Path, path: str, phase: str | None, field: str) -> None:
    """Raises InvalidRequest for a plan that is not there or cannot be followed. `field`: its name in the request."""
    try:
        files = _files(workspace, path)
        if files is None:
            boxes(read_text(workspace, path))
            if phase is not None:
                raise InvalidRequest(f"{field}.phase: {path} is one file and has no phases")
            return
        ordering = order.ordered(order.numbered(files))
        for name, text in files.items():
            _boxes(f"{path}/{name}", text)
    except (Unreadable, order.Wrong, OpenFence) as error:
        raise InvalidRequest(f"{field}.path: {error}") from error
    if phase is not None and order.chosen(ordering, phase) is None:
        names = ", ".join(each.name for each in ordering[:20])
        raise InvalidRequest(f"{field}.phase: there is no phase {phase} in {path} ({names})")


def read_plan(workspace: Path, path: str, phase: str | None = None) -> Plan:
    """The plan; `phase`: where it begins, those before it in order count as closed. Never raises."""
    try:
        files = _files(workspace, path)
        if files is None:
            text = read_text(workspace, path)
            plan = Plan(hash=_hash({"": unticked(text)}))
            try:
                return replace(plan, items=tuple(from_boxes(_boxes(path, text))))
            except OpenFence as error:
                return replace(plan, error=str(error))
        return _in_phases(path, files, phase)
    except Unreadable as error:
        return Plan(error=str(error))


def _in_phases(path: str, files: Mapping[str, str], start: str | None) -> Plan:
    plan = Plan(hash=_hash({name: without_status(unticked(text)) for name, text in files.items()}))
    found = order.numbered(files)
    try:
        found = order.ordered(found)
        ticks = {each.name: _boxes(f"{path}/{each.name}.md", files[f"{each.name}.md"]) for each in found}
    except (order.Wrong, OpenFence) as error:
        shown = tuple(Phase(name=each.name, title=each.title, depends_on=each.depends_on) for each in found)
        return replace(plan, phases=shown, error=f"{error}")
    place = 0 if start is None else order.chosen(found, start)
    if place is None:
        plan, place = replace(plan, error=f"there is no phase {start} in {path}"), 0
    states = order.states(found, ticks, {each.name for each in found[:place]})
    items: list[Found] = []
    for each in found:
        own = _items(each, ticks[each.name])
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


def _items(phase: PhaseFile, ticks: list[Box]) -> list[Found]:
    """A phase without any box is one item."""
    return from_boxes(ticks, phase.name) or [Found(phase.name, phase.title, phase.status, phase.name)]


def _files(workspace: Path, path: str) -> dict[str, str] | None:
    """The Markdown files of a directory of phases; None where the path is a file. Raises Unreadable."""
    names = names_in(workspace, path)
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


def _boxes(path: str, text: str) -> list[Box]:
    try:
        return boxes(text)
    except OpenFence as error:
        raise OpenFence(f"{path}: {error}") from None


def _hash(texts: Mapping[str, str]) -> str:
    digest = hashlib.sha256()
    for name, text in sorted(texts.items()):
        digest.update(f"{name}\0{len(text)}\0{text}".encode("utf-8", "replace"))
    return digest.hexdigest()[:16]
