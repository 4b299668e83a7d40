"""Asking a loop, beyond what every workflow of Steersman's is asked: its checkpoints, its request, what a stop found.

A loop goes on as new executions of one id: what is asked here is asked of the newest.
"""

from collections.abc import Iterable
from typing import Any, Final

from temporalio.client import Client, WorkflowExecutionStatus

from steersman._client.run_calls import BEHIND_ITS_BACK, RunCalls
from steersman._client.workflow_calls import A, Kind, WorkflowCalls
from steersman.contracts import names
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.loop_activities import ForkPoint
from steersman.contracts.loop_messages import MAX_PAGE, CheckpointPage, CheckpointQuery
from steersman.contracts.loop_state import CLOSED, Checkpoint, LoopResult, LoopState
from steersman.contracts.model import StrictModel
from steersman.contracts.run import StopReport
from steersman.errors import RunNotFound, RunNotRunning, ServerRefused, SteersmanError, translated

LOOP: Final = Kind(
    noun="loop",
    workflow=names.LOOP_WORKFLOW,
    state=LoopState,
    result=LoopResult,
    mark="checkpoints_total",
    unseen=LoopState(status="cancelled"),
)
UPDATE_TRIES: Final = 3


class LoopCalls(WorkflowCalls[LoopState, LoopResult]):
    """What can be asked of a loop's workflow."""

    def __init__(self, client: Client) -> None:
        super().__init__(client, LOOP)
        self._runs = RunCalls(client)

    async def update(self, id: str, name: str, said: StrictModel | None, answer: type[A]) -> A:
        """An update and its answer; asked again of the next execution where this one closed before it took it."""
        for left in reversed(range(UPDATE_TRIES)):
            try:
                return await super().update(id, name, said, answer)
            except RunNotRunning:
                if not left or await self.open_execution(id) is None:
                    raise
        raise AssertionError("the last try returns or raises")

    async def state_now(self, loop: str) -> LoopState:
        """The state, also of a loop that had no say in its end: it was terminated, or timed out. Raises as `state`."""
        state = await self.state(loop)
        if state.status in CLOSED and state.host is not None:
            return state
        with translated(of=self._of(loop), address=self._address):
            found = await self._handle(loop).describe()
        if found.status not in BEHIND_ITS_BACK:
            return state
        closing = await self.closing(loop, found.run_id)
        told = {
            "status": "failed" if found.status == WorkflowExecutionStatus.TIMED_OUT else "cancelled",
            "reason": getattr(closing, "reason", None) or None,
            "last_error": str(closing),
            "run": None,
            "waits_for": None,
            "wakes_at": None,
        }
        return state.model_copy(update=told)

    async def checkpoints(self, loop: str, after: int = -1) -> list[Checkpoint]:
        """All with a greater number than `after`, oldest first. Raises as `state`."""
        found: list[Checkpoint] = []
        more = True
        while more:
            after = found[-1].number if found else after
            question = CheckpointQuery(after=after, limit=MAX_PAGE)
            page = await self.ask(loop, names.CHECKPOINTS, question, CheckpointPage)
            fresh = [each for each in page.checkpoints if each.number > after]
            found += fresh
            more = page.more and bool(fresh)
        return found

    async def fork_point(self, loop: str, number: int) -> ForkPoint:
        """What a fork needs of one checkpoint. Raises InvalidRequest where there is no such one, and as `state`."""
        data = await self._query(loop, names.FORK_POINT, number)
        if data is None:
            raise InvalidRequest(f"from_checkpoint.number: {self._of(loop)} has no checkpoint {number}")
        return ForkPoint.model_validate(data)

    async def request(self, loop: str) -> dict[str, Any]:
        """The request that the loop was started with, as JSON. Raises RunNotFound, ServerUnreachable, ServerRefused."""
        with translated(of=self._of(loop), address=self._address):
            # The newest execution's history is kept longest, and each is given the request first of all.
            async for event in self._handle(loop).fetch_history_events(page_size=1):
                started = event.workflow_execution_started_event_attributes
                if started.workflow_type.name != names.LOOP_WORKFLOW:
                    raise RunNotFound(f"{loop} is no loop")
                said: list[Any] = await self._client.data_converter.decode(started.input.payloads[:1], [object])
                if said and isinstance(said[0], dict):
                    return dict(said[0])
                break
        raise ServerRefused(f"{self._of(loop)} was not started with a request that can be read")

    async def stop_report(self, id: str) -> StopReport | None:
        """What was found of the run that was at work when the loop was cancelled, as far as anybody can say now."""
        try:
            state = await self.state(id)
        except SteersmanError:
            return None
        last = [each.run for each in state.checkpoints if each.run is not None][-1:]
        ended = [each.run for each in state.checkpoints if each.kind == "end"]
        return await self.run_report((state.run, *ended, *(f"{run}-verify" for run in last)))

    async def reason(self, id: str, report: StopReport | None) -> str | None:
        """Why the loop was cancelled, whatever its run was stopped for."""
        try:
            return (await self.state(id)).reason
        except SteersmanError:
            return None

    async def run_report(self, runs: Iterable[str | None]) -> StopReport | None:
        """What stopping the first of these found of which anybody can say so."""
        for run in runs:
            if run is not None and (report := await self._runs.stop_report(run)) is not None:
                return report
        return None
