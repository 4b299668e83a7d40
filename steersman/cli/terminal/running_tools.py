"""What tools at work have put out, as lines of a terminal: harmless, and as a terminal would show them. No printing.

A line that was written over after a carriage return is gone; colors and movements of the cursor are left out.
"""

import re
from dataclasses import dataclass

from steersman.cli.formatting import clean
from steersman.contracts.events import (
    TERMINAL_TYPES,
    EventBase,
    ToolOutputEvent,
    ToolResultEvent,
    ToolUseEvent,
    is_terminal,
)

MAX_END = 4_000
"""Characters of the end of a call's output that are kept to be shown, and of a line that has not ended."""
MAX_LINE = 400
"""Characters of one of the last lines."""
MAX_CALLS = 50
KINDS = frozenset({"tool_use", "tool_output", "tool_result", *TERMINAL_TYPES})
"""Of events that change which calls are at work, or what they have put out."""
OMITTED = "…"
BEFORE = "… and before that:"
LAST = "… more comes with the result"
_SEQUENCE = re.compile(r"\x1b\[[0-9:;<=>?]*[ -/]*[@-~]")
_BEGUN = re.compile(r"\x1b(?:\[[0-9:;<=>?]*[ -/]*)?$")
"""The beginning of a sequence, of which the rest is still coming."""


def output_lines(text: str, last: int = 0) -> list[str]:
    """The lines that a terminal would have of it, without empty ones: all, or the beginnings of so many of the last."""
    text = _BEGUN.sub("", _SEQUENCE.sub("", text)) if "\x1b" in text else text
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    shown = [line for line in lines if line.strip()][-last:]
    return [clean((line[:MAX_LINE] if last else line).expandtabs()) for line in shown]


@dataclass
class Call:
    """A call at work."""

    name: str | None = None
    told: str | None = None
    """All of its output so far; None where some is missing."""
    end: str = ""
    line: str = ""
    """Of a line that has not ended, what there is."""


class RunningTools:
    """The calls at work, by the events of a run in their order."""

    def __init__(self) -> None:
        self._calls: dict[str, Call] = {}
        self._attempt = 0
        self._last: str | None = None
        """The call of which something was printed last."""

    def on_event(self, event: EventBase) -> bool:
        """Note an event; whether other lines may have to be shown now."""
        if getattr(event, "type", None) not in KINDS and event.attempt <= self._attempt:
            return False
        changed = isinstance(event, ToolOutputEvent | ToolResultEvent)
        if is_terminal(event) or event.attempt > self._attempt:  # the process that they were calls of has ended
            changed, self._attempt = changed or bool(self._calls), event.attempt
            self._calls.clear()
        if isinstance(event, ToolUseEvent):
            self._calls[event.id] = Call(event.name, "")
            self._last = event.id
        elif isinstance(event, ToolOutputEvent):
            call = self._calls[event.id] = self._calls.pop(event.id, Call())
            call.end = event.text if event.omitted else (call.end + event.text)[-MAX_END:]
            call.end += f"\n{LAST}\n" if event.truncated else ""
            call.told = None if event.omitted or call.told is None else call.told + event.text
        if len(self._calls) > MAX_CALLS:
            del self._calls[next(iter(self._calls))]
        return changed

    def last_lines(self, most: int) -> list[str]:
        """The last lines of the call that has put something out last."""
        end = next((call.end for call in reversed(self._calls.values()) if call.end), "")
        return output_lines(end, most)

    def new_lines(self, event: ToolOutputEvent) -> list[str]:
        """The lines that have ended with this event; before them whose they are, where others came in between."""
        call, before = self._calls[event.id], list[str]()
        if self._last != event.id:
            before, self._last = [f"{call.name or 'tool'}:"], event.id
        if event.omitted:
            before, call.line = [*before, *output_lines(call.line), OMITTED], ""
        ended, _, call.line = (call.line + event.text).rpartition("\n")
        call.line = call.line[-MAX_END:]
        lines = [*before, *output_lines(ended)]
        return [*lines, LAST] if event.truncated else lines

    def ended(self, event: ToolResultEvent) -> list[str] | None:
        """A call has ended: the lines of its result that were not told before; None where those are all.

        Agents leave out what a call puts out in its first moments (Codex).
        """
        call = self._calls.pop(event.id, Call())
        told, text = (call.told or "").strip(), event.text.strip()
        if not told or not text.endswith(told):
            return None
        before = output_lines(text[: -len(told)])
        return [*output_lines(call.line), *([BEFORE] if before else []), *before]
