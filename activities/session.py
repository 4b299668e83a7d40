"""One worker's hold on one run: its agent's processes one after another, until the work is done or cannot go on.

A worker that takes over reads the journals of all earlier processes again and comes to the same state. Knows no
Temporal: the workflow is reached through a Notifier.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from activities import trust
from activities.eventlog import EventLog, last_event
from activities.life import NEVER, Life
from activities.limits import Limit, reached, stopped_for
from activities.milestones import Milestones
from activities.outcome import in_all, interrupted, outcome
from activities.ports import (
    Admission,
    Agent,
    AlreadyStopped,
    Channel,
    ExitFact,
    Ladder,
    Launch,
    Notifier,
    Progress,
    Resumption,
    Runtime,
    Verdict,
)
from activities.schemas import misfit
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
from steersman.contracts.run import LastEvent, StopReport

BACKLOG_S = 3.0
"""How long a stopped agent's unread output is still read: one that floods can be gigabytes ahead."""
MAX_CRASHES = 3
"""So many processes of one run may die before the run is given up."""
OUR_STOPS = ("finished", "hopeless", "interrupted")
"""Reasons for which a session itself stops a process: its transcript says what that end means."""


@dataclass(frozen=True)
class Lived:
    """How one process ended. `ended`: a person had ended the run with the turn."""

    exit_fact: ExitFact
    verdict: Verdict
    limit: Limit | None
    parked: bool
    ended: bool


