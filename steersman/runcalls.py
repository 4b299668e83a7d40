"""Asking a run, beyond what every workflow of Steersman's is asked: where its log is, and what a stop found.

Reading events is another matter: see following.
"""

import asyncio
from typing import Final

from temporalio.client import Client

from steersman.contracts import names
from steersman.contracts.activities import RunKey
from steersman.contracts.run import RunResult, RunState, StopReport
from steersman.errors import SteersmanError
from steersman.following import Place
from steersman.workflowcalls import Kind, WorkflowCalls

RUN: Final = Kind(
    noun="run",
    workflow=names.RUN_WORKFLOW,
    state=RunState,
    result=RunResult,
    mark="attempt",
    unseen=RunState(phase="closed"),
)


class RunCalls(WorkflowCalls[RunState, RunResult]):
    """What can be asked of a run's workflow."""

    def __init__(self, client: Client) -> None:
        super().__init__(client, RUN)

    async def place(self, run_id: str) -> Place | None:
        """Where the run's log is, waiting while nobody has claimed the run; None if it closed unclaimed."""
        pause = 0.05
        while True:
            state = await self.state(run_id)
            if state.host is not None and state.execution is not None:
                return Place(RunKey(run=run_id, execution=state.execution), state.host)
            # Asked of the server: a run that closed within its first workflow task may answer as it began.
            if state.phase == "closed" or await self.open_execution(run_id) is None:
                return None
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)

    async def stop_report(self, id: str) -> StopReport | None:
        """The stop report, as far as anybody can say now."""
        try:
            return (await self.state(id)).stop_report
        except SteersmanError:
            return None
