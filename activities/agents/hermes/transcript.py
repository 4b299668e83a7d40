"""The transcript of one process of Hermes. Deterministic: the same journal gives the same events and state.

It relies on these facts (measured with 0.19.0): a turn begins with `message.start`, is told with `message.complete` (or
`error`), and is over with the `session.info` behind that: a prompt that comes before would interrupt what follows it. A
text that is to steer is appended to the result of a tool that ends after it was taken, and is dropped with the turn
where none does.
"""

from collections.abc import Callable
from datetime import UTC, datetime

from activities.agents.command_ids import MESSAGE, id_of
from activities.agents.crashes import crash
from activities.agents.frames import Frame, parse_frame
from activities.agents.hermes import frames, messages, tools, usage
from activities.agents.hermes.errors import no_answer, session_error, start_failure, turn_error
from activities.agents.hermes.frames import AGAIN, ANSWER, ANSWERS, DIRECTORY, REPAIR, SESSION, USAGE
from activities.agents.hermes.messages import message_event
from activities.agents.hermes.state import MAX_ASKED, MAX_OPEN_TOOLS, HermesState
from activities.agents.structured import answer_in
from activities.ports.agent import ExitFact, Progress, Resumption, Verdict
from activities.ports.runtime import Record
from activities.untrusted_json import MAX_NAME, name_of, object_at, text_of
from steersman.contracts.activities import Settlement
from steersman.contracts.errors import AgentFailed, InvalidRequest, RunError
from steersman.contracts.events import (
    MAX_TEXT,
    TURN_INTERRUPTED,
    ErrorEvent,
    EventBase,
    InitEvent,
    ProgressEvent,
)
from steersman.contracts.run import FINAL_STATES

EXHAUSTED = "Hermes's turn ended at its own limit of calls: see agent.max_turns of its config.yaml"
_EXHAUSTED = "Iteration budget exhausted"
_OWN_WORDS = "Operation interrupted"
"""Hermes itself says that of a turn in which its model had said nothing."""


