"""Threads: one conversation with an agent, run after run, as SDKs of agents know them.

    thread = steersman.thread(agent="claude", workspace="/src/app")
    result = await thread.run("Find out why the tests fail")
    async for event in thread.run_streamed("Mend it"):
        print(event.type)

A thread is a Temporal workflow id, and each of its runs an execution of it. So its state is the server's, any client
goes on with it by its id (`resume_thread`), and one run of it is open at a time, whoever starts it. It is there from
its first run on, and as long as the server keeps its newest run: a closed one for the namespace's retention.

`thread.id` is the id of its newest run: `steer`, `decide`, `state`, `attach`, `diff` and the rest take it. Any other
run can be gone on with as a thread, too. What a run comes to is decided by its workflow, nothing here.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, Unpack, get_args

from steersman._client.owned_run import OwnedRun
from steersman._client.run_end import run_result, stop_run
from steersman._client.run_events import run_event_pages
from steersman._client.run_start import checked
from steersman._client.thread_calls import Continuation, NewestRun, ThreadCalls, ThreadRun
from steersman._client.thread_template import (
    ThreadOptions,
    WorkspaceOption,
    as_json,
    check_options,
    thread_template,
    workspace_json,
)
from steersman._client.workflow_outcome import terminal_event
from steersman.abort import AbortSignal, Signal
from steersman.contracts.agents import at_most
from steersman.contracts.attachments import Attachment
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.events import AgentEvent, is_terminal
from steersman.contracts.model import JsonObject
from steersman.contracts.request import RunRequest
from steersman.contracts.run import RunResult
from steersman.errors import (
    AlreadyRunning,
    CannotFork,
    NoWorker,
    RunInterrupted,
    RunNotFound,
    SteersmanError,
    ThreadBusy,
)
from steersman.ids import check_run_id, new_thread_id
from steersman.reports import StopResult

__all__ = ["AbortSignal", "OnRunning", "Signal", "Thread", "ThreadOptions", "ThreadRun", "WorkspaceOption"]

OnRunning = Literal["reject", "interrupt"]
"""What becomes of the thread's open run where another one is to begin: it stays, and the other is refused, or it is
interrupted.
"""
NEXT_RUN: Final = "the next run of the thread interrupted it"
"""The reason of a run that `on_running` "interrupt" cancels."""


class Thread:
    """One conversation, of `Steersman.thread` or `resume_thread`. Safe to use from many tasks of one event loop."""

    def __init__(self, calls: ThreadCalls, id: str, template: RunRequest, beginning: Continuation | None) -> None:
        """`template`: what all runs have. `beginning`: where a thread that has had no run begins; None: it has had."""
        self._calls = calls
        self._id = id
        self._template = template
        self._beginning = beginning
        self._starting: set[OwnedRun] = set()
        """Runs that were asked for here and that the server may not have yet."""

    @property
    def id(self) -> str:
        """With which any client goes on with the thread, and the id of its newest run."""
        return self._id

    @property
    def template(self) -> RunRequest:
        """What all its runs have; prompt, session and output schema are each run's own."""
        return self._template

    def with_options(self, **fields: Unpack[ThreadOptions]) -> "Thread":
        """The same thread, whose next runs have these fields instead. Raises InvalidRequest."""
        check_options(fields)
        return Thread(self._calls, self._id, thread_template({**as_json(self._template), **fields}), self._beginning)

    async def run(
        self,
        prompt: str,
        *,
        signal: Signal | None = None,
        attachments: Sequence[Attachment] = (),
        on_running: OnRunning = "reject",
        output_schema: JsonObject | None = None,
    ) -> RunResult:
        """Run the agent on the prompt, in the thread's session, and wait for the result.

        Whoever is cancelled while they wait stops the run, and is kept for that for at most 10 s. A client that dies
        stops nothing: the run goes on, and `interrupt` of any client stops it.

        Args:
            prompt: what to do.
            signal: stops the run once it is set; where it is set already, no run is started.
            attachments: files that go with the prompt, of `steersman.attachment`.
            on_running: where the thread has an open run, whoever started it: "reject" refuses this one, "interrupt"
                cancels that one, waits for its end, and begins. One that was cancelled already is waited for, by
                "reject" for 30 s.
            output_schema: as of a RunRequest; of this run alone.

        Raises:
            RunInterrupted: the run was cancelled, by `interrupt`, the signal or anybody else; or not started because
                the signal was set. `.reason`. The session is kept.
            ThreadBusy: the thread has an open run: `.run`, `.execution`.
            InvalidRequest: the request is wrong; the message names the field.
            NoWorker: the thread has had a run, and no worker is there to say where it ended.
            RunNotFound: the server has forgotten the thread: its namespace's retention is over.
            RunTerminated, RunError: as `Steersman.result`.
            ServerUnreachable: the run may or may not be at work.
        """
        request = self._request(prompt, attachments, output_schema, on_running)
        async with OwnedRun(self._calls.runs, self._id, signal) as owned:
            execution = await self._start(owned, request, on_running)
            return await run_result(self._calls.runs, self._id, execution)

    async def run_streamed(
        self,
        prompt: str,
        *,
        signal: Signal | None = None,
        attachments: Sequence[Attachment] = (),
        on_running: OnRunning = "reject",
        output_schema: JsonObject | None = None,
    ) -> AsyncGenerator[AgentEvent, None]:
        """The same, event by event; the last one, and no other, is terminal: done, cancelled or failed.

        It comes once the run has closed, so that another can begin at once. How the run ended is told by that event,
        not raised; where the signal was set before, the only event is `cancelled`. Whoever leaves before the end stops
        the run: `contextlib.aclosing` does so at once, where a bare `break` leaves it to Python. To look on, `attach`.

        Raises as `run`, before the first event; HostUnreachable: the events cannot be had, and the run may be at work.
        """
        request = self._request(prompt, attachments, output_schema, on_running)
        async with OwnedRun(self._calls.runs, self._id, signal) as owned:
            try:
                execution = await self._start(owned, request, on_running)
            except RunInterrupted as unwanted:
                yield terminal_event(unwanted, datetime.now(UTC))
                return
            async with aclosing(self._events(owned, execution)) as events:
                async for event in events:
                    yield event

    async def start(
        self,
        prompt: str,
        *,
        attachments: Sequence[Attachment] = (),
        on_running: OnRunning = "reject",
        output_schema: JsonObject | None = None,
    ) -> str:
        """Start the thread's next run and return its execution, Temporal's run id: it goes on, whoever leaves.

        `attach` follows it, `interrupt` stops it. Whoever is cancelled before this returns stops it, too.
        Takes and raises what `run` does before a run begins.
        """
        request = self._request(prompt, attachments, output_schema, on_running)
        async with OwnedRun(self._calls.runs, self._id) as owned:
            return await self._start(owned, request, on_running)

    async def runs(self) -> list[ThreadRun]:
        """The thread's runs that the server still has, the oldest first; none where it has had none.

        Raises RunNotFound as `run`; ServerUnreachable, ServerRefused.
        """
        newest = await self._newest()
        return [] if newest is None else await self._calls.all_runs(self._id)

    async def attach(self, execution: str | None = None, *, after: int = 0) -> AsyncGenerator[AgentEvent, None]:
        """The events of one run with a number greater than `after`, by default of the newest, as `Steersman.attach`.

        While there is no worker, an open run is waited for. Leaving stops nothing.
        """
        async with aclosing(self._logged(execution, after=after, is_waited_for=False)) as events:
            async for event in events:
                yield event

    async def interrupt(self, reason: str = "") -> StopResult:
        """Cancel the thread's open run, whoever started it, wait until it has closed, and return what the stop found.

        A run that was asked for by this object and is not there yet is not started, or stopped at once. The session is
        kept, and the thread can run again. Where there is nothing to interrupt, `.outcome` says so. The second
        interrupt of a run hurries the first, and the reason is kept, as of `Steersman.stop`, which says what it raises.
        """
        starting = set(self._starting)
        for each in starting:
            each.abort(reason)
        found = [await stop_run(self._calls.runs, self._id, reason=reason, hurries=not starting)]
        # Those, too, that were asked for while the server was asked.
        found += [await each.stopped(reason) for each in starting | self._starting]
        return next((each for each in found if each.outcome in ("stopped", "unverified")), found[0])

    async def fork(self) -> "Thread":
        """A new thread that begins with a copy of this one's session, as it is when the new thread first runs.

        Raises:
            CannotFork: the agent cannot go on with a copy of a session, or there is no session yet.
            NoWorker, RunNotFound, ServerUnreachable, ServerRefused.
        """
        agent = self._template.agent
        run = await self._newest()
        if run is None:
            at = self._beginning or Continuation()
        else:
            at = await self._calls.continuation(self._id, run, agent)
        can = at.capabilities or at_most(agent)
        if not (can.fork and at_most(agent).fork):
            raise CannotFork(f'agent "{agent}" cannot go on with a copy of a session')
        if at.session is None:
            raise CannotFork(f"thread {self._id} has no session yet: run it first")
        return Thread(self._calls, new_thread_id(), self._template, replace(at, fork=True))

    async def _start(self, owned: OwnedRun, request: RunRequest, on_running: OnRunning) -> str:
        """Start the next run and return its execution. Raises RunInterrupted where it is unwanted by then."""
        self._starting.add(owned)
        try:
            while True:
                beginning, is_first = await owned.unless_aborted(self._next(on_running))
                start = self._calls.start(self._id, beginning.applied(request), is_first=is_first)
                try:
                    execution = await owned.start(start)
                except AlreadyRunning:
                    continue  # another was first, and may have come to its end: look again
                self._beginning = None
                return execution
        finally:
            self._starting.discard(owned)

    async def _next(self, on_running: OnRunning) -> tuple[Continuation, bool]:
        """Where the next run goes on, once it may begin, and whether it is the first. Raises ThreadBusy."""
        run = await self._newest()
        if run is not None and run.is_ending:
            await self._calls.until_closed(self._id, run)
            run = await self._newest()
        while run is not None and run.is_open:
            if on_running == "reject":
                raise ThreadBusy(self._id, run.execution)
            await stop_run(self._calls.runs, self._id, run.execution, reason=NEXT_RUN, hurries=False)
            run = await self._newest()
        if run is None:
            return self._beginning or Continuation(), True
        return await self._calls.continuation(self._id, run, self._template.agent), False

    async def _newest(self) -> NewestRun | None:
        """The newest run; None where there has been none. Raises RunNotFound where there was one."""
        run = await self._calls.newest(self._id)
        if run is None and self._beginning is None:
            raise RunNotFound(f"no thread {self._id}: the server has forgotten its runs")
        return run

    async def _events(self, owned: OwnedRun, execution: str) -> AsyncGenerator[AgentEvent, None]:
        async with aclosing(self._logged(execution)) as events:
            async for event in events:
                if is_terminal(event):
                    with suppress(SteersmanError):
                        await self._calls.runs.outcome(self._id, execution)
                    owned.has_ended = True
                yield event

    async def _logged(
        self, execution: str | None, *, after: int = 0, is_waited_for: bool = True
    ) -> AsyncGenerator[AgentEvent, None]:
        """The events of the run's log, and an end where that was lost. While no worker is there, the run is queued, and
        that is waited for; that of a closed one only where `is_waited_for`.
        """
        calls, last, has_ended = self._calls, after, False
        while True:
            try:
                pages = run_event_pages(calls.client, calls.runs, self._id, execution, after=after)
                async with aclosing(pages):
                    async for events in pages:
                        for event in events:
                            last, has_ended = event.seq, is_terminal(event)
                            yield event
                break
            except NoWorker:  # only ever before the first event
                if not await calls.until_moved(self._id, execution) and not is_waited_for:
                    raise
        if not has_ended and (last > after or after == 0):  # after its end there is nothing, too
            end = await calls.runs.unlogged_end(self._id, execution)
            yield end.model_copy(update={"seq": last + 1})

    def _request(
        self,
        prompt: str,
        attachments: Sequence[Attachment],
        output_schema: JsonObject | None,
        on_running: OnRunning,
    ) -> RunRequest:
        if on_running not in get_args(OnRunning):
            raise InvalidRequest(f"on_running: must be one of {', '.join(get_args(OnRunning))}")
        own = {"prompt": prompt, "attachments": attachments, "output_schema": output_schema}
        return checked({**as_json(self._template), **own})


def new_thread(
    calls: ThreadCalls,
    thread_id: str | None,
    beginning: Continuation,
    workspace: WorkspaceOption,
    fields: Mapping[str, Any],
) -> Thread:
    """See Steersman.thread. Raises InvalidRequest."""
    check_options(fields)
    id = new_thread_id() if thread_id is None else check_run_id(thread_id)
    template = thread_template({**fields, "workspace": workspace_json(workspace)})
    checked(as_json(beginning.applied(template)))
    return Thread(calls, id, template, beginning)


async def known_thread(
    calls: ThreadCalls, thread_id: str, workspace: WorkspaceOption | None, fields: Mapping[str, Any]
) -> Thread:
    """See Steersman.resume_thread. Raises what that does."""
    check_options(fields)
    run = await calls.newest(check_run_id(thread_id))
    if run is None:
        raise RunNotFound(f"no thread {thread_id}")
    asked = as_json(await calls.request(thread_id, run))
    place = {} if workspace is None else {"workspace": workspace_json(workspace)}
    return Thread(calls, thread_id, thread_template({**asked, **fields, **place}), None)
