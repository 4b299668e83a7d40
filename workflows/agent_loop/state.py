"""The live state of a loop: what continue-as-new carries, and what belongs to this execution alone."""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from temporalio import workflow

from steersman.contracts.agents import Capabilities, at_most
from steersman.contracts.loop import LoopRequest
from steersman.contracts.loop_messages import LoopReceipt, Resume
from steersman.contracts.loop_state import CLOSED, LoopState, LoopStatus
from steersman.contracts.run import RunResult
from steersman.contracts.workspace_holder import WorkspaceHolder
from workflows.agent_loop.activities import loop_key
from workflows.agent_loop.archive import Archive
from workflows.agent_loop.carried_state import CarriedState, WaitReason
from workflows.agent_loop.outcomes import IterationOutcome
from workflows.agent_loop.prompts import current_phase
from workflows.agent_loop.requests import PendingRequests
from workflows.agent_loop.visibility import details
from workflows.display import AGENT_NAME, COST_USD, RUN_PHASE

SHOWN_CHECKPOINTS = 20
"""Checkpoints in the answer of the query `state`."""
STATUS_OF_WAIT: dict[str, LoopStatus] = {
    "paused": "paused",
    "decision": "waiting_for_decision",
    "rate_limit": "waiting_rate_limit",
    "sleep": "running",
}


class ActiveTime:
    """Counts the seconds in which a loop was active: not paused, not waiting for a person."""

    def __init__(self, active_s: float, now: datetime) -> None:
        self._active_s = active_s
        self._since: datetime | None = now

    def stop(self, now: datetime) -> None:
        """Stop counting."""
        self._active_s = self.seconds(now)
        self._since = None

    def start(self, now: datetime) -> None:
        """Count from now on."""
        if self._since is None:
            self._since = now

    def seconds(self, now: datetime) -> float:
        """Active seconds so far."""
        return self._active_s + ((now - self._since).total_seconds() if self._since else 0.0)


@dataclass
class ActiveChild:
    """The child workflow at work, or about to be."""

    run: str
    status: Literal["running", "verifying"]
    handle: "asyncio.Future[workflow.ChildWorkflowHandle[Any, RunResult]]"
    began: datetime
    end_requested: bool = False
    """The loop has asked the child to end."""


@dataclass
class CurrentIteration:
    """What the checkpoint after the agent's run records."""

    prompt: str = ""
    feedback: tuple[str, ...] = ()
    """Ids of the feedback in the prompt."""
    outcome: IterationOutcome | None = None
    """The outcome, until it is in a checkpoint."""


