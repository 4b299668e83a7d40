"""What a run shows of itself: its state for the query, and what the Temporal Web UI and searches see."""

from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey

from steersman.contracts import names
from steersman.contracts.agents import CAPABILITIES
from steersman.contracts.request import RunRequest
from steersman.contracts.run import Phase, RunState
from workflows.commands import run_key
from workflows.display import details

AGENT_NAME = SearchAttributeKey.for_keyword(names.AGENT_NAME)
RUN_PHASE = SearchAttributeKey.for_keyword(names.RUN_PHASE)
COST_USD = SearchAttributeKey.for_float(names.COST_USD)


class Board:
    """Holds RunState."""

    def __init__(self) -> None:
        self.state = RunState()
        self._introduced = False

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

    def set(self, **changes: Any) -> None:
        """Change fields of RunState; cost and phase can be searched for, too."""
        before, self.state = self.state, self.state.model_copy(update=changes)
        if self._introduced and self.state.phase != before.phase:
            workflow.upsert_search_attributes([RUN_PHASE.value_set(self.state.phase)])
        if self._introduced and self.state.cost_usd != before.cost_usd:
            workflow.upsert_search_attributes([COST_USD.value_set(self.state.cost_usd)])
        workflow.set_current_details(details(self.state))

    def at(self, *phases: Phase) -> bool:
        """Whether the run is in one of these phases."""
        return self.state.phase in phases
