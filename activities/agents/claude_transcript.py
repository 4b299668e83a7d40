"""A Claude Code process's journal, understood. Deterministic: the same journal gives the same events and state.

Facts it rests on (measured with 2.1.327): each turn has exactly one `result`; `session_state_changed idle` comes when
nothing more is owed; a user frame's uuid is reported queued, started, then completed or cancelled.
"""

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from activities.agents import claude_frames as frames
from activities.agents.claude_errors import crash, hopeless, result_error, start_failure
from activities.agents.claude_frames import Frame, part, text_of
from activities.agents.claude_limits import Refusals
from activities.agents.claude_messages import Messages
from activities.agents.claude_meter import MAX_MODEL, Meter
from activities.agents.claude_plan import PLANNERS, Plan
from activities.agents.claude_sessions import is_id
from activities.agents.claude_state import MAX_ASKED, MAX_OPEN_TOOLS, MAX_STRUCTURED, MAX_TASKS, ClaudeState
from activities.ports.agent import ExitFact, Progress, Resumption, Verdict
from activities.ports.runtime import Record
from steersman.contracts.activities import Settlement
from steersman.contracts.errors import AgentFailed, InvalidRequest, RunError
from steersman.contracts.events import (
    MAX_TEXT,
    ErrorEvent,
    EventBase,
    PermissionEvent,
    ProgressEvent,
    ToolResultEvent,
    ToolUseEvent,
    UsageEvent,
)


