"""A run's workflow, told by signals."""

import asyncio
import logging
from typing import Any

from temporalio import activity
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from activities.ports.baseline import Baseline
from activities.ports.workflow import AgentAtWork
from activities.temporal.execution import QUERY_ERRORS, epoch, state_of
from steersman.contracts import names
from steersman.contracts.activities import (
    ApprovalAsked,
    MessagesSettled,
    Progressed,
    SessionStarted,
    Settlement,
)
from steersman.contracts.run import FINAL_STATES, Handle

log = logging.getLogger("steersman.notifier")

FIRST_PAUSE_S, LAST_PAUSE_S = 0.2, 10.0


class WorkflowNotifier:
    """Signals the run's workflow; see ports.workflow.Notifier. Waits out a server that does not answer.

    `queue` is the worker's own task queue. `approvals`: the run asks people for approvals.
    """

    def __init__(self, handle: WorkflowHandle[Any, Any], queue: str, *, approvals: bool) -> None:
        self._handle, self._queue, self._approvals = handle, queue, approvals
        self.epoch = epoch()
        # Both are the server's times.
        self.age_s = max(self.epoch / 1_000_000 - activity.info().scheduled_time.timestamp(), 0.0)
        self.baseline: Baseline | None = None
        """What is kept of the workspace, once that is known: the workflow is told with each process."""

    async def preparing(self) -> None:
        """This worker has taken the run; it has no process yet."""
        await self._signal(names.SESSION_STARTED, SessionStarted(worker_queue=self._queue, epoch=self.epoch))

    async def started(self, handle: Handle, attempt: int, *, adopted: bool, agent: AgentAtWork) -> None:
        if adopted and await self._is_known(handle, attempt):
            return
        located = handle.model_copy(update={"worker_queue": self._queue})
        started = SessionStarted(
            worker_queue=self._queue,
            handle=located,
            attempt=attempt,
            epoch=self.epoch,
            baseline=self.baseline.commit if self.baseline else None,
            part=agent.part,
            capabilities=agent.capabilities,
        )
        await self._signal(names.SESSION_STARTED, started)

    async def _is_known(self, handle: Handle, attempt: int) -> bool:
        """Whether the workflow need not be told: it knows the process, has nothing to say to it, and does not hold that
        it awaits a message, which it may have had meanwhile.

        A query costs no history: a run that is handed over each hour for days stays as short as one that is not.
        """
        if self._approvals:
            return False  # decisions that are to be remembered have to be told to each session
        try:
            state = await state_of(self._handle)
        except QUERY_ERRORS:
            return False
        same = state.handle is not None and state.handle.process == handle.process and state.attempt == attempt
        settled = all(each.state in FINAL_STATES for each in state.messages) and not state.awaits_message
        return same and settled

    async def progressed(self, progress: Progressed) -> None:
        await self._signal(names.PROGRESSED, progress)

    async def asked(self, asked: ApprovalAsked) -> None:
        await self._signal(names.APPROVAL_ASKED, asked)

    async def settled(self, settlements: list[Settlement]) -> None:
        await self._signal(names.MESSAGES_SETTLED, MessagesSettled(messages=tuple(settlements)))

    async def _signal(self, name: str, argument: Any) -> None:
        pause = FIRST_PAUSE_S
        while True:
            try:
                await self._handle.signal(name, argument)
            except RPCError as error:
                if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
                    return  # the run has closed: nobody is left to tell
            except Exception as error:  # noqa: BLE001 - a payload codec's: the keys that it asks for may be away
                if pause == FIRST_PAUSE_S:
                    text = f"the workflow could not be told: {type(error).__name__}: {error}; it is tried again"
                    log.warning(text, extra={"action": "not_told", "facts": {"run": self._handle.id, "signal": name}})
            else:
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, LAST_PAUSE_S)
