"""What says that something is not wanted any more: an asyncio.Event, or the same with a reason.

What is stopped by it is the business of whoever is given one.
"""

import asyncio
from typing import Protocol


class Signal(Protocol):
    """What a run can be aborted by: an asyncio.Event, or anything like it, of the event loop that awaits the run.

    Where it has an attribute `reason`, that is what the run is told.
    """

    def is_set(self) -> bool:
        """Whether the run is unwanted."""

    async def wait(self) -> object:
        """Return once it is."""


class AbortSignal(asyncio.Event):
    """An event with a reason."""

    def __init__(self) -> None:
        super().__init__()
        self.reason = ""

    def abort(self, reason: str = "") -> None:
        """Set the event. The first reason stays."""
        if not self.is_set():
            self.reason = reason
            self.set()


def reason_of(signal: Signal) -> str:
    """Why it was set; "" where it does not say."""
    reason = getattr(signal, "reason", None)
    return "" if reason is None else str(reason)
