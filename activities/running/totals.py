"""What a run has come to, over all its processes: progress, messages, the outcome that follows. Tells nobody."""

from activities.ports.agent import Progress, Transcript
from activities.running.result import interrupted, outcome, total_of
from activities.running.settlements import Settlements
from steersman.contracts.activities import Progressed, RunOutcome
from steersman.contracts.errors import RunError
from steersman.contracts.request import RunRequest
from steersman.contracts.run import LastEvent, StopReport


class RunTotals:
    """Adds up the processes that have ended and the one at work."""

    def __init__(self, request: RunRequest) -> None:
        self._request = request
        self._past: list[Progress] = []
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

    def total(self) -> Progress:
        """The sum over all processes, with the last one's answer."""
        return total_of([*self._past, *([self._current.progress] if self._current else [])])

    def progressed(self, attempt: int) -> Progressed:
        """How far the run is, as its workflow is told."""
        total = self.total()
        return Progressed(
            session_id=total.session_id,
            usage=total.usage,
            cost_usd=total.cost_usd,
            turns=total.turns,
            attempt=attempt,
            last_event=self.last_event,
        )

    def outcome(self, status: str, error: RunError | None = None, report: StopReport | None = None) -> RunOutcome:
        """The run's outcome, if it ends now."""
        return outcome(
            status,
            self.total(),
            error,
            attempts=self.ended,
            messages=self.settlements.at_end(),
            journal_read=self._journal_read,
            last_event=self.last_event,
            stop_report=report,
        )

    def interrupted(self, error: RunError | None, report: StopReport) -> RunOutcome:
        """The outcome of a run that a person ended with its turn, whatever `error` its last process died of."""
        return interrupted(self.outcome("succeeded", report=report), self.total(), self._request, error)
