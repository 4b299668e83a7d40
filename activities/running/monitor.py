"""What follows from a run's events: the workflow is told, limits are enforced, sessions locked, steps logged.

Which attempt follows must not live here.
"""

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager

from activities.ports.runtime import StopTimes
from activities.ports.workflow import AgentAtWork, Notifier
from activities.running import run_log
from activities.running.attempt import AttemptRunner
from activities.running.launch import RunContext, stop_times
from activities.running.limits import Limit, reached
from activities.running.progress import ProgressReporter, is_blank, last_event
from activities.running.totals import RunTotals
from steersman.contracts.activities import ApprovalAsked, Progressed, Settlement
from steersman.contracts.budget import nearly_spent
from steersman.contracts.events import EventBase, ToolOutputEvent, UsageEvent
from steersman.contracts.run import Handle, LastEvent

PREPARING_S = 2.0
"""A worker that has no process after this many seconds says that it prepares one: what is over sooner nobody would see.
"""
PARKED_S = 0.3
"""What an interrupt is for often follows it: a process that waits no longer than this for a message is not said to."""
MAX_SESSIONS = 20
"""A run locks at most this many sessions of its agent; one that is resumed and never cleared has one."""


class RunMonitor:
    """The AttemptObserver and ApprovalRequester of one run. `earlier`: how many processes it had before."""

    def __init__(self, run: RunContext, notifier: Notifier, totals: RunTotals, earlier: int) -> None:
        self._run, self._notifier, self._totals, self._earlier = run, notifier, totals, earlier
        self._reporter = ProgressReporter(notifier, run.starts, taken_over=earlier > 0)
        self.stop_times: StopTimes = stop_times(run.agent, run.request)
        self._part = 0
        self._nearly_spent: set[str] = set()
        """Limits of which most is spent, as the workflow has been told at once."""
        self._parked_since: float | None = None
        """On the event loop's clock: since when the process that this worker leads has waited for a person."""
        self._awaits_message = False
        """It has for PARKED_S, of which the workflow is told at once."""
        self._told: tuple[int, int, LastEvent | None, bool] | None = None
        """How far the journal was read, what the log had last, and whether a message was awaited, when the workflow was
        told all of it.
        """
        self.attempt: AttemptRunner | None = None
        """The attempt at work."""
        self.message_heard = asyncio.Event()
        """Set when the agent has been given a message, or says that it has read one."""
        self.locked: dict[str, asyncio.Future[None]] = {}
        """By session: the task that locks it for this run."""

    def fall_back(self, run: RunContext, part: int) -> None:
        """Another agent is at work from now on."""
        self._run, self._part = run, part
        self.stop_times = stop_times(run.agent, run.request)

    async def run(self) -> None:
        """Tell the workflow until cancelled."""
        await self._reporter.run()

    @property
    def attempts(self) -> int:
        """How many processes the run has had, as far as this worker knows."""
        return self.attempt.number if self.attempt else self._totals.ended

    def snapshot(self) -> Progressed:
        """How far the run is."""
        return self._totals.progressed(self.attempts, awaits_message=self._awaits_message)

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """This worker has taken the run, for the length of a block in which it may come to a process."""
        later = asyncio.get_running_loop().call_later(PREPARING_S, self._tell_preparing)
        try:
            yield
        finally:
            later.cancel()

    def _tell_preparing(self) -> None:
        if self._earlier == 0 and self.attempts == 0:
            self._reporter.put(self._notifier.preparing)

    def started(self, handle: Handle, number: int) -> None:
        """This worker leads a process."""
        at_work = AgentAtWork(self._part, self._run.capabilities)
        self._awaits_message = False  # as the workflow takes it of each process that it hears of
        adopted = number <= self._earlier
        self._reporter.put(lambda: self._notifier.started(handle, number, adopted=adopted, agent=at_work))

    async def ask(self, asked: ApprovalAsked) -> None:
        """The agent waits for a person, or no longer does."""
        self._reporter.put(lambda: self._notifier.asked(asked))

    def settle(self, settlements: list[Settlement]) -> None:
        """The journal says more of these messages than their delivery did."""
        self.message_heard.set()
        noted = self._totals.settlements.note(settlements)
        self._reporter.put(lambda: self._notifier.settled(noted))

    def live(self, number: int) -> None:
        """All that the process has said before is read, and it is at work."""
        if number <= self._earlier and self.attempt:
            run_log.agent_adopted(self._run.key, number, self.attempt.channel.handle)

    def delivered(self, number: int, kind: str, settlement: Settlement) -> None:
        """The process was given a message."""
        self.message_heard.set()
        run_log.message_delivered(self._run.key, number, kind, settlement)

    def stopping(self, reason: str) -> None:
        """The process is to be stopped, by a limit or because its turn was ended."""
        run_log.stop_asked(self._run.key, reason)

    def observe(self, events: list[EventBase]) -> None:
        """New events of the agent's process."""
        for event in events:
            is_partial = isinstance(event, UsageEvent | ToolOutputEvent) or getattr(event, "delta", False)
            if not is_partial and not is_blank(event):
                self._totals.last_event = last_event(event)
        self.tick()

    def tick(self) -> None:
        """See AttemptObserver: what the agent did before it fell silent is told too, when its time has come."""
        awaits = self._is_parked_for_long()
        state = (self.attempts, self.attempt.fed if self.attempt else 0, self._totals.last_event, awaits)
        if state == self._told:
            return
        self._lock_session()
        news, self._awaits_message = awaits != self._awaits_message, awaits
        if self._is_metered:
            total, limits = self._totals.total(), self._run.request.limits
            spent = nearly_spent(limits, turns=total.turns, cost_usd=total.cost_usd, usage=total.usage)
            names = {each.of for each in spent}
            news = news or not names <= self._nearly_spent
            self._nearly_spent |= names
        if self._reporter.consider(self.snapshot, has_session=self._session is not None, at_once=news):
            self._told = state

    def limit(self) -> Limit | None:
        """The limit that is reached, over all processes."""
        limits, attempt = self._run.request.limits, self.attempt
        if not self._is_metered and limits.idle_s is None:
            return None
        total = self._totals.total()
        hears = attempt is not None and attempt.transcript.working and not attempt.channel.is_cut
        silent = attempt.silent_s if attempt and hears else None
        return reached(limits, turns=total.turns, cost_usd=total.cost_usd, usage=total.usage, silent_s=silent)

    def silence_left_s(self) -> float:
        """See AttemptObserver."""
        idle_s, attempt = self._run.request.limits.idle_s, self.attempt
        left = idle_s - attempt.silent_s if attempt and idle_s is not None else math.inf
        return left if left > 0 else math.inf

    def _is_parked_for_long(self) -> bool:
        loop = asyncio.get_running_loop()
        if not self._is_parked():
            self._parked_since = None
            return False
        if self._parked_since is None:
            self._parked_since = loop.time()
            loop.call_later(PARKED_S + 0.01, self.tick)  # a timer may come a moment early
        return loop.time() - self._parked_since >= PARKED_S

    def _is_parked(self) -> bool:
        """The process at work waits for a person to say how it goes on. What it did before this worker is old news."""
        if self.attempt is None or not self.attempt.is_live:
            return False
        transcript = self.attempt.transcript
        return transcript.parked and not (transcript.working or transcript.finished)

    @property
    def _is_metered(self) -> bool:
        """There is a limit of what the agent uses: only then it is added up a few times a second."""
        limits = self._run.request.limits
        return (limits.cost_usd, limits.tokens, limits.turns) != (None, None, None)

    @property
    def _session(self) -> str | None:
        return self.attempt.transcript.progress.session_id if self.attempt else None

    def _lock_session(self) -> None:
        """The agent's session, also one that it has begun itself, is this run's alone while the run is open."""
        session = self._session
        if session and session not in self.locked and len(self.locked) < MAX_SESSIONS:
            self.locked[session] = asyncio.ensure_future(self._run.admission.lock_session(session))
