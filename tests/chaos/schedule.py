"""Which faults come, in which order: a pure function of the seed. What they do must not live here."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

WEIGHTS = {
    "worker_killed": 6,
    "worker_ended": 4,
    "worker_frozen": 5,
    "shim_killed": 3,
    "shim_ended": 2,
    "shim_frozen": 4,
    "agent_killed": 4,
    "agent_ended": 2,
    "agent_frozen": 4,
    "server_killed": 3,
    "server_ended": 1,
    "server_frozen": 3,
    "activity_paused": 4,
    "activity_reset": 4,
    "workflow_reset": 4,
    "cancelled": 4,
    "cancelled_twice": 3,
    "terminated": 3,
    "steered": 8,
    "steered_twice": 5,
    "interrupted": 5,
    "redirected": 4,
    "ended": 2,
    "decided": 8,
    "decided_twice": 4,
    "started_twice": 3,
    "loop_paused": 3,
    "loop_told": 3,
    "disk_filled": 3,
    "clock_stepped": 3,
    "reader_killed": 6,
}
"""Fault -> how often it comes, beside the others."""


@dataclass(frozen=True)
class Step:
    """One fault. `target` chooses among what it fits, modulo their number; `chance`, from 0 to 1, how it strikes."""

    number: int
    fault: str
    pause_s: float
    target: int
    chance: float


def schedule(seed: int) -> Iterator[Step]:
    """Steps without end. A quarter of them follow the one before at once."""
    draw = random.Random(seed)
    faults, weights = list(WEIGHTS), list(WEIGHTS.values())
    number = 0
    while True:
        number += 1
        (fault,) = draw.choices(faults, weights)
        pause_s = 0.0 if draw.random() < 0.25 else draw.uniform(0.1, 1.4)
        yield Step(number, fault, pause_s, draw.randrange(1 << 16), draw.random())
