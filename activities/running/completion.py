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
from steersman.contracts.activities import ApprovalAsked, Progressed, RunOutcome, Settlement
from steersman.contracts.errors import WorkspaceError
from steersman.contracts.events import CancelledEvent, DoneEvent, TerminalEvent
from steersman.contracts.request import RunRequest
from steersman.contracts.run import Handle, RunProgress

log = logging.getLogger("steersman.completion")

OLDER_SERVER = "the server has an older state of the run, as after its database was restored, and nothing begins anew"


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
    try:
        return await _controller(request, agents, runtime, directory, epoch).complete()
    except Fenced:
        return None
    except Exception as error:  # an agent may have written there
        if is_unwritable(error):
            raise
        _log_incomplete(directory, error)
    return RunProgress()


async def outcome_before(
    event: TerminalEvent,
    request: RunRequest,
    agents: Mapping[str, Agent],
    runtime: Runtime,
    directory: RunDirectory,
    epoch: int,
) -> RunOutcome:
    """The outcome of a run whose log has ended with this event, for a workflow that knows nothing of that. Its
    messages, sessions and costs are by the journals, as far as they can be read. Raises Fenced.
    """
    read = RunOutcome(status="stopped", unread=True)
    try:
        read = await _controller(request, agents, runtime, directory, epoch).read_again()
    except Fenced:
        raise
    except Exception as error:  # noqa: BLE001 - an agent may have written there
        _log_incomplete(directory, error)
    told: dict[str, object] = {"stop_report": event.stop_report}
    if isinstance(event, DoneEvent):
        told |= {"status": "succeeded", "text": event.text, "structured": event.structured}
        told["stop_reason"] = event.stop_reason
    elif isinstance(event, CancelledEvent):
        said = f" ({event.reason})" if event.reason else ""
        told["message"] = f"the run had ended before, as cancelled{said}: {OLDER_SERVER}"
    else:
        told |= {"status": "failed", "error": event.error, "message": event.message}
    return read.model_copy(update=told)


def _controller(
    request: RunRequest, agents: Mapping[str, Agent], runtime: Runtime, directory: RunDirectory, epoch: int
) -> RunController:
    closed = ClosedRun()
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
    return RunController(replace(run, fallback=fallback), closed)


def _log_incomplete(directory: RunDirectory, error: Exception) -> None:
    facts = {"run": directory.key.run, "error": f"{type(error).__name__}: {error}"}
    log.warning("a run's log could not be completed", extra={"action": "log_incomplete", "facts": facts})
