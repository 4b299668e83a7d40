"""What the parts of one attempt share: its runner, its message writer, its supervisor."""

import asyncio
import time
from dataclasses import dataclass, field

from activities.running.limits import Limit
from steersman.contracts.run import Approval


@dataclass
class AttemptState:
    """How far one process is. `number`: the attempt's, counted over the run."""

    number: int
    first_ms: int | None = None
    """The time of its journal's first record, in ms since 1970."""
    asked: dict[str, Approval] = field(default_factory=dict)
    """The approvals that this worker has asked for, and no word was told on, by their ids in the run."""
    live: asyncio.Event = field(default_factory=asyncio.Event)
    """All that the process has said before is read, and it is at work."""
    open: asyncio.Event = field(default_factory=asyncio.Event)
    """The conversation is open: messages can be written."""
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    """The process is to be looked at: a silence has ended, messages were written, its run is to end with its turn."""
    closed: bool = False
    """The process's stdin was closed: nothing can be said to it any more, though it may have begun another turn."""
    stopping: bool = False
    """The process is being stopped by its supervisor."""
    limit: Limit | None = None
    """The limit for which it is stopped."""
    ended_at: float | None = None
    """When a person ended the run with the turn, in seconds since 1970."""
    last_word: float = field(default_factory=time.time)
    """When something was last said, by the agent or to it, in seconds since 1970: then its silence begins."""
    _began: float = field(default_factory=lambda: time.time() - time.monotonic(), init=False)

    def is_over(self, *, finished: bool) -> bool:
        """The process has done its work and is to end, or it is being stopped. `finished`: see ports.Transcript."""
        return self.stopping or (self.closed and finished)

    def now(self) -> float:
        """Seconds since 1970, as they go on from when the lead began: whoever sets the clock breaks no limit, and lifts
        none.
        """
        return self._began + time.monotonic()

    def on_clock(self, moment: float) -> float:
        """A moment of `now` as the machine's clock would have it by now."""
        return moment - self.now() + time.time()
