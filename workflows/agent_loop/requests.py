"""What clients have asked of a loop and the loop has not done yet. No decisions."""

from dataclasses import dataclass, field

from temporalio.exceptions import ApplicationError

from steersman.contracts.errors import REFUSED
from steersman.contracts.loop_messages import LoopReceipt, Pause, Restart, Resume, Rollback


@dataclass
class QueuedRequest:
    """A rollback or restart; its update waits until `done`, for the receipt or the refusal."""

    request: Rollback | Restart
    done: bool = False
    receipt: LoopReceipt | None = None
    refusal: str | None = None


@dataclass
class PendingRequests:
    """Each request wakes the loop; the loop clears it when it has done it."""

    pause: Pause | None = None
    pause_in_progress: bool = False
    """The loop makes the checkpoint of a pause: it is too late to withdraw the pause."""
    resume: Resume | None = None
    exit: str | None = None
    """The reason of an exit, perhaps empty; None if nobody asked."""
    returns: list[QueuedRequest] = field(default_factory=list)
    """Rollbacks and restarts, in order."""
    wake_requested: bool = False
    """The wait for a time is to end: `skip_wait`, or feedback that came during the wait."""
    limits_changed: bool = False
    """The loop must check whether the wait is beyond its new limits."""

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do."""
        asked = self.pause or self.resume or self.returns or self.wake_requested or self.limits_changed
        return not asked and self.exit is None

    @property
    def wants_immediate_stop(self) -> bool:
        """Whether the run at work is to end now, in the middle of its turn."""
        return bool(self.returns) or self.exit is not None or bool(self.pause and self.pause.now)


def refused(reason: str) -> ApplicationError:
    """The failure of an update that the loop refuses."""
    return ApplicationError(reason, type=REFUSED, non_retryable=True)
