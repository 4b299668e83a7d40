"""A log that no session kept to the end, completed from the journals before it is closed. Leads nothing."""

import logging

from activities.ports import Admission, Agent, Fenced, Runtime
from activities.session import Session
from activities.store import RunDirectory
from steersman.contracts.activities import ApprovalAsked, Progressed, RunAgentInput, Settlement
from steersman.contracts.errors import WorkspaceError
from steersman.contracts.request import RunRequest
from steersman.contracts.run import Handle

log = logging.getLogger("steersman.completion")


class Nobody:
    """A Notifier and a RunHost of a run that is over."""

    age_s = 0.0

    async def preparing(self) -> None: ...

    async def started(self, handle: Handle, attempt: int, *, adopted: bool) -> None: ...

    async def progressed(self, progress: Progressed) -> None: ...

    async def asked(self, asked: ApprovalAsked) -> None: ...

    async def settled(self, settlements: list[Settlement]) -> None: ...

    def admit(self) -> Admission:
        raise WorkspaceError("the run is over: no process is started any more")

    async def lock(self, session: str) -> None: ...


async def complete(request: RunRequest, agent: Agent, runtime: Runtime, directory: RunDirectory, epoch: int) -> bool:
    """Read what is there. A journal that cannot be read keeps no run from its end: that is logged.

    False where a newer session has the log: then its end is not to be written either.
    """
    nobody = Nobody()
    try:
        session = Session(
            run=RunAgentInput(key=directory.key, request=request),
            agent=agent,
            runtime=runtime,
            directory=directory,
            host=nobody,
            notifier=nobody,
            epoch=epoch,
        )
        await session.complete()
    except Fenced:
        return False
    except Exception as error:  # noqa: BLE001 - an agent may have written there
        facts = {"run": directory.key.run, "error": f"{type(error).__name__}: {error}"}
        log.warning("a run's log could not be completed", extra={"action": "log_incomplete", "facts": facts})
    return True
