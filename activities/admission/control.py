"""Admission of one run's processes and sessions, by this worker's policy and the session locks of its host."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import PurePath

from activities.admission.policy import Policy
from activities.ports.admission import Admission
from activities.ports.agent import Agent
from activities.ports.place import PlaceInfo
from activities.store.run_directory import RunDirectory
from steersman.contracts.errors import RunError
from steersman.contracts.request import RunRequest

log = logging.getLogger("steersman.running")

LockSession = Callable[[str, str, RunDirectory], Awaitable[None]]
"""Locks an agent's session for a run: agent, session, the run's directory. Raises RunError, OSError."""


@dataclass(frozen=True)
class PolicyAdmissionControl:
    """See ports.admission.AdmissionControl."""

    policy: Policy
    agent: Agent
    request: RunRequest
    directory: RunDirectory
    lock: LockSession
    copy: PurePath | None = None
    """The copy or worktree of the workspace that the agent works in."""

    def admit(self, place: PlaceInfo | None, attempt: int, home: PurePath) -> Admission:
        """What the request gets, if it may run here. Raises RunError."""
        own = home if self.request.home == "isolated" else None
        return self.policy.admit(self.request, self.agent, self.copy, place, is_first=attempt == 1, home=own)

    async def lock_session(self, session: str) -> None:
        """Best effort: the run is at work, and what its agent says of its sessions is the agent's claim."""
        try:
            await self.lock(self.agent.name, session, self.directory)
        except (RunError, OSError) as error:
            facts = {"run": self.directory.key.run, "session": session, "error": f"{type(error).__name__}: {error}"}
            log.warning("a session could not be locked", extra={"action": "session_unlocked", "facts": facts})
