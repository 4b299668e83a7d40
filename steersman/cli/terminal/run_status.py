"""How a followed run stands, by its events: the line below an attached run. No waiting, no asking."""

from datetime import datetime

from rich.cells import cell_len

from steersman.cli.formatting import counted, duration, flat
from steersman.contracts.events import TURN_INTERRUPTED, AgentEvent, UsageEvent

SILENT_S = 10
"""An agent that has said nothing for so long is said to be silent."""
KEYS = "Enter says it · Esc interrupts · Ctrl-C: menu"


class RunStatus:
    """What the events so far come to."""

    def __init__(self) -> None:
        self.outage: str | None = None
        """Why nothing is heard at the moment."""
        self._phase = "no event yet"
        self._asked: set[str] = set()
        self._began: datetime | None = None
        self._last: datetime | None = None
        self._usage: UsageEvent | None = None

    def on_event(self, event: AgentEvent) -> None:
        """Note an event, in the order of their numbers."""
        self.outage = None
        self._began, self._last = self._began or event.time, event.time
        match event.type:
            case "usage":
                self._usage = event
            case "permission":
                (self._asked.add if event.state == "asked" else self._asked.discard)(event.id)
            case "rate_limit":
                if event.status == "rejected":
                    until = f" until {event.resets_at.astimezone():%H:%M}" if event.resets_at else ""
                    self._phase = f"rate limit{until}"
            case "done" | "cancelled" | "failed":
                self._phase = "ended"
            case "progress" if event.text == TURN_INTERRUPTED:
                self._phase = "waits for a message"
            case _:
                self._phase = "at work"

    def line(self, now: datetime, width: int) -> str:
        """One clean line, with what keys do where that has room."""
        phase = "waits for an answer" if self._asked else self._phase
        silent = (now - self._last).total_seconds() if self._last else 0
        parts = [
            self.outage or phase,
            duration(round((now - self._began).total_seconds())).replace(".0 s", " s") if self._began else None,
            counted(self._usage.turns, "turn") if self._usage and self._usage.turns else None,
            f"${self._usage.cost_usd:.4f}" if self._usage and self._usage.cost_usd else None,
            f"silent for {duration(round(silent)).replace('.0 s', ' s')}" if silent >= SILENT_S else None,
        ]
        said = flat(" · ".join(filter(None, parts)))
        room = width - cell_len(said) - cell_len(KEYS) - 1
        return f"{said}{' ' * room}{KEYS}" if room >= 2 else said
