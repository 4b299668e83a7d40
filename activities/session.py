"""One worker's hold on one run: its agent's processes one after another, until the work is done or cannot go on.

A worker that takes over reads the journals of all earlier processes again and comes to the same state. Knows no
Temporal: the workflow is reached through a Notifier.
"""

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from activities import run_log, trust
from activities.eventlog import EventLog, last_event
from activities.life import NEVER, Life
from activities.limits import Limit, reached, stopped_for
from activities.milestones import Milestones
from activities.outcome import in_all, interrupted, outcome, proof
from activities.ports import (
    Agent,
    AlreadyStopped,
    Channel,
    ExitFact,
    Fenced,
    Ladder,
    Launch,
    Notifier,
    Progress,
    Resumption,
    RunHost,
    Runtime,
    Verdict,
)
from activities.schemas import misfit
from activities.snapshots import Snapshots
from activities.store import RunDirectory
from steersman.contracts.activities import (
    ApprovalAsked,
    Delivered,
    DeliverInput,
    Progressed,
    RunAgentInput,
    RunOutcome,
    Settlement,
)
from steersman.contracts.errors import RunError
from steersman.contracts.events import ErrorEvent, EventBase, ProgressEvent, UsageEvent
from steersman.contracts.run import FINAL_STATES, LastEvent, StopReport

BACKLOG_S = 3.0
"""How long a stopped agent's unread output is still read: one that floods can be gigabytes ahead."""
CANCELLED = "cancelled"
MAX_SESSIONS = 20
"""So many sessions of its agent a run keeps for itself; one that is resumed and never cleared has one."""
COMPLETION_S = 20.0
"""How long each journal is read for a log that nobody kept to the end: less than finalize_run may take."""
MAX_CRASHES = 3
"""So many processes of one run may die before the run is given up."""
NO_PROCESS = StopReport(outcome="stopped", phase="preparing", how="exited")
OUR_STOPS = ("finished", "hopeless", "interrupted")
"""Reasons for which a session itself stops a process: its transcript says what that end means."""


@dataclass(frozen=True)
class Lived:
    """How one process ended. `ended_at`: when a person had ended the run with the turn, in seconds since 1970."""

    exit_fact: ExitFact
    verdict: Verdict
    limit: Limit | None
    parked: bool
    ended_at: float | None


