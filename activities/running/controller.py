"""One worker's lead of one run: its agent's processes one after another, until the work is done or cannot go on.

A worker that takes over reads the journals of all earlier processes again and comes to the same state. Knows no
Temporal: the workflow is reached through a Notifier.
"""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from activities.admission.schemas import mismatch
from activities.ports.agent import CONTINUE_PROMPT, Resumption
from activities.ports.runtime import AlreadyStopped, Channel, Fenced, Launch, StopTimes
from activities.ports.workflow import Notifier
from activities.running import run_log
from activities.running.approvals import AttemptApprovals
from activities.running.attempt import NEVER, AttemptRunner
from activities.running.attempt_state import AttemptState
from activities.running.backups import back_up, back_up_last
from activities.running.handover import begun_again, cause_of, handover
from activities.running.launch import RunContext, prepare_launch
from activities.running.limits import stopped_for
from activities.running.monitor import RunMonitor
from activities.running.observer import AttemptResult
from activities.running.result import proof
from activities.running.supervision import OWN_STOPS
from activities.running.totals import RunTotals
from activities.store.disk import exhaustion
from activities.store.eventlog import EventLog
from activities.store.run_directory import Part
from activities.store.snapshots import Snapshots
from steersman.contracts.activities import Delivered, DeliverInput, Progressed, RunOutcome, Settlement
from steersman.contracts.errors import RunError
from steersman.contracts.events import ErrorEvent, ProgressEvent
from steersman.contracts.model import JsonValue
from steersman.contracts.request import RunRequest
from steersman.contracts.run import RunProgress, StopReport

BACKLOG_S = 3.0
"""A stopped agent's unread output is read for at most this many seconds: one that floods can be gigabytes ahead."""
CANCELLED = "cancelled"
COMPLETION_S = 20.0
"""Completing a log reads each journal for at most this many seconds: less than finalize_run may take."""
MAX_CRASHES = 3
"""A run fails when more processes than this have crashed."""
NO_PROCESS = StopReport(outcome="stopped", phase="preparing", how="exited")


