"""What a measurement is: samples, a goal, a baseline. Arithmetic only."""

import math
import statistics
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Goal:
    """Upper bounds; None where the goal has none."""

    p50: float | None = None
    p99: float | None = None

    def __str__(self) -> str:
        bounds = {"p50": self.p50, "p99": self.p99}
        return ", ".join(f"{name} ≤ {bound:g}" for name, bound in bounds.items() if bound is not None)


@dataclass(frozen=True)
class Figure:
    """One row. `lost` says what went wrong for good: a run lost, a process left; the benchmark then fails."""

    what: str
    unit: str
    samples: tuple[float, ...]
    goal: Goal | None = None
    baseline: str = ""
    note: str = ""
    lost: str = ""
    hops: dict[str, float] = field(default_factory=dict)
    """Where the time goes: median milliseconds between events of the workflow's history."""

    @property
    def p50(self) -> float:
        return statistics.median(self.samples)

    @property
    def p99(self) -> float:
        """Nearest rank: the largest one of less than 100 samples."""
        return sorted(self.samples)[math.ceil(0.99 * len(self.samples)) - 1]

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None where there is none."""
        if self.goal is None:
            return None
        return not self.lost and all(
            bound is None or value <= bound for value, bound in ((self.p50, self.goal.p50), (self.p99, self.goal.p99))
        )


def spread(samples: list[float], unit: str = "ms") -> str:
    """A baseline in a few words."""
    low, high = statistics.median(samples), max(samples)
    return f"{low:.0f} / {high:.0f} {unit} (n={len(samples)})"
