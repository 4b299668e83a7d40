"""A command that takes the agent's command line after `--`."""

from typing import Any

from typer.core import TyperCommand

AFTER_DASHES = "steersman.after_dashes"
"""The key of that command line in the Click context's `meta`."""


class DashedCommand(TyperCommand):
    """Keeps what follows `--` apart: it is the agent's command line, never the prompt."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Split the arguments at the first `--`."""
        if "--" in args:
            at = args.index("--")
            ctx.meta[AFTER_DASHES] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage line, with the command line at its end."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND ...]"]