class ClaudeTranscript:
    """State of one process: see ports.Transcript."""

    def __init__(self, resumption: Resumption | None = None, rate_limit_s: float | None = None) -> None:
        self.progress = Progress()
        self.hopeless: RunError | None = None
        self.pending: dict[str, Frame] = {}
        """Requests of the agent that nobody has answered, by request id."""
        self.withdrawn: set[str] = set()
        """Approvals that the agent has asked for and taken back."""
        self.parked = bool(resumption and resumption.parked)
        """The last turn was interrupted and nothing was said since: the agent waits for a person."""
        self.messages = Messages()
        self._rate_limit_s = rate_limit_s
        self._resumes = bool(resumption and resumption.session_id)
        self._meter = Meter()
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
        """It is the agent's turn to speak."""
        asking = any(part(each, "request").get("subtype") == "can_use_tool" for each in self.pending.values())
        return not asking and not self.finished and not (self.parked and not self.messages.owed)

    @property
    def finished(self) -> bool:
        """Nothing is owed, and no person was promised a wait; or the run was ended, and its turn is over."""
        idle = self._idle and not self._background
        return self._over or (self._answered_once and idle and not self.parked)

    @property
    def _idle(self) -> bool:
        return self._state == "idle" and not self.messages.owed

    @property
    def turn_open(self) -> bool:
        """Something runs that an interrupt would end."""
        return self._turn_open or not self._idle

    def snapshot(self) -> bytes | None:
        """See ports.Transcript."""
        return ClaudeState(**{name: getattr(self, name) for name in ClaudeState.names()}).to_json()

    def restore(self, snapshot: bytes) -> None:
        """See ports.Transcript."""
        state = ClaudeState.from_json(snapshot)
        for name in ClaudeState.names():
            setattr(self, name, getattr(state, name))

    def settlements(self) -> list[Settlement]:
        """What the journal says of each message."""
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
            # The process before this one died before Claude Code had written its session down.
            return Verdict(self._error, resumable=True, start_over=True)
        owed = self._begun and self.messages.owed
        if self._answered_once and not self._turn_open and not owed and not self.parked:
            return Verdict(self._error)
        signalled = exit_fact.signal or (exit_fact.code or 0) > 128  # it catches SIGTERM and exits with 128 + 15
        if self._begun or signalled or exit_fact.lost or exit_fact.reason != "exited":
            return Verdict(crash(exit_fact), resumable=True)
        return Verdict(start_failure(exit_fact))

    def feed(self, record: Record) -> list[EventBase]:
        """See ports.Transcript."""
        time = datetime.fromtimestamp(record.time_ms / 1000, UTC)
        try:
            frame = frames.parse(record.data) if record.stream in ("in", "out") else None
            if frame is None:
                return []
            events = self._input(time, record.id, frame) if record.stream == "in" else self._output(time, frame)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
            events = [ErrorEvent(time=time, message=f"a frame of the agent could not be read: {error!r}"[:500])]
        if self.messages.end_answered and self._idle:
            # For good: that a background task begins another turn changes nothing any more.
            self._over = True
            self.messages.end_reached()
        return events

    # ---- what was said to the agent

    def _input(self, time: datetime, command: str, frame: Frame) -> list[EventBase]:
        self.messages.said(command, frame, running=self.turn_open and not self.parked)
        return self._answered(time, frame) if frame.get("type") == "control_response" else []

    def _answered(self, time: datetime, frame: Frame) -> list[EventBase]:
        asked = self.pending.pop(str(part(frame, "response").get("request_id")), None)
        if asked is None or part(asked, "request").get("subtype") != "can_use_tool":
            return []
        answer, request = part(frame, "response", "response"), part(asked, "request")
        allowed = answer.get("behavior") == "allow"
        return [
            PermissionEvent(
                time=time,
                id=approval_id(request),
                tool=text_of(request.get("tool_name"))[:200],
                state="allowed" if allowed else "denied",
                message=None if allowed else text_of(answer.get("message"))[:2000],
            )
        ]

    # ---- what the agent said, one kind of frame each

    def _output(self, time: datetime, frame: Frame) -> list[EventBase]:
        handlers: dict[str, Callable[[datetime, Frame], list[EventBase]]] = {
            "system": self._system,
            "command_lifecycle": self._lifecycle,
            "stream_event": self._stream,
            "assistant": self._assistant,
            "user": self._user,
            "result": self._turn_ended,
            "rate_limit_event": self._limit_told,
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
            self._turn_open = True
            self._meter.model = text_of(frame.get("model"))[:MAX_MODEL]
            # What it names is resumed: anything but an id would be a file's name to Claude Code.
            named = text_of(frame.get("session_id"))
            self.progress.session_id = named if is_id(named) else self.progress.session_id
            first, self._begun = not self._begun, True
            return [frames.init_event(time, frame)] if first else []
        if subtype == "background_tasks_changed":
            self._background = frames.delegated(frame)
        if subtype == "api_retry":
            self.hopeless = self.hopeless or hopeless(time, frame, self._rate_limit_s)
        if (
            subtype == "task_started"
            and len(self._tasks) < MAX_TASKS
            and (frame.get("is_backgrounded") or frame.get("task_type") in frames.DELEGATED)
        ):
            self._tasks.add(text_of(frame.get("task_id"))[:200])
        if subtype in ("task_started", "task_notification") and text_of(frame.get("task_id"))[:200] not in self._tasks:
            return []  # a command in the foreground is a tool call, told already
        event = frames.progress_event(time, frame)
        return [event] if event else []

    def _limit_told(self, time: datetime, frame: Frame) -> list[EventBase]:
        self._refusals.event(frame)
        return [frames.rate_limit_event(time, frame)]

    def _lifecycle(self, time: datetime, frame: Frame) -> list[EventBase]:
        uuid, state = str(frame.get("command_uuid")), str(frame.get("state"))
        self.messages.moved(uuid, state, turn_open=self._turn_open)
        if state == "started":
            self._turn_open, self.parked = True, False
            self.messages.turn_began()
        return []

    def _stream(self, time: datetime, frame: Frame) -> list[EventBase]:
        event = frames.delta_event(time, frame)
        if part(frame, "event").get("type") == "message_start":
            self._answers()
        metered = self._meter.stream(part(frame, "event"), main=frame.get("parent_tool_use_id") is None)
        return [*([event] if event else []), *([self._usage(time)] if metered else [])]

    def _answers(self) -> None:
        self._refusals.answered()
        if self.hopeless and "rate_limit" in self.hopeless.facts:
            # Nobody looked while it waited, and it has come through after all.
            self.hopeless = None

    def _usage(self, time: datetime) -> UsageEvent:
        total = self._meter
        self.progress.usage, self.progress.cost_usd, self.progress.turns = total.usage, total.cost_usd, total.turns
        return UsageEvent(time=time, usage=total.usage, cost_usd=total.cost_usd, turns=total.turns)

    def _assistant(self, time: datetime, frame: Frame) -> list[EventBase]:
        events: list[EventBase] = []
        self._refusals.message(frame)
        said = frame.get("parent_tool_use_id") is None and not frame.get("is_api_error_message")
        for block in frames.blocks(frame):
            kind = block.get("type")
            if said and kind == "text" and text_of(block.get("text")):
                self.progress.said = text_of(block.get("text"))[:MAX_TEXT]
            if kind in ("text", "thinking") and text_of(block.get(kind)):
                events.append(frames.message_event(time, "assistant", str(kind), text_of(block.get(kind)), frame))
            elif kind in ("tool_use", "server_tool_use"):
                events.extend(self._tool_use(time, frame, block))
        return events

    def _tool_use(self, time: datetime, frame: Frame, block: Frame) -> list[EventBase]:
        tool_id, name = text_of(block.get("id"))[:200], text_of(block.get("name"))[:200]
        tool_input = frames.bounded(part(block, "input"))
        # A file's whole content is of no use to what its result will tell.
        kept = tool_input if name in PLANNERS else {key: tool_input.get(key) for key in frames.FILE_TOOLS.values()}
        self._tools[tool_id] = {"name": name, "input": kept}
        if len(self._tools) > MAX_OPEN_TOOLS:
            del self._tools[next(iter(self._tools))]
        event = ToolUseEvent(
            time=time,
            id=tool_id,
            name=name,
            input=tool_input,
            parent_tool_id=frames.name_of(frame.get("parent_tool_use_id")),
        )
        return [event]

    def _user(self, time: datetime, frame: Frame) -> list[EventBase]:
        events: list[EventBase] = []
        for block in frames.blocks(frame):
            if block.get("type") == "tool_result":
                events.extend(self._tool_result(time, frame, block))
            elif text := text_of(block.get("text")):
                if frame.get("isReplay"):
                    events.append(frames.message_event(time, "user", "text", text, frame))
                elif text.startswith("[Request interrupted by user"):
                    events.append(ProgressEvent(time=time, text="the turn was interrupted"))
        return events

    def _tool_result(self, time: datetime, frame: Frame, block: Frame) -> list[EventBase]:
        tool_id, text = text_of(block.get("tool_use_id"))[:200], text_of(block.get("content"))
        used = self._tools.pop(tool_id, {"name": "", "input": {}})
        failed = bool(block.get("is_error"))
        result = ToolResultEvent(
            time=time,
            id=tool_id,
            name=used["name"] or None,
            text=text[:MAX_TEXT],
            is_error=failed,
            truncated=len(text) > MAX_TEXT,
        )
        if failed:
            return [result]
        change = frames.file_event(time, tool_id, used["name"], used["input"], frame)
        plan = self._plan.after(time, used["name"], used["input"], part(frame, "tool_use_result"))
        return [result, *([change] if change else []), *([plan] if plan else [])]

    def _turn_ended(self, time: datetime, frame: Frame) -> list[EventBase]:
        self._turn_open = False
        self._meter.result(frame)
        events: list[EventBase] = [self._usage(time)]
        self.parked = str(frame.get("terminal_reason", "")).startswith("aborted")
        self.messages.turn_ended(aborted=self.parked)
        if self.parked:
            return events
        self._answered_once = True
        self.progress.text = text_of(frame.get("result"))[:MAX_TEXT]
        self.progress.stop_reason = text_of(frame.get("stop_reason") or frame.get("subtype"))[:100] or None
        structured = frame.get("structured_output")
        self._error = result_error(frame, self._refusals.facts(frame))
        # Temporal takes 2 MiB a payload; the event log has the answer as it came.
        self.progress.structured = structured if len(json.dumps(structured)) <= MAX_STRUCTURED else None
        if self.progress.structured != structured:
            self._error = AgentFailed(f"output_schema: the answer is larger than {MAX_STRUCTURED} characters")
        if self._error:
            events.append(ErrorEvent(time=time, message=self._error.message[:MAX_TEXT]))
        return events

    def _asked(self, time: datetime, frame: Frame) -> list[EventBase]:
        if not frames.is_sound(frame):
            return [ErrorEvent(time=time, message="the agent asked something that nobody can answer")]
        if len(self.pending) >= MAX_ASKED:
            return [ErrorEvent(time=time, message=f"the agent asks more than {MAX_ASKED} things at once")]
        self.pending[str(frame.get("request_id"))] = frame
        request = part(frame, "request")
        if request.get("subtype") != "can_use_tool":
            return []
        tool = text_of(request.get("tool_name"))[:200]
        asked, approval = frames.bounded(part(request, "input")), approval_id(request)
        self.withdrawn.discard(approval)
        return [PermissionEvent(time=time, id=approval, tool=tool, input=asked, state="asked")]

    def _withdrawn(self, time: datetime, frame: Frame) -> list[EventBase]:
        asked = self.pending.pop(str(frame.get("request_id")), None)
        request = part(asked, "request")
        if request.get("subtype") != "can_use_tool":
            return []
        tool, approval = text_of(request.get("tool_name"))[:200], approval_id(request)
        if len(self.withdrawn) < MAX_TASKS:
            self.withdrawn.add(approval)
        return [PermissionEvent(time=time, id=approval, tool=tool, state="withdrawn")]

    def _responded(self, time: datetime, frame: Frame) -> list[EventBase]:
        self.messages.responded(frame)
        return []


def approval_id(request: dict[str, Any]) -> str:
    """An approval's id: the tool call's own, which a second worker sees again in the journal."""
    tool_id = request.get("tool_use_id")
    if isinstance(tool_id, str) and 0 < len(tool_id) <= 200:
        return tool_id
    asked = json.dumps([request.get("tool_name"), request.get("input")], sort_keys=True, default=str)
    return f"ask-{hashlib.sha256(asked.encode()).hexdigest()[:16]}"