class LiveState:
    """State of one execution. `request`: None if the input is no valid LoopRequest."""

    def __init__(self, request: LoopRequest | None, carried: CarriedState, now: datetime) -> None:
        self.carried = carried
        self.archive = Archive(carried.chunks, carried.checkpoints)
        self.active_time = ActiveTime(carried.totals.active_s, now)
        self.status: LoopStatus = "running"
        self.run: str | None = None
        """Id of the run at work."""
        self.end_reason: str | None = None
        self.child: ActiveChild | None = None
        self.iteration = CurrentIteration()
        self.workspace_mark = ""
        """HEAD, files and items at the last survey: equal if nothing has changed."""
        self.workspace_held_by: tuple[WorkspaceHolder, ...] = ()
        """Those who had the workspace when the loop came, while it waits for it."""
        self.unfinished_checkpoint: int | None = None
        """Number of the checkpoint whose survey has not answered yet."""
        self._request = request
        self._published: tuple[str, float] | None = None
        if carried.hold is not None:
            self.wait_for(carried.hold)

    @property
    def closed(self) -> bool:
        """Whether the loop has ended."""
        return self.status in CLOSED

    def update(self, **changes: Any) -> None:
        """Change fields of the carried state."""
        self.carried = self.carried.model_copy(update=changes)

    def apply_resume(self, resume: Resume) -> None:
        """Take mode and session from a request to resume."""
        carried = self.carried
        self.update(mode=resume.mode or carried.mode, afresh=carried.afresh or resume.session == "fresh")

    def wait_for(self, reason: WaitReason | None) -> None:
        """Set why the next iteration does not begin yet; None: it may begin."""
        self.update(hold=reason)
        if reason is not None and not reason.timed:
            self.active_time.stop(workflow.now())
        else:
            self.active_time.start(workflow.now())
        self.set_status(STATUS_OF_WAIT[reason.kind] if reason else "running")

    def wait_for_workspace(self, holders: tuple[WorkspaceHolder, ...]) -> None:
        """Set who has the workspace that the loop waits for; none: it has it. The wait does not count as active."""
        self.workspace_held_by = holders
        if holders:
            self.active_time.stop(workflow.now())
        else:
            self.active_time.start(workflow.now())
        self.publish()

    def set_status(self, status: LoopStatus, run: str | None = None) -> None:
        """Set and publish what the loop does now. `run`: id of the run at work."""
        self.status, self.run = status, run
        self.publish()

    def active_s(self) -> float:
        """Active seconds so far."""
        return self.active_time.seconds(workflow.now())

    def continue_active_time(self, active_s: float) -> None:
        """Count on from the active seconds of another loop."""
        self.active_time = ActiveTime(active_s, workflow.now())

    # For the next execution.

    def to_carry(self) -> CarriedState:
        """The carried state with everything that the next execution needs."""
        totals = self.carried.totals.model_copy(update={"active_s": self.active_s()})
        return self.carried.model_copy(
            update={"chunks": self.archive.chunks, "checkpoints": self.archive.recent, "totals": totals}
        )

    # For clients.

    def publish_initial(self) -> None:
        """Set memo and search attributes."""
        assert self._request is not None
        run = self._request.run
        workflow.upsert_memo({"agent": run.agent, "workspace": run.workspace.path, "labels": run.labels})
        workflow.upsert_search_attributes([AGENT_NAME.value_set(run.agent)])
        self.publish()

    def publish(self) -> None:
        """Upsert the search attributes if status or cost has changed, and set the details."""
        cost = self.carried.totals.cost_usd
        if self._request is not None and self._published != (self.status, cost):
            self._published = (self.status, cost)
            workflow.upsert_search_attributes([RUN_PHASE.value_set(self.status), COST_USD.value_set(cost)])
        workflow.set_current_details(details(self.snapshot()))

    def receipt(self, note: str = "", **more: Any) -> LoopReceipt:
        """The answer to an update, with the status as it is now."""
        carried = self.carried
        return LoopReceipt(
            status=self.status,
            iteration=carried.iteration,
            note=note or ("the loop has ended" if self.closed else ""),
            wakes_at=carried.hold.until if carried.hold else None,
            **more,
        )

    def _waits_for(self) -> str | None:
        if self.workspace_held_by:
            return f"its workspace: {', '.join(each.name for each in self.workspace_held_by)} came before"
        return self.carried.hold.reason or None if self.carried.hold else None

    def snapshot(self) -> LoopState:
        """The answer of the query `state`."""
        carried, request = self.carried, self._request
        if request is None:
            return LoopState(status=self.status, last_error=carried.last_error)
        return LoopState(
            status=self.status,
            agent=request.run.agent,
            capabilities=carried.capabilities,
            workspace=request.run.workspace.path,
            host=carried.host or None,
            labels=request.run.labels,
            mode=carried.mode,
            batch_size=request.batch_size,
            limits=carried.limits,
            iteration=carried.iteration,
            run=self.run,
            session_id=carried.session_id,
            plan=carried.plan_version.model_copy(update={"prompt": carried.template}),
            plan_versions=carried.plans[-1].number,
            phase=current_phase(carried),
            phases=carried.phases,
            items=carried.items,
            feedback=carried.feedback,
            feedback_consumed=carried.consumed,
            totals=carried.totals.model_copy(update={"active_s": round(self.active_s(), 3)}),
            usage=carried.usage,
            cost_usd=carried.cost_usd,
            checkpoints=self.archive.recent[-SHOWN_CHECKPOINTS:],
            checkpoints_total=len(self.archive),
            verification=carried.verification,
            no_progress=carried.no_progress,
            failures=carried.failures,
            last_error=carried.last_error,
            waits_for=self._waits_for(),
            workspace_held_by=self.workspace_held_by,
            wakes_at=carried.hold.until if carried.hold else None,
            stop_reason=carried.stop_reason,
            reason=self.end_reason,
            started_at=carried.started_at,
            as_of=workflow.now(),
            execution=loop_key().execution,
        )


@dataclass(frozen=True)
class LoopContext:
    """What the functions of a loop work on."""

    request: LoopRequest
    state: LiveState
    pending: PendingRequests

    def capabilities_of(self, agent: str) -> Capabilities:
        """Those of the agent of a run: of the loop's own agent as the host that was claimed has it."""
        own = self.state.carried.capabilities if agent == self.request.run.agent else None
        return own or at_most(agent)
