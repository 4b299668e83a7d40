"""The order of a plan's phases, and the state of each. Pure; parsing a phase must not live here (see phase_files)."""

from collections.abc import Collection, Mapping, Sequence

from activities.loops.items.checkboxes import Checkbox
from activities.loops.items.phase_files import PhaseFile, is_phase, number_of, parse_phase
from steersman.contracts.loop_state import ItemState


class PhaseOrderError(Exception):
    """The phases have no order: a dependency is unknown or circular. The message is a sentence."""


def parse_phases(files: Mapping[str, str]) -> list[PhaseFile]:
    """The phases among these files (name -> text), sorted by number."""
    names = sorted((file[:-3] for file in files if is_phase(file)), key=lambda name: (number_of(name), name))
    return [parse_phase(name, files[f"{name}.md"], names) for name in names]


def in_order(phases: Sequence[PhaseFile]) -> list[PhaseFile]:
    """The phases, each after those it depends on, a stable sort. Raises PhaseOrderError."""
    for phase in phases:
        if phase.unknown:
            raise PhaseOrderError(f"phase {phase.name} depends on {phase.unknown[0]}, and there is no such phase")
    left = list(phases)
    done: list[PhaseFile] = []
    names: set[str] = set()
    while left:
        following = next((phase for phase in left if names.issuperset(phase.depends_on)), None)
        if following is None:
            raise PhaseOrderError(f"the phases depend on each other in a circle: {' -> '.join(_circle(left))}")
        left.remove(following)
        names.add(following.name)
        done.append(following)
    return done


def position_of(phases: Sequence[PhaseFile], wanted: str) -> int | None:
    """The position of the phase with this file, name or number; None if there is none."""
    name = wanted.removesuffix(".md")
    for position, phase in enumerate(phases):
        if phase.name == name or (name.isdecimal() and phase.number == int(name)):
            return position
    return None


def phase_states(
    phases: Sequence[PhaseFile], boxes: Mapping[str, Sequence[Checkbox]], closed: Collection[str]
) -> dict[str, ItemState]:
    """The state of each phase. `phases` are in order; those named in `closed` are closed whatever they hold."""
    found: dict[str, ItemState] = {}
    for phase in phases:
        waits = any(found.get(name) != "closed" for name in phase.depends_on)
        found[phase.name] = "closed" if phase.name in closed else _state(phase, boxes[phase.name], waits=waits)
    return found


def _state(phase: PhaseFile, boxes: Sequence[Checkbox], *, waits: bool) -> ItemState:
    stated = [box.state for box in boxes] or [phase.status]
    left = {state for state in stated if state != "closed"}
    if not left:
        return "closed"
    if waits or "blocked" in left <= {"blocked", "needs_review"}:
        return "blocked"
    if left == {"needs_review"}:
        return "needs_review"
    return "in_progress" if "in_progress" in left or "closed" in stated else "open"


def _circle(left: Sequence[PhaseFile]) -> list[str]:
    """One circle among phases that all depend on another of them, from its first phase back to that one."""
    among = {phase.name: phase for phase in left}
    position = {phase.name: number for number, phase in enumerate(left)}
    path = [left[0].name]
    while True:
        following = next(name for name in among[path[-1]].depends_on if name in among)
        if following in path:
            circle = path[path.index(following) :]
            first = circle.index(min(circle, key=position.__getitem__))
            circle = circle[first:] + circle[:first]
            return [*circle, circle[0]]
        path.append(following)
