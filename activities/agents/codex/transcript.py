"""The transcript of one process of Codex. Deterministic: the same journal gives the same events and state.

It relies on these facts (measured with 0.163.0): a text comes back as an item `userMessage` with the `clientId` that it
was written under, once the model is given it; an interrupt of a turn that has not begun is refused, and one of a turn
that has ended is never answered; open items are not completed by an interrupt.
"""

from collections.abc import Callable
from datetime import UTC, datetime

from activities.agents.codex import approvals, items
from activities.agents.codex.approvals import SHOWN_INPUT
from activities.agents.codex.errors import session_error, start_failure, turn_error
from activities.agents.codex.frames import CLEAN, SESSION, SUBAGENT
from activities.agents.codex.records import is_id
from activities.agents.codex.state import (
    MAX_ASKED,
    MAX_OPEN_ITEMS,
    MAX_THREADS,
    TOO_MANY,
    CodexState,
    error_of,
    failure,
)
from activities.agents.command_ids import INTERRUPT, MESSAGE, id_of
from activities.agents.crashes import crash
from activities.agents.frames import Frame, parse_frame
from activities.ports.agent import END_PREFIX, MAX_STRUCTURED, ExitFact, Progress, Resumption, Verdict
from activities.ports.runtime import Record
from activities.untrusted_json import MAX_NAME, bounded, count_of, name_of, object_at, parse, text_of
from steersman.contracts.activities import Settlement
from steersman.contracts.errors import AgentFailed, InvalidRequest, RunError
from steersman.contracts.events import (
    MAX_TEXT,
    TURN_INTERRUPTED,
    ErrorEvent,
    EventBase,
    InitEvent,
    ProgressEvent,
    UsageEvent,
)
from steersman.contracts.run import FINAL_STATES, MessageState, Usage

SERVER = "mcpServer/startupStatus/updated"
"""Told before the thread is known to have begun, too."""
OF_ANY_THREAD = (
    "thread/tokenUsage/updated",
    "serverRequest/resolved",
    "item/started",
    "item/completed",
    "item/commandExecution/outputDelta",
    SERVER,
)
"""What counts of sub-agents' threads, too: their requests are asked as the agent's own."""

SPAWN, CLOSE = "spawn_agent", "close_agent"
BEGINNING = (SPAWN, "resume_agent")
"""Calls with which a sub-agent begins, or begins anew."""


