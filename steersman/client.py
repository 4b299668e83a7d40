"""Steersman's Python client: start runs, follow them, talk to them, stop them.

    steersman = await Steersman.connect()
    run = await steersman.start({"agent": "claude", "prompt": "Fix the tests", "workspace": {"path": "/src/app"}})
    async for event in steersman.attach(run):
        print(event.type)
    result = await steersman.result(run)

Times are aware UTC datetimes, durations seconds unless the name ends in `_ms`, money US dollars. The errors are drawn
in steersman.errors; besides, every call that reaches the server may raise ServerRefused (no permission, for example)
and UnreadablePayload (another codec). Nothing is decided here: the workflow decides what becomes of a run.
"""

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, Self, Unpack

from temporalio.client import Client
from temporalio.converter import PayloadCodec

from steersman._client import visibility
from steersman._client.event_log import EventLogReader, LogLocation
from steersman._client.execution_status import know_paused
from steersman._client.host_calls import GIT_S, A, StateGone, call_host, call_host_once
from steersman._client.interpreter_end import wait_for_native_threads
from steersman._client.kept_files import KeptOfRun, kept_of_run
from steersman._client.owned_run import OwnedRun
from steersman._client.run_calls import RunCalls
from steersman._client.run_end import run_result, stop_run
from steersman._client.run_events import run_event_pages
from steersman._client.run_start import checked, start_run
from steersman._client.start_metadata import task_of
from steersman.connection import connect
from steersman.contracts import names
from steersman.contracts.activities import CarriedBack, PruneInput, RunKey, Swept, WorkspaceInput
from steersman.contracts.attachments import Attachment
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.events import AgentEvent
from steersman.contracts.messages import Decision, DecisionReceipt, Message, MessageReceipt, parse_message
from steersman.contracts.request import AgentName, RunRequest
from steersman.contracts.run import RunResult, RunState
from steersman.contracts.workspace import (
    Diff,
    ListWorkspaceCheckpoints,
    RunDiffInput,
    UndoInput,
    Undone,
    WorkspaceCheckpointPage,
)
from steersman.contracts.workspace_hold import ListWorkspaces, Workspaces
from steersman.errors import (
    AlreadyRunning,
    NothingKept,
    ServerRefused,
    translated,
)
from steersman.ids import check_run_id, new_message_id, new_run_id
from steersman.reports import RunSummary, StopResult

PRUNE_S: Final = 600
"""A host may take this many seconds to prune."""
CARRY_S: Final = 3600
"""A host may take this many seconds to merge a copy of a workspace into it."""

if TYPE_CHECKING:
    from steersman.loops import Loops
    from steersman.threads import Thread, ThreadOptions, WorkspaceOption


