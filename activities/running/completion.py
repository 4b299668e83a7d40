"""A log that no controller led to its end is completed from the journals before it is closed. Starts no process."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath

from activities.ports.admission import Admission
from activities.ports.agent import Agent
from activities.ports.place import PlaceInfo
from activities.ports.runtime import Fenced, Runtime
from activities.ports.workflow import AgentAtWork
from activities.running.controller import RunController
from activities.running.launch import RunContext, further
from activities.store.disk import is_unwritable
from activities.store.run_directory import RunDirectory
from steersman.contracts.activities import ApprovalAsked, Progressed, Settlement
from steersman.contracts.errors import WorkspaceError
from steersman.contracts.request import RunRequest
from steersman.contracts.run import Handle, RunProgress

log = logging.getLogger("steersman.completion")


class ClosedRun:
    """Notifier, AdmissionControl and Baseline of a run that is over: nobody is told, nothing is admitted."""

    age_s = 0.0

    async def preparing(self) -> None: ...

    async def started(self, handle: Handle, attempt: int, *, adopted: bool, agent: AgentAtWork) -> None: ...

    async def progressed(self, progress: Progressed) -> None: ...

    async def asked(self, asked: ApprovalAsked) -> None: ...

    async def settled(self, settlements: list[Settlement]) -> None: ...

    def admit(self, place: PlaceInfo | None, attempt: int, home: PurePath) -> Admission:
        raise WorkspaceError("the run is over: no process is started any more")

    async def lock_session(self, session: str) -> None: ...

    @property
    def commit(self) -> str | None:
        return None

    async def changes(self, limit: int) -> str:
        return ""

    async def keep(self) -> str | None:
        return None


async def complete(
    request: RunRequest, agents: Mapping[str, Agent], runtime: Runtime, directory: RunDirectory, epoch: int
) -> RunProgress | None:
    """Add to the log what the journals hold beyond it, and say how far the run had come by them. A journal that cannot
    be read is logged, and keeps no run open.

    None where a newer worker has the log: then its end is not to be written either. Raises OSError where the disk has
    no room for it: the log is to be completed and ended when there is some.
    """
    closed = ClosedRun()
    try:
        run = RunContext(
            key=directory.key,
            agent_key=directory.agent_key,
            request=request,
            agent=agents[request.agent],
            runtime=runtime,
            directory=directory,
            admission=closed,
            baseline=closed,
            epoch=epoch,
        )
        parts = [(number, request.of_part(number)) for number in range(1, len(request.fallback) + 1)]
        fallback = tuple(further(run, number, each, agents[each.agent]) for number, each in parts)
        return await RunController(replace(run, fallback=fallback), closed).complete()
    except Fenced:
        return None
    except Exception as error:  # an agent may have written there
        if is_unwritable(error):
            raise
        facts = {"run": directory.key.run, "error": f"{type(error).__name__}: {error}"}
        log.warning("a run's log could not be completed", extra={"action": "log_incomplete", "facts": facts})
    return RunProgress()