class CodexTranscript:
    """See ports.Transcript. `opening` is the command and the text of the first turn; None for none."""

    hopeless: RunError | None = None

    def __init__(
        self, opening: tuple[str, str] | None, resumption: Resumption | None = None, *, structured: bool = False
    ) -> None:
        self.state = CodexState(parked=bool(resumption and resumption.parked))
        self.progress: Progress = self.state.progress
        self.opening = opening
        self._resumes = bool(resumption and resumption.session_id)
        self._structured = structured

    @property
    def parked(self) -> bool:
        """See ports.Transcript."""
        return self.state.parked

    @property
    def thread(self) -> str | None:
        """The thread, once it is there."""
        return self.state.progress.session_id if self.state.begun else None

    @property
    def turn_open(self) -> bool:
        """A turn runs, or a text was written that begins one."""
        return bool(self.state.turn or self.state.owed)

    @property
    def _owes_nothing(self) -> bool:
        """The last turn came to its own end, has left no sub-agent at work, and no goal brings a further one."""
        state = self.state
        left = bool(state.delegated or state.begun_threads or state.goal) and state.failure is None
        return state.answered and not self.turn_open and not state.parked and not left

    @property
    def at_work(self) -> tuple[str, str]:
        """The thread and the turn that an interrupt ends: the agent's own, else a sub-agent's, else none."""
        state = self.state
        if not self.turn_open and not state.parked:
            for turn, thread in state.delegated.items():
                return thread, turn
        return self.thread or "", state.turn

    @property
    def left_at_work(self) -> dict[str, str]:
        """Turns of sub-agents that are to end, because the agent's own was interrupted: turn -> thread. The end of
        the run ends them by itself.
        """
        return self.state.delegated if self.state.parked and not self.state.over else {}

    @property
    def stopping(self) -> bool:
        """Something that an interrupt is to end may still be at work."""
        return bool(self.state.unclean or self.left_at_work)

    @property
    def working(self) -> bool:
        """See ports.Transcript."""
        asking = any(approvals.is_approval(each) for each in self.state.pending.values())
        return not asking and not self.finished and not (self.parked and not self.turn_open)

    @property
    def finished(self) -> bool:
        """See ports.Transcript."""
        state = self.state
        if state.session_error:
            return True
        idle = not self.turn_open and not state.unclean
        return idle and (state.over or self._owes_nothing)

    def snapshot(self) -> bytes | None:
        """See ports.Transcript."""
        return self.state.to_json()

    def restore(self, snapshot: bytes) -> None:
        """See ports.Transcript."""
        self.state = CodexState.from_json(snapshot)
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
            *(Settlement(id=each, state="unverified", how=how) for each in self._open_messages()),
        ]

    def _open_messages(self) -> list[str]:
        prefixes = (MESSAGE, INTERRUPT, END_PREFIX)
        written = (each.removeprefix(p) for each in sorted(self.state.written) for p in prefixes if each.startswith(p))
        final = {each.id for each in self.settlements() if each.state in FINAL_STATES}
        return [each for each in dict.fromkeys(written) if each not in final]

    def wrote(self, message_id: str) -> bool:
        """See ports.Transcript."""
        commands = (MESSAGE + message_id, INTERRUPT + message_id, END_PREFIX + message_id)
        return not self.state.written.isdisjoint(commands)

    def verdict(self, exit_fact: ExitFact) -> Verdict:
        """See ports.Transcript."""
        state = self.state
        if refused := error_of(state.session_error):
            # The process before this one may have died before Codex had saved the thread.
            lost = self._resumes and isinstance(refused, InvalidRequest)
            return Verdict(refused, resumable=lost, start_over=lost)
        if self.hopeless:
            return Verdict(self.hopeless)
        if self._owes_nothing:
            return Verdict(error_of(state.failure))
        if state.begun or exit_fact.signal or exit_fact.lost or exit_fact.reason != "exited":
            return Verdict(crash(exit_fact), resumable=True)
        return Verdict(start_failure(exit_fact))

    def feed(self, record: Record) -> list[EventBase]:
        """See ports.Transcript."""
        time = datetime.fromtimestamp(record.time_ms / 1000, UTC)
        try:
            frame = parse_frame(record.data) if record.stream in ("in", "out") else None
            if frame is None:
                return []
            return self._input(time, record.id, frame) if record.stream == "in" else self._output(time, frame)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
            return [ErrorEvent(time=time, message=f"a frame of the agent could not be read: {error!r}"[:500])]

    # ---- frames that were written to the agent

    def _input(self, time: datetime, command: str, frame: Frame) -> list[EventBase]:
        state = self.state
        state.written.add(command)
        if "method" not in frame:
            return approvals.answered(time, frame, state)
        if frame["method"] == "turn/start":
            state.owed[command] = ""
        elif frame["method"] == "turn/interrupt" and not command.startswith(SUBAGENT):
            state.interrupting[command] = turn = text_of(object_at(frame, "params").get("turnId"))
            if not self._runs(turn) and turn not in state.delegated:
                self._interrupts_end(interrupted=False)
        return []

    def _runs(self, turn: str) -> bool:
        return bool(turn) and turn == self.state.turn

    # ---- frames of the agent

    def _output(self, time: datetime, frame: Frame) -> list[EventBase]:
        if "method" not in frame:
            return self._answered(time, text_of(frame.get("id")), frame)
        if "id" in frame:
            if len(self.state.pending) >= MAX_ASKED:  # nobody will answer it, and the turn waits for that
                self.hopeless = AgentFailed(TOO_MANY)
                return [ErrorEvent(time=time, message=TOO_MANY)]
            return approvals.asked(time, frame, self.state)
        method, params = text_of(frame["method"]), object_at(frame, "params")
        if params.get("threadId") not in (None, self.state.progress.session_id) and method not in OF_ANY_THREAD:
            return self._delegated(time, method, params)
        handlers: dict[str, Callable[[datetime, Frame], list[EventBase]]] = {
            "turn/started": self._turn_started,
            "turn/completed": self._turn_completed,
            "item/started": self._item_started,
            "item/completed": self._item_completed,
            "item/commandExecution/outputDelta": self._output_told,
            "thread/tokenUsage/updated": self._usage_updated,
            "serverRequest/resolved": lambda time, params: approvals.resolved(time, params, self.state),
            "hook/completed": self._hook_ended,
            SERVER: self._server_started,
            "thread/goal/updated": self._goal_told,
            "thread/goal/cleared": self._goal_told,
            "error": lambda time, params: [items.retry_event(time, params)] if params.get("willRetry") else [],
        }
        if method in items.DELTAS:
            event = items.delta_event(time, method, params)
            return [event] if event else []
        return handlers[method](time, params) if method in handlers else []

    def _answered(self, time: datetime, command: str, frame: Frame) -> list[EventBase]:
        state, result = self.state, object_at(frame, "result")
        if command == "initialize":
            state.version = text_of(result.get("userAgent"))[:MAX_NAME]
        elif command == SESSION and not state.begun:
            return self._session(time, frame)
        elif command.startswith(CLEAN):
            state.unclean = {turn: its for turn, its in state.unclean.items() if command != id_of(CLEAN, turn)}
        elif command.startswith(SUBAGENT) and "error" in frame:  # it has ended by itself
            state.delegated = {turn: its for turn, its in state.delegated.items() if command != id_of(SUBAGENT, turn)}
        elif command in state.owed:
            if "result" in frame:
                state.owed[command] = text_of(object_at(result, "turn").get("id"))[:MAX_NAME]
                self._settle(command, "delivered", None)
            else:
                return self._text_refused(time, command, object_at(frame, "error"))
        return []

    def _session(self, time: datetime, frame: Frame) -> list[EventBase]:
        state = self.state
        session = text_of(object_at(frame, "result", "thread").get("id"))
        if not is_id(session):
            error = session_error(object_at(frame, "error"))
            state.session_error = failure(error)
            return [ErrorEvent(time=time, message=error.message)]
        state.begun, state.progress.session_id = True, session
        model = name_of(object_at(frame, "result").get("model"))
        return [InitEvent(time=time, session_id=session, model=model, version=state.version or None)]

    def _text_refused(self, time: datetime, command: str, error: Frame) -> list[EventBase]:
        del self.state.owed[command]
        message = text_of(error.get("message"))[:1000]
        if command.startswith(MESSAGE):
            self._settle(command, "rejected", message)
            return []
        self.state.answered, self.state.failure = True, failure(AgentFailed(f"Codex took no prompt: {message}"))
        return [ErrorEvent(time=time, message=message)]

    def _turn_started(self, time: datetime, params: Frame) -> list[EventBase]:
        state = self.state
        state.turn, state.spoken, state.blocked = text_of(object_at(params, "turn").get("id"))[:MAX_NAME], False, ""
        state.parked = False
        return []

    def _delegated(self, time: datetime, method: str, params: Frame) -> list[EventBase]:
        """A turn of a sub-agent began or ended."""
        state, turn = self.state, object_at(params, "turn")
        ident, thread = text_of(turn.get("id"))[:MAX_NAME], text_of(params.get("threadId"))[:MAX_NAME]
        if method == "turn/started":
            state.begun_threads.discard(thread)
            if len(state.parents) < MAX_THREADS:
                state.parents.setdefault(thread, thread)  # the call that began it may be told to have ended after this
            if len(state.delegated) < MAX_THREADS:
                state.delegated[ident] = thread
        elif method == "turn/completed":
            state.delegated.pop(ident, None)
            if id_of(SUBAGENT, ident) in state.written:
                state.unclean[ident] = thread
            interrupted = turn.get("status") == "interrupted"
            found = self._calls_end(time, thread, interrupted=interrupted)
            return [*found, *self._alone_interrupted(time, ident, thread, interrupted=interrupted)]
        return []

    def _alone_interrupted(self, time: datetime, turn: str, thread: str, *, interrupted: bool) -> list[EventBase]:
        """A person's interrupt came where sub-agents alone were at work, and this one's turn has ended."""
        state = self.state
        if turn not in state.interrupting.values():
            return []
        self._interrupts_end(interrupted=interrupted)
        if not interrupted or self.turn_open:
            return []
        state.parked, state.unclean[turn] = True, thread
        return [ProgressEvent(time=time, text=TURN_INTERRUPTED)]

    def _thread_of(self, params: Frame) -> str:
        return (text_of(params.get("threadId")) or self.state.progress.session_id or "")[:MAX_NAME]

    def _parent(self, thread: str) -> str | None:
        """What began the sub-agent of this thread; None for the agent's own."""
        return None if thread == (self.state.progress.session_id or "") else self.state.parents.get(thread, thread)

    def _calls_end(self, time: datetime, thread: str, *, interrupted: bool) -> list[EventBase]:
        """Calls of a thread that its turn leaves open."""
        state = self.state
        ended = {ident: item for ident, item in state.items.items() if item.get("thread") == thread}
        for ident in ended:
            del state.items[ident]
            state.outputs.close(ident)
        kept = [*(each for each in sorted(state.closed) if each not in ended), *ended]
        state.closed = set(kept[-MAX_OPEN_ITEMS:])
        return [
            items.unfinished_event(time, ident, item["name"], interrupted=interrupted) for ident, item in ended.items()
        ]

    def _turn_completed(self, time: datetime, params: Frame) -> list[EventBase]:
        state, turn = self.state, object_at(params, "turn")
        ended, status = text_of(turn.get("id"))[:MAX_NAME], text_of(turn.get("status"))
        interrupted = status == "interrupted"
        found = self._calls_end(time, self._thread_of(params), interrupted=interrupted)
        for command in [each for each, its in state.owed.items() if its == ended]:
            del state.owed[command]
            self._settle(command, "rejected", state.blocked or "the turn ended before the agent had read it")
        state.turn = ""
        # One that came as the turn came to its own end is for the sub-agents that it has left at work.
        late = status == "completed" and bool(state.interrupting and state.delegated)
        self._interrupts_end(interrupted=interrupted or late)
        if interrupted:
            state.unclean[ended] = self.thread or ""
        else:
            state.answered = True
            found += self._ended(time, turn, status)
        if interrupted or late:
            state.parked = True
            found.append(ProgressEvent(time=time, text=TURN_INTERRUPTED))
        return found

    def _ended(self, time: datetime, turn: Frame, status: str) -> list[EventBase]:
        """A turn came to its own end, well or not."""
        progress = self.state.progress
        progress.stop_reason = status[:100] or None
        error = turn_error(object_at(turn, "error")) if status == "failed" else None
        if error is None and self.state.blocked:
            error = AgentFailed(self.state.blocked)
        if error is None:
            progress.text = progress.said
            if self._structured:
                error = self._read_structured()
        self.state.failure = failure(error) if error else None
        return [ErrorEvent(time=time, message=error.message[:MAX_TEXT])] if error else []

    def _read_structured(self) -> RunError | None:
        """The answer by the request's schema is the agent's last text."""
        said = self.state.progress.text
        if len(said) > MAX_STRUCTURED:
            return AgentFailed(f"output_schema: the answer is larger than {MAX_STRUCTURED} characters")
        try:
            self.state.progress.structured = parse(said)
        except ValueError:
            return AgentFailed(f"output_schema: the answer is no JSON: {said[:200]!r}")
        return None

    def _interrupts_end(self, *, interrupted: bool) -> None:
        """No turn runs any more that an interrupt would end."""
        state = self.state
        for command in state.interrupting:
            how = "interrupted" if interrupted else "nothing was running"
            if command.startswith(END_PREFIX):
                state.over = True
                self._settle(command, "acknowledged", how)
            else:
                # A message with a text is acknowledged by the item of its text.
                self._settle(command, "delivered", how)
        state.interrupting.clear()

    def _item_started(self, time: datetime, params: Frame) -> list[EventBase]:
        item, thread = object_at(params, "item"), self._thread_of(params)
        parent = self._parent(thread)
        if item.get("type") == "userMessage":
            return self._text_read(time, item) if parent is None else []
        name = items.tool_name(item)
        if name is None:
            return []
        event = items.use_event(time, item, name, parent)
        shown = bounded(event.input, SHOWN_INPUT) if item.get("type") == "fileChange" else {}
        self.state.items[event.id] = {"name": name, "input": shown, "thread": thread}
        if len(self.state.items) > MAX_OPEN_ITEMS:
            del self.state.items[next(iter(self.state.items))]
        return [event]

    def _text_read(self, time: datetime, item: Frame) -> list[EventBase]:
        state, command = self.state, text_of(item.get("clientId"))
        how = "mid_turn" if state.spoken else "new_turn"
        state.spoken = True
        if state.owed.pop(command, None) is None:
            return []
        if command.startswith(MESSAGE):
            if INTERRUPT + command.removeprefix(MESSAGE) in state.written:
                how = "interrupted"
            self._settle(command, "acknowledged", how)
        return items.message_events(time, item) if command.startswith(MESSAGE) else []

    def _item_completed(self, time: datetime, params: Frame) -> list[EventBase]:
        item, parent = object_at(params, "item"), self._parent(self._thread_of(params))
        kind = item.get("type")
        if kind == "agentMessage" and parent is None:
            self.state.progress.said, self.state.blocked = text_of(item.get("text"))[:MAX_TEXT], ""
        if kind in ("agentMessage", "reasoning"):
            return items.message_events(time, item, parent)
        if kind == "contextCompaction" and parent is None:
            return [ProgressEvent(time=time, text="the conversation was compacted")]
        name = items.tool_name(item)
        return [] if name is None else self._call_completed(time, item, name, parent)

    def _call_completed(self, time: datetime, item: Frame, name: str, parent: str | None) -> list[EventBase]:
        state, ident = self.state, text_of(item.get("id"))[:MAX_NAME]
        if ident in state.closed:
            state.closed.discard(ident)
            return []
        if item.get("type") == "collabAgentToolCall" and isinstance(threads := item.get("receiverThreadIds"), list):
            begins = [text_of(each)[:MAX_NAME] for each in threads if name in BEGINNING]
            if name == SPAWN and item.get("status") == "completed" and len(state.parents) < MAX_THREADS:
                state.begun_threads.update(each for each in begins[:1] if each not in state.parents)
            if name == CLOSE:
                state.begun_threads.difference_update(map(text_of, threads))
            state.parents = dict(list({**state.parents, **dict.fromkeys(begins, ident)}.items())[-MAX_THREADS:])
        begun = state.items.pop(ident, None)
        state.outputs.close(ident)
        use = [] if begun else [items.use_event(time, item, name, parent)]  # an interrupt came before it was told
        return [*use, *items.result_events(time, item, name)]

    def _output_told(self, time: datetime, params: Frame) -> list[EventBase]:
        """What a command has put out since Codex said so last: not all of what it has put out at its beginning."""
        ident = text_of(params.get("itemId"))[:MAX_NAME]
        if ident not in self.state.items:
            return []
        return [*self.state.outputs.added(time, ident, text_of(params.get("delta")))]

    def _hook_ended(self, time: datetime, params: Frame) -> list[EventBase]:
        """What a hook of Codex's user, or of a trusted workspace, has to say where it stops something."""
        run = object_at(params, "run")
        if run.get("status") not in ("blocked", "stopped", "failed"):
            return []
        event, said = text_of(run.get("eventName"))[:MAX_NAME], text_of(run.get("entries")) or "it gave no reason"
        text = f"a hook ({event}) {run['status']}: {said}"
        if event == "userPromptSubmit" and run["status"] in ("blocked", "stopped"):
            self.state.blocked = text[:MAX_NAME]
        return [ProgressEvent(time=time, text=text[:1000])]

    def _server_started(self, time: datetime, params: Frame) -> list[EventBase]:
        """An MCP server whose tools the agent has not got; a sub-agent is told of the same ones."""
        of_subagent = self.state.begun and params.get("threadId") != self.state.progress.session_id
        if params.get("status") != "failed" or of_subagent:
            return []
        return [ProgressEvent(time=time, text=f"MCP servers: {text_of(params.get('name'))[:100]} failed")]

    def _goal_told(self, time: datetime, params: Frame) -> list[EventBase]:
        self.state.goal = object_at(params, "goal").get("status") == "active"
        return []

    def _usage_updated(self, time: datetime, params: Frame) -> list[EventBase]:
        """Totals are a thread's, a sub-agent's too. What an earlier process has used of it is told when it is resumed;
        around a compaction they are told again without any call.
        """
        state, usage = self.state, object_at(params, "tokenUsage")
        thread, total = text_of(params.get("threadId"))[:MAX_NAME], _usage(object_at(usage, "total"))
        known = state.totals.pop(thread, None)
        state.totals[thread] = total
        if len(state.totals) > MAX_THREADS:
            del state.totals[next(iter(state.totals))]
        if known is None:
            if thread == state.progress.session_id and not self._runs(text_of(params.get("turnId"))):
                return []
            known = _difference(total, _usage(object_at(usage, "last")))
        used = _difference(total, known)
        if used == Usage():
            return []
        state.progress.usage += used
        state.progress.turns += 1
        return [UsageEvent(time=time, usage=state.progress.usage, cost_usd=0.0, turns=state.progress.turns)]

    def _settle(self, command: str, settled: MessageState, how: str | None) -> None:
        for prefix in (MESSAGE, INTERRUPT, END_PREFIX):
            if command.startswith(prefix):
                ident = command.removeprefix(prefix)[:MAX_NAME]
                known = self.state.settled.get(ident)
                if known is None or known.state == "delivered":
                    self.state.settled[ident] = Settlement(id=ident, state=settled, how=how[:MAX_NAME] if how else None)


def _usage(value: Frame) -> Usage:
    """Tokens, of which Codex counts those of the cache among the input."""
    read, write = count_of(value.get("cachedInputTokens")), count_of(value.get("cacheWriteInputTokens"))
    return Usage(
        input_tokens=max(count_of(value.get("inputTokens")) - read - write, 0),
        output_tokens=count_of(value.get("outputTokens")),
        cache_read_tokens=read,
        cache_write_tokens=write,
    )


def _difference(total: Usage, part: Usage) -> Usage:
    return Usage(**{name: max(getattr(total, name) - getattr(part, name), 0) for name in Usage.model_fields})
