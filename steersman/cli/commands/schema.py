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

    try:
        found = schemas.schema(name) if name else schemas.schemas()
    except KeyError:
        raise typer.BadParameter(f"{name}: one of {', '.join(schemas.NAMES)}, or what these are made of") from None
    write_line(json.dumps(found, indent=2))
