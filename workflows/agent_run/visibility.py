"""What a run shows of itself: its state for the query, and what the Temporal Web UI and searches see."""

from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey

from steersman.contracts import names
from steersman.contracts.agents import CAPABILITIES
from steersman.contracts.request import RunRequest
from steersman.contracts.run import Phase, RunState
from workflows.agent_run.activities import run_key
from workflows.display import details

AGENT_NAME = SearchAttributeKey.for_keyword(names.AGENT_NAME)
RUN_PHASE = SearchAttributeKey.for_keyword(names.RUN_PHASE)
COST_USD = SearchAttributeKey.for_float(names.COST_USD)


class Board:
    """Holds RunState.

    `at_once`: what lists show is changed within the very call, as older histories say. Else `publish` does it, alone:
    handlers of updates and signals that come together may run in another order when a history is replayed, or reset,
    and the commands of a workflow must not.
    """

    def __init__(self, *, at_once: bool = False) -> None:
        self.state = RunState()
        self._introduced = False
        self._at_once = at_once
        self._shown: RunState | None = None

    def introduce(self, request: RunRequest) -> None:
        """The run's first words: memo and search attributes, so that it is found while it still waits."""
        self._introduced = True
        self.set(
            agent=request.agent,
            capabilities=CAPABILITIES[request.agent],
            workspace=request.workspace.path,
            labels=request.labels,
            execution=run_key().execution,
        )
        workflow.upsert_memo({"agent": request.agent, "workspace": request.workspace.path, "labels": request.labels})
        workflow.upsert_search_attributes(
            [AGENT_NAME.value_set(request.agent), RUN_PHASE.value_set("queued"), COST_USD.value_set(0.0)]
        )
        self._shown = RunState()

    def set(self, **changes: Any) -> None:
        """Change fields of RunState; cost and phase can be searched for, too."""
        before, self.state = self.state, self.state.model_copy(update=changes)
        if self._at_once and self._introduced and self.state.phase != before.phase:
            workflow.upsert_search_attributes([RUN_PHASE.value_set(self.state.phase)])
        if self._at_once and self._introduced and self.state.cost_usd != before.cost_usd:
            workflow.upsert_search_attributes([COST_USD.value_set(self.state.cost_usd)])
        workflow.set_current_details(details(self.state))

    async def publish(self) -> None:
        """Until cancelled: have lists show what has changed."""
        while True:
            await workflow.wait_condition(self._is_stale)
            self.show()

    def show(self) -> None:
        """Have lists show the state as it is now. Only from the workflow's main path."""
        if not self._is_stale():
            return
        workflow.upsert_search_attributes(
            [RUN_PHASE.value_set(self.state.phase), COST_USD.value_set(self.state.cost_usd)]
        )
        self._shown = self.state

    def _is_stale(self) -> bool:
        shown, now = self._shown, self.state
        return not self._at_once and shown is not None and (shown.phase, shown.cost_usd) != (now.phase, now.cost_usd)

    def wait(self, waits: bool) -> None:  # noqa: FBT001 - a fact
        """The agent, at work, waits for a person, or no longer does. An upsert costs: only where that changes."""
        phase: Phase = "waiting" if waits else "running"
        # Runs of before have no such phase; the branch may go with the last of them.
        if not self.at("running", "waiting") or self.at(phase):
            return
        if not self._at_once or workflow.patched("phase-waiting"):
            self.set(phase=phase)

    def at(self, *phases: Phase) -> bool:
        """Whether the run is in one of these phases."""
        return self.state.phase in phases
