"""The status of a loop: a module of its own, so that lists of runs do not load the models of loops."""

from typing import Any, Literal

LoopStatus = Literal[
    "running",
    "waiting_for_decision",
    "paused",
    "waiting_rate_limit",
    "verifying",
    "completed",
    "exited",
    "failed",
    "cancelled",
]
"""`exited`: ended before it was done, by `exit` or by a limit."""


def current_status(value: Any) -> Any:
    """A status as it is called now: older loops closed as "stopped"."""
    return "exited" if value == "stopped" else value
