"""The runs of a loop: child workflows, one at a time, which a person in a hurry or a cancelled loop ends early."""

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    CancelledError,
    ChildWorkflowError,
    FailureError,
)

from steersman.contracts import names
from steersman.contracts.agents import CAPABILITIES
from steersman.contracts.messages import Message
from steersman.contracts.request import RunRequest
from steersman.contracts.run import MAX_REASON, RunResult
from workflows.agent_loop import activities as commands
from workflows.agent_loop import outcomes
from workflows.agent_loop.outcomes import Closed, Ran
from workflows.agent_loop.requests import Desk
from workflows.agent_loop.state import Book
from workflows.waiting import outcome, within

TURN_PATIENCE = timedelta(seconds=30)
"""How long an interrupted run may take to close by itself before it is cancelled."""

Child = workflow.ChildWorkflowHandle[Any, RunResult]


@dataclass
class _AtWork:
    """The run at work, or about to be."""

    run: str
    status: Literal["running", "verifying"]
    child: "asyncio.Future[Child]"
    hurried: bool = False
    """Its end was asked for."""


class Runner:
    """Starts the runs and waits for them."""

    def __init__(self, book: Book, desk: Desk) -> None:
        self._book, self._desk = book, desk
        self._at_work: _AtWork | None = None

    async def iterate(self, run_id: str, run: RunRequest, summary: str) -> Ran:
        """A run of the agent, to its end."""
        work = self._start(run_id, run, "running", summary)
        ran = await self._understood(work, await self._closed(work, run))
        self._at_work = None
        self._book.show("running")
        return ran

    async def verify(self, run_id: str, run: RunRequest) -> Closed:
        """A run of the verification, to its end."""
        work = self._start(run_id, run, "verifying", "verification")
        closed = await self._closed(work, run)
        self._at_work = None
        self._book.show("running")
        return closed

    async def cut_off(self, reason: str) -> Ran | None:
        """The loop was cancelled: cancel the run at work. What it came to; None where it was none of the agent's."""
        work = self._at_work
        if work is None:
            return None
        try:
            child = await work.child
        except FailureError:
            return None
        work.hurried = True
        child.cancel(reason)
        await workflow.wait_condition(child.done)
        return await self._understood(work, _outcome(child)) if work.status == "running" else None

    def _start(self, run_id: str, run: RunRequest, status: Literal["running", "verifying"], summary: str) -> _AtWork:
        self._book.show(status, run_id)
        starting = asyncio.ensure_future(commands.start_run(run_id, run, f"{summary}: {run.agent}"))
        self._at_work = _AtWork(run_id, status, starting)
        return self._at_work

    async def _closed(self, work: _AtWork, run: RunRequest) -> Closed:
        try:
            # Shielded: a cancel of the loop must find the run, not lose it in the moment of its start.
            child = await asyncio.shield(work.child)
        except FailureError as error:
            return error
        await workflow.wait_condition(lambda: child.done() or self._desk.hurries)
        if not child.done():
            work.hurried = True
            await self._end(child, interrupts=CAPABILITIES[run.agent].interrupt)
        return _outcome(child)

    async def _end(self, child: Child, *, interrupts: bool) -> None:
        if interrupts:
            said = self._desk.pause.reason if self._desk.pause else self._desk.exit
            reason = (said or "")[:MAX_REASON] or None
            try:
                await outcome(child.signal(names.INTERRUPT, Message(end=True, reason=reason)))
                await within(TURN_PATIENCE, child.done)
            except FailureError as error:
                workflow.logger.info("the run could not be interrupted: %s", error.message)
        child.cancel()
        await workflow.wait_condition(child.done)

    async def _understood(self, work: _AtWork, closed: Closed) -> Ran:
        ran = outcomes.ran(work.run, closed)
        if work.hurried and ran.how in ("failed", "stopped_by_hand"):
            # A person's wish, not an error.
            ran = replace(ran, how="interrupted", error=None, error_type=None)
        if not isinstance(closed, ChildWorkflowError | CancelledError) or not outcomes.stopped(closed):
            return ran
        try:
            found = await commands.look_at_run(self._book.memory.host, work.run)
        except ActivityError:
            return ran
        return outcomes.as_far_as_known(found, ran)


def _outcome(child: Child) -> Closed:
    """What a run that has closed came to."""
    if child.cancelled():
        return CancelledError("the run was cancelled")
    error = child.exception()
    return error if error is not None else child.result()
