"""What a run has come to, over all its processes: progress, messages, the outcome that follows. Tells nobody."""

from dataclasses import dataclass

from activities.ports.agent import Progress, Transcript
from activities.running.result import interrupted, outcome, total_of
from activities.running.settlements import Settlements
from steersman.contracts.activities import Progressed, RunOutcome
from steersman.contracts.errors import RunError
from steersman.contracts.request import RunRequest
from steersman.contracts.run import LastEvent, RunPart, StopReport


@dataclass(frozen=True)
class LastWork:
    """What an agent has come to that cannot go on: its last words, and why."""

    agent: str
    said: str
    why: str


class RunTotals:
    """Adds up the processes that have ended and the one at work."""

    def __init__(self, request: RunRequest) -> None:
        self._request = request
        self._past: list[Progress] = []
        self._parts: list[tuple[RunRequest, int, str]] = []
        """Of each agent that could not go on: its request, how many processes had ended by then, and why."""
        self._current: Transcript | None = None
        self._journal_read = True
        self.settlements = Settlements()
        self.last_event: LastEvent | None = None

    @property
    def ended(self) -> int:
        """How many processes have ended."""
        return len(self._past)

    def begin(self, transcript: Transcript) -> None:
        """A further process counts from now on."""
        self._current = transcript

    def end(self, *, read_whole: bool) -> None:
        """The process has ended; `read_whole`: its journal was read to its end."""
        transcript, self._current = self._current, None
        assert transcript is not None
        self._past.append(transcript.progress)
        self.settlements.note_end(transcript)
        self._journal_read = self._journal_read and read_whole

    def fall_back(self, request: RunRequest, why: str) -> None:
        """The agent cannot go on, and another one does: with a request, and sessions, of its own."""
        self._parts.append((self._request, len(self._past), why))
        self._request = request

    def total(self) -> Progress:
        """The sum over all processes, with the last one's answer, and the session of the agent at work."""
        total = total_of(self._processes)
        if self._parts:
            total.session_id = self._at_work.session_id
        return total

    @property
    def _own_session(self) -> str | None:
        """See RunProgress.own_session_id."""
        parts = self.parts()
        own = [each.session_id for each in parts if each.agent == parts[0].agent and each.session_id]
        return own[-1] if own else None

    def last_work(self, why: str) -> LastWork:
        """Of the newest agent that has done anything; of the one at work where none has, which ends for this reason."""
        found, begins = [], 0
        for request, ends, told in [*self._parts, (self._request, len(self._processes), why)]:
            total, begins = total_of(self._processes[begins:ends]), ends
            found.append((bool(total.said or total.turns), LastWork(request.agent, total.said, told)))
        worked = [each for has_worked, each in found if has_worked]
        return worked[-1] if worked else found[-1][1]

    @property
    def _at_work(self) -> Progress:
        """The sum over the processes of the agent at work."""
        return total_of(self._processes[self._parts[-1][1] if self._parts else 0 :])

    @property
    def _processes(self) -> list[Progress]:
        return [*self._past, *([self._current.progress] if self._current else [])]

    def parts(self) -> tuple[RunPart, ...]:
        """What each agent has done, where there was more than one; see RunResult."""
        found, begins = [], 0
        for request, ends, why in [*self._parts, (self._request, len(self._processes), None)]:
            processes = self._processes[begins:ends]
            total, begins = total_of(processes), ends
            part = RunPart(agent=request.agent, model=request.model, attempts=len(processes), error=why)
            used = {name: getattr(total, name) for name in ("session_id", "usage", "cost_usd", "turns")}
            found.append(part.model_copy(update=used))
        return tuple(found) if self._parts else ()

    def progressed(self, attempt: int, *, awaits_message: bool = False) -> Progressed:
        """How far the run is, as its workflow is told."""
        total = self.total()
        return Progressed(
            session_id=total.session_id,
            own_session_id=self._own_session,
            usage=total.usage,
            cost_usd=total.cost_usd,
            turns=total.turns,
            attempt=attempt,
            last_event=self.last_event,
            awaits_message=awaits_message,
        )

    def outcome(self, status: str, error: RunError | None = None, report: StopReport | None = None) -> RunOutcome:
        """The run's outcome, if it ends now."""
        made = outcome(
            status,
            self.total(),
            error,
            attempts=self.ended,
            messages=self.settlements.at_end(),
            journal_read=self._journal_read,
            last_event=self.last_event,
            stop_report=report,
            parts=self.parts(),
        )
        return made.model_copy(update={"own_session_id": self._own_session})

    def interrupted(self, error: RunError | None, report: StopReport) -> RunOutcome:
        """The outcome of a run that a person ended with its turn, whatever `error` its last process died of."""
        return interrupted(self.outcome("succeeded", report=report), self.total(), self._request, error)
