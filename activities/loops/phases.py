"""The phases of a plan in their order, and how far each is. Pure; what one file says is phasefile's."""

from collections.abc import Collection, Mapping, Sequence

from activities.loops.boxes import Box
from activities.loops.phasefile import PhaseFile, is_phase, number_of, parsed
from steersman.contracts.loop_state import ItemState


class Wrong(Exception):
    """The phases cannot be put in order: an unknown dependency or a circle, in a sentence."""


def numbered(files: Mapping[str, str]) -> list[PhaseFile]:
    """The phases among these files (name -> text), by number."""
    names = sorted((file[:-3] for file in files if is_phase(file)), key=lambda name: (number_of(name), name))
    return [parsed(name, files[f"{name}.md"], names) for name in names]


def ordered(phases: Sequence[PhaseFile]) -> list[PhaseFile]:
    """Each phase after those that it depends on, else as they came. Raises Wrong."""
    for phase in phases:
        if phase.unknown:
            raise Wrong(f"phase {phase.name} depends on {phase.unknown[0]}, and there is no such phase")
    left = list(phases)
    done: list[PhaseFile] = []
    names: set[str] = set()
    while left:
        following = next((phase for phase in left if names.issuperset(phase.depends_on)), None)
        if following is None:
            raise Wrong(f"the phases depend on each other in a circle: {' -> '.join(_circle(left))}")
        left.remove(following)
        names.add(following.name)
        done.append(following)
    return done


def chosen(phases: Sequence[PhaseFile], wanted: str) -> int | None:
    """The place of the phase that is called by its file, its name or its number; None where there is none."""
    name = wanted.removesuffix(".md")
    for place, phase in enumerate(phases):
        if phase.name == name or (name.isdecimal() and phase.number == int(name)):
            return place
    return None


def states(
    phases: Sequence[PhaseFile], boxes: Mapping[str, Sequence[Box]], closed: Collection[str]
) -> dict[str, ItemState]:
    """How far each phase is. `phases` in order; `closed`: names of those that count as closed."""
    found: dict[str, ItemState] = {}
    for phase in phases:
        waits = any(found.get(name) != "closed" for name in phase.depends_on)
        found[phase.name] = "closed" if phase.name in closed else _state(phase, boxes[phase.name], waits=waits)
    return found


def _state(phase: PhaseFile, boxes: Sequence[Box], *, waits: bool) -> ItemState:
    said = [box.state for box in boxes] or [phase.status]
    left = {state for state in said if state != "closed"}
    if not left:
        return "closed"
    if waits or "blocked" in left <= {"blocked", "needs_review"}:
        return "blocked"
    if left == {"needs_review"}:
        return "needs_review"
    return "in_progress" if "in_progress" in left or "closed" in said else "open"


def _circle(left: Sequence[PhaseFile]) -> list[str]:
    """One circle among phases that all wait for another of them; its first phase stands at both ends."""
    among = {phase.name: phase for phase in left}
    place = {phase.name: number for number, phase in enumerate(left)}
    path = [left[0].name]
    while True:
        following = next(name for name in among[path[-1]].depends_on if name in among)
        if following in path:
            circle = path[path.index(following) :]
            first = circle.index(min(circle, key=place.__getitem__))
            circle = circle[first:] + circle[:first]
            return [*circle, circle[0]]
        path.append(following)
