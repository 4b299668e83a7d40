"""The transcript of one Claude Code process. Deterministic: the same journal gives the same events and state.

It relies on these facts (measured with 2.1.327): each turn has exactly one `result`; `session_state_changed idle` comes
when no frame is open; a user frame's uuid is reported queued, started, then completed or cancelled.
"""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from activities.agents.claude import approvals, events, tools
from activities.agents.claude.errors import hopeless, kept_from_full, result_error, start_failure
from activities.agents.claude.frames import DELEGATED, blocks, delegated
from activities.agents.claude.messages import Messages
from activities.agents.claude.plan import Plan
from activities.agents.claude.rate_limits import Refusals
from activities.agents.claude.sessions import is_id
from activities.agents.claude.snapshot import MAX_ASKED, MAX_TASKS, TOO_MANY, ClaudeSnapshot
from activities.agents.claude.usage import MAX_MODEL, UsageMeter
from activities.agents.crashes import crash
from activities.agents.frames import Frame, parse_frame
from activities.ports.agent import MAX_STRUCTURED, ExitFact, Progress, Resumption, Verdict
from activities.ports.runtime import Record
from activities.untrusted_json import MAX_NAME, object_at, text_of
from steersman.contracts.activities import Settlement
from steersman.contracts.errors import AgentFailed, InvalidRequest, RunError
from steersman.contracts.events import MAX_TEXT, TURN_INTERRUPTED, ErrorEvent, EventBase, ProgressEvent, UsageEvent
from steersman.contracts.request import PermissionMode

BY_NOBODY = "the turn was interrupted by no person: a hook can do that"
"""Nobody has a word to say on it, and a run that waited for one would wait for ever."""


