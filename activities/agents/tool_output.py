"""What tools put out while they work, as events: bounded, and the same whoever reads the journal.

How an agent tells of it must not live here. A tool that floods is told of in part, ever more slowly: what is told now
goes by what was told before and by the times of the journal's records.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

from pydantic import Field

from activities.agents.snapshot_fields import Name
from steersman.contracts.events import MAX_CALL_OUTPUT, MAX_TEXT, MAX_TOOL_OUTPUT, ToolOutputEvent

MAX_END: Final = 16_000
"""Characters of the end of a call's output that are kept for a result that comes without any."""
MAX_CALLS: Final = 50
"""Calls of which output is kept; an older one begins anew."""
EVENT_COST: Final = 200
"""An event counts as so many characters beside its text."""
BURST: Final = 128 * 1024
"""So many characters of a call are told at once."""
LEAST: Final = 500
"""Of a flood no event is made of fewer characters than this."""
SLOWER_MS: Final = 600_000
"""What a call may still have told of it is given out over this time, by what is left at each moment."""
_OVERLAP: Final = 200
_LOOKED_AT: Final = 64 * 1024
"""What is known is looked for in so many characters of the end: of a hostile text it takes long."""
_GAP: Final = 50
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_Count = Annotated[int, Field(ge=0, lt=1 << 62)]


def both_ends(text: str) -> str:
    """A result of at most MAX_TEXT characters: of a longer one its beginning and its end, which says how it went."""
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2 - _GAP
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


@dataclass(frozen=True)
class Piece:
    """What of a call's output is to be told now."""

    text: str
    omitted: bool
    """Something before it is left out."""
    last: bool
    """No more of the call is told: too much was."""


@dataclass
class ToolOutput:
    """The output of one call so far. In snapshots, by these names."""

    end: Annotated[str, Field(max_length=MAX_END)] = ""
    size: _Count = 0
    """Characters so far or, of output that is told whole each time, when it was told last."""
    held: Annotated[str, Field(max_length=MAX_TOOL_OUTPUT)] = ""
    """The end of what is not told yet."""
    omitted: bool = False
    """Something before what is held is not told."""
    left: Annotated[int, Field(ge=0, le=MAX_CALL_OUTPUT)] = MAX_CALL_OUTPUT
    """Characters that may still be told."""
    room: Annotated[int, Field(ge=0, le=BURST)] = BURST
    """Characters that may be told now."""
    counted_ms: _Count = 0
    """When `room` was counted, in ms since 1970."""

    def add(self, text: str, now_ms: int) -> "Piece | None":
        """Take what is new; what is to be told now."""
        self.size += len(text)
        self.end = (self.end + text[-MAX_END:])[-MAX_END:]
        held = self.held + text[-MAX_TOOL_OUTPUT - 1 :]
        self.held, self.omitted = held[-MAX_TOOL_OUTPUT:], self.omitted or len(held) > MAX_TOOL_OUTPUT
        self._count(now_ms)
        if not self.held or self.room < EVENT_COST + min(len(self.held), LEAST) or self.left < EVENT_COST + LEAST:
            return None
        told = self.held[EVENT_COST - self.room :] if self.room < EVENT_COST + len(self.held) else self.held
        omitted = self.omitted or len(told) < len(self.held)
        self.room -= EVENT_COST + len(told)
        self.left -= EVENT_COST + len(told)
        self.held, self.omitted = "", False
        return Piece(told, omitted=omitted, last=self.left < EVENT_COST + LEAST)

    def replace(self, whole: str, now_ms: int) -> "Piece | None":
        """The same where all of it, or its end alone, is said again each time."""
        known = self.end[-_OVERLAP:]
        if whole.startswith(known, max(self.size - len(known), 0)):
            new = whole[self.size :]
        elif known and (at := whole.rfind(known, max(len(whole) - _LOOKED_AT, 0))) >= 0:
            new = whole[at + len(known) :]
        else:
            new, self.omitted = whole, True
        told = self.add(new, now_ms)
        self.size = len(whole)
        return told

    def _count(self, now_ms: int) -> None:
        """Give out what the time since the last count is worth."""
        since = now_ms - self.counted_ms
        earned = self.left * min(since, SLOWER_MS) // SLOWER_MS if since > 0 else 0
        if earned or since < 0:
            self.counted_ms = now_ms
            self.room = min(self.room + earned, BURST)
        self.room = min(self.room, self.left)


@dataclass
class ToolOutputs:
    """The outputs of the calls that are at work."""

    calls: Annotated[dict[Name, ToolOutput], Field(max_length=MAX_CALLS)] = field(default_factory=dict)

    def added(self, time: datetime, ident: str, text: str) -> list[ToolOutputEvent]:
        """The event of what is new of a call's output; none where it is not told now."""
        return self._told(time, ident, self._of(ident).add(text, _ms(time)))

    def replaced(self, time: datetime, ident: str, whole: str) -> list[ToolOutputEvent]:
        """The same, of the whole output, or of its end."""
        return self._told(time, ident, self._of(ident).replace(whole, _ms(time)))

    def close(self, ident: str) -> tuple[str, bool]:
        """The call has ended: the end of what it has put out, and whether that is not all of it."""
        output = self.calls.pop(ident, None) or ToolOutput()
        return output.end, output.size > len(output.end)

    def clear(self) -> None:
        """All calls have ended."""
        self.calls.clear()

    def _of(self, ident: str) -> ToolOutput:
        output = self.calls.setdefault(ident, ToolOutput())
        if len(self.calls) > MAX_CALLS:
            del self.calls[next(iter(self.calls))]
        return output

    def _told(self, time: datetime, ident: str, piece: Piece | None) -> list[ToolOutputEvent]:
        if piece is None:
            return []
        return [ToolOutputEvent(time=time, id=ident, text=piece.text, omitted=piece.omitted, truncated=piece.last)]


def _ms(time: datetime) -> int:
    return max((time - _EPOCH) // timedelta(milliseconds=1), 0)