class HermesTranscript:
    """See ports.Transcript. `opening` is the command and the text of the first turn; None for none."""

    hopeless: RunError | None = None

    def __init__(
        self, opening: tuple[str, str] | None, resumption: Resumption | None = None, *, structured: bool = False
    ) -> None:
        self.state = HermesState(parked=bool(resumption and resumption.parked))
        self.progress: Progress = self.state.progress
        self.opening = opening
        self.answer_accepted = False
        """A worker has held the answer against the schema. Not in snapshots: the next one does it again."""
        self._resumes = bool(resumption and resumption.session_id)
        self._structured = structured

    @property
    def parked(self) -> bool:
        """See ports.Transcript."""
        return self.state.parked

    @property
    def ready(self) -> bool:
        """The session is there, and knows its directory."""
        return bool(self.state.live) and (self.state.placed or not self.state.resumed)

    @property
    def turn_open(self) -> bool:
        """A turn runs, or a text was written that begins one."""
        return bool(self.state.turn or self.state.owed)

    @property
    def answer_due(self) -> bool:
        """The answer has to be held against the schema before the agent may go."""
        state = self.state
        idle = state.answered and not (self.turn_open or state.late or state.parked or state.failure)
        return self._structured and idle and REPAIR not in state.written and not self.answer_accepted

    @property
    def working(self) -> bool:
        """See ports.Transcript."""
        return not self.finished and not (self.parked and not self.turn_open)

    @property
    def finished(self) -> bool:
        """See ports.Transcript."""
        state = self.state
        if state.session_error:
            return True
        if self.turn_open:
            return False
        return state.over or (state.answered and not (state.parked or state.late or self.answer_due))

    def snapshot(self) -> bytes | None:
        """See ports.Transcript."""
        return self.state.to_json()

    def restore(self, snapshot: bytes) -> None:
        """See ports.Transcript."""
        self.state = HermesState.from_json(snapshot)
        self.progress = self.state.progress

    def settlement(self, message_id: str) -> Settlement | None:
        """The settlement of one message; None if the journal has none yet."""
        return self.state.settled.get(message_id)

    def settlements(self) -> list[Settlement]:
        """See ports.Transcript."""
        return list(self.state.settled.values())

    def last_words(self) -> list[Settlement]:
        """See ports.Transcript."""
        how = "the agent ended before it said that it had read this"
        return [
            *(each for each in self.settlements() if each.state in FINAL_STATES),
            *(Settlement(id=each, state="unverified", how=how) for each in messages.open_messages(self.state)),
        ]

    def wrote(self, message_id: str) -> bool:
        """See ports.Transcript."""
        return not self.state.written.isdisjoint(prefix + message_id for prefix in messages.PREFIXES)

    def verdict(self, exit_fact: ExitFact) -> Verdict:
        """See ports.Transcript."""
        state = self.state
        if refused := state.session_error:
            # The process before this one may have died before Hermes had saved the session.
            lost = self._resumes and isinstance(refused, InvalidRequest)
            return Verdict(refused, resumable=lost, start_over=lost)
        if state.answered and not self.turn_open and not state.parked:
            return Verdict(state.failure)
        if state.live or exit_fact.signal or exit_fact.lost or exit_fact.reason != "exited":
            return Verdict(crash(exit_fact), resumable=True, unsaved=tuple(state.unsaved))
        return Verdict(start_failure(exit_fact))

    def feed(self, record: Record) -> list[EventBase]:
        """See ports.Transcript."""
        time = datetime.fromtimestamp(record.time_ms / 1000, UTC)
        try:
            frame = self._frame(record)
            if frame is None:
                return []
            if record.stream == "in":
                self._input(record.id, frame)
                return []
            return self._output(time, frame)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
            return [ErrorEvent(time=time, message=f"a frame of the agent could not be read: {error!r}"[:500])]

    def _frame(self, record: Record) -> Frame | None:
        if record.stream not in ("in", "out"):
            return None
        begins = record.stream == "out" and not self.state.live
        return (frames.resumed_in(record.data) if begins else None) or parse_frame(record.data)

    # ---- frames that were written to the agent

    def _input(self, command: str, frame: Frame) -> None:
        state, method, params = self.state, frame.get("method"), object_at(frame, "params")
        state.written.add(command)
        if command == SESSION:
            state.directory, state.preamble = frames.start_of(frame)
            state.resumed = method == frames.RESUME
        elif command.startswith(ANSWER):
            state.asking = {ident: asked for ident, asked in state.asking.items() if id_of(ANSWER, ident) != command}
        elif method == frames.SUBMIT:
            messages.prompt_written(state, command, text_of(params.get("text")))
        elif method == frames.STEER:
            messages.steer_written(state, command, text_of(params.get("text")))
        elif method == frames.INTERRUPT:
            state.interrupting.append(command)
            if state.turn != "open":
                messages.interrupts_end(self.state, interrupted=False)

    # ---- frames of the agent

    def _output(self, time: datetime, frame: Frame) -> list[EventBase]:
        if frame.get("method") != "event":
            return self._answered(time, text_of(frame.get("id")), frame)
        kind, payload = text_of(object_at(frame, "params").get("type")), object_at(frame, "params", "payload")
        if object_at(frame, "params").get("session_id") not in (None, "", self.state.live):
            return []  # another session of the same gateway
        if kind in ANSWERS:
            return self._asked(kind, payload)
        handlers: dict[str, Callable[[datetime, Frame], list[EventBase]]] = {
            "message.start": lambda time, _payload: self._turn_started(time),
            "message.delta": self._text_delta,
            "message.interim": self._text,
            "message.complete": self._turn_told,
            "reasoning.delta": self._thought_delta,
            "tool.generating": lambda time, _payload: self._model_spoke(time),
            "tool.start": self._tool_started,
            "tool.complete": self._tool_completed,
            "session.info": self._session_told,
            "subagent.complete": lambda time, payload: usage.child_ended(self.state, time, payload),
            "status.update": self._status,
            "error": self._error,
        }
        return handlers[kind](time, payload) if kind in handlers else []

    def _answered(self, time: datetime, command: str, frame: Frame) -> list[EventBase]:
        state, result, refused = self.state, object_at(frame, "result"), object_at(frame, "error")
        if command == SESSION and not state.live:
            return self._session(time, result, refused)
        if command == DIRECTORY and not state.placed:
            state.placed = not refused
            return self._no_session(time, session_error(refused)) if refused else []
        if command.startswith(USAGE):
            return usage.used(self.state, time, result)
        if command == state.current or command in state.owed:
            return self._prompt_answered(time, command, result, refused)
        if command.startswith(MESSAGE) and state.steers.get(command.removeprefix(MESSAGE)) == "written":
            messages.steer_answered(state, command, taken=result.get("status") == "queued")
        return []

    def _session(self, time: datetime, result: Frame, refused: Frame) -> list[EventBase]:
        state = self.state
        live = name_of(result.get("session_id"))
        stored = name_of(result.get("stored_session_id") or result.get("resumed"))
        if live is None or stored is None:
            return self._no_session(time, session_error(refused))
        state.live, state.progress.session_id = live, stored
        return [InitEvent(time=time, session_id=stored, model=name_of(object_at(result, "info").get("model")))]

    def _no_session(self, time: datetime, error: RunError) -> list[EventBase]:
        self.state.session_error = error
        return [ErrorEvent(time=time, message=error.message)]

    def _prompt_answered(self, time: datetime, command: str, result: Frame, refused: Frame) -> list[EventBase]:
        state = self.state
        if refused:
            return self._prompt_failed(time, command, AgentFailed(f"Hermes took no prompt: {text_of(refused)[:1000]}"))
        if result.get("status") == "queued" and command == state.current:
            # The turn that had begun was one of Hermes's own: this text is to follow it.
            state.current = ""
            state.owed.insert(0, command)
        return []

    def _prompt_failed(self, time: datetime, command: str, error: RunError) -> list[EventBase]:
        state = self.state
        state.owed = [each for each in state.owed if each != command]
        messages.settle(self.state, command, "rejected", error.message)
        if command.startswith((MESSAGE, AGAIN)):
            return []
        state.answered, state.failure = True, error
        return [ErrorEvent(time=time, message=error.message[:MAX_TEXT])]

    def _asked(self, kind: str, payload: Frame) -> list[EventBase]:
        # An approval has no id: there is one at a time.
        ident = name_of(payload.get("request_id")) or f"{kind}-{self.state.results}"
        if len(self.state.asking) < MAX_ASKED and id_of(ANSWER, ident) not in self.state.written:
            self.state.asking[ident] = kind
        return []

    # ---- turns

    def _turn_started(self, time: datetime) -> list[EventBase]:
        state = self.state
        if state.turn == "open":
            return []  # of a turn that it begins by itself Hermes tells twice
        found = self._turn_over(time) if state.turn else []
        state.turn, state.status, state.current, state.exhausted = "open", "", "", False
        if state.owed:
            state.current, state.parked = state.owed.pop(0), False
            found += messages.read(state, time, state.current, "new_turn")
        return found

    def _turn_told(self, time: datetime, payload: Frame) -> list[EventBase]:
        state, text, status = self.state, text_of(payload.get("text")), text_of(payload.get("status"))
        if state.turn != "open":
            return []
        state.turn, state.status = "ending", status[:MAX_NAME] or "error"
        found = [*usage.used(self.state, time, object_at(payload, "usage")), *self._thought_whole(time)]
        if status == "complete":
            found += [*messages.steers_read(self.state, time), *self._ended_well(time, text, payload)]
        elif status == "interrupted":
            messages.interrupts_end(state, interrupted=True)
            if text and not text.startswith(_OWN_WORDS):
                found += self._text(time, payload)
        else:
            state.failure = turn_error(text)
        return found

    def _ended_well(self, time: datetime, text: str, payload: Frame) -> list[EventBase]:
        progress = self.state.progress
        shown = [] if payload.get("response_previewed") is True and text == progress.said else self._text(time, payload)
        progress.text = progress.said = text[:MAX_TEXT]
        if self._structured:
            progress.structured = answer_in(progress.text)
        self.state.failure = AgentFailed(EXHAUSTED) if self.state.exhausted else no_answer(text)
        return shown

    def _error(self, time: datetime, payload: Frame) -> list[EventBase]:
        """A turn that broke, or a prompt for which Hermes could not be made ready."""
        state, error = self.state, turn_error(text_of(payload.get("message")))
        if state.turn:
            if state.turn == "open":
                state.turn, state.status, state.failure = "ending", "error", error
            return []
        return self._prompt_failed(time, state.owed[0], error) if state.owed else []

    def _session_told(self, time: datetime, payload: Frame) -> list[EventBase]:
        ended = self.state.turn == "ending" and payload.get("running") is False
        return self._turn_over(time) if ended else []

    def _turn_over(self, time: datetime) -> list[EventBase]:
        state = self.state
        found: list[EventBase] = [tools.unfinished_event(time, ident, name) for ident, name in state.tools.items()]
        state.tools.clear()
        interrupted, of_ours = state.status == "interrupted", bool(state.current)
        state.turn, state.current = "", ""
        messages.interrupts_end(self.state, interrupted=interrupted)
        messages.steers_end(self.state)
        state.progress.stop_reason = state.status
        if interrupted:
            state.parked = not state.owed
            return [*found, ProgressEvent(time=time, text=TURN_INTERRUPTED)]
        state.answered = state.answered or of_ours
        if state.failure and of_ours:
            found.append(ErrorEvent(time=time, message=state.failure.message[:MAX_TEXT]))
        return found

    # ---- what is said and done

    def _model_spoke(self, time: datetime) -> list[EventBase]:
        return [*self._thought_whole(time), *messages.steers_read(self.state, time)]

    def _text_delta(self, time: datetime, payload: Frame) -> list[EventBase]:
        text = text_of(payload.get("text"))
        return [*self._model_spoke(time), message_event(time, "text", text, delta=True)] if text else []

    def _thought_delta(self, time: datetime, payload: Frame) -> list[EventBase]:
        text = text_of(payload.get("text"))
        if not text:
            return []
        self.state.thought = (self.state.thought + text)[:MAX_TEXT]
        return [*messages.steers_read(self.state, time), message_event(time, "thinking", text, delta=True)]

    def _thought_whole(self, time: datetime) -> list[EventBase]:
        thought, self.state.thought = self.state.thought, ""
        return [message_event(time, "thinking", thought)] if thought else []

    def _text(self, time: datetime, payload: Frame) -> list[EventBase]:
        """The whole of what the agent said before a call, or at the end."""
        text = text_of(payload.get("text"))
        if not text:
            return []
        self.state.progress.said = text[:MAX_TEXT]
        return [*self._thought_whole(time), message_event(time, "text", text)]

    def _tool_started(self, time: datetime, payload: Frame) -> list[EventBase]:
        event = tools.use_event(time, payload)
        self.state.tools[event.id] = event.name
        if len(self.state.tools) > MAX_OPEN_TOOLS:
            del self.state.tools[next(iter(self.state.tools))]
        return [*self._thought_whole(time), event]

    def _tool_completed(self, time: datetime, payload: Frame) -> list[EventBase]:
        state = self.state
        begun = state.tools.pop(tools.tool_id(payload), None)
        use: list[EventBase] = [] if begun else [tools.use_event(time, payload)]
        state.results += 1
        messages.result_told(state)
        return [*use, *tools.result_events(time, payload)]

    def _status(self, time: datetime, payload: Frame) -> list[EventBase]:
        text = text_of(payload.get("text"))[:1000]
        self.state.exhausted = self.state.exhausted or _EXHAUSTED in text
        return [ProgressEvent(time=time, text=text)] if text else []