class ClaudeTranscript:
    """See ports.Transcript. The attributes that feeding changes are in snapshots under their own names."""

    def __init__(
        self,
        resumption: Resumption | None = None,
        rate_limit_s: float | None = None,
        mode: PermissionMode = "accept_edits",
        servers: Sequence[str] = (),
    ) -> None:
        self.progress = Progress()
        self.hopeless: RunError | None = None
        self.pending: dict[str, Frame] = {}
        """Unanswered requests of the agent, by request id."""
        self.withdrawn: set[str] = set()
        """Ids of approvals that the agent has withdrawn."""
        self.parked = bool(resumption and resumption.parked)
        """The last turn was interrupted and no message followed: the agent waits for a person."""
        self.messages = Messages()
        self._rate_limit_s, self._mode, self._servers = rate_limit_s, mode, servers
        self._resumes = bool(resumption and resumption.session_id)
        self._meter = UsageMeter()
        self._refusals = Refusals()
        self._state = "idle"
        self._begun = self._turn_open = self._answered_once = self._over = False
        self._error: RunError | None = None
        self._tools: dict[str, Frame] = {}
        self._tasks: set[str] = set()
        self._background: set[str] = set()
        self._plan = Plan()

    @property
    def working(self) -> bool:
        """See ports.Transcript."""
        asking = any(approvals.is_approval(each) for each in self.pending.values())
        waits = self.parked and not self.messages.owed and not self._turn_open
        return not asking and not self.finished and not waits

    @property
    def finished(self) -> bool:
        """No frame is open, and the agent is not parked; or a person ended the run, and its turn has ended."""
        idle = self._idle and not self._background
        return self._over or (self._answered_once and idle and not self.parked)

    @property
    def _idle(self) -> bool:
        return self._state == "idle" and not self.messages.owed

    @property
    def _turn_follows(self) -> bool:
        """A sub-agent works, or has ended: that begins a turn, which is running already before its `init`."""
        return self._begun and not self._over and (bool(self._background) or self._state != "idle")

    @property
    def turn_open(self) -> bool:
        """A turn runs, or sub-agents do, that an interrupt would end."""
        return self._turn_open or not (self._idle or self.parked)

    def snapshot(self) -> bytes | None:
        """See ports.Transcript."""
        return ClaudeSnapshot(**{name: getattr(self, name) for name in ClaudeSnapshot.names()}).to_json()

    def restore(self, snapshot: bytes) -> None:
        """See ports.Transcript."""
        state = ClaudeSnapshot.from_json(snapshot)
        for name in ClaudeSnapshot.names():
            setattr(self, name, getattr(state, name))

    def settlements(self) -> list[Settlement]:
        """See ports.Transcript."""
        return self.messages.settlements()

    def last_words(self) -> list[Settlement]:
        """See ports.Transcript."""
        return self.messages.last_words()

    def wrote(self, message_id: str) -> bool:
        """See ports.Transcript."""
        return self.messages.wrote(message_id)

    def verdict(self, exit_fact: ExitFact) -> Verdict:
        """See ports.Transcript."""
        if self.hopeless:
            return Verdict(self.hopeless)
        if self._resumes and not self._begun and isinstance(self._error, InvalidRequest):
            # The process before this one died before Claude Code had saved the session.
            return Verdict(self._error, resumable=True, start_over=True)
        owed = self._begun and self.messages.owed
        if self._answered_once and not (self._turn_open or owed or self._turn_follows or self.parked):
            return Verdict(self._error)
        signalled = exit_fact.signal or (exit_fact.code or 0) > 128  # it catches SIGTERM and exits with 128 + 15
        if self._begun or signalled or exit_fact.lost or exit_fact.reason != "exited":
            return Verdict(crash(exit_fact), resumable=True)
        return Verdict(start_failure(exit_fact))

    def feed(self, record: Record) -> list[EventBase]:
        """See ports.Transcript."""
        time = datetime.fromtimestamp(record.time_ms / 1000, UTC)
        try:
            frame = parse_frame(record.data) if record.stream in ("in", "out") else None
            if frame is None:
                return []
            found = self._input(time, record.id, frame) if record.stream == "in" else self._output(time, frame)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
            found = [ErrorEvent(time=time, message=f"a frame of the agent could not be read: {error!r}"[:500])]
        if self.messages.end_answered and self._idle:
            # It stays so, even if a background task begins another turn.
            self._over = True
            self.messages.end_reached()
        return found

    # ---- frames that were written to the agent

    def _input(self, time: datetime, command: str, frame: Frame) -> list[EventBase]:
        self.messages.frame_written(command, frame, running=self.turn_open)
        return approvals.answered(time, frame, self.pending) if frame.get("type") == "control_response" else []

    # ---- frames of the agent, one handler for each kind

    def _output(self, time: datetime, frame: Frame) -> list[EventBase]:
        handlers: dict[str, Callable[[datetime, Frame], list[EventBase]]] = {
            "system": self._system,
            "command_lifecycle": self._lifecycle,
            "stream_event": self._stream,
            "assistant": self._assistant,
            "user": self._user,
            "result": self._turn_ended,
            "rate_limit_event": self._limit_reported,
            "control_request": self._asked,
            "control_cancel_request": self._withdrawn,
            "control_response": self._responded,
        }
        handler = handlers.get(str(frame.get("type")))
        return handler(time, frame) if handler else []

    def _system(self, time: datetime, frame: Frame) -> list[EventBase]:
        subtype = frame.get("subtype")
        if subtype == "session_state_changed":
            self._state = str(frame.get("state"))
            if self._state == "idle":
                self.messages.idle()
            return []
        if subtype == "init":
            return self._turn_began(time, frame)
        if subtype == "background_tasks_changed":
            self._background = delegated(frame)
        if subtype == "status" and frame.get("status") == "requesting":
            asked_with = frame.get("user_message_uuids")
            self.messages.asked_with(asked_with if isinstance(asked_with, list) else ())
        if subtype == "informational":
            self._submitted(object_at(frame, "prompt_submit_outcome"))
        if subtype == "api_retry":
            self.hopeless = self.hopeless or hopeless(time, frame, self._rate_limit_s)
        if (
            subtype == "task_started"
            and len(self._tasks) < MAX_TASKS
            and (frame.get("is_backgrounded") or frame.get("task_type") in DELEGATED)
        ):
            self._tasks.add(text_of(frame.get("task_id"))[:200])
        if subtype in ("task_started", "task_notification") and text_of(frame.get("task_id"))[:200] not in self._tasks:
            return []  # a command in the foreground is a tool call, which has its event
        event = events.progress_event(time, frame)
        return [event] if event else []

    def _turn_began(self, time: datetime, frame: Frame) -> list[EventBase]:
        self._turn_open = True
        self._meter.model = text_of(frame.get("model"))[:MAX_MODEL]
        # Its session is resumed: Claude Code would take anything but an id for a file's name.
        session = text_of(frame.get("session_id"))
        self.progress.session_id = session if is_id(session) else self.progress.session_id
        if self._begun:
            return []
        self._begun = True
        self.hopeless = self.hopeless or kept_from_full(self._mode, frame)
        without = events.servers_event(time, frame, self._servers)
        return [events.init_event(time, frame), *([without] if without else [])]

    def _submitted(self, outcome: Frame) -> None:
        """What became of a prompt that did not reach the model: a hook has blocked it, or ends the turn with it."""
        if not outcome:
            return
        reason = text_of(outcome.get("reason"))[:1000]
        if not outcome.get("prompt_kept"):
            self.messages.blocked(reason)
        if not self._answered_once:
            self._error = AgentFailed(f"a hook stopped the prompt: {reason}")

    def _limit_reported(self, time: datetime, frame: Frame) -> list[EventBase]:
        self._refusals.event(frame)
        return [events.rate_limit_event(time, frame)]

    def _lifecycle(self, time: datetime, frame: Frame) -> list[EventBase]:
        uuid, state = str(frame.get("command_uuid")), str(frame.get("state"))
        self.messages.state_reported(uuid, state, turn_open=self._turn_open)
        if state != "started":
            return []
        self.parked = False
        self.messages.turn_began()
        # Where the model is not reached any more, Claude Code does not say the text again.
        told = {"uuid": uuid}
        return [events.message_event(time, "user", "text", text, told) for text in self.messages.told(uuid)]

    def _stream(self, time: datetime, frame: Frame) -> list[EventBase]:
        event = events.delta_event(time, frame)
        if object_at(frame, "event").get("type") == "message_start":
            self._model_answers()
            if frame.get("parent_tool_use_id") is None:  # a sub-agent was not told
                self.messages.read()
        metered = self._meter.stream(object_at(frame, "event"), text_of(frame.get("parent_tool_use_id"))[:MAX_NAME])
        return [*([event] if event else []), *([self._usage(time)] if metered else [])]

    def _model_answers(self) -> None:
        self._refusals.answered()
        if self.hopeless and "rate_limit" in self.hopeless.facts:
            # The limit ended before a worker stopped the process for it.
            self.hopeless = None

    def _usage(self, time: datetime) -> UsageEvent:
        total = self._meter
        self.progress.usage, self.progress.cost_usd, self.progress.turns = total.usage, total.cost_usd, total.turns
        return UsageEvent(time=time, usage=total.usage, cost_usd=total.cost_usd, turns=total.turns)

    def _assistant(self, time: datetime, frame: Frame) -> list[EventBase]:
        found: list[EventBase] = []
        self._refusals.message(frame)
        own = frame.get("parent_tool_use_id") is None and not frame.get("is_api_error_message")
        for block in blocks(frame):
            kind = block.get("type")
            if own and kind == "text" and text_of(block.get("text")):
                self.progress.said = text_of(block.get("text"))[:MAX_TEXT]
            if kind in ("text", "thinking") and text_of(block.get(kind)):
                found.append(events.message_event(time, "assistant", str(kind), text_of(block.get(kind)), frame))
            elif kind in ("tool_use", "server_tool_use"):
                found.append(tools.tool_use(time, frame, block, self._tools))
        return found

    def _user(self, time: datetime, frame: Frame) -> list[EventBase]:
        found: list[EventBase] = []
        uuid = text_of(frame.get("uuid"))
        for block in blocks(frame):
            if block.get("type") == "tool_result":
                found.extend(tools.tool_result(time, frame, block, self._tools, self._plan))
            elif text := text_of(block.get("text")):
                if frame.get("isReplay"):
                    if self.messages.has_told(uuid):
                        continue
                    found.append(events.replayed_event(time, text, frame))
                elif text.startswith("[Request interrupted by user") and frame.get("parent_tool_use_id") is None:
                    found.append(ProgressEvent(time=time, text=TURN_INTERRUPTED))
        self.messages.told(uuid)
        return found

    def _turn_ended(self, time: datetime, frame: Frame) -> list[EventBase]:
        self._turn_open = False
        self._meter.result(frame)
        found: list[EventBase] = [self._usage(time)]
        aborted = str(frame.get("terminal_reason", "")).startswith("aborted")
        by_person = aborted and self.messages.interrupted
        # What Claude Code has begun by itself, for a task that ended behind it, is no person's word.
        self.parked = by_person or (self.parked and object_at(frame, "origin").get("kind") == "task-notification")
        self.messages.turn_ended(aborted=by_person, unsubmitted=aborted and frame.get("num_turns") == 0)
        if by_person:
            return found
        answered = self._answered_once or self._error is not None
        self._answered_once = True
        if answered and self._unasked(frame):
            return found
        self.progress.text = text_of(frame.get("result"))[:MAX_TEXT]
        self.progress.stop_reason = text_of(frame.get("stop_reason") or frame.get("subtype"))[:100] or None
        structured = frame.get("structured_output")
        self._error = AgentFailed(BY_NOBODY) if aborted else result_error(frame, self._refusals.facts(frame))
        # Temporal takes 2 MiB a payload; the event log has the answer as it came.
        self.progress.structured = structured if len(json.dumps(structured)) <= MAX_STRUCTURED else None
        if self.progress.structured != structured:
            self._error = AgentFailed(f"output_schema: the answer is larger than {MAX_STRUCTURED} characters")
        if self._error:
            found.append(ErrorEvent(time=time, message=self._error.message[:MAX_TEXT]))
        return found

    def _unasked(self, frame: Frame) -> bool:
        """Whether this ends a turn in which the model was not asked, but a command of Claude Code's own, or a hook."""
        return frame.get("num_turns") == 0 and not frame.get("is_error")

    def _asked(self, time: datetime, frame: Frame) -> list[EventBase]:
        if len(self.pending) >= MAX_ASKED:  # nobody will answer it, and the turn waits for that
            self.hopeless = self.hopeless or AgentFailed(TOO_MANY)
            return [ErrorEvent(time=time, message=TOO_MANY)]
        return approvals.asked(time, frame, self.pending)

    def _withdrawn(self, time: datetime, frame: Frame) -> list[EventBase]:
        return approvals.cancelled(time, frame, self.pending, self.withdrawn)

    def _responded(self, time: datetime, frame: Frame) -> list[EventBase]:
        interrupted = self.messages.control_answered(frame)
        if not interrupted or self._turn_open or self.messages.owed:
            return []
        # It has ended sub-agents that worked behind: no turn has a result that says so.
        self.parked = True
        self.messages.turn_ended(aborted=True)
        return [ProgressEvent(time=time, text=TURN_INTERRUPTED)]
