"""Steersman's Python client: start runs, follow them, talk to them, stop them.

    steersman = await Steersman.connect()
    run = await steersman.start({"agent": "claude", "prompt": "Fix the tests", "workspace": {"path": "/src/app"}})
    async for event in steersman.attach(run):
        print(event.type)
    result = await steersman.result(run)

Times are aware UTC datetimes, durations seconds unless the name ends in `_ms`, money US dollars. The errors are drawn
in steersman.errors. What a run is and how it is led is the workflow's business: nothing is decided here.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.converter import PayloadCodec

from steersman import visibility
from steersman.connection import connect
from steersman.contracts import names
from steersman.contracts.activities import PruneInput, RunKey, Swept
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.events import AgentEvent
from steersman.contracts.messages import Decision, DecisionReceipt, Message, MessageReceipt, parse_message
from steersman.contracts.request import RunRequest, oversized, parse_request
from steersman.contracts.run import RunResult, RunState
from steersman.errors import RunCancelled, RunNotFound, RunTerminated, translated
from steersman.following import Place, RunLog
from steersman.hostcalls import call_host
from steersman.ids import check_run_id, new_message_id, new_run_id
from steersman.reports import RunSummary, StopResult
from steersman.runcalls import RunCalls

if TYPE_CHECKING:
    from steersman.loops import Loops


class Steersman:
    """Everything that can be done to runs. Safe to use from many tasks of one event loop."""

    def __init__(self, client: Client) -> None:
        """`client`: connected, with `steersman.codec.data_converter(codec)` (or Temporal's own pydantic converter)."""
        self._client = client
        self._address = client.service_client.config.target_host
        self._runs = RunCalls(client)

    @classmethod
    async def connect(
        cls,
        profile: str | None = None,
        address: str | None = None,
        namespace: str | None = None,
        codec: PayloadCodec | None = None,
    ) -> Self:
        """A client by the Temporal CLI's profiles and variables; the local dev server where there are none.

        `codec`: a temporalio PayloadCodec; default: what STEERSMAN_CODEC names.

        Raises: BadProfile, BadCodec, ServerUnreachable.
        """
        return cls(await connect(profile, address, namespace, codec))

    @cached_property
    def loops(self) -> "Loops":
        """Everything that can be done to loops."""
        from steersman.loops import Loops  # noqa: PLC0415 - a tenth of the start of a program that has runs only

        return Loops(self._client, self.attach)

    @property
    def temporal(self) -> Client:
        """The Temporal client underneath."""
        return self._client

    # Starting, and the end.

    async def start(self, request: RunRequest | dict[str, Any], *, run_id: str | None = None) -> str:
        """Start a run; its id. The request is judged here first: what is wrong, or a literal secret, is never sent.

        Raises:
            InvalidRequest: the request or the id; the message names the field.
            AlreadyRunning: a run with this id is open. (The id of a closed run may be used again.)
            ServerUnreachable: nothing is known to have been started.
        """
        data = request.model_dump(mode="json") if isinstance(request, RunRequest) else request
        checked = parse_request(data)
        if wrong_size := oversized(data, "RunRequest"):
            raise InvalidRequest(wrong_size)
        run_id = check_run_id(run_id) if run_id is not None else new_run_id()
        with translated(of=f"run {run_id}", address=self._address):
            await self._client.start_workflow(
                names.RUN_WORKFLOW,
                checked.model_dump(mode="json", exclude_defaults=True),
                id=run_id,
                task_queue=names.TASK_QUEUE,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                **visibility.introduction(checked),
            )
        return run_id

    async def run(self, request: RunRequest | dict[str, Any], *, run_id: str | None = None) -> RunResult:
        """Start a run and wait for its end. Raises what `start` and `result` raise."""
        return await self.result(await self.start(request, run_id=run_id))

    async def result(self, run_id: str) -> RunResult:
        """Wait for the run's end.

        Raises:
            RunError: the subclass by which it failed; `.result` is a RunResult with status "failed", `.facts` e.g. the
                exit code, signal and last stderr lines of AgentCrashed.
            RunCancelled: with `.reason` and `.stop_report`. RunTerminated, a subclass: Temporal ended it unasked.
            RunNotFound, ServerUnreachable.

        `.code` of either is "interrupted" where a person ended the run.
        """
        closing = await self._runs.closing(run_id)
        if isinstance(closing, RunResult):
            return closing
        if isinstance(closing, RunTerminated):
            closing.stop_report = await self._runs.proof(run_id, closing)
        raise closing

    # Following.

    async def attach(self, run_id: str, *, after: int = 0) -> AsyncGenerator[AgentEvent, None]:
        """The run's events with a number greater than `after`, as they come, also after it has closed.

        None is repeated or left out, workers and the server may restart meanwhile. The last one is exactly one of
        done, cancelled, failed; if `after` is that one's number, nothing comes. Waits while the run is queued, and
        after a terminate until the host has stopped the agent and says so.

        Raises:
            RunNotFound, NoWorker: at the start.
            HostUnreachable: the machine that has the log does not answer (10 s at the start, 60 s in the middle). Where
                the run has closed the message says how.
            ServerUnreachable: for so long that waiting on makes no sense.
        """
        place = await self._runs.place(run_id)
        if place is None:
            if after < 1:
                yield await self._runs.unlogged(run_id, None)
            return
        execution = place.key.execution
        log = RunLog(self._client, place)
        following = log.follow(
            after,
            closing=lambda: self._runs.closing(run_id, execution),
            unlogged=lambda: self._runs.unlogged(run_id, execution),
        )
        async with aclosing(following) as events:
            async for event in events:
                yield event

    async def events(self, run_id: str, after: int = 0, limit: int | None = None) -> list[AgentEvent]:
        """The events there are now with a number greater than `after`, at most `limit`. Does not wait for more.

        Raises: RunNotFound, NoWorker, HostUnreachable, ServerUnreachable.
        """
        state = await self._runs.state(run_id)
        if state.host is None or state.execution is None:
            if after >= 1 or limit == 0 or await self._runs.open_execution(run_id) is not None:
                return []
            return [await self._runs.unlogged(run_id, None)]
        place = Place(RunKey(run=run_id, execution=state.execution), state.host, state.store)
        return await RunLog(self._client, place).recorded(after, limit)

    # Talking.

    async def steer(self, run_id: str, text: str, *, id: str | None = None) -> MessageReceipt:
        """Say something into the running turn. Returns when the agent (or its session) has it; within some 5 s with
        state "queued" where it waits, because no worker is there or the run's activity is paused: `how` says why.

        Saying it again with the same `id` is one message: so repeat a call whose answer was lost, or that waited.

        Raises:
            InvalidRequest: the text or id.
            MessageRefused: this agent cannot be steered, the run is ending, or too much waits; `.reason`.
            RunNotRunning, RunNotFound, ServerUnreachable.
        """
        message = parse_message(Message, {"text": text, "id": id or new_message_id()})
        return await self._runs.say(run_id, names.STEER, message)

    async def interrupt(
        self,
        run_id: str,
        text: str | None = None,
        *,
        id: str | None = None,
        reason: str | None = None,
        end: bool = False,
    ) -> MessageReceipt:
        """End the running turn at once and keep the session; with a text, go on with that. Raises as `steer`.

        `end`, without a text: end the run with the turn. It succeeds, with stop_reason "interrupted"; a further run can
        go on with its session.
        """
        said = {"text": text, "id": id or new_message_id(), "reason": reason, "end": end}
        message = parse_message(Message, said)
        return await self._runs.say(run_id, names.INTERRUPT, message)

    async def decide(
        self,
        run_id: str,
        approval_id: str,
        decision: Literal["allow", "deny"],
        message: str | None = None,
        *,
        remember: bool = False,
    ) -> DecisionReceipt:
        """Answer an approval (`state().approvals`). `message` is told to the agent; `remember`: for this tool, for the
        rest of the run.

        Raises:
            AlreadyDecided: somebody was first, the agent withdrew it, or there is none of that id; `.reason`.
            InvalidRequest, RunNotRunning, RunNotFound, NoWorker, ServerUnreachable.
        """
        said = parse_message(
            Decision, {"id": approval_id, "decision": decision, "message": message, "remember": remember}
        )
        return await self._runs.update(run_id, names.DECIDE, said, DecisionReceipt)

    async def stop(self, run_id: str, *, reason: str = "") -> StopResult:
        """Cancel the run, wait until it has closed, and say what the stop found. A second stop hurries the first: what
        is left then gets SIGTERM at once, and SIGKILL 1.5 s later.

        With a codec the reason is not sent: Temporal keeps it in the clear.

        The outcome "not_found" stands for an unknown id; nothing is raised for it.

        Raises:
            NoWorker: the cancel is recorded, and carried out as soon as a worker is there.
            ServerUnreachable.
        """
        try:
            execution = await self._runs.open_execution(run_id)
        except RunNotFound:
            return StopResult(run=run_id, outcome="not_found")
        if execution is None:
            return StopResult(run=run_id, outcome="already_finished", phase="closed")
        if await self._runs.is_cancelling(run_id, execution):
            await self._runs.signal(run_id, execution, names.HURRY)
        else:
            await self._runs.cancel(run_id, execution, reason)
        closing = await self._runs.while_worked(run_id, self._runs.closing(run_id, execution))
        if isinstance(closing, RunTerminated):
            report = await self._runs.proof(run_id, closing)
        else:
            report = closing.stop_report if isinstance(closing, RunCancelled) else await self._runs.stop_report(run_id)
        if report is not None:
            return StopResult.of(run_id, report)
        lost = isinstance(closing, RunCancelled)
        return StopResult(run=run_id, outcome="unverified" if lost else "already_finished", phase="closed")

    # Looking.

    async def state(self, run_id: str) -> RunState:
        """What the run is doing, or was when it closed.

        Of a terminated run the stop report is its host's; "unverified" where that does not answer within 4 s.

        Raises:
            RunNotFound.
            NoWorker: no worker is there to answer (5 s).
            ServerUnreachable, ServerRefused.
        """
        return await self._runs.state_now(run_id)

    async def list(self, query: str | None = None, *, limit: int = 100) -> list[RunSummary]:
        """Runs, the newest first. `query`: Temporal's list filter, e.g. `AgentName="claude" AND CostUsd > 1`.

        Raises: ServerRefused for a wrong query, ServerUnreachable.
        """
        with translated(address=self._address):
            return await visibility.list_runs(self._client, query, limit)

    async def history(self, run_id: str) -> str:
        """The run's workflow history as JSON, as `steer replay` and Temporal's own tools read it. It has prompts in it.

        Raises: RunNotFound, ServerUnreachable.
        """
        with translated(of=f"run {run_id}", address=self._address):
            return (await self._client.get_workflow_handle(run_id).fetch_history()).to_json()

    async def prune(self, host: str, keep_days: float, *, dry_run: bool = False) -> Swept:
        """Remove the state of runs that closed longer than `keep_days` days ago from a host; an open run's never.

        Raises: HostUnreachable, ServerUnreachable.
        """
        question = PruneInput(keep_days=keep_days, dry_run=dry_run)
        return await call_host(self._client, host, names.PRUNE_HOST, question, Swept, takes_s=600)
