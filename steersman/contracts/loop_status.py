"""The status of a loop: a module of its own, so that lists of runs do not load the models of loops."""

from typing import Literal

LoopStatus = Literal[
    "running",
    "waiting_for_decision",
    "paused",
    "waiting_rate_limit",
    "verifying",
    "completed",
    "stopped",
    "failed",
    "cancelled",
]
