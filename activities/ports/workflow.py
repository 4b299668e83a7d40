"""The seam to a run's workflow: what a worker that leads the run tells it. Each call costs history, but for queries."""

from dataclasses import dataclass
from typing import Protocol

from steersman.contracts.activities import ApprovalAsked, Progressed, Settlement
from steersman.contracts.agents import Capabilities
from steersman.contracts.run import Handle


@dataclass(frozen=True)
class AgentAtWork:
    """Which of the request's agents a process is of, and what a run of it can do, where the workflow has to be told."""

    part: int = 0
    capabilities: Capabilities | None = None


class Notifier(Protocol):
    """Tells the run's workflow. `age_s`: the run's age in seconds when this worker began to lead it."""

    age_s: float

    async def preparing(self) -> None:
        """This worker has taken the run; it has no process yet."""
        ...

    async def started(self, handle: Handle, attempt: int, *, adopted: bool, agent: AgentAtWork) -> None:
        """This worker leads the process of that attempt; `adopted`: an earlier worker had started it."""
        ...

    async def progressed(self, progress: Progressed) -> None: ...

    async def asked(self, asked: ApprovalAsked) -> None: ...

    async def settled(self, settlements: list[Settlement]) -> None: ...