class Steersman:
    """What can be done to runs; to loops: `.loops`. Safe to use from many tasks of one event loop."""

    def __init__(self, client: Client) -> None:
        """`client`: connected, with `steersman.codec.data_converter(codec)` or Temporal's own pydantic converter."""
        know_paused()
        wait_for_native_threads()
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
        """A connected client. What is not given comes from the Temporal CLI's profiles and environment variables.

        Args:
            profile: a profile of the Temporal CLI's configuration file; default: TEMPORAL_PROFILE, else "default".
            address: HOST:PORT of the server; without any setting 127.0.0.1:7233, the local dev server.
            namespace: without any setting "default".
            codec: encrypts payloads; default: what STEERSMAN_CODEC names, else none.

        Raises:
            BadProfile: the configuration file cannot be read, or has no such profile.
            BadCodec: STEERSMAN_CODEC, or the file of its keys, cannot be used.
            ServerUnreachable: nothing listens there within 5 s, or answers within 10.
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
        """Start a run and return its id. A request that is wrong, or has a literal secret, is not sent.

        Args:
            request: a RunRequest, or the same as JSON.
            run_id: 1 to 200 of A-Z a-z 0-9 . _ : -; by default a new one, of words of the prompt unless payloads are
                encrypted. The id of a closed run may be used again.

        Raises:
            InvalidRequest: the request or the id is wrong; the message names the field.
            AlreadyRunning: a run with this id is open.
            ServerUnreachable: the run may or may not have been started.
        """
        parsed = checked(request)
        run_id = check_run_id(run_id) if run_id is not None else self._new_id(parsed)
        await start_run(self._client, parsed, run_id)
        self._runs.note_started(run_id)
        return run_id

    def _new_id(self, request: RunRequest) -> str:
        return new_run_id() if self._client.data_converter.payload_codec else new_run_id(task_of(request))

    async def run(self, request: RunRequest | dict[str, Any], *, run_id: str | None = None) -> RunResult:
        """Start a run and wait for its result. Raises as `start` and `result`.

        Whoever is cancelled while they wait stops the run, and is kept for that for at most 10 s. To be able to leave
        it alone: `start`, then `result`.
        """
        parsed = checked(request)
        run_id = check_run_id(run_id) if run_id is not None else self._new_id(parsed)
        async with OwnedRun(self._runs, run_id) as owned:
            execution = await owned.start(start_run(self._client, parsed, run_id))
            return await run_result(self._runs, run_id, execution)

    async def result(self, run_id: str) -> RunResult:
        """Wait for the run's result.

        Raises:
            RunError: the run failed; the subclass says how. `.result` is a RunResult with status "failed", `.facts` has
                e.g. exit_code, signal and stderr of AgentCrashed.
            RunInterrupted: the run was cancelled: `.reason` and `.stop_report`. RunTerminated: the server ended the
                workflow. Both are RunCancelled.
            RunNotFound.
            ServerUnreachable: the server has not answered for a minute.

        `.code` of a RunError or RunCancelled is "interrupted" where a person ended the run.
        """
        return await run_result(self._runs, run_id)

    # Threads: one conversation, run after run.

    def thread(
        self,
        *,
        agent: AgentName,
        workspace: "WorkspaceOption",
        thread_id: str | None = None,
        session: str | None = None,
        fork_session: bool = False,
        **options: "Unpack[ThreadOptions]",
    ) -> "Thread":
        """A thread whose runs have these fields of a RunRequest. Nothing is sent before its first run.

        Args:
            agent: one that can resume sessions.
            workspace: an absolute path, or as of a RunRequest.
            thread_id: as a run's id; by default a new one. Where the server has runs of that id, the thread goes on
                with the newest, otherwise it is new.
            session: a session of the agent with which a new thread begins; by default one of its own.
            fork_session: begin with a copy of that session.
            options: the other fields that hold for each run.

        Raises: InvalidRequest; the message names the field.
        """
        from steersman._client.thread_calls import Continuation, ThreadCalls  # noqa: PLC0415 - as loops
        from steersman.threads import new_thread  # noqa: PLC0415 - the same

        fields = {"agent": agent, **options}
        beginning = Continuation(session, fork_session)
        return new_thread(ThreadCalls(self._client, self._runs), thread_id, beginning, workspace, fields)

    async def resume_thread(
        self, thread_id: str, *, workspace: "WorkspaceOption | None" = None, **options: "Unpack[ThreadOptions]"
    ) -> "Thread":
        """The thread of that id, whichever client began it. Its runs have the fields that its newest run has.

        `workspace`, `options`: other values, for the runs that are begun with the object that is returned. A run that
        was started otherwise is a thread, too, by its id.

        Raises:
            RunNotFound: the server has no run of that id, or has forgotten it.
            InvalidRequest: a field is wrong; or it is a loop's run, or one of an agent that resumes no sessions.
            ServerUnreachable, ServerRefused.
        """
        from steersman._client.thread_calls import ThreadCalls  # noqa: PLC0415 - as loops
        from steersman.threads import known_thread  # noqa: PLC0415 - the same

        return await known_thread(ThreadCalls(self._client, self._runs), thread_id, workspace, options)

    # Following.

    async def attach(self, run_id: str, *, after: int = 0) -> AsyncGenerator[AgentEvent, None]:
        """The run's events with a number greater than `after`, as they come, also of a closed run.

        None is repeated or left out, though workers and the server restart meanwhile. The last event is the terminal
        one: done, cancelled or failed; where `after` is its number, nothing is yielded. A queued run is waited for. A
        terminated run ends when its host has stopped the agent.

        Raises:
            RunNotFound, NoWorker: before the first event.
            HostUnreachable: the host that has the log does not answer: for 10 s before the first page of events, for
                60 s later. Where the run has closed the message says how.
            ServerUnreachable: the server has not answered for as long.
        """
        async with aclosing(self.attach_pages(run_id, after=after)) as pages:
            async for events in pages:
                for event in events:
                    yield event

    async def attach_pages(self, run_id: str, *, after: int = 0) -> AsyncGenerator[tuple[AgentEvent, ...], None]:
        """The same events as of `attach`, those together that were read together: a long log comes a little sooner. No
        page is empty. Raises as `attach` does.
        """
        async with aclosing(run_event_pages(self._client, self._runs, run_id, after=after)) as pages:
            async for events in pages:
                yield events

    async def events(self, run_id: str, after: int = 0, limit: int | None = None) -> list[AgentEvent]:
        """The events that the log has now with a number greater than `after`; at most `limit`.

        Raises:
            RunNotFound, NoWorker, ServerUnreachable.
            HostUnreachable: the host that has the log has not answered for 10 s.
        """
        state = await self._runs.state(run_id)
        if state.host is None or state.execution is None:
            if after >= 1 or limit == 0 or await self._runs.open_execution(run_id) is not None:
                return []
            return [await self._runs.unlogged_end(run_id, None)]
        location = LogLocation(RunKey(run=run_id, execution=state.execution), state.host, state.store)
        return await EventLogReader(self._client, location).recorded(after, limit)

    # What a run changed.

    async def diff(self, run_id: str) -> Diff:
        """What the run changed in its workspace's files; of an open run, so far.

        Of a run whose files at its end are not kept, or not yet, what has changed since it began, by whomever: `.now`.
        Of a loop's run, what lies between the loop's checkpoints before and after it.
        `.patch` has at most 500,000 bytes; `.truncated` says whether it was cut. Ignored files are left out.

        Raises:
            NothingKept: the workspace is in no git repository, the run could only read or has not begun, what was kept
                was pruned, or it is a loop's that has no checkpoint of its own (a verification) or whose checkpoints
                were deleted.
            RunNotFound, NoWorker, HostUnreachable, ServerUnreachable.
            ServerRefused: git cannot say.
        """
        state = await self.state(run_id)
        kept = await self._kept_of(run_id, state)
        return await self._ask_git(
            run_id,
            state,
            names.DIFF_RUN,
            RunDiffInput(
                key=RunKey(run=run_id, execution=state.execution or ""),
                workspace=state.worktree.directory if state.worktree else state.workspace or "",
                before=kept.before,
                after=kept.after,
                step=kept.step,
            ),
            Diff,
        )

    async def undo(self, run_id: str) -> Undone:
        """Take back what a closed run changed in its workspace's files; commits that it made stay in their branches.

        A path that anybody has changed since is left as it is, and named in `.conflicts`. All files as they were before
        the undo are in the commit `.rescue`, which the ref `.ref` keeps; both are empty where it changed none.

        Raises:
            AlreadyRunning: the run is open: stop it first.
            NothingKept: as `diff`; also where the files at its end were not kept, so nobody knows what it changed.
            RunNotFound, NoWorker, HostUnreachable, ServerUnreachable, ServerRefused: as `diff`.
        """
        state = await self.state(run_id)
        kept = await self._kept_of(run_id, state)
        if state.closed_as is None:
            raise AlreadyRunning(f"run {run_id} is still at work: stop it first")
        if kept.after is None:
            why = state.changes.error if state.changes else None
            raise NothingKept(f"run {run_id}: the files at its end were not kept{f': {why}' if why else ''}")
        return await self._ask_git(
            run_id,
            state,
            names.UNDO_RUN,
            UndoInput(
                key=RunKey(run=run_id, execution=state.execution or ""),
                workspace=state.worktree.directory if state.worktree else state.workspace or "",
                before=kept.before,
                after=kept.after,
                step=kept.step,
            ),
            Undone,
        )

    async def checkpoints(self, host: str, workspace: str, *, limit: int = 100) -> WorkspaceCheckpointPage:
        """What is kept of a workspace's files in its repository, of runs and loops alike: the newest first.

        `.checkpoints` has at most `limit` of `.total`, and as many as an answer can have (some 2,500).

        Raises:
            HostUnreachable, ServerUnreachable.
            ServerRefused: there is no such directory, it is in no git repository, or git cannot say.
        """
        argument = ListWorkspaceCheckpoints(workspace=workspace, limit=limit)
        activity = names.LIST_WORKSPACE_CHECKPOINTS
        return await call_host(self._client, host, activity, argument, WorkspaceCheckpointPage, takes_s=GIT_S)

    async def describe_workspace(self, run_id: str) -> CarriedBack:
        """What has become of a closed run's copy by now: its state has what its end made of it.

        `.finalize` is as in RunResult; of a failed one `.waits` says whether its changes wait in the copy.

        Raises:
            AlreadyRunning: the run is open.
            NothingKept: the run had no copy.
            ServerRefused: its host knows nothing of one.
            RunNotFound, NoWorker, HostUnreachable, ServerUnreachable.
        """
        return await self._ask_about_copy(run_id, names.DESCRIBE_WORKSPACE)

    async def retry_workspace(self, run_id: str) -> CarriedBack:
        """Merge what a closed run changed in its copy into the workspace, after that had failed.

        `.finalize` is as in RunResult; where it has failed again, its `error` says why, and the copy stays.

        Raises:
            AlreadyRunning: the run is open.
            NothingKept: the run had no copy.
            ServerRefused: no changes of the run wait in its copy, or the operator does not allow it.
            RunNotFound, NoWorker, HostUnreachable, ServerUnreachable.
        """
        return await self._ask_about_copy(run_id, names.RETRY_WORKSPACE)

    async def discard_workspace(self, run_id: str) -> CarriedBack:
        """Remove the copy of a closed run whose changes could not be merged: they are lost.

        Raises as `retry_workspace`.
        """
        return await self._ask_about_copy(run_id, names.DISCARD_WORKSPACE)

    async def _ask_about_copy(self, run_id: str, activity: str) -> CarriedBack:
        state = await self.state(run_id)
        if state.closed_as is None:
            raise AlreadyRunning(f"run {run_id} is still at work: stop it first")
        if state.carried is None or state.host is None:
            raise NothingKept(f"run {run_id} had no copy of its workspace")
        argument = WorkspaceInput(key=RunKey(run=run_id, execution=state.execution or ""))
        # Not twice: the second one would be refused, as nothing waits any more.
        return await call_host_once(self._client, state.host, activity, argument, CarriedBack, takes_s=CARRY_S)

    async def _kept_of(self, run_id: str, state: RunState) -> KeptOfRun:
        """What is kept of the run's files, by itself or by its loop. Raises NothingKept."""
        if state.carried is not None and state.baseline is None and state.closed_as is None:
            raise NothingKept(f"run {run_id} works in a copy: what it changed is known when it has ended")
        kept = await kept_of_run(self._client, run_id, state) or await self._kept_since(run_id, state)
        if kept is None or state.host is None:
            why = "its workspace is in no git repository, it could only read, or it has not begun"
            raise NothingKept(f"run {run_id}: nothing was kept of its workspace: {why}")
        return kept

    async def _kept_since(self, run_id: str, state: RunState) -> KeptOfRun | None:
        """Of a copy that the run's end could not merge, and that was merged since. Raises NothingKept."""
        if (failed := state.unmerged) is None:
            return None
        try:
            back = await self.describe_workspace(run_id)
        except ServerRefused:  # by a worker of an earlier build
            back = CarriedBack(finalize=failed)
        if back.changes is None:
            why = back.finalize.error or "nobody knows why"
            raise NothingKept(f"run {run_id}: its copy was not carried back: {why}")
        return KeptOfRun(back.changes.before, back.changes.after)

    async def _ask_git(
        self, run_id: str, state: RunState, activity: str, argument: RunDiffInput | UndoInput, result: type[A]
    ) -> A:
        try:
            return await call_host(self._client, state.host or "", activity, argument, result, takes_s=GIT_S)
        except ServerRefused as error:
            refusal = NothingKept if isinstance(error, StateGone) else ServerRefused
            raise refusal(f"run {run_id}: {error}") from error

    # Messages, decisions and the stop.

    async def steer(
        self, run_id: str, text: str, *, attachments: Sequence[Attachment] = (), id: str | None = None
    ) -> MessageReceipt:
        """Send a message into the agent's running turn.

        Returns once the agent has it, or within some 5 s with state "queued" where no worker answers or the run's
        activity is paused; `.how` says which. What is queued for want of an answer may be refused later, without a
        word: the run's state has each message that was taken. The same `id` twice is one message: repeat a call whose
        answer was lost.

        Args:
            run_id: the run's id.
            text: at most 100,000 characters.
            attachments: files that go with it, of `steersman.attachment`; together at most 525,000 bytes.
            id: 1 to 100 of A-Z a-z 0-9 . _ : -; by default a new one.

        Raises:
            InvalidRequest: the text or the id is wrong.
            MessageRefused: this agent cannot be steered, or be given images, the run is ending, or too much waits;
                `.reason`.
            RunNotRunning, RunNotFound, ServerUnreachable.
        """
        fields = {"text": text, "attachments": tuple(attachments), "id": id or new_message_id()}
        message = parse_message(Message, fields)
        return await self._runs.send_message(run_id, names.STEER, message)

    async def interrupt(
        self,
        run_id: str,
        text: str | None = None,
        *,
        attachments: Sequence[Attachment] = (),
        id: str | None = None,
        reason: str | None = None,
        end: bool = False,
    ) -> MessageReceipt:
        """End the agent's running turn at once and keep its session. Returns and raises as `steer`.

        Args:
            run_id: the run's id.
            text: the agent's next turn begins with it.
            attachments: as of `steer`; with a text.
            id: as of `steer`.
            reason: at most 1000 characters, kept with the message.
            end: end the run with the turn; without a text. The run succeeds with stop_reason "interrupted", and another
                run can resume its session.
        """
        fields = {
            "text": text,
            "attachments": tuple(attachments),
            "id": id or new_message_id(),
            "reason": reason,
            "end": end,
        }
        message = parse_message(Message, fields)
        return await self._runs.send_message(run_id, names.INTERRUPT, message)

    async def decide(
        self,
        run_id: str,
        approval_id: str,
        decision: Literal["allow", "deny"],
        message: str | None = None,
        *,
        remember: bool = False,
    ) -> DecisionReceipt:
        """Decide an approval that the agent waits for.

        Args:
            run_id: the run's id.
            approval_id: the id of one of `state(run_id).approvals`.
            decision: whether the agent may use the tool.
            message: given to the agent when denied; at most 10,000 characters.
            remember: decide the same for this tool for the rest of the run.

        Raises:
            AlreadyDecided: it was decided or withdrawn, or there is none of that id; `.reason`.
            InvalidRequest, RunNotRunning, RunNotFound, NoWorker, ServerUnreachable.
        """
        fields = {"id": approval_id, "decision": decision, "message": message, "remember": remember}
        return await self._runs.decide(run_id, parse_message(Decision, fields))

    async def stop(self, run_id: str, *, reason: str = "") -> StopResult:
        """Cancel the run, wait until it has closed, and return what the stop found.

        A run that has closed, or does not exist, is an outcome, not an error. A second stop hurries the first: what is
        left gets SIGTERM at once, and SIGKILL 1.5 s later. With a codec the reason is not sent: Temporal keeps it
        unencrypted.

        Raises:
            NoWorker: the cancel is recorded, and carried out once a worker is there.
            ServerUnreachable.
        """
        return await stop_run(self._runs, run_id, reason=reason)

    # State, lists, history, pruning.

    async def state(self, run_id: str) -> RunState:
        """The run's state, also after it has closed.

        The stop report of a terminated run is its host's, with outcome "unverified" where the host does not answer
        within 4 s.

        Raises:
            NoWorker: no worker answered within 5 s.
            RunNotFound, ServerUnreachable, ServerRefused.
        """
        return await self._runs.current_state(run_id)

    async def list(self, query: str | None = None, *, limit: int = 100, of_loops: bool = True) -> list[RunSummary]:
        """Runs, the newest first; at most `limit`. `of_loops`: those that a loop has started, too.

        `query`: Temporal's list filter, e.g. `AgentName="claude" AND CostUsd > 1`; by default all runs that the server
        still has.

        Raises:
            ServerRefused: the query is wrong.
            ServerUnreachable.
        """
        with translated(address=self._address):
            return await visibility.list_runs(self._client, query, limit, of_loops=of_loops)

    async def workspaces(self, host: str) -> Workspaces:
        """Who has which workspace on a host, and who waits for one, in order. Runs that may only read have none.

        Raises: HostUnreachable, ServerUnreachable, ServerRefused.
        """
        return await call_host(self._client, host, names.LIST_WORKSPACES, ListWorkspaces(), Workspaces)

    async def history(self, run_id: str) -> str:
        """The run's workflow history as JSON, for `steer replay` and Temporal's own tools. It contains the prompt.

        Raises: RunNotFound, ServerUnreachable.
        """
        with translated(of=f"run {run_id}", address=self._address):
            return (await self._client.get_workflow_handle(run_id).fetch_history()).to_json()

    async def prune(self, host: str, keep_days: float, *, dry_run: bool = False) -> Swept:
        """Remove the state of runs and loops that closed more than `keep_days` days ago from a host.

        `.pruned` has their ids; with `dry_run` nothing is removed. May take 10 minutes.

        Raises: InvalidRequest, HostUnreachable, ServerUnreachable, ServerRefused.
        """
        if not 0 <= keep_days < math.inf:  # nor what is no number: all would be older than that
            raise InvalidRequest(f"keep_days: {keep_days:g} is no number of days")
        argument = PruneInput(keep_days=keep_days, dry_run=dry_run)
        return await call_host(self._client, host, names.PRUNE_HOST, argument, Swept, takes_s=PRUNE_S)
