"""`steer agents`: which agents there are, and their capabilities."""

import typer

from steersman.cli.exits import Exit
from steersman.cli.options import AsJson
from steersman.cli.output import console, emit, table


def agents(as_json: AsJson = False) -> None:
    """Show which agents there are, and what each can do."""
    from rich.text import Text

    from steersman.contracts.agents import CAPABILITIES, Capabilities

    if as_json:
        emit({name: can.model_dump() for name, can in CAPABILITIES.items()})
    else:
        names = list(Capabilities.model_fields)
        shown = table("AGENT", *(name.upper().replace("_", " ") for name in names))
        for agent, can in CAPABILITIES.items():
            marks = [Text("yes", style="green") if getattr(can, name) else Text("no", style="dim") for name in names]
            shown.add_row(Text(agent, style="bold"), *marks)
        console().print(shown)
    raise typer.Exit(Exit.OK)
