"""What leading a run takes, and the launch of its next process. Which process follows must not live here."""

import asyncio
import logging
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from activities.admission import trust
from activities.ports.admission import Admission, AdmissionControl
from activities.ports.agent import Agent, Resumption
from activities.ports.backup import Backup
from activities.ports.baseline import Baseline
from activities.ports.runtime import CLEANUP, Launch, Runtime, StopTimes
from activities.running.starts import Starts
from activities.store.run_directory import RunDirectory, key_of_part
from steersman.contracts.activities import RunKey
from steersman.contracts.agents import Capabilities
from steersman.contracts.request import RunRequest

log = logging.getLogger("steersman.runs")

HOME = "home"
"""Among the private files of a run's first process, which go when the run is over: homes of its agents."""


@dataclass(frozen=True)
class RunContext:
    """One run, as the worker with this epoch leads it. `agent_key`: the run's key as its agent has it."""

    key: RunKey
    agent_key: RunKey
    request: RunRequest
    agent: Agent
    runtime: Runtime
    directory: RunDirectory
    admission: AdmissionControl
    baseline: Baseline
    epoch: int
    backup: Backup | None = None
    """None where what the run does cannot be lost with its machine."""
    lost: str | None = None
    """What is to be told of a place that was made anew before this worker led the run; None where it was not."""
    fallback: "tuple[RunContext, ...]" = ()
    """The same run as each of the request's further agents has it."""
    capabilities: Capabilities | None = None
    """What a run of this agent can do; None of the first one, of which the claim has told."""
    starts: Starts = field(default_factory=Starts)
    """Of runs, by this worker."""

    @property
    def told(self) -> RunRequest:
        """The request as its agent is told of it."""
        return self.request.as_told()


def further(run: RunContext, number: int, request: RunRequest, agent: Agent, **fields: Any) -> RunContext:
    """The run as the agent of `fallback[number - 1]` has it. Agents derive ids from the key: each has its own."""
    return replace(run, agent_key=key_of_part(run.agent_key, number), request=request, agent=agent, **fields)


async def prepare_launch(run: RunContext, number: int, resumption: Resumption | None) -> tuple[Launch, str | None]:
    """The next process, and what a person is told of a workspace that is not trusted. Raises RunError.

    Judged anew each time: the workspace and what the operator allows may have changed.
    """
    place = await run.runtime.info(run.key, run.agent.executables(run.request))
    home = await run.runtime.files(run.key, 1) / HOME / run.agent.name
    admission = await asyncio.to_thread(run.admission.admit, place, number, home)
    files = await run.runtime.files(run.key, number)
    launch = run.agent.launch(run.agent_key, run.told, admission, files, resumption)
    untrusted = admission.untrusted
    complete = Launch(
        argv=_with_home(admission.home, launch.argv) if admission.home else launch.argv,
        cwd=launch.cwd,
        files=launch.files,
        env={**admission.environment, **(trust.GIT_ENVIRONMENT if untrusted else {}), **launch.env},
        first_input=launch.first_input,
        close_stdin=launch.close_stdin,
        stdin_has_authority=launch.stdin_has_authority,
        stop_times=stop_times(run.agent, run.request),
        lease_s=run.request.lease_s,
    )
    return complete, trust.sentence(_to_trust(run.request, admission), untrusted) if untrusted else None


def _with_home(home: PurePath, argv: tuple[str, ...]) -> tuple[str, ...]:
    """The command line, run where the directory is: not every agent makes its own."""
    return ("/bin/sh", "-c", 'mkdir -p "$0" && exec "$@"', str(home), *argv)


def _to_trust(request: RunRequest, admission: Admission) -> str:
    """The directory by whose trust the run goes: a copy or a worktree is trusted as the workspace is."""
    itself = request.workspace.worktree is None and not request.is_carried
    return str(admission.directory) if itself else request.workspace.path


def stop_times(agent: Agent, request: RunRequest) -> StopTimes:
    """The agent's own, for this request; those of a cleanup where a package's agent does not say them: whatever it
    does, it is stopped.
    """
    try:
        times: object = agent.stop_times(request)
    except Exception as error:  # noqa: BLE001 - a package's own
        times = error
    if isinstance(times, StopTimes):
        return times
    facts = {"agent": request.agent, "error": f"{type(times).__name__}: {times}"[:500]}
    log.error("the agent does not say how it is stopped", extra={"action": "no_stop_times", "facts": facts})
    return CLEANUP
