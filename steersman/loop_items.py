"""What following a loop yields: data only. Apart from reports, which a program that has only runs loads."""

from dataclasses import dataclass

from steersman.contracts.events import AgentEvent
from steersman.contracts.loop_state import LoopState


@dataclass(frozen=True)
class RunBegun:
    """An item of `Loops.follow`: the RunEvents that follow, up to the next RunBegun, are this run's."""

    run: str
    iteration: int
    verifies: bool
    """Whether the run is the verification of the iteration."""


@dataclass(frozen=True)
class RunEvent:
    """An item of `Loops.follow`: an event of one of the loop's runs."""

    run: str
    event: AgentEvent


LoopItem = LoopState | RunBegun | RunEvent
"""What `Loops.follow` yields."""
