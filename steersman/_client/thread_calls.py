"""What the server knows of a thread: its newest run, and where the next one goes on.

A thread is a workflow id: its runs are executions of it, one after another, and Temporal lets one be open at a time.
So the newest run is all that there is to know: its request and its state say which session the next one resumes, where.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import WorkflowIDReusePolicy

from steersman import timeouts
from steersman._client import visibility
from steersman._client.backoff import Backoff
from steersman._client.run_calls import RunCalls
from steersman._client.run_start import start_run
from steersman._client.search_attributes import RUN_PHASE
from steersman.contracts import names
from steersman.contracts.agents import Capabilities
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.request import RunRequest, parse_request
from steersman.contracts.run import own_session
from steersman.errors import RunNotFound, SteersmanError, Unreachable, translated

ENDING: Final = frozenset({"finalizing", "closed"})
"""Phases of a run whose last event may be told already: it closes some ms later."""
ENDING_S: Final = 30.0
"""A run that is ending is waited for this many seconds before it counts as one that is open."""


@dataclass(frozen=True)
class NewestRun:
    """`execution`: Temporal's run id. `is_ending`: an open one that was cancelled, or whose agent has ended."""

    execution: str
    is_open: bool
    is_ending: bool = False


@dataclass(frozen=True)
class ThreadRun:
    """One of a thread's runs. `execution`: Temporal's run id of it, by which `Thread.attach` reads its events."""

    execution: str
    first: str
    """Another one only where the run was reset: the id that it began with."""
    prompt: str
    is_open: bool
    told: str = ""
    """The prompt as its agent was given it: with the texts that were attached."""


@dataclass(frozen=True)
class Continuation:
    """Where a thread's next run begins. `session` None: a new session; `host` None: with whichever host takes it."""

    session: str | None = None
    fork: bool = False
    host: str | None = None
    capabilities: Capabilities | None = None
    """Of the agent of the run before, where it is known."""

    def applied(self, request: RunRequest) -> RunRequest:
        """The request of a run that goes on here. A host that the request names stays."""
        workspace = request.workspace
        if workspace.host is None:
            workspace = workspace.model_copy(update={"host": self.host})
        return request.model_copy(update={"session": self.session, "fork_session": self.fork, "workspace": workspace})


class ThreadCalls:
    """Calls for threads, by their ids."""

    def __init__(self, client: Client, runs: RunCalls) -> None:
        self.client, self.runs = client, runs
        self._address = client.service_client.config.target_host

    async def newest(self, thread: str) -> NewestRun | None:
        """The thread's newest run; None where the server has none.

        Raises: RunNotFound where that is the id of another workflow; InvalidRequest where it is that of a loop's run;
        ServerUnreachable, ServerRefused.
        """
        try:
            with translated(of=f"thread {thread}", address=self._address):
                found = await self.client.get_workflow_handle(thread).describe()
        except RunNotFound:
            return None
        if found.workflow_type != names.RUN_WORKFLOW:
            raise RunNotFound(f"{thread} is no thread, but a workflow of type {found.workflow_type}")
        if found.parent_id is not None:
            raise InvalidRequest(f"thread: run {thread} is that of {found.parent_id}: go on with its session instead")
        is_open = found.status == WorkflowExecutionStatus.RUNNING
        is_told = found.typed_search_attributes.get(RUN_PHASE) in ENDING
        is_cancelled = found.raw_description.workflow_extended_info.cancel_requested
        return NewestRun(found.run_id, is_open, is_open and (is_told or is_cancelled))

    async def until_closed(self, thread: str, run: NewestRun) -> None:
        """Wait for the close of a run that is ending, for at most ENDING_S."""
        with suppress(SteersmanError, TimeoutError):
            async with timeouts.timeout(ENDING_S):
                await self.runs.outcome(thread, run.execution)

    async def until_moved(self, thread: str, execution: str | None) -> bool:
        """Wait until something has happened to a run for which there was no worker, and say whether it is open: without
        a query, of which the server keeps one alone while there is none.
        """
        handle, backoff = self.client.get_workflow_handle(thread, run_id=execution), Backoff()
        before: int | None = None
        while True:
            with suppress(Unreachable), translated(of=f"thread {thread}", address=self._address):
                found = await handle.describe()
                before = found.history_length if before is None else before
                is_open = found.status == WorkflowExecutionStatus.RUNNING
                if found.history_length != before or not is_open:
                    return is_open
            await backoff.pause()

    async def all_runs(self, thread: str) -> list[ThreadRun]:
        """The runs that the server still has, the oldest first. One that was reset is there once, as its successor.

        Raises ServerUnreachable, ServerRefused.
        """
        found = await self._executions(thread)
        runs = []
        for first, run in found.items():
            request = await self.request(thread, run)
            runs.append(ThreadRun(run.execution, first, request.prompt, run.is_open, request.as_told().prompt))
        return runs

    async def _executions(self, thread: str) -> dict[str, NewestRun]:
        """First execution -> the newest, of each run, the oldest run first."""
        runs: dict[str, NewestRun] = {}
        with translated(of=f"thread {thread}", address=self._address):
            for each in await visibility.executions(self.client, thread):
                described = await self.client.get_workflow_handle(thread, run_id=each.run_id).describe()
                first = described.raw_description.workflow_execution_info.first_run_id or each.run_id
                runs[first] = NewestRun(each.run_id, described.status == WorkflowExecutionStatus.RUNNING)
        return runs

    async def request(self, thread: str, run: NewestRun) -> RunRequest:
        """What a run of the thread was asked. Raises InvalidRequest, RunNotFound, ServerUnreachable, ServerRefused."""
        return parse_request(await self.runs.request(thread, run.execution))

    async def continuation(self, thread: str, run: NewestRun, agent: str) -> Continuation:
        """Where the agent's run after this one begins; of an open run, as far as is known.

        Raises: InvalidRequest where that was another agent's; NoWorker, RunNotFound, ServerUnreachable, ServerRefused.
        """
        asked = await self.request(thread, run)
        if asked.agent != agent:
            raise InvalidRequest(f'agent: thread {thread} is one of agent "{asked.agent}"')
        state = await self.runs.state(thread, run.execution)
        # A run that ended before the agent had named a session leaves the one that it was given as it was.
        # One of an agent that took over (`fallback`) is none that the thread's own could go on with.
        own = own_session(state)
        session, fork = (own, False) if own else (asked.session, asked.fork_session)
        host = (state.host or asked.workspace.host) if session else None
        return Continuation(session, fork, host, state.capabilities)

    async def start(self, thread: str, request: RunRequest, *, is_first: bool) -> str:
        """Start the thread's next run and return its execution. `is_first`: no run of it is known to have been.

        Raises: AlreadyRunning where another client was first; ServerUnreachable, ServerRefused.
        """
        # Two that begin a thread at once must not each begin a session.
        reuse = WorkflowIDReusePolicy.REJECT_DUPLICATE if is_first else WorkflowIDReusePolicy.ALLOW_DUPLICATE
        execution = await start_run(self.client, request, thread, reuse)
        self.runs.note_started(thread)
        return execution
