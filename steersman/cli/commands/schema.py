"""`steer schema`: JSON Schemas of the wire's models."""

import json
from typing import Annotated

import typer

from steersman.cli.output import write_line


def schema(
    name: Annotated[str | None, typer.Argument(help="e.g. RunRequest; default: all of them, in one schema.")] = None,
) -> None:
    """Print the JSON Schema of what goes over the wire, for clients in other languages."""
    from steersman.contracts import schemas

    if name is not None and name not in schemas.NAMES:
        raise typer.BadParameter(f"{name}: one of {', '.join(schemas.NAMES)}")
    write_line(json.dumps(schemas.schema(name) if name else schemas.schemas(), indent=2))