class Session:
    """`run` leads the run; `deliver`, `stop` and `snapshot` are called from beside it."""

    def __init__(
        self,
        run: RunAgentInput,
        agent: Agent,
        runtime: Runtime,
        directory: RunDirectory,
        admit: Callable[[], Admission],
        notifier: Notifier,
        epoch: int,
    ) -> None:
        self._run, self._agent, self._runtime = run, agent, runtime
        self._directory, self._admit = directory, admit
        self._notifier, self._epoch = notifier, epoch
        self._milestones = Milestones(notifier)
        self._past: list[Progress] = []
        self._life: Life | None = None
        self._settlements: dict[str, Settlement] = {}
        self._errands: set[asyncio.Task[list[Settlement] | None]] = set()
        self._last: LastEvent | None = None
        self._end_asked = False
        self.ladder = agent.ladder(run.request)

    async def run(self) -> RunOutcome:
        """Lead the run to its end. Raises Fenced where a newer worker has taken it."""
        log = await self._log()
        self._milestones.put(self._notifier.preparing)
        telling = asyncio.create_task(self._milestones.run())
        try:
            return await self._attempts(log)
        finally:
            for task in (telling, *self._errands):
                task.cancel()
            await asyncio.gather(telling, *self._errands, return_exceptions=True)
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
        work = asyncio.create_task(self._life.deliver(parcel))
        self._errands.add(work)
        work.add_done_callback(self._errands.discard)
        await asyncio.wait([work], timeout=parcel.patience_s)
        if not work.done():
            work.add_done_callback(self._delivered_late)
            return Delivered(here=True)
        answers = None if work.cancelled() else work.result()
        if answers is None:
            return Delivered(here=False)
        for each in answers:
            self._settlements[each.id] = each
        return Delivered(here=True, messages=tuple(answers))

    def _delivered_late(self, work: asyncio.Task[list[Settlement] | None]) -> None:
        if not work.cancelled() and work.exception() is None and (answers := work.result()):
            self.settle(answers)

    async def stop(self, reason: str, ladder: Ladder | None = None) -> StopReport:
        """Stop the agent for good; `run` then returns, after at most BACKLOG_S more of reading."""
        report = await self._runtime.stop(self._run.key, ladder or self.ladder, reason)
        if self._life:
            self._life.hurry(BACKLOG_S)
        return report

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
            attempt=self._life.number if self._life else len(self._past),
            last_event=self._last,
        )

    # ---- what a conversation needs (the Desk port)

    async def ask(self, asked: ApprovalAsked) -> None:
        """The agent waits for a person, or no longer does."""
        self._milestones.put(lambda: self._notifier.asked(asked))

    def settle(self, settlements: list[Settlement]) -> None:
        """Messages of which the journal says more than their delivery did."""
        for each in settlements:
            self._settlements[each.id] = each
        self._milestones.put(lambda: self._notifier.settled(settlements))

    # ---- processes

    async def _attempts(self, log: EventLog) -> RunOutcome:
        existing = self._runtime.attempts(self._run.key)
        resumption: Resumption | None = None
        error: RunError | None = None
        number = crashes = 0
        while True:
            number += 1
            try:
                channel = await self._open(log, number, resumption, exists=number <= existing)
            except AlreadyStopped:
                return self._outcome("stopped")
            except RunError as refusal:
                return self._outcome("failed", refusal)
            if channel is None:
                return self._interrupted(error)
            lived = await self._live(number, channel, log, resumption)
            if (end := await self._outcome_of(lived, log)) is not None:
                return end
            verdict = lived.verdict
            if not verdict.start_over:  # a resume that found no session tells nothing new
                error = verdict.error
                crashes += lived.exit_fact.reason == "exited" or lived.exit_fact.lost
            if crashes > MAX_CRASHES:
                return self._outcome("failed", error)
            session_id = None if verdict.start_over else self._total().session_id
            resumption = Resumption(number + 1, session_id, lived.parked)

    async def _outcome_of(self, lived: Lived, log: EventLog) -> RunOutcome | None:
        """What a process's end makes of the run; None where another process may follow."""
        verdict = lived.verdict
        if lived.limit:
            return self._outcome("failed", lived.limit.error())
        if lived.exit_fact.reason == "stopped" and lived.exit_fact.why not in OUR_STOPS:
            return self._outcome("stopped")
        if lived.ended or (self._end_asked and verdict.resumable):
            return self._interrupted(verdict.error)
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
            launch = await self._launch(log, number, resumption)
        if not exists and self._end_asked:
            return None
        return await self._runtime.open(self._run.key, number, self._epoch, launch)

    async def _launch(self, log: EventLog, number: int, resumption: Resumption | None) -> Launch:
        """The next process. Judged anew each time: the workspace and what the operator allows may have changed."""
        admission = await asyncio.to_thread(self._admit)
        launch = self._agent.launch(self._run.key, self._run.request, admission, self._directory.scratch, resumption)
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

    async def _live(self, number: int, channel: Channel, log: EventLog, resumption: Resumption | None) -> Lived:
        transcript = self._agent.transcript(self._run.key, self._run.request, resumption)
        life = self._life = Life(
            number=number,
            channel=channel,
            transcript=transcript,
            conversation=self._agent.converse(self._run.key, self._run.request, channel, transcript, self),
            log=log,
            overseer=self,
            before=self._total(),
        )
        if resumption:
            self._announce(log, number, resumption)
        if (handle := channel.handle) is not None:
            self._milestones.put(lambda: self._notifier.started(handle, number))
        try:
            exit_fact = await life.run()
        finally:
            self._life = None
            self._past.append(transcript.progress)
            for each in transcript.settlements():
                self._settlements[each.id] = each
        return Lived(
            exit_fact=exit_fact,
            verdict=transcript.verdict(exit_fact),
            limit=life.limit or stopped_for(exit_fact.why),
            parked=transcript.parked,
            ended=life.ended_at is not None,
        )

    def _announce(self, log: EventLog, number: int, resumption: Resumption) -> None:
        how = f"session {resumption.session_id} resumed" if resumption.session_id else "started over"
        text = f"the agent's process ended before its work; {how} in a new process (attempt {number})"
        self.observe(log.append(number, 0, [ProgressEvent(time=datetime.now(UTC), text=text)]))

    # ---- watching

    def observe(self, events: list[EventBase]) -> None:
        """New events of the agent's process."""
        for event in events:
            if not isinstance(event, UsageEvent) and not getattr(event, "delta", False):
                self._last = last_event(event)
        self._milestones.consider(self.snapshot)

    def tick(self) -> None:
        """A few times a second: what the agent did before it fell silent is told too, when its time has come."""
        self._milestones.consider(self.snapshot)

    def limit(self) -> Limit | None:
        """The limit that is reached, over all processes."""
        total, life = self._total(), self._life
        silent = time.time() - life.last_word if life and life.transcript.working else None
        return reached(
            self._run.request.limits, turns=total.turns, cost_usd=total.cost_usd, usage=total.usage, silent_s=silent
        )

    def _total(self) -> Progress:
        return in_all([*self._past, *([self._life.transcript.progress] if self._life else [])])

    def _outcome(self, status: str, error: RunError | None = None) -> RunOutcome:
        messages = tuple(self._settlements.values())
        return outcome(status, self._total(), error, attempts=len(self._past), messages=messages, last_event=self._last)

    def _interrupted(self, error: RunError | None) -> RunOutcome:
        return interrupted(self._outcome("succeeded"), self._total(), self._run.request, error)


def _close_unused(opening: "asyncio.Task[EventLog]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
