"""One phase of a plan, as its Markdown file has it: title, status and dependencies.

Dependencies are in the front matter (`depends_on: [01, 02-storage]`), in a line such as `Depends on: 01` or
`**Dependencies:** Phase 1, Phase 2`, or in a list under `## Dependencies`. Pure; the order of phases must not live
here.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from activities.loops.items.checkboxes import lines_outside_fences
from activities.loops.items.json_items import state_of
from steersman.contracts.loop_state import ItemState

_FILE = re.compile(r"^(\d{1,9})[-_].+\.md$")
_OVERVIEW = re.compile(r"^(?:\d{1,9}[-_])?(?:overview|readme)\.md$", re.IGNORECASE)
_DEPENDS = re.compile(
    r"^\s*(?:[-*+]\s+)?[*_]{0,2}(?:depends[ _]on|dependencies)[*_]{0,2}\s*:\s*[*_]{0,2}\s*(.*)$", re.IGNORECASE
)
_HEADED = re.compile(r"^#{1,6}\s+(?:depends on|dependencies)\s*:?\s*$", re.IGNORECASE)
_BULLET = re.compile(r"^\s*[-*+]\s+(.*)$")
_LINK = re.compile(r"\[([^\[\]]*)\]\([^()]*\)")
_NUMBER = re.compile(r"(?:phases?\s*)?#?0*(\d{1,9})", re.IGNORECASE)
_PHASE = re.compile(r"phase\s+0*(\d{1,9})\b", re.IGNORECASE)
_NAMED = re.compile(r"\d{1,9}[-_][\w.-]+")
_FIELD = re.compile(r"^([A-Za-z_-]{1,50})\s*:(.*)$")
_STATUS = re.compile(r"^status\s*:.*$", re.IGNORECASE)


@dataclass(frozen=True)
class PhaseFile:
    """A phase's file, parsed. `depends_on` names other phases, `unknown` those dependencies that are no phases."""

    name: str
    number: int
    title: str = ""
    status: ItemState = "open"
    """The status in its front matter, which counts only in a file without checkboxes."""
    depends_on: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def is_phase(file: str) -> bool:
    """Whether a file of this name is a phase."""
    return bool(_FILE.match(file)) and not is_overview(file)


def is_overview(file: str) -> bool:
    """Whether a file of this name describes the plan as a whole."""
    return bool(_OVERVIEW.match(file))


def number_of(name: str) -> int:
    """The number that a phase's name begins with."""
    return int(re.split(r"[-_]", name, maxsplit=1)[0])


def parse_phase(name: str, text: str, names: Sequence[str]) -> PhaseFile:
    """The phase of this name. `names` are those of all phases."""
    front, body = _split(text)
    fields = _fields(front)
    lines = list(lines_outside_fences("\n".join(body)))
    heading = next((line.lstrip("#").strip() for line in lines if re.match(r"#{1,6}\s", line)), "")
    depends: dict[str, None] = {}
    unknown = []
    for stated, certain in [*((each, True) for each in fields.get("depends_on", ())), *_stated_dependencies(lines)]:
        found = _resolve(stated, names, certain=certain)
        if found is None:
            unknown.append(stated.strip()[:100])
        depends.update(dict.fromkeys(found or ()))
    return PhaseFile(
        name=name,
        number=number_of(name),
        title=(" ".join(fields.get("title", ())) or heading)[:200],
        status=state_of(" ".join(fields.get("status", ()))),
        depends_on=tuple(depends),
        unknown=tuple(unknown),
    )


def without_status(text: str) -> str:
    """The text without the status in its front matter, which changes with the phase's progress."""
    front, body = _split(text)
    return "\n".join([*(line for line in front if not _STATUS.match(line)), *body])


def _split(text: str) -> tuple[list[str], list[str]]:
    """The lines of the front matter and those after it."""
    lines = text.split("\n")
    if lines[0].rstrip() == "---":
        for number, line in enumerate(lines[1:], 1):
            if line.rstrip() in ("---", "..."):
                return [each.rstrip() for each in lines[1:number]], lines[number + 1 :]
    return [], lines


def _fields(front: Sequence[str]) -> Mapping[str, list[str]]:
    """The fields of front matter, a subset of YAML: `key: value`, `key: a, b`, `key: [a, b]`, a list of lines."""
    fields: dict[str, list[str]] = {}
    key = ""
    for line in front:
        if (bullet := _BULLET.match(line)) and key:
            fields[key].append(_plain(bullet[1]))
        elif match := _FIELD.match(line):
            key, value = match[1].lower().replace("-", "_"), match[2].strip()
            if value.startswith("["):
                value = value[1:].partition("]")[0]
            parts = value.split(",") if key == "depends_on" else [value]
            fields[key] = [plain for part in parts if (plain := _plain(part))]
    return fields


def _plain(value: str) -> str:
    return re.split(r"(?:^|\s)#\s", value, maxsplit=1)[0].strip().strip("'\"").strip()


def _stated_dependencies(lines: Sequence[str]) -> list[tuple[str, bool]]:
    """The dependencies that the text states, none of them certain: unlike front matter, it may mean something else."""
    found: list[tuple[str, bool]] = []
    listing = False
    for line in lines:
        bullet = _BULLET.match(line)
        if match := _DEPENDS.match(line):
            found += [(part, False) for part in re.split(r",|;|&|\band\b", match[1])]
            listing = not match[1].strip()
        elif listing and bullet:
            found.append((bullet[1], False))
        elif line.strip():
            listing = bool(_HEADED.match(line))
    return found


def _resolve(stated: str, names: Sequence[str], *, certain: bool) -> list[str] | None:
    """The phases that are meant, empty if no phase is; None if a phase is meant that does not exist."""
    text = re.sub(r"\([^()]*\)", "", _LINK.sub(r"\1", stated)).strip().strip("`*_'\".").strip()
    if text.lower() in ("", "-", "none", "n/a", "nothing", "null"):
        return []
    if match := _NUMBER.fullmatch(text) or _PHASE.match(text):
        return [name for name in names if number_of(name) == int(match[1])] or None
    wanted = text.removesuffix(".md")
    same = [name for name in names if name.lower() == wanted.lower()]
    return same or (None if certain or _NAMED.fullmatch(wanted) else [])
