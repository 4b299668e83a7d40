"""Which checkpoints of a closed loop a cleanup deletes; an open loop selects them itself. Pure functions."""

from collections.abc import Iterable
from datetime import datetime

from steersman.contracts.loop_messages import Cleanup
from steersman.contracts.loop_state import Checkpoint


def selected(checkpoints: Iterable[Checkpoint], cleanup: Cleanup, now: datetime) -> tuple[int, ...]:
    """The numbers of the checkpoints to delete, in the order given (oldest first)."""
    found = list(checkpoints)
    if cleanup.oldest is not None:
        found = found[: cleanup.oldest]
    elif cleanup.older_than_s is not None:
        limit = cleanup.older_than_s
        found = [each for each in found if (now - each.time).total_seconds() > limit]
    elif not cleanup.all:
        found = [each for each in found if each.number in cleanup.numbers]
    return tuple(each.number for each in found)
