"""A loop's memory at hand: changed field by field, shown to the query, the Web UI and searches."""

from datetime import datetime
from typing import Any

from temporalio import workflow

from steersman.contracts.loop import LoopRequest
from steersman.contracts.loop_messages import LoopReceipt, Resume
from steersman.contracts.loop_state import CLOSED, LoopState, LoopStatus
from workflows.agent_loop.activities import loop_key
from workflows.agent_loop.archive import Archive
from workflows.agent_loop.carried_state import Hold, Memory
from workflows.agent_loop.clock import Clock
from workflows.agent_loop.prompts import current_phase
from workflows.agent_loop.visibility import details
from workflows.agent_run.visibility import AGENT_NAME, COST_USD, RUN_PHASE

SHOWN_CHECKPOINTS = 20
MAX_CARRIED = 1_800_000
"""Bytes that a loop takes along; Temporal takes 2 MiB."""
STATUS_OF: dict[str, LoopStatus] = {
    "paused": "paused",
    "decision": "waiting_for_decision",
    "rate_limit": "waiting_rate_limit",
    "sleep": "running",
}


class Book:
    """One loop's memory, checkpoints, clock and status."""

    def __init__(self, request: LoopRequest | None, memory: Memory, now: datetime) -> None:
        self.memory = memory
        self.archive = Archive(memory.chunks, memory.checkpoints)
        self.clock = Clock(memory.totals.active_s, now)
        self.status: LoopStatus = "running"
        self.run: str | None = None
        self.reason: str | None = None
        self._request = request
        self._searched: tuple[str, float] | None = None
        if memory.hold is not None:
            self.hold(memory.hold)

    @property
    def closed(self) -> bool:
        """The loop has ended."""
        return self.status in CLOSED

    # Changing.

    def set(self, **changes: Any) -> None:
        """Change fields of the memory."""
        self.memory = self.memory.model_copy(update=changes)

    def resume(self, wish: Resume) -> None:
        """What the wish to go on says of how."""
        memory = self.memory
        self.set(mode=wish.mode or memory.mode, afresh=memory.afresh or wish.session == "fresh")

    def hold(self, hold: Hold | None) -> None:
        """Why the next iteration does not begin yet; None: it may."""
        self.set(hold=hold)
        if hold is not None and not hold.timed:
            self.clock.rest(workflow.now())
        else:
            self.clock.work(workflow.now())
        self.show(STATUS_OF[hold.kind] if hold else "running")

    def show(self, status: LoopStatus, run: str | None = None) -> None:
        """What the loop is doing now, and which run does it."""
        self.status, self.run = status, run
        self.publish()

    def publish(self) -> None:
        """To the Web UI and to searches, where something changed."""
        cost = self.memory.totals.cost_usd
        if self._request is not None and self._searched != (self.status, cost):
            self._searched = (self.status, cost)
            workflow.upsert_search_attributes([RUN_PHASE.value_set(self.status), COST_USD.value_set(cost)])
        workflow.set_current_details(details(self.state()))

    def introduce(self) -> None:
        """The loop's first words: memo and search attributes."""
        assert self._request is not None
        run = self._request.run
        workflow.upsert_memo({"agent": run.agent, "workspace": run.workspace.path, "labels": run.labels})
        workflow.upsert_search_attributes([AGENT_NAME.value_set(run.agent)])
        self.publish()

    def active_s(self) -> float:
        """Seconds of work so far."""
        return self.clock.active_s(workflow.now())

    def resume_clock(self, active_s: float) -> None:
        """Count on from what was used up before."""
        self.clock = Clock(active_s, workflow.now())

    # Taking along.

    def carried(self) -> Memory:
        """The memory as the next execution is to have it."""
        totals = self.memory.totals.model_copy(update={"active_s": self.active_s()})
        return self.memory.model_copy(
            update={"chunks": self.archive.chunks, "checkpoints": self.archive.recent, "totals": totals}
        )

    def excess(self) -> tuple[int, ...]:
        """Numbers of the oldest checkpoints, where there is more than can be taken along."""
        fits = len(self.carried().model_dump_json().encode()) <= MAX_CARRIED
        return () if fits else self.archive.oldest()

    # Showing.

    def receipt(self, note: str = "", **more: Any) -> LoopReceipt:
        """What whoever asked for something is told, with the status as it is now."""
        memory = self.memory
        return LoopReceipt(
            status=self.status,
            iteration=memory.iteration,
            note=note or ("the loop has ended" if self.closed else ""),
            wakes_at=memory.hold.until if memory.hold else None,
            **more,
        )

    def state(self) -> LoopState:
        """What the query answers."""
        m, request = self.memory, self._request
        if request is None:
            return LoopState(status=self.status, last_error=m.last_error)
        return LoopState(
            status=self.status,
            agent=request.run.agent,
            workspace=request.run.workspace.path,
            host=m.host or None,
            labels=request.run.labels,
            mode=m.mode,
            batch_size=request.batch_size,
            limits=m.limits,
            iteration=m.iteration,
            run=self.run,
            session_id=m.session_id,
            plan=m.plan_version.model_copy(update={"prompt": m.template}),
            plan_versions=m.plans[-1].number,
            phase=current_phase(m),
            phases=m.phases,
            items=m.items,
            feedback=m.feedback,
            feedback_consumed=m.consumed,
            totals=m.totals.model_copy(update={"active_s": round(self.active_s(), 3)}),
            usage=m.usage,
            cost_usd=m.cost_usd,
            checkpoints=self.archive.recent[-SHOWN_CHECKPOINTS:],
            checkpoints_total=len(self.archive),
            verification=m.verification,
            no_progress=m.no_progress,
            failures=m.failures,
            last_error=m.last_error,
            waits_for=m.hold.reason or None if m.hold else None,
            wakes_at=m.hold.until if m.hold else None,
            stop_reason=m.stop_reason,
            reason=self.reason,
            started_at=m.started_at,
            execution=loop_key().execution,
        )
