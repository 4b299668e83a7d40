"""What a run shows: RunState for the query, search attributes, memo and details for the Temporal Web UI."""

import asyncio
from typing import Any

from temporalio import workflow

from steersman.contracts.agents import CAPABILITIES
from steersman.contracts.request import RunRequest
from steersman.contracts.run import Approval, Handle, Phase, RunState
from steersman.contracts.text import main_argument
from workflows.agent_run.activities import run_key
from workflows.display import AGENT_NAME, COST_USD, RUN_PHASE, markdown_list, one_line, queued


class RunVisibility:
    """Holds RunState and publishes it.

    `immediate`: search attributes are upserted within `update`, as in histories from before `bounded-messages`.
    Otherwise only `publish_changes` and `publish` upsert them: handlers of updates and signals that arrive together
    may run in another order when a history is replayed or reset, and the workflow's commands must not.
    """

    def __init__(self, *, immediate: bool = False) -> None:
        self.state = RunState()
        self._immediate = immediate
        self._introduced = False
        self._is_details_due = False
        self._published: RunState | None = None

    def publish_initial(self, request: RunRequest) -> None:
        """Set memo and search attributes, so that the run can be found while it is queued."""
        self._introduced = True
        self.update(
            agent=request.agent,
            capabilities=CAPABILITIES.get(request.agent),
            workspace=request.workspace.path,
            labels=request.labels,
            execution=run_key().execution,
        )
        memo = {"agent": request.agent, "workspace": request.workspace.path, "labels": request.labels}
        if not _is_introduced(request.agent, memo):
            workflow.upsert_memo(memo)
            workflow.upsert_search_attributes([pair.key.value_set(pair.value) for pair in queued(request.agent)])
        self._published = RunState()

    def update(self, **changes: Any) -> None:
        """Change fields of RunState."""
        before, self.state = self.state, self.state.model_copy(update=changes)
        if self._immediate and self._introduced and self.state.phase != before.phase:
            workflow.upsert_search_attributes([RUN_PHASE.value_set(self.state.phase)])
        if self._immediate and self._introduced and self.state.cost_usd != before.cost_usd:
            workflow.upsert_search_attributes([COST_USD.value_set(self.state.cost_usd)])
        if not self._is_details_due:
            # Once for all that one workflow task brings: hundreds of questions come at once.
            self._is_details_due = True
            asyncio.get_running_loop().call_soon(self._set_details)

    def _set_details(self) -> None:
        self._is_details_due = False
        workflow.set_current_details(details(self.state))

    async def publish_changes(self) -> None:
        """Upsert the search attributes whenever phase or cost has changed, until cancelled."""
        while True:
            await workflow.wait_condition(self._is_outdated)
            self.publish()

    def publish(self) -> None:
        """Upsert the search attributes if phase or cost has changed. Only from the workflow's main path."""
        if not self._is_outdated():
            return
        # Another agent than at first is at work: only then, as histories of others have no such change.
        agent = [AGENT_NAME.value_set(self.state.agent)] if self.state.part and self.state.agent else []
        workflow.upsert_search_attributes(
            [RUN_PHASE.value_set(self.state.phase), COST_USD.value_set(self.state.cost_usd), *agent]
        )
        self._published = self.state

    def _is_outdated(self) -> bool:
        last, now = self._published, self.state
        told = last and (last.phase, last.cost_usd, last.part)
        return not self._immediate and last is not None and told != (now.phase, now.cost_usd, now.part)

    def update_waiting(self) -> None:
        """Switch between the phases running and waiting (for a person). An upsert costs: only on a change."""
        phase: Phase = "waiting" if self.state.approvals or self.state.awaits_message else "running"
        if not self.in_phase("running", "waiting") or self.in_phase(phase):
            return
        # Older runs have no phase `waiting`; the branch may go with the last of them.
        if not self._immediate or workflow.patched("phase-waiting"):
            self.update(phase=phase)

    def in_phase(self, *phases: Phase) -> bool:
        """Whether the run is in one of these phases."""
        return self.state.phase in phases


def _is_introduced(agent: str, memo: dict[str, Any]) -> bool:
    """Whether whoever started the run has set all of it. Older clients set the memo alone."""
    attributes = workflow.info().typed_search_attributes
    is_told = all(attributes.get(pair.key) == pair.value for pair in queued(agent))
    return is_told and all(workflow.memo_value(name, None) == memo[name] for name in memo)


def details(state: RunState) -> str:
    """Markdown for the workflow's current details."""
    rows = [
        ("Agent", state.agent),
        ("Phase", f"closed ({state.closed_as})" if state.closed_as else state.phase),
        ("Workspace", state.workspace),
        ("Waits for its workspace", ", ".join(each.name for each in state.workspace_held_by) or None),
        ("Host", state.host),
        ("Process", _process(state.handle) if state.handle else None),
        ("Session", state.session_id),
        ("Attempt", str(state.attempt) if state.attempt else None),
        ("Cost", f"${state.cost_usd:.4f}, {_counted(state.turns, 'turn', 'turns')}" if state.turns else None),
        ("Tokens", f"{state.usage.input_tokens} in, {state.usage.output_tokens} out" if state.turns else None),
        ("Last", one_line(state.last_event.shown) if state.last_event else None),
        ("Waiting for", "a message, as its turn was interrupted" if state.awaits_message else None),
        *(("Waiting for approval", _approval(each)) for each in state.approvals),
        ("Messages", ", ".join(f"{each.kind} {each.state}" for each in state.messages[-5:]) or None),
        ("Stopped", _stop(state)),
        ("Error", state.error),
    ]
    return markdown_list(rows)


def _process(handle: Handle) -> str:
    return f"pid {handle.pid}" if handle.place is None else f"pid {handle.pid} on {one_line(handle.place)}"


def _counted(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}"


def _stop(state: RunState) -> str | None:
    report = state.stop_report
    if report is None:
        return None
    how = (
        f", {report.how}, {_counted(report.processes, 'process', 'processes')}, {report.took_ms} ms"
        if report.how
        else ""
    )
    why = f": {report.reason}" if report.reason else ""
    return f"{report.outcome} while {report.phase}{how}{why}"


def _approval(approval: Approval) -> str:
    until = f"denied at {approval.deadline:%Y-%m-%d %H:%M:%S} UTC" if approval.deadline else "waits for ever"
    about = one_line(main_argument(approval.input))
    return f"{approval.tool} ({approval.id}), {until}" + (f": {about}" if about else "")