class RunController:
    """`run` leads the run; `deliver`, `stop` and `snapshot` are called from beside it."""

    def __init__(self, run: RunContext, notifier: Notifier) -> None:
        self._run = run
        """The run as the agent at work has it."""
        self._agents = (run, *run.fallback)
        self._part = 0
        self._remarks: list[str] = []
        """What a person is told with the next process."""
        self._resumption: Resumption | None = None
        self._error: RunError | None = None
        self._crashes = 0
        self._earlier = run.runtime.attempts(run.key)
        """How many processes the run had before this worker led it."""
        self._totals = RunTotals(run.request)
        self._monitor = RunMonitor(run, notifier, self._totals, self._earlier)
        self._background_tasks: set[asyncio.Task[list[Settlement] | None]] = set()
        self._end_asked = False
        self._baseline: asyncio.Task[str | None] | None = None

    async def run(self) -> RunOutcome:
        """Lead the run to its end. Raises Fenced where a newer worker has taken it."""
        if not self._earlier:
            self._baseline = asyncio.create_task(self._run.baseline.keep())  # beside all else that precedes a process
        try:
            outcome = await self._lead()
            return outcome.model_copy(update={"baseline": self._run.baseline.commit})
        finally:
            if self._baseline:
                self._baseline.cancel()
                await asyncio.gather(self._baseline, return_exceptions=True)

    async def _lead(self) -> RunOutcome:
        log = await self._open_log()
        beside = [asyncio.create_task(self._monitor.run())]
        if self._run.backup:
            beside.append(asyncio.create_task(back_up(self._run.key, self._run.backup, self._monitor)))
        try:
            with self._monitor.preparing():
                return await self._run_attempts(log)
        finally:
            tasks: list[asyncio.Future[Any]] = [*beside, *self._background_tasks, *self._monitor.locked.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(OSError):  # what it could not write was said when it was tried
                log.close()

    async def complete(self) -> RunProgress:
        """Add to the log what journals of ended processes hold beyond it; of a process that lives nothing is read. How
        far the run had come, by what was read.

        For a run whose end no controller saw. Starts nothing, tells nobody. Raises Fenced, RunError.
        """
        log = await self._open_log()
        try:
            if log.ended:
                return RunProgress()  # by another worker, meanwhile
            await self._read_journals(log)
            return self._totals.progressed(self.attempts)
        finally:
            log.close()

    async def read_again(self) -> RunOutcome:
        """What the processes of a run came to whose log has ended: how it ended is for its terminal event to say.

        Starts nothing, tells nobody. Raises Fenced, RunError.
        """
        log = await self._open_log()
        try:
            await self._read_journals(log)
            return self._totals.outcome("stopped")
        finally:
            log.close()

    async def _read_journals(self, log: EventLog) -> None:
        for number in range(1, self._run.runtime.attempts(self._run.key) + 1):
            self._take_part(number)
            # Not as its leader: of two workers that do this with one epoch, the shim would refuse the second one.
            channel = await self._run.runtime.open(self._run.key, number, self._run.epoch, None, leads=False)
            if channel.known < NEVER:
                await channel.close()
                break
            result = await self._run_attempt(number, channel, log, self._resumption, patience_s=COMPLETION_S)
            self._resumption = self._resumption_after(number, result)

    async def _open_log(self) -> EventLog:
        # Beside the loop: the log's end is read, and a lock waited for.
        path, epoch = self._run.directory.events, self._run.epoch
        opening = asyncio.create_task(asyncio.to_thread(EventLog.take_over, path, epoch))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unused)
            raise

    async def deliver(self, delivery: DeliverInput) -> Delivered:
        """Messages and decisions for the agent, in order."""
        # Not before: as JSON in a payload an attached text can be several times as large as in base64.
        delivery = delivery.model_copy(update={"messages": tuple(each.as_told() for each in delivery.messages)})
        # Kept here too: the process may die before the end is in its journal, and no other must follow it then.
        self._end_asked = self._end_asked or any(each.end for each in delivery.messages)
        if self._attempt is None:
            return Delivered(here=False)
        # What an earlier process of the run has read, this one is not told again.
        known, delivery = self._totals.settlements.split(delivery)
        task = asyncio.create_task(self._attempt.deliver(delivery))
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)
        try:
            await asyncio.wait([task], timeout=delivery.patience_s)
        except asyncio.CancelledError:
            task.add_done_callback(self._on_late_delivery)
            raise
        if not task.done():
            task.add_done_callback(self._on_late_delivery)
            return Delivered(here=True, messages=known)
        answers = None if task.cancelled() else task.result()
        if answers is None:
            return Delivered(here=False, messages=known)
        return Delivered(here=True, messages=(*known, *self._totals.settlements.note(answers)))

    def _on_late_delivery(self, task: asyncio.Task[list[Settlement] | None]) -> None:
        if not task.cancelled() and task.exception() is None and (answers := task.result()):
            self._monitor.settle(answers)

    async def stop(self, reason: str, times: StopTimes | None = None) -> StopReport:
        """Stop the agent for good; `run` then returns, after at most BACKLOG_S more of reading."""
        if reason != CANCELLED:  # of which the workflow tells the host, too: that is where it is logged
            run_log.stop_asked(self._run.key, reason)
        if self._baseline:
            self._baseline.cancel()
        times = times or self._monitor.stop_times
        report = await self._run.runtime.stop(self._run.key, times, reason, known=self.attempts)
        if self._attempt:
            self._attempt.hurry(BACKLOG_S)
        return report

    @property
    def attempts(self) -> int:
        """How many processes this controller knows of."""
        return self._monitor.attempts

    def failed(self, error: RunError) -> RunOutcome:
        """The outcome of a run that could not be led to its end."""
        return self._totals.outcome("failed", error)

    def snapshot(self) -> Progressed:
        """How far the run is."""
        return self._monitor.snapshot()

    # ---- attempts

    @property
    def _attempt(self) -> AttemptRunner | None:
        return self._monitor.attempt

    async def _run_attempts(self, log: EventLog) -> RunOutcome:
        number = 0
        while True:
            number += 1
            self._take_part(number)
            try:
                channel = await self._open(log, number, self._resumption)
            except AlreadyStopped:
                return self._totals.outcome("stopped")
            except RunError as refusal:
                if exhaustion(refusal):
                    raise  # that says nothing about the run: it is led another time
                if not await self._may_fall_back(number, refusal):
                    return self._totals.outcome("failed", refusal)
                number -= 1
                continue
            if channel is None:
                return self._totals.interrupted(self._error, NO_PROCESS)
            result = await self._run_attempt(number, channel, log, self._resumption)
            if (end := await self._end_of(number, result, log)) is not None:
                return end

    async def _end_of(self, number: int, result: AttemptResult, log: EventLog) -> RunOutcome | None:
        """The run's outcome; None where a further process follows."""
        if self._run.backup and result.exit_fact.reason == "terminated":
            await back_up_last(self._run.key, self._run.backup)
        verdict = result.verdict
        if verdict.error is not None and result.limit is None:
            self._run.directory.require(number)  # else its shim, or a sweep, ended it for want of one
        if (end := await self._outcome_of(result, log)) is not None:
            falls_back = end.status == "failed" and await self._may_fall_back(number + 1, verdict.error)
            return None if falls_back else end
        if not verdict.start_over:  # a resume that found no session tells nothing new
            self._error = verdict.error
            self._crashes += result.exit_fact.reason == "exited" or result.exit_fact.lost
        if self._crashes > MAX_CRASHES:
            return self._totals.outcome("failed", self._error)
        self._resumption = self._resumption_after(number, result)
        if verdict.start_over and not result.parked:
            await self._begin_again()
        return None

    async def _open(self, log: EventLog, number: int, resumption: Resumption | None) -> Channel | None:
        """An earlier process, or the next one, started; None where a person has ended the run before that."""
        launch: Launch | None = None
        exists = number <= self._earlier
        if not exists and not self._end_asked:
            self._run.directory.require(number - 1)
            launch, told = await prepare_launch(self._run, number, resumption)
            if number == 1:
                self._remarks += filter(None, (told, await self._not_kept()))
        if not exists and self._end_asked:
            return None
        self._log_progress(log, number, *self._remarks)
        self._remarks = []
        channel = await self._run.runtime.open(self._run.key, number, self._run.epoch, launch)
        if launch:
            run_log.agent_started(self._run.key, number, channel.handle)
        return channel

    async def _may_fall_back(self, number: int, error: RunError | None) -> bool:
        """Whether another agent goes on, with process `number`: that is written down before it is started, with what it
        is told, so that every worker goes on with the same one. Raises OSError.
        """
        part, directory = self._part + 1, self._run.directory
        if error is None or part >= len(self._agents) or self._end_asked:
            return False
        if cause_of(error) not in self._agents[0].request.fallback_on:
            return False
        noted = directory.part(part)
        if noted is None or noted.attempt != number:
            last = self._totals.last_work(error.message)
            told = await handover(last, self._prompts(), directory.events, self._run.baseline)
            await asyncio.to_thread(directory.note_part, part, Part(number, error.message, told))
        return True

    async def _begin_again(self) -> None:
        """The agent's session is lost: what was told and done goes before its prompt. Raises OSError."""
        said = self._totals.last_work("").said
        told = await begun_again(said, self._prompts(), self._run.directory.events, self._run.baseline)
        self._run = _told_before(self._agents[self._part], told + self._before(self._part))

    def _prompts(self) -> list[str]:
        """What the run itself has asked its agents so far, with what preceded it for each."""
        agents = enumerate(self._agents[: self._part + 1])
        return [CONTINUE_PROMPT, *(self._before(part) + run.told.prompt for part, run in agents)]

    def _before(self, part: int) -> str:
        """What precedes the prompt of the run's agent of this number."""
        noted = self._run.directory.part(part) if part else None
        return noted.told if noted else ""

    def _take_part(self, number: int) -> None:
        """Another agent than so far is at work from this process on, where that was written down."""
        while self._part + 1 < len(self._agents):
            noted = self._run.directory.part(self._part + 1)
            if noted is None or noted.attempt != number:
                return
            left, following = self._agents[self._part].request, self._agents[self._part + 1]
            self._part += 1
            self._totals.fall_back(following.request, noted.why)
            self._remarks.append(f"{_named(left)} cannot go on ({noted.why[:500]}); {_named(following.request)} does")
            self._run = _told_before(following, noted.told)
            self._monitor.fall_back(self._run, self._part)
            self._resumption, self._error, self._crashes = None, None, 0

    async def _not_kept(self) -> str | None:
        """What a person is told of a baseline that could not be kept. A stop does not wait for it."""
        if self._baseline is None:
            return None
        await asyncio.wait({self._baseline})
        return None if self._baseline.cancelled() else self._baseline.result()

    async def _run_attempt(
        self,
        number: int,
        channel: Channel,
        log: EventLog,
        resumption: Resumption | None,
        patience_s: float | None = None,
    ) -> AttemptResult:
        """Lead this process to its end, and let go of it, also where this worker is cut off before it begins."""
        try:
            return await self._lead_attempt(number, channel, log, resumption, patience_s)
        finally:
            await channel.close()

    async def _lead_attempt(
        self, number: int, channel: Channel, log: EventLog, resumption: Resumption | None, patience_s: float | None
    ) -> AttemptResult:
        run, snapshots = self._run, Snapshots(self._run.directory.snapshot(number))
        transcript, snapshot = await snapshots.restored(
            lambda: run.agent.transcript(run.agent_key, run.told, resumption), channel, log.source
        )
        state = AttemptState(number)
        attempt = self._monitor.attempt = AttemptRunner(
            state=state,
            channel=channel,
            transcript=transcript,
            conversation=run.agent.converse(
                run.agent_key,
                run.told,
                channel,
                transcript,
                AttemptApprovals(state, self._monitor),
                self._what_is_wrong,
            ),
            log=log,
            observer=self._monitor,
            before=self._totals.total(),
        )
        self._totals.begin(transcript)
        attempt.resume(snapshots, snapshot)
        if patience_s is not None:
            attempt.hurry(patience_s)
        self._announce(log, number, channel, resumption)
        try:
            exit_fact = await attempt.run()
            if number >= self._earlier:  # the ends of those before were seen by whoever started the next one
                run_log.agent_gone(run.directory, number, channel.handle, exit_fact, attempt.lasted_s)
        except Exception as error:
            if snapshot and not isinstance(error, Fenced):
                snapshots.discard()  # it may be at fault: next time the journal is read from its beginning
            raise
        finally:
            self._monitor.attempt = None
            self._totals.end(read_whole=attempt.read_whole)
        return AttemptResult(
            exit_fact=exit_fact,
            verdict=transcript.verdict(exit_fact),
            limit=attempt.limit or stopped_for(exit_fact.why),
            parked=transcript.parked,
            ended_at=attempt.ended_at,
        )

    def _announce(self, log: EventLog, number: int, channel: Channel, resumption: Resumption | None) -> None:
        if resumption and self._run.lost and number == self._earlier + 1:
            self._log_progress(log, number, self._run.lost)
        if resumption:
            session = resumption.session_id
            how = f"session {session} resumed" if session else "started over"
            text = f"the agent's process ended before its work; {how} in a new process (attempt {number})"
            self._log_progress(log, number, text)
        if (handle := channel.handle) is not None:
            self._monitor.started(handle, number)

    def _log_progress(self, log: EventLog, number: int, *texts: str) -> None:
        events = [ProgressEvent(time=datetime.now(UTC), text=text) for text in texts]
        self._monitor.observe(log.append(number, 0, events))

    def _resumption_after(self, number: int, result: AttemptResult) -> Resumption:
        """What follows on this process."""
        session_id = None if result.verdict.start_over else self._totals.total().session_id
        return Resumption(number + 1, session_id, result.parked, result.verdict.unsaved)

    async def _outcome_of(self, result: AttemptResult, log: EventLog) -> RunOutcome | None:
        """What a process's end makes of the run; None where another process may follow."""
        verdict, exit_fact = result.verdict, result.exit_fact
        if result.limit:
            report = proof(exit_fact, result.limit.message, proven=not verdict.unproven)
            return self._totals.outcome("failed", result.limit.error(), report)
        if exit_fact.reason == "stopped" and exit_fact.why not in OWN_STOPS:
            return self._totals.outcome("stopped")
        if result.ended_at or (self._end_asked and verdict.resumable):
            asked_ms = result.ended_at * 1000 if result.ended_at else exit_fact.time_ms
            report = proof(exit_fact, asked_ms=asked_ms, proven=not verdict.unproven)
            return self._totals.interrupted(verdict.error, report)
        if verdict.error is None:
            return await self._succeeded(log)
        return None if verdict.resumable else self._totals.outcome("failed", verdict.error)

    async def _what_is_wrong(self, answer: JsonValue) -> str | None:
        """See ports.AnswerCheck. Where it fails, so does the lead: the agent may say nothing more that shows it."""
        try:
            wrong = await mismatch(self._run.request.output_schema, answer)
        except Exception as error:
            if self._attempt:
                self._attempt.fail(error)
            raise
        return wrong.message if wrong else None

    async def _succeeded(self, log: EventLog) -> RunOutcome:
        """The agent says that it is done: its answer is held against the schema that was asked for."""
        wrong = await mismatch(self._run.request.output_schema, self._totals.total().structured)
        if wrong is None:
            return self._totals.outcome("succeeded")
        event = ErrorEvent(time=datetime.now(UTC), message=wrong.message)
        self._monitor.observe(log.append(self._totals.ended, NEVER, [event]))
        return self._totals.outcome("failed", wrong)


def _told_before(run: RunContext, told: str) -> RunContext:
    """The run with this before its prompt."""
    return replace(run, request=run.request.model_copy(update={"prompt": told + run.request.prompt}))


def _named(request: RunRequest) -> str:
    return f"{request.agent} ({request.model})" if request.model else request.agent


def _close_unused(opening: "asyncio.Task[EventLog]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
