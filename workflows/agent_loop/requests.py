"""What people ask of a loop, until the loop has done it: wishes and their receipts. No decisions about iterations."""

from dataclasses import dataclass, field

from steersman.contracts.loop_messages import LoopReceipt, Pause, Restart, Resume, Rollback


@dataclass
class Order:
    """A rollback or restart on its way; whoever asked waits for the receipt or the refusal."""

    what: Rollback | Restart
    done: bool = False
    receipt: LoopReceipt | None = None
    refusal: str | None = None


@dataclass
class Desk:
    """Wishes that the loop has not yet seen to. Each wakes it."""

    pause: Pause | None = None
    pausing: bool = False
    """It is being seen to: too late to withdraw it."""
    resume: Resume | None = None
    exit: str | None = None
    """The reason, perhaps empty; None where nobody asked."""
    orders: list[Order] = field(default_factory=list)
    nudged: bool = False
    """Waiting is to end: skip_wait, or feedback that came while waiting."""
    look: bool = False
    """The limits are others now: what it waits for may be beyond them."""

    @property
    def quiet(self) -> bool:
        """Nothing is left to be seen to."""
        return not (self.pause or self.resume or self.orders or self.nudged or self.look) and self.exit is None

    @property
    def hurries(self) -> bool:
        """The agent's turn is to end now."""
        return bool(self.orders) or self.exit is not None or bool(self.pause and self.pause.now)
