"""The transcript of one process of opencode: that of any ACP agent, and what the plugin tells. Deterministic, too."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from activities.agents.acp.snapshot import AcpSnapshot
from activities.agents.acp.transcript import AcpTranscript, prompt_text
from activities.agents.frames import Frame
from activities.agents.opencode import telemetry
from activities.agents.opencode.telemetry import Meter, Reading
from activities.agents.snapshot_fields import ErrorField, Name
from activities.ports.agent import Resumption
from activities.untrusted_json import MAX_NAME, count_of, object_at, text_of
from steersman.contracts.errors import AgentFailed, RunError
from steersman.contracts.events import EventBase, ProgressEvent, UsageEvent

PREFIX = "_steersman/"
CUT = {"length": "max_tokens", "content-filter": "refusal"}
"""Why an answer ended that is none, in opencode's words and the protocol's. To opencode such a turn ended well."""


@dataclass
class OpencodeSnapshot(AcpSnapshot):
    """See AcpSnapshot."""

    loaded: bool = False
    steps: Meter = field(default_factory=Meter)
    reading: Reading = field(default_factory=Reading)
    _told_failure: ErrorField = None
    _reason: Name = ""

    def counts(self) -> bool:
        """See AcpSnapshot."""
        progress, steps = self.progress, self.steps
        metered = (progress.turns, progress.cost_usd, progress.usage) == (steps.turns, steps.cost_usd, steps.usage)
        return metered and steps.is_sound() and self.reading.is_sound()


class OpencodeTranscript(AcpTranscript):
    """See AcpTranscript."""

    snapshot_kind: ClassVar[type[AcpSnapshot]] = OpencodeSnapshot

    def __init__(
        self, session: str | None = None, resumption: Resumption | None = None, *, structured: bool = False
    ) -> None:
        super().__init__(session, resumption, structured=structured)
        self.loaded = False
        """The plugin is at work."""
        self.steps = Meter()
        self.reading = Reading()
        self._told_failure: RunError | None = None
        self._reason = ""
        """Why the last step of the agent itself ended."""

    def _input(self, time: datetime, command: str, frame: Frame) -> list[EventBase]:
        if frame.get("method") == "session/prompt":
            self.reading.written(command, prompt_text(frame), joins=self.turn_open)
            self._told_failure = None
            self._reason = self._reason if self.turn_open else ""
        return super()._input(time, command, frame)

    def _session_opened(self, time: datetime, result: Frame, error: object) -> list[EventBase]:
        found = super()._session_opened(time, result, error)
        if self.hopeless is None and not self.loaded:
            self.hopeless = AgentFailed(
                "opencode has not loaded Steersman's plugin: what it uses and what it reads would not be known"
            )
        return found

    def _asked(self, time: datetime, record: int, frame: Frame) -> list[EventBase]:
        of_the_plugin = isinstance(frame.get("id"), str)  # opencode's own are numbers
        if of_the_plugin and object_at(frame, "params").get("sessionId") == self.progress.session_id:
            return []  # this session is a subagent's: opencode asks that, too
        return super()._asked(time, record, frame)

    def _extension(self, time: datetime, method: str, params: Frame) -> list[EventBase]:
        match method.removeprefix(PREFIX):
            case "loaded":
                self.loaded = True
            case "step":
                return self._step(time, params)
            case "retry":
                return self._retry(time, params)  # a subagent's, too: the agent waits for it
            case _ if params.get("sessionId") != self.progress.session_id:
                pass  # a subagent's
            case "heard":
                self.reading.hear(params)
            case "reply":
                for command, joined in self.reading.answer(params):
                    self.messages.prompt_read(command, mid_turn=joined)
            case "error":
                self._told_failure = telemetry.failure(object_at(params, "error"), time) or self._told_failure
        return []

    def _step(self, time: datetime, params: Frame) -> list[EventBase]:
        steps, progress = self.steps, self.progress
        if not steps.step(params):
            return []
        if params.get("sessionId") == progress.session_id:
            self._reason = text_of(params.get("reason"))[:MAX_NAME]
        if steps.unfinished > telemetry.MAX_UNFINISHED:
            self.hopeless = AgentFailed("the model's answers end without a reason, and opencode asks for them again")
        progress.usage, progress.cost_usd, progress.turns = steps.usage, steps.cost_usd, steps.turns
        return [UsageEvent(time=time, usage=steps.usage, cost_usd=steps.cost_usd, turns=steps.turns)]

    def _retry(self, time: datetime, params: Frame) -> list[EventBase]:
        self.hopeless = self.hopeless or telemetry.hopeless(params, time)
        message = text_of(params.get("message"))[:1000]
        text = f"the model's service failed, and is asked again ({count_of(params.get('attempt'))}): {message}"
        return [ProgressEvent(time=time, text=text)]

    def _turn_ended(self, time: datetime, command: str, result: Frame, error: object) -> list[EventBase]:
        if result.get("stopReason") == "end_turn" and self._reason in CUT:
            result = {**result, "stopReason": CUT[self._reason]}
        found = super()._turn_ended(time, command, result, error)
        if not self.turn_open:
            self.reading.joined.clear()  # what was not read is read in the next one
        return found

    def _turn_used(self, time: datetime, result: Frame) -> list[EventBase]:
        return []  # each step has said so

    def _turn_failed(self, error: object) -> RunError:
        return self._told_failure or super()._turn_failed(error)
