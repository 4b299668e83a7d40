"""Options that several commands of `steer loop` take."""

from typing import Annotated, Literal

import typer

Mode = Literal["checkpoint", "batch", "autonomous"]
Phase = Annotated[str | None, typer.Option(help="Of a plan that is a directory: where to start.")]
