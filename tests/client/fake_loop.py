"""A fake loop: a workflow with AgentLoop's wire names, whose state and end the test sets.

Its runs are the fake host's. For tests of the client and the command line alone; the real loop has tests of its own.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError

from steersman.client import Steersman
from steersman.contracts import names
from steersman.contracts.loop import LoopRequest, parse_loop_request
from steersman.contracts.loop_activities import DiffInput, DropInput, Dropped, ForkPoint, Kept, KeptInput
from steersman.contracts.loop_messages import CheckpointPage, CheckpointQuery, CleanupReceipt, LoopReceipt
from steersman.contracts.loop_state import Checkpoint, LoopResult, LoopState, PlanVersion
from steersman.contracts.workspace import Diff
from tests.client.fake_host import FakeHost, now

SET_STATE, END, CALLS = "set_state", "end", "calls"
CLOSES_S = 30.0
"""A workflow task that the server loses under load comes again after 10 s."""


@workflow.defn(name=names.LOOP_WORKFLOW, sandboxed=False)
class FakeLoop:
    """`set_state` takes fields of the state; "refuse", the refusal of updates; "again", to continue as new; "stuck": a
    rollback, a revision, a cleanup, and the end after a cancel, wait until it is false.
    """

    @workflow.init
    def __init__(self, request: dict[str, Any], carried: dict[str, Any] | None = None) -> None:
        self._calls: list[tuple[str, Any]] = []
        self._refuse: str | None = None
        self._again = False
        self._result: dict[str, Any] | None = None
        self._state = carried or _begun(parse_loop_request(request)).model_dump(mode="json")

    @workflow.run
    async def run(self, request: dict[str, Any], carried: dict[str, Any] | None = None) -> LoopResult:
        try:
            await workflow.wait_condition(lambda: self._result is not None or self._again)
        except asyncio.CancelledError:
            await workflow.wait_condition(lambda: not self._state.get("stuck"))
            self._state |= {"status": "cancelled", "run": None}
            raise CancelledError("the loop was cancelled") from None
        await workflow.wait_condition(workflow.all_handlers_finished)
        if self._again:
            workflow.continue_as_new(args=[request, self._state])
        assert self._result is not None
        result = LoopResult.model_validate(
            {"started_at": workflow.now(), "ended_at": workflow.now(), "iterations": self._state["iteration"]}
            | self._result
        )
        self._state |= {"status": result.status, "stop_reason": result.stop_reason, "run": None}
        if result.status == "failed":
            error = "InvalidRequest" if self._result.get("invalid") else "LoopFailed"
            raise ApplicationError(result.error or "", result, type=error, non_retryable=True)
        return result

    @workflow.signal(name=SET_STATE)
    def set_state(self, fields: dict[str, Any]) -> None:
        self._refuse = fields.pop("refuse", None)
        self._again = fields.pop("again", False)
        self._state |= fields

    @workflow.signal(name=END)
    def end(self, result: dict[str, Any]) -> None:
        self._result = result

    @workflow.query(name=CALLS)
    def calls(self) -> list[tuple[str, Any]]:
        return self._calls

    @workflow.query(name=names.STATE_QUERY)
    def state(self) -> LoopState:
        return LoopState.model_validate(self._state)

    @workflow.query(name=names.CHECKPOINTS)
    def checkpoints(self, asked: CheckpointQuery) -> CheckpointPage:
        """Two a page, so that readers need several pages. "archive": more than the state has."""
        made = [Checkpoint.model_validate(each) for each in self._state.get("archive", ())]
        found = [each for each in (made or self.state().checkpoints) if each.number > asked.after]
        return CheckpointPage(checkpoints=tuple(found[:2]), more=len(found) > 2)

    @workflow.query(name=names.FORK_POINT)
    def fork_point(self, number: int) -> ForkPoint | None:
        """There is a checkpoint of each number up to 50."""
        state = self.state()
        if number > 50 or state.plan is None:
            return None
        checkpoint = Checkpoint(number=number, kind="iteration", time=workflow.now(), iteration=number)
        return ForkPoint(
            checkpoint=checkpoint,
            plan=state.plan,
            workspace=state.workspace or "",
            host=state.host or "",
            open=True,
            limits=state.limits,
        )

    def _take(self, name: str, said: Any, note: str = "", *, refuse: str | None = None, **fields: Any) -> LoopReceipt:
        self._calls.append((name, said))
        if reason := refuse or self._refuse:
            raise ApplicationError(reason, type="Refused", non_retryable=True)
        return LoopReceipt.model_validate(
            {"status": self._state["status"], "iteration": self._state["iteration"], "note": note} | fields
        )

    @workflow.update(name=names.PAUSE)
    async def pause(self, said: Any) -> LoopReceipt:
        receipt = self._take(names.PAUSE, said)
        if said["now"] or self._state["run"] is None:
            self._state |= {"status": "paused", "waits_for": said["reason"] or "a person paused it", "run": None}
        return receipt.model_copy(update={"status": self._state["status"]})

    @workflow.update(name=names.RESUME)
    async def resume(self, said: Any) -> LoopReceipt:
        held = self._state["status"] in ("paused", "waiting_for_decision")
        receipt = self._take(names.RESUME, said, refuse=None if held else "the loop is not paused")
        self._state |= {"status": "running", "waits_for": None, "mode": said["mode"] or self._state["mode"]}
        return receipt.model_copy(update={"status": "running"})

    @workflow.update(name=names.FEEDBACK)
    async def feedback(self, said: Any) -> LoopReceipt:
        receipt = self._take(names.FEEDBACK, said, "for the next iteration")
        id = said["id"] or f"feedback-{len(self._state['feedback']) + 1}"
        note = {"id": id, "text": said["text"], "given_at": workflow.now().isoformat()}
        self._state["feedback"] = [*self._state["feedback"], note]
        return receipt.model_copy(update={"id": id})

    @workflow.update(name=names.REMOVE_FEEDBACK)
    async def remove_feedback(self, said: Any) -> LoopReceipt:
        known = said["id"] in [each["id"] for each in self._state["feedback"]]
        refuse = None if known else f"there is no feedback {said['id']}"
        receipt = self._take(names.REMOVE_FEEDBACK, said, "it is removed", refuse=refuse, id=said["id"])
        self._state["feedback"] = [each for each in self._state["feedback"] if each["id"] != said["id"]]
        return receipt

    @workflow.update(name=names.REVISE)
    async def revise(self, said: Any) -> LoopReceipt:
        receipt = self._take(names.REVISE, said, "for the next iteration", plan_version=2)
        await workflow.wait_condition(lambda: not self._state.get("stuck"))
        return receipt

    @workflow.update(name=names.RESTART)
    async def restart(self, said: Any) -> LoopReceipt:
        receipt = self._take(names.RESTART, said, "starts over from the beginning", checkpoint=0, rescue=9)
        self._state |= {"status": "running", "iteration": 0}
        return receipt.model_copy(update={"status": "running"})

    @workflow.update(name=names.SKIP_WAIT)
    async def skip_wait(self) -> LoopReceipt:
        return self._take(names.SKIP_WAIT, None)

    @workflow.update(name=names.SET_LIMITS)
    async def set_limits(self, said: Any) -> LoopReceipt:
        return self._take(names.SET_LIMITS, said)

    @workflow.update(name=names.EXIT)
    async def exit(self, said: Any) -> LoopReceipt:
        receipt = self._take(names.EXIT, said, "it exits")
        self._result = {"status": "exited", "stop_reason": "exit"}
        return receipt

    @workflow.update(name=names.ROLLBACK)
    async def rollback(self, said: Any) -> LoopReceipt:
        receipt = self._take(names.ROLLBACK, said, checkpoint=said["checkpoint"], rescue=9)
        await workflow.wait_condition(lambda: not self._state.get("stuck"))
        self._state |= {"status": "paused"}
        return receipt.model_copy(update={"status": "paused"})

    @workflow.update(name=names.CHECKPOINTS)
    async def clean(self, said: Any) -> CleanupReceipt:
        self._take(names.CHECKPOINTS, said)
        await workflow.wait_condition(lambda: not self._state.get("stuck"))
        found = self._state["checkpoints"]
        self._state["checkpoints"] = [] if said["all"] else found[1:]
        return CleanupReceipt(deleted=(0,), kept=len(self._state["checkpoints"]))


def _begun(asked: LoopRequest) -> LoopState:
    return LoopState(
        agent=asked.run.agent,
        workspace=asked.run.workspace.path,
        host="fake-host",
        labels=asked.run.labels,
        mode=asked.mode,
        limits=asked.limits,
        plan=PlanVersion(
            number=1,
            hash="h1",
            since=workflow.now(),
            path=None if isinstance(asked.plan, str) else asked.plan.path,
            text=asked.plan if isinstance(asked.plan, str) else None,
        ),
        plan_versions=1,
        started_at=workflow.now(),
        execution=workflow.info().first_execution_run_id,
    )


class FakeLoopHost(FakeHost):
    """The fake host, with fake loops."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.workflows = [*self.workflows, FakeLoop]
        self.dropped: list[DropInput] = []
        self.diffs: list[DiffInput] = []
        self.kept: tuple[int, ...] = (0, 1, 2, 3)
        """Numbers of the checkpoints whose files are there."""

    def others(self) -> list[Callable[..., Any]]:
        return [self.drop_checkpoints, self.diff_checkpoints, self.list_checkpoints]

    @activity.defn(name=names.DROP_CHECKPOINTS)
    async def drop_checkpoints(self, asked: DropInput) -> Dropped:
        self.dropped.append(asked)
        self.kept = tuple(each for each in self.kept if each not in asked.numbers)
        return Dropped(numbers=asked.numbers)

    @activity.defn(name=names.LIST_CHECKPOINTS)
    async def list_checkpoints(self, asked: KeptInput) -> Kept:
        return Kept(numbers=self.kept)

    @activity.defn(name=names.DIFF_CHECKPOINTS)
    async def diff_checkpoints(self, asked: DiffInput) -> Diff:
        self.diffs.append(asked)
        return Diff(stat=" a | 2 +-", patch="--- a\n+++ b\n-old\n+new \x1b[2J\n", truncated=True)

    # What the test does to a loop.

    async def set_state(self, loop: str, **fields: Any) -> None:
        """Set fields of the loop's state."""
        await self.client.get_workflow_handle(loop).signal(SET_STATE, fields)

    async def begin_run(self, loop: str, number: int = 1, verify: str = "", **state: Any) -> str:
        """Begin an iteration; returns the id of its run."""
        run = f"{loop}-{number}{verify}"
        asked = {"agent": "claude", "prompt": "go on", "workspace": {"path": "/w"}}
        await Steersman(self.client).start(asked, run_id=run)
        await self.set_state(loop, **{"status": "running", "iteration": number, "run": run} | state)
        return run

    async def end_loop(self, loop: str, **result: Any) -> None:
        """End the loop with these fields of its result, and wait until it has closed."""
        handle = self.client.get_workflow_handle(loop)
        await handle.signal(END, {"status": "completed"} | result)
        with suppress(WorkflowFailureError):
            await asyncio.wait_for(handle.result(), CLOSES_S)

    async def calls(self, loop: str) -> list[tuple[str, Any]]:
        """The updates that the loop has taken: names and inputs."""
        said = await self.client.get_workflow_handle(loop).query(CALLS, result_type=list)
        return [(name, _given(fields)) for name, fields in said]


def _given(said: Any) -> Any:
    if isinstance(said, dict):
        return {name: value for name, value in said.items() if value not in (None, [], False)}
    return said


def checkpoint(number: int, **fields: Any) -> dict[str, Any]:
    """A checkpoint as JSON."""
    time: datetime = fields.pop("time", now())
    made = Checkpoint.model_validate(
        {"number": number, "kind": "iteration", "time": time, "iteration": number} | fields
    )
    return made.model_dump(mode="json")
