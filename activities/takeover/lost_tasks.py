"""Tasks that the server says this worker has, and that never came: given back, so that they are handed out anew.

A server that is overloaded writes down that `run_agent` has begun, has given up its own request meanwhile, and hands
the task to nobody: of 100 runs that were started at once beside their server, up to five (its RecordActivityTaskStarted
cancelled, then TaskAlreadyStarted). It would wait for the heartbeat timeout. What workers that fell were at is seen to
in `takeover`.
"""

import asyncio
import logging
from typing import NamedTuple

from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client
from temporalio.service import RPCError

from activities.takeover.pending import STARTED, PendingActivities
from activities.takeover.registry import Registry
from steersman.contracts import names

log = logging.getLogger("steersman.takeover")

LOOK_S = 10.0
"""Seconds between two looks. A task that came is entered long before the second of them."""
MAX_LOOKED_AT = 50
"""So many of the runs that wait are asked for in one look; of more, the next ones in the next."""


class _Begun(NamedTuple):
    """One attempt of a run's `run_agent`."""

    run: str
    activity: str
    attempt: int
    since: int


class LostTasks:
    """`run` looks after those of this worker."""

    def __init__(self, client: Client, registry: Registry) -> None:
        self._registry, self._pending = registry, PendingActivities(client)
        self._suspects: set[_Begun] = set()
        self._last = ""
        """The run that was asked for last, in the order of their ids."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except RPCError as error:  # what is the matter with the server others say
                log.debug("queued runs could not be looked at: %s", error)
            except Exception:
                log.exception("queued runs could not be looked at", extra={"action": "takeover_failed"})

    async def look(self) -> None:
        """Give back what was to have begun here when it was looked at last, too, and has not. Raises RPCError."""
        begun: dict[_Begun, PendingActivityInfo] = {}
        for run in self._chosen(await self._pending.queued_runs()):
            begun |= {_Begun(run, *_facts(each)): each for each in await self._pending.of(run) if self._is_here(each)}
        leads = {key.run for key in self._registry.leads()}
        lost = [each for each in begun if each in self._suspects and each.run not in leads]
        for each in lost:
            facts = {"run": each.run, "attempt": each.attempt}
            log.warning("a run's task was lost on its way here", extra={"action": "task_lost", "facts": facts})
            await self._pending.give_back(each.run, [begun.pop(each)], {self._registry.identity})
        self._suspects = set(begun)

    def _is_here(self, activity: PendingActivityInfo) -> bool:
        return (
            activity.activity_type.name == names.RUN_AGENT
            and activity.state in STARTED
            and activity.last_worker_identity == self._registry.identity
        )

    def _chosen(self, queued: list[str]) -> list[str]:
        """Those to ask for: the suspects, and some of the others, in turn. None that this worker leads."""
        leads = {key.run for key in self._registry.leads()}
        suspects = {each.run for each in self._suspects}
        others = sorted(set(queued) - leads - suspects)
        after = [each for each in others if each > self._last]
        chosen = [*after, *others[: len(others) - len(after)]][:MAX_LOOKED_AT]
        self._last = chosen[-1] if chosen else ""
        return [*(suspects & set(queued) - leads), *chosen]


def _facts(activity: PendingActivityInfo) -> tuple[str, int, int]:
    return activity.activity_id, activity.attempt, activity.last_started_time.ToNanoseconds()