class Session:
    """`run` leads the run; `deliver`, `stop` and `snapshot` are called from beside it."""

    def __init__(
        self,
        run: RunAgentInput,
        agent: Agent,
        runtime: Runtime,
        directory: RunDirectory,
        host: RunHost,
        notifier: Notifier,
        epoch: int,
    ) -> None:
        self._run, self._agent, self._runtime = run, agent, runtime
        self._directory, self._host = directory, host
        self._agent_key = directory.agent_key
        self._notifier, self._epoch = notifier, epoch
        self._earlier = runtime.attempts(run.key)
        """So many processes there were before this session."""
        self._milestones = Milestones(notifier, taken_over=self._earlier > 0)
        self._past: list[Progress] = []
        self._life: Life | None = None
        self._settlements: dict[str, Settlement] = {}
        self._last_words: dict[str, Settlement] = {}
        self._journal_read = True
        self._errands: set[asyncio.Task[list[Settlement] | None]] = set()
        self._locked: dict[str, asyncio.Future[None]] = {}
        """By session: keeping other runs from it."""
        self._last: LastEvent | None = None
        self._end_asked = False
        self.ladder = agent.ladder(run.request)

    async def run(self) -> RunOutcome:
        """Lead the run to its end. Raises Fenced where a newer worker has taken it."""
        log = await self._log()
        if self._earlier == 0:
            self._milestones.put(self._notifier.preparing)
        telling = asyncio.create_task(self._milestones.run())
        try:
            return await self._attempts(log)
        finally:
            tasks: list[asyncio.Future[Any]] = [telling, *self._errands, *self._locked.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(OSError):  # what it could not write was said when it was tried
                log.close()

    async def complete(self) -> None:
        """Add to the log what journals of processes that have ended hold beyond it; of one that lives nothing is read.

        For a run whose end no session saw. Starts nothing, tells nobody. Raises Fenced, RunError.
        """
        log = await self._log()
        resumption: Resumption | None = None
        try:
            for number in range(1, self._runtime.attempts(self._run.key) + 1):
                channel = await self._runtime.open(self._run.key, number, self._epoch, None)
                if channel.known < NEVER:
                    await channel.close()
                    return
                lived = await self._live(number, channel, log, resumption, patience_s=COMPLETION_S)
                resumption = self._resumption(number, lived)
        finally:
            log.close()

    async def _log(self) -> EventLog:
        # Beside the loop: it is read to its end, and may be as long as an agent has talked.
        opening = asyncio.create_task(asyncio.to_thread(EventLog.take_over, self._directory.events, self._epoch))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unused)
            raise

    async def deliver(self, parcel: DeliverInput) -> Delivered:
        """Messages and decisions for the agent, in order."""
        # Kept here too: the process may die before the end is in its journal, and no other must follow it then.
        self._end_asked = self._end_asked or any(each.end for each in parcel.messages)
        if self._life is None:
            return Delivered(here=False)
        # What an earlier process of the run has read, this one is not told again.
        known = tuple(self._settlements[each.id] for each in parcel.messages if self._is_settled(each.id))
        parcel = parcel.model_copy(
            update={"messages": tuple(each for each in parcel.messages if not self._is_settled(each.id))}
        )
        work = asyncio.create_task(self._life.deliver(parcel))
        self._errands.add(work)
        work.add_done_callback(self._errands.discard)
        try:
            await asyncio.wait([work], timeout=parcel.patience_s)
        except asyncio.CancelledError:
            work.add_done_callback(self._delivered_late)
            raise
        if not work.done():
            work.add_done_callback(self._delivered_late)
            return Delivered(here=True, messages=known)
        answers = None if work.cancelled() else work.result()
        if answers is None:
            return Delivered(here=False, messages=known)
        return Delivered(here=True, messages=(*known, *self._noted(answers)))

    def _is_settled(self, message_id: str) -> bool:
        known = self._settlements.get(message_id)
        return known is not None and known.state in FINAL_STATES

    def _noted(self, settlements: Iterable[Settlement]) -> list[Settlement]:
        """As they stand with what was known before: what is final stays."""
        for each in settlements:
            if not self._is_settled(each.id):
                self._settlements[each.id] = each
        return [self._settlements[each.id] for each in settlements]

    def _delivered_late(self, work: asyncio.Task[list[Settlement] | None]) -> None:
        if not work.cancelled() and work.exception() is None and (answers := work.result()):
            self.settle(answers)

    async def stop(self, reason: str, ladder: Ladder | None = None) -> StopReport:
        """Stop the agent for good; `run` then returns, after at most BACKLOG_S more of reading."""
        if reason != CANCELLED:  # of which the workflow tells the host, too: that is where it is logged
            run_log.stop_asked(self._run.key, reason)
        report = await self._runtime.stop(self._run.key, ladder or self.ladder, reason, known=self.attempts)
        if self._life:
            self._life.hurry(BACKLOG_S)
        return report

    @property
    def attempts(self) -> int:
        """How many processes this session knows of."""
        return self._life.number if self._life else len(self._past)

    def failed(self, error: RunError) -> RunOutcome:
        """The outcome of a run that could not be led to its end."""
        return self._outcome("failed", error)

    def snapshot(self) -> Progressed:
        """Where the run stands."""
        total = self._total()
        return Progressed(
            session_id=total.session_id,
            usage=total.usage,
            cost_usd=total.cost_usd,
            turns=total.turns,
            attempt=self.attempts,
            last_event=self._last,
        )

    # ---- what a conversation needs (the Desk port)

    async def ask(self, asked: ApprovalAsked) -> None:
        """The agent waits for a person, or no longer does."""
        self._milestones.put(lambda: self._notifier.asked(asked))

    def settle(self, settlements: list[Settlement]) -> None:
        """Messages of which the journal says more than their delivery did."""
        noted = self._noted(settlements)
        self._milestones.put(lambda: self._notifier.settled(noted))

    # ---- processes

    async def _attempts(self, log: EventLog) -> RunOutcome:
        resumption: Resumption | None = None
        error: RunError | None = None
        number = crashes = 0
        while True:
            number += 1
            try:
                channel = await self._open(log, number, resumption, exists=number <= self._earlier)
            except AlreadyStopped:
                return self._outcome("stopped")
            except RunError as refusal:
                return self._outcome("failed", refusal)
            if channel is None:
                return self._interrupted(error, NO_PROCESS)
            lived = await self._live(number, channel, log, resumption)
            if lived.verdict.error is not None and lived.limit is None:
                self._directory.require(number)  # else its shim, or a sweep, ended it for want of one
            if (end := await self._outcome_of(lived, log)) is not None:
                return end
            verdict = lived.verdict
            if not verdict.start_over:  # a resume that found no session tells nothing new
                error = verdict.error
                crashes += lived.exit_fact.reason == "exited" or lived.exit_fact.lost
            if crashes > MAX_CRASHES:
                return self._outcome("failed", error)
            resumption = self._resumption(number, lived)

    def _resumption(self, number: int, lived: Lived) -> Resumption:
        """What follows on this process."""
        session_id = None if lived.verdict.start_over else self._total().session_id
        return Resumption(number + 1, session_id, lived.parked)

    async def _outcome_of(self, lived: Lived, log: EventLog) -> RunOutcome | None:
        """What a process's end makes of the run; None where another process may follow."""
        verdict = lived.verdict
        if lived.limit:
            report = proof(lived.exit_fact, lived.limit.message)
            return self._outcome("failed", lived.limit.error(), report)
        if lived.exit_fact.reason == "stopped" and lived.exit_fact.why not in OUR_STOPS:
            return self._outcome("stopped")
        if lived.ended_at or (self._end_asked and verdict.resumable):
            asked_ms = lived.ended_at * 1000 if lived.ended_at else lived.exit_fact.time_ms
            return self._interrupted(verdict.error, proof(lived.exit_fact, asked_ms=asked_ms))
        if verdict.error is None:
            return await self._succeeded(log)
        return None if verdict.resumable else self._outcome("failed", verdict.error)

    async def _succeeded(self, log: EventLog) -> RunOutcome:
        """The agent says that it is done: its answer is held against the schema that was asked for."""
        wrong = await misfit(self._run.request.output_schema, self._total().structured)
        if wrong is None:
            return self._outcome("succeeded")
        self.observe(log.append(len(self._past), NEVER, [ErrorEvent(time=datetime.now(UTC), message=wrong.message)]))
        return self._outcome("failed", wrong)

    async def _open(self, log: EventLog, number: int, resumption: Resumption | None, *, exists: bool) -> Channel | None:
        """An earlier process, or the next one, started; None where a person has ended the run before that."""
        launch = None
        if not exists and not self._end_asked:
            self._directory.require(number - 1)
            launch = await self._launch(log, number, resumption)
        if not exists and self._end_asked:
            return None
        channel = await self._runtime.open(self._run.key, number, self._epoch, launch)
        if launch:
            run_log.agent_started(self._run.key, number, channel.handle)
        return channel

    async def _launch(self, log: EventLog, number: int, resumption: Resumption | None) -> Launch:
        """The next process. Judged anew each time: the workspace and what the operator allows may have changed."""
        admission = await asyncio.to_thread(self._host.admit)
        launch = self._agent.launch(self._agent_key, self._run.request, admission, self._directory.scratch, resumption)
        untrusted = admission.untrusted
        if untrusted and number == 1 and (told := trust.sentence(admission.directory, untrusted)):
            self.observe(log.append(number, 0, [ProgressEvent(time=datetime.now(UTC), text=told)]))
        return Launch(
            argv=launch.argv,
            cwd=launch.cwd,
            env={**admission.environment, **(trust.GIT_ENVIRONMENT if untrusted else {}), **launch.env},
            first_input=launch.first_input,
            close_stdin=launch.close_stdin,
            stdin_has_authority=launch.stdin_has_authority,
            ladder=self.ladder,
            lease_s=self._run.request.lease_s,
        )

    async def _live(
        self,
        number: int,
        channel: Channel,
        log: EventLog,
        resumption: Resumption | None,
        patience_s: float | None = None,
    ) -> Lived:
        snapshots = Snapshots(self._directory.snapshot(number))
        transcript, snapshot = await snapshots.restored(
            lambda: self._agent.transcript(self._agent_key, self._run.request, resumption), channel, log.source
        )
        life = self._life = Life(
            number=number,
            channel=channel,
            transcript=transcript,
            conversation=self._agent.converse(self._agent_key, self._run.request, channel, transcript, self),
            log=log,
            overseer=self,
            before=self._total(),
        )
        life.resume(snapshots, snapshot)
        if patience_s is not None:
            life.hurry(patience_s)
        if resumption:
            self._announce(log, number, resumption)
        if (handle := channel.handle) is not None:
            self._milestones.put(lambda: self._notifier.started(handle, number, adopted=number <= self._earlier))
        try:
            exit_fact = await life.run()
            if number >= self._earlier:  # the ends of those before were seen by whoever started the next one
                run_log.agent_gone(self._directory, number, channel.handle, exit_fact, life.lasted_s)
        except Exception as error:
            if snapshot and not isinstance(error, Fenced):
                snapshots.discard()  # it may be at fault: next time the journal is read from its beginning
            raise
        finally:
            self._life = None
            self._past.append(transcript.progress)
            self._noted(transcript.settlements())
            self._last_words.update((each.id, each) for each in transcript.last_words())
            self._journal_read = self._journal_read and life.read_whole
        return Lived(
            exit_fact=exit_fact,
            verdict=transcript.verdict(exit_fact),
            limit=life.limit or stopped_for(exit_fact.why),
            parked=transcript.parked,
            ended_at=life.ended_at,
        )

    def _announce(self, log: EventLog, number: int, resumption: Resumption) -> None:
        how = f"session {resumption.session_id} resumed" if resumption.session_id else "started over"
        text = f"the agent's process ended before its work; {how} in a new process (attempt {number})"
        self.observe(log.append(number, 0, [ProgressEvent(time=datetime.now(UTC), text=text)]))

    # ---- watching

    def live(self, number: int) -> None:
        """All that the process has said before is read, and it is at work."""
        if number <= self._earlier and self._life:
            run_log.agent_adopted(self._run.key, number, self._life.channel.handle)

    def delivered(self, number: int, kind: str, settlement: Settlement) -> None:
        """The process was given a message."""
        run_log.message_delivered(self._run.key, number, kind, settlement)

    def stopping(self, reason: str) -> None:
        """The process is to be stopped, by a limit or because its turn was ended."""
        run_log.stop_asked(self._run.key, reason)

    def observe(self, events: list[EventBase]) -> None:
        """New events of the agent's process."""
        for event in events:
            if not isinstance(event, UsageEvent) and not getattr(event, "delta", False):
                self._last = last_event(event)
        self._lock_current()
        self._milestones.consider(self.snapshot)

    def tick(self) -> None:
        """A few times a second: what the agent did before it fell silent is told too, when its time has come."""
        self._lock_current()
        self._milestones.consider(self.snapshot)

    def _lock_current(self) -> None:
        """The agent's session, also one that it has begun itself, is this run's alone while it is open."""
        session = self._life.transcript.progress.session_id if self._life else None
        if session and session not in self._locked and len(self._locked) < MAX_SESSIONS:
            self._locked[session] = asyncio.ensure_future(self._host.lock(session))

    def limit(self) -> Limit | None:
        """The limit that is reached, over all processes."""
        total, life = self._total(), self._life
        silent = time.time() - life.last_word if life and life.transcript.working else None
        return reached(
            self._run.request.limits, turns=total.turns, cost_usd=total.cost_usd, usage=total.usage, silent_s=silent
        )

    def _total(self) -> Progress:
        return in_all([*self._past, *([self._life.transcript.progress] if self._life else [])])

    def _outcome(self, status: str, error: RunError | None = None, report: StopReport | None = None) -> RunOutcome:
        # A later process may have read what an earlier one was given last.
        told = self._last_words | {each: told for each, told in self._settlements.items() if self._is_settled(each)}
        return outcome(
            status,
            self._total(),
            error,
            attempts=len(self._past),
            messages=tuple(told.values()),
            journal_read=self._journal_read,
            last_event=self._last,
            stop_report=report,
        )

    def _interrupted(self, error: RunError | None, report: StopReport) -> RunOutcome:
        return interrupted(self._outcome("succeeded", report=report), self._total(), self._run.request, error)


def _close_unused(opening: "asyncio.Task[EventLog]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
