"""Calls to a loop's workflow: its checkpoints, and what a stop found.

A loop continues as new executions of one workflow id; the newest is called.
"""

from collections.abc import Iterable
from typing import Final

from temporalio.client import Client, WorkflowExecutionStatus

from steersman._client.host_workers import is_served, unserved
from steersman._client.run_calls import CLOSED_UNASKED, RunCalls
from steersman._client.workflow_calls import A, WorkflowCalls, WorkflowKind
from steersman.contracts import names
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.loop_activities import ForkPoint
from steersman.contracts.loop_messages import MAX_PAGE, CheckpointPage, CheckpointQuery
from steersman.contracts.loop_state import CLOSED, Checkpoint, LoopResult, LoopState
from steersman.contracts.model import StrictModel
from steersman.contracts.run import StopReport
from steersman.errors import RunNotRunning, SteersmanError, translated

LOOP: Final = WorkflowKind(
    noun="loop",
    workflow=names.LOOP_WORKFLOW,
    state=LoopState,
    result=LoopResult,
    state_field="checkpoints_total",
    initial=LoopState(status="cancelled"),
)
UPDATE_TRIES: Final = 3
"""An update is sent to this many executions in a row, where each continues as new before it takes the update."""

_TAKEN: Final = "the loop goes on, with what it was told, once one is there; a stop ends it"
_GIVEN_UP: Final = {
    names.CHECKPOINTS: "the loop waits two minutes for one, and keeps its checkpoints then. Try again after that",
    names.REVISE: "the loop waits a minute for one to look at the plan, and keeps its own then. Try again after that",
}
"""Of the updates that the loop gives up by itself."""


class LoopCalls(WorkflowCalls[LoopState, LoopResult]):
    """Calls to the workflows of loops."""

    def __init__(self, client: Client) -> None:
        super().__init__(client, LOOP)
        self._runs = RunCalls(client)

    async def update(self, id: str, name: str, argument: StrictModel | None, result: type[A]) -> A:
        """Execute an update, of the next execution where this one closed before it took the update."""
        for left in reversed(range(UPDATE_TRIES)):
            try:
                return await super().update(id, name, argument, result)
            except RunNotRunning:
                if not left or await self.open_execution(id) is None:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _check_answerable(self, name: str, state: LoopState) -> None:
        if state.host is not None and not await is_served(self._client, state.host):
            raise unserved(state.host, _GIVEN_UP.get(name, _TAKEN))

    async def current_state(self, loop: str) -> LoopState:
        """The state, brought up to date where the server closed the workflow: it was terminated or timed out.

        Raises as `state`.
        """
        state = await self.state(loop)
        if state.status in CLOSED and state.host is not None:
            return state
        with translated(of=self._of(loop), address=self._address):
            found = await self._handle(loop).describe()
        if found.status not in CLOSED_UNASKED:
            return state
        outcome = await self.outcome(loop, found.run_id)
        changes = {
            "status": "failed" if found.status == WorkflowExecutionStatus.TIMED_OUT else "cancelled",
            "reason": getattr(outcome, "reason", None) or None,
            "last_error": str(outcome),
            "run": None,
            "waits_for": None,
            "wakes_at": None,
        }
        return state.model_copy(update=changes)

    async def checkpoints(self, loop: str, after: int = -1) -> list[Checkpoint]:
        """All checkpoints with a number greater than `after`, oldest first. Raises as `state`."""
        found: list[Checkpoint] = []
        more = True
        while more:
            after = found[-1].number if found else after
            argument = CheckpointQuery(after=after, limit=MAX_PAGE)
            page = await self.query(loop, names.CHECKPOINTS, argument, CheckpointPage)
            fresh = [each for each in page.checkpoints if each.number > after]
            found += fresh
            more = page.more and bool(fresh)
        return found

    async def fork_point(self, loop: str, number: int) -> ForkPoint:
        """What a fork needs of checkpoint `number`. Raises InvalidRequest where there is none, and as `state`."""
        data = await self._query(loop, names.FORK_POINT, number)
        if data is None:
            raise InvalidRequest(f"from_checkpoint.number: {self._of(loop)} has no checkpoint {number}")
        return ForkPoint.model_validate(data)

    async def stop_report(self, id: str, execution: str | None = None) -> StopReport | None:
        """What stopping found of the run at work when the loop was cancelled; None where it cannot be had now."""
        try:
            state = await self.state(id)
        except SteersmanError:
            return None
        last = [each.run for each in state.checkpoints if each.run is not None][-1:]
        ended = [each.run for each in state.checkpoints if each.kind == "end"]
        return await self.first_stop_report((state.run, *ended, *(f"{run}-verify" for run in last)))

    async def reason(self, id: str, report: StopReport | None, execution: str | None = None) -> str | None:
        """Why the loop was cancelled, as the loop itself says it; None where it cannot be asked now."""
        try:
            return (await self.state(id)).reason
        except SteersmanError:
            return None

    async def first_stop_report(self, runs: Iterable[str | None]) -> StopReport | None:
        """The stop report of the first of these runs that has one."""
        for run in runs:
            if run is not None and (report := await self._runs.stop_report(run)) is not None:
                return report
        return None
