"""What an attempt tells the controller that runs it, and what it asks. No behaviour lives here."""

from dataclasses import dataclass
from typing import Protocol

from activities.ports.agent import ApprovalRequester, ExitFact, Verdict
from activities.ports.runtime import StopTimes
from activities.running.limits import Limit
from steersman.contracts.activities import Settlement
from steersman.contracts.events import EventBase


@dataclass(frozen=True)
class AttemptResult:
    """How one process ended. `ended_at`: when a person ended the run with the turn, in seconds since 1970."""

    exit_fact: ExitFact
    verdict: Verdict
    limit: Limit | None
    parked: bool
    ended_at: float | None


class AttemptObserver(ApprovalRequester, Protocol):
    """The controller of a run, as each of its attempts sees it."""

    stop_times: StopTimes

    def observe(self, events: list[EventBase]) -> None:
        """New events of the process, as they stand in the log."""
        ...

    def settle(self, settlements: list[Settlement]) -> None:
        """The journal says more of these messages than their delivery did."""
        ...

    def tick(self) -> None:
        """Called a few times a second, and ever less often while the process is silent."""
        ...

    def limit(self) -> Limit | None:
        """The run's limit that is reached, over all its processes."""
        ...

    def silence_left_s(self) -> float:
        """Seconds until the agent's silence reaches its limit; infinite without one, or once it is beyond it."""
        ...

    def live(self, number: int) -> None:
        """Process `number` is at work, and all that it has said before is read."""
        ...

    def delivered(self, number: int, kind: str, settlement: Settlement) -> None:
        """Process `number` was given a message, for the first time."""
        ...

    def stopping(self, reason: str) -> None:
        """The process is stopped before its work was done."""
        ...
