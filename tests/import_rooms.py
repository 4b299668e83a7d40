"""The import-linter contract that keeps ARCHITECTURE.md's table: what the modules of one room may import.

An allow-list, because the contracts that import-linter ships name what is forbidden, and a library added later would
pass them unseen. Its rooms are in pyproject.toml; no room is described here.
"""

import sys
from dataclasses import dataclass
from typing import cast

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


@dataclass(frozen=True, slots=True)
class Door:
    """One import that its room does not admit."""

    importer: str
    imported: str
    lines: tuple[int, ...]


def within(module: str, packages: set[str]) -> bool:
    """Whether the module is one of the packages, or lives in one."""
    return any(module == package or module.startswith(package + ".") for package in packages)


class RoomContract(Contract):
    """Modules of `room`, those of `other_rooms` aside, import themselves, the standard library and `may_import`."""

    type_name = "room"

    room = fields.StringField()
    other_rooms = fields.SetField(subfield=fields.StringField(), required=False, default=frozenset())
    may_import = fields.SetField(subfield=fields.StringField(), required=False, default=frozenset())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: FBT001 - import-linter's
        """Looks at direct imports alone: what is behind a door is its own room's affair."""
        room, others, admitted = cast("tuple[str, set[str], set[str]]", (self.room, self.other_rooms, self.may_import))
        doors = [
            Door(importer, imported, lines_of(graph, importer, imported))
            for importer in sorted(graph.modules)
            if within(importer, {room}) and not within(importer, others)
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if not (within(imported, {room}) and not within(imported, others))
            and not within(imported, admitted)
            and imported.partition(".")[0] not in sys.stdlib_module_names
        ]
        return ContractCheck(kept=not doors, metadata={"doors": doors})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """One line for each import, with where it is."""
        for door in check.metadata["doors"]:
            lines = ", ".join(f"l.{line}" for line in door.lines)
            output.print_error(f"{door.importer} is not allowed to import {door.imported} ({lines})")


def lines_of(graph: ImportGraph, importer: str, imported: str) -> tuple[int, ...]:
    """The lines of one module on which it imports another."""
    details = graph.get_import_details(importer=importer, imported=imported)
    return tuple(detail["line_number"] for detail in details)
