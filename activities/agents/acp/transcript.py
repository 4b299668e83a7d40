"""The transcript of one process of an ACP agent. Deterministic: the same journal gives the same events and state.

It relies on these facts: each prompt has exactly one answer, which ends its turn; a session that is loaded is told
again before the first prompt; an update has only what is new (agent-client-protocol 0.12, version 1).
"""

from datetime import UTC, datetime
from typing import ClassVar

from activities.agents.acp import approvals, tools
from activities.agents.acp.errors import agent_error
from activities.agents.acp.frames import (
    AGAIN,
    INITIALIZE,
    PROTOCOL_VERSION,
    REPAIR,
    SESSION,
    SETTING,
    is_request,
    key_of,
)
from activities.agents.acp.messages import Messages
from activities.agents.acp.session_start import Start, start_of
from activities.agents.acp.snapshot import MAX_ASKED, MAX_TOLD, MAX_WITHDRAWN, AcpSnapshot, is_session
from activities.agents.acp.usage import UsageMeter
from activities.agents.command_ids import MESSAGE
from activities.agents.crashes import crash
from activities.agents.frames import Frame, parse_frame
from activities.agents.structured import answer_in
from activities.agents.tool_output import ToolOutputs
from activities.ports.agent import END_PREFIX, ExitFact, Progress, Resumption, Verdict
from activities.ports.runtime import Record
from activities.untrusted_json import name_of, object_at, objects_in, text_of
from steersman.contracts.activities import Settlement
from steersman.contracts.errors import AgentFailed, InvalidRequest, RunError
from steersman.contracts.events import (
    MAX_TEXT,
    TURN_INTERRUPTED,
    ErrorEvent,
    EventBase,
    InitEvent,
    MessageEvent,
    PlanItem,
    PlanUpdateEvent,
    ProgressEvent,
    ToolResultEvent,
    UsageEvent,
)

CHUNKS = {"agent_message_chunk": "text", "agent_thought_chunk": "thinking"}
MAX_PLAN = 200
MAX_PARTS = 1_000
"""A message that comes in more parts than this is joined: agents send some a character at a time."""


class AcpTranscript:
    """See ports.Transcript. The attributes that feeding changes are in snapshots under their own names.

    Args:
        session: the session that the process is to go on with; None for a new one.
        resumption: as in ports.Agent.launch.
        structured: the answer is to be JSON.
    """

    snapshot_kind: ClassVar[type[AcpSnapshot]] = AcpSnapshot
    forgets: ClassVar[bool] = False
    """The session may lose a turn that is cancelled, and what was told in it."""
    ends_with_process: ClassVar[bool] = False
    """An end of the run is no cancel: the turn ends with the process."""

    def __init__(
        self, session: str | None = None, resumption: Resumption | None = None, *, structured: bool = False
    ) -> None:
        self.resumption = resumption
        self.progress = Progress()
        self.hopeless: RunError | None = None
        self.pending: dict[str, Frame] = {}
        """Unanswered requests of the agent, by the key of the request's id."""
        self.withdrawn: set[str] = set()
        """Ids of approvals that the agent has withdrawn."""
        self.parked = bool(resumption and resumption.parked)
        """The last turn was interrupted and no message followed: the agent waits for a person."""
        self.messages = Messages()
        self.start = Start()
        """What the launch wrote into the first frame."""
        self.abilities: Frame = {}
        """The answer to `initialize`, empty before it."""
        self.opened: Frame | None = None
        """The answer to the request for the session, None before it."""
        self.steered: dict[str, list[Frame]] = {}
        """Content blocks of texts that may have to be written again, until the agent has said what became of them."""
        self.told: list[str] = []
        """What people said in turns that the session may have lost, the open one among them."""
        self.set_up: set[str] = set()
        """Ids of the settings that the agent has answered."""
        self.answer_accepted = False
        """A worker has held the answer against the schema. Not in snapshots: the next one does it again."""
        self.owed: set[str] = set()
        """Ids of texts that the worker is about to write: the process is not let go before. Not in snapshots either."""
        self._session, self._structured = session, structured
        self._resumes = bool(resumption and resumption.session_id)
        self._meter = UsageMeter()
        self._calls: dict[str, Frame] = {}
        self._outputs = ToolOutputs()
        self._buffer: list[str] = []
        self._buffer_kind = self._buffer_id = self._spoken = ""
        self._denied = ""
        """The tool that was denied last in the open turn."""
        self._broken = False
        """The agent has said, beside its answer, that its turn failed."""
        self._buffer_size = 0
        self._buffer_cut = self._begun = self._answered_once = self._over = self._no_session = False
        self._error: RunError | None = None

    @property
    def working(self) -> bool:
        """See ports.Transcript."""
        asking = any(approvals.is_approval(each) for each in self.pending.values())
        return not asking and not self.finished and not (self.parked and not self.messages.open)

    @property
    def finished(self) -> bool:
        """Each prompt is answered, and the agent is not parked; or a person ended the run, and its turn has ended."""
        return self._over or (self.turn_over and not self.parked and not self.answer_due and not self.owed)

    @property
    def turn_over(self) -> bool:
        """A turn has ended, and none is open or about to begin."""
        waiting = self.messages.open or self.messages.steering or self.messages.late
        return self._answered_once and not waiting

    @property
    def answer_due(self) -> bool:
        """The answer has to be held against the schema before the agent may go."""
        asked_again = REPAIR in self.messages.written
        return self._structured and self._error is None and not asked_again and not self.answer_accepted

    @property
    def prompted(self) -> bool:
        """The process has been given a prompt. What is told of a session before is of the past."""
        return self.turn_open or self._answered_once

    @property
    def turn_open(self) -> bool:
        """A turn runs that an interrupt would end."""
        return bool(self.messages.open)

    def snapshot(self) -> bytes | None:
        """See ports.Transcript."""
        kind = self.snapshot_kind
        return kind(**{name: getattr(self, name) for name in kind.names()}).to_json()

    def restore(self, snapshot: bytes) -> None:
        """See ports.Transcript."""
        state = self.snapshot_kind.from_json(snapshot)
        for name in self.snapshot_kind.names():
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
        if self._no_session and self._resumes:
            # The process before this one died before the agent had saved its session.
            return Verdict(self.hopeless, resumable=True, start_over=True, unsaved=self._unsaved)
        if self.hopeless:
            return Verdict(self.hopeless)
        if self.turn_over and not self.parked:
            return Verdict(self._error)
        signalled = exit_fact.signal or (exit_fact.code or 0) > 128
        if self._begun or signalled or exit_fact.lost or exit_fact.reason != "exited":
            can_go_on = self.progress.session_id is None or self._resumable
            return Verdict(crash(exit_fact), resumable=can_go_on, unsaved=self._unsaved)
        return Verdict(crash(exit_fact))

    @property
    def _unsaved(self) -> tuple[str, ...]:
        """A turn that a crash has cut off is in the session, one that a person has interrupted may not be."""
        return tuple(self.told) if self.parked else ()

    @property
    def _resumable(self) -> bool:
        capabilities = object_at(self.abilities, "agentCapabilities")
        return capabilities.get("loadSession") is True or "resume" in object_at(capabilities, "sessionCapabilities")

    def feed(self, record: Record) -> list[EventBase]:
        """See ports.Transcript."""
        time = datetime.fromtimestamp(record.time_ms / 1000, UTC)
        try:
            frame = parse_frame(record.data) if record.stream in ("in", "out") else None
            if frame is None:
                return []
            found = (
                self._input(time, record.id, frame) if record.stream == "in" else self._output(time, record.seq, frame)
            )
            if self.messages.ending and self.ends_with_process:
                for command in list(self.messages.open):
                    found = [*found, *self._turn_ended(time, command, {"stopReason": "cancelled"}, None)]
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
            found = [ErrorEvent(time=time, message=f"a frame of the agent could not be read: {error!r}"[:500])]
        if self.messages.ending and not self.turn_open:
            self._over = True
            self.messages.end_reached()
        return found

    # ---- frames that were written to the agent

    def _input(self, time: datetime, command: str, frame: Frame) -> list[EventBase]:
        method = frame.get("method")
        if method is None:
            question = self.pending.pop(key_of(frame.get("id")), None)
            if question is None or not approvals.is_approval(question):
                return []
            answer = approvals.answered(time, question, frame)
            needless = self.messages.stopping or not self.turn_open or self.is_pointless(question)
            if answer.state == "withdrawn" and not needless:  # the agent offers nothing of what was decided
                answer = answer.model_copy(update={"state": "denied"})
            self._denied = answer.tool if answer.state == "denied" else ""
            return [answer]
        self.messages.written.add(command)
        self.owed.discard(command)
        if method == "initialize":
            self.start = start_of(frame)
        if method == "session/cancel" or command.startswith(END_PREFIX):
            self.messages.cancel_written(command)
        if method == "_session/steering":
            self.messages.steering_written(command)
            self.steered[command.removeprefix(MESSAGE)] = objects_in(object_at(frame, "params").get("prompt"))
            return [self._told(time, command, frame)]
        if method != "session/prompt":
            return []
        self.parked = False
        before = []
        if not self.turn_open:
            before = self._flush(time)  # what was said after the last turn's end is no part of the next one
            self._spoken = ""
        if self.forgets or self.told:
            self.told.append(prompt_text(frame) if self.told else "\n\n".join(_texts(frame)))
            del self.told[1 : max(1, len(self.told) - MAX_TOLD + 1)]
        self.messages.prompt_written(command)
        self._keep(command, frame)
        return [*before, self._told(time, command, frame)]

    def _keep(self, command: str, frame: Frame) -> None:
        """Keep what a prompt says where a cancel of the turn before may end it."""
        self.steered.pop(command.removeprefix(AGAIN), None)
        if self.messages.outlived and command.startswith(MESSAGE):
            self.steered[command.removeprefix(MESSAGE)] = objects_in(object_at(frame, "params").get("prompt"))

    def _was_ended(self, command: str) -> bool:
        """Whether a cancel of the turn before has ended this one before anything of it was told, as if it were well."""
        told = self._spoken or any(not each.get("cut_off") for each in self._calls.values())
        return self.messages.outlived and command.startswith(MESSAGE) and not told

    def _follows_again(self, command: str) -> bool:
        """Whether this prompt, whose turn has ended, is to be written once more."""
        if command.removeprefix(MESSAGE) in self.messages.late:
            return True
        self.steered.pop(command.removeprefix(MESSAGE), None)
        return False

    def _told(self, time: datetime, command: str, frame: Frame) -> MessageEvent:
        text = prompt_text(frame)
        return MessageEvent(
            time=time, role="user", text=text[:MAX_TEXT], truncated=len(text) > MAX_TEXT, message_id=name_of(command)
        )

    # ---- frames of the agent

    def _output(self, time: datetime, record: int, frame: Frame) -> list[EventBase]:
        if is_request(frame):
            return self._asked(time, record, frame)
        if frame.get("method") == "session/update":
            return self._update(time, record, object_at(frame, "params"))
        if frame.get("method") == "$/cancel_request":
            return self._withdrawn(time, key_of(object_at(frame, "params").get("requestId")))
        if text_of(frame.get("method")).startswith("_"):
            return self._extension(time, text_of(frame["method"]), object_at(frame, "params"))
        return self._replied(time, frame)

    def _replied(self, time: datetime, frame: Frame) -> list[EventBase]:
        command, error = frame.get("id"), frame.get("error")
        if isinstance(command, str) and command in self.messages.written:
            return self._answered(time, command, frame)
        if command is None and isinstance(error, dict):  # it could not tell which: its answer will never come
            return [ErrorEvent(time=time, message=str(agent_error(error, "the agent could not read a request")))]
        return []

    def _extension(self, time: datetime, method: str, params: Frame) -> list[EventBase]:
        """A notification that is the agent's own."""
        return []

    def _asked(self, time: datetime, record: int, frame: Frame) -> list[EventBase]:
        if len(self.pending) >= MAX_ASKED:
            self.hopeless = AgentFailed(f"the agent asks more than {MAX_ASKED} things at once")
            return [ErrorEvent(time=time, message=self.hopeless.message)]
        if not approvals.is_approval(frame):
            self.pending[key_of(frame.get("id"))] = approvals.kept(frame, record, self._calls)
            return []
        self.messages.turn_shown()
        call, told = approvals.call_of(frame), list[EventBase]()
        # Of a subagent's calls (opencode) nobody tells the end.
        if object_at(frame, "params").get("sessionId") == self.progress.session_id:
            tools.begun(call, self._calls)
            told = tools.told(time, call, self._calls, now=True)
        question = self.pending[key_of(frame.get("id"))] = approvals.kept(frame, record, self._calls)
        return [*self._flush(time), *told, *approvals.asked(time, question)]

    def _withdrawn(self, time: datetime, key: str) -> list[EventBase]:
        question = self.pending.pop(key, None)
        if question is None or not approvals.is_approval(question):
            return []
        if len(self.withdrawn) < MAX_WITHDRAWN:
            self.withdrawn.add(approvals.approval_id(question))
        return [approvals.answered(time, question, {})]

    def _answered(self, time: datetime, command: str, frame: Frame) -> list[EventBase]:
        result, error = object_at(frame, "result"), frame.get("error")
        if command == INITIALIZE:
            return self._initialized(result, error) if not self.abilities else []
        if command == SESSION:
            return self._session_opened(time, result, error) if self.opened is None else []
        if command.startswith(SETTING):
            self.set_up.add(command)
            if error is not None:
                self.hopeless = agent_error(error, f"the agent did not take the {command.removeprefix(SETTING)}")
            return []
        if command.removeprefix(MESSAGE) in self.messages.steering:
            outcome = text_of(result.get("outcome")) or "injected"
            refused = str(agent_error(error, "the agent did not take it")) if error is not None else None
            self.messages.steering_answered(command, outcome, refused)
            if command.removeprefix(MESSAGE) not in self.messages.late:
                self.steered.pop(command.removeprefix(MESSAGE), None)
            return []
        return self._turn_ended(time, command, result, error) if command in self.messages.open else []

    def _initialized(self, result: Frame, error: object) -> list[EventBase]:
        version = result.get("protocolVersion")
        if error is not None:
            self.hopeless = agent_error(error, "the agent did not begin")
        elif version != PROTOCOL_VERSION:
            self.hopeless = AgentFailed(
                f"the agent speaks version {text_of(version)[:20]} of the Agent Client Protocol; only 1 is known here"
            )
        # Only what is looked at later: an answer may be long.
        self.abilities = {
            "agentCapabilities": object_at(result, "agentCapabilities"),
            "agentInfo": object_at(result, "agentInfo"),
            "_meta": {"steering": object_at(result, "_meta", "steering")},
        }
        return []

    def _session_opened(self, time: datetime, result: Frame, error: object) -> list[EventBase]:
        if error is not None:
            failure = agent_error(error, "the agent opened no session")
            self._no_session = self._session is not None and isinstance(failure, AgentFailed)
            self.hopeless = InvalidRequest(f"session: {failure}"[:4000]) if self._no_session else failure
            return []
        session = text_of(result.get("sessionId")) or self._session or ""
        if not is_session(session):
            self.hopeless = AgentFailed("the agent's session has no id that could be used")
            return []
        self.opened = {name: result[name] for name in ("configOptions", "modes", "models") if name in result}
        self.progress.session_id = session
        self._begun = True
        info = object_at(self.abilities, "agentInfo")
        version = " ".join(filter(None, (name_of(info.get("name")), name_of(info.get("version")))))
        model = name_of(object_at(result, "models").get("currentModelId"))
        return [InitEvent(time=time, session_id=session, model=model, version=version or None)]

    def _update(self, time: datetime, record: int, params: Frame) -> list[EventBase]:
        if params.get("sessionId") != self.progress.session_id or not self.prompted:
            return []  # a session that is loaded is told again, by some agents after their answer
        update = object_at(params, "update")
        kind = str(update.get("sessionUpdate"))
        if status := text_of(object_at(update, "_meta", "codex", "threadStatus").get("type")):
            # codex-acp says in a text what went wrong, and ends the turn well (measured with 2.6.0).
            self._broken = status == "systemError"
        if kind in CHUNKS:
            self.messages.turn_shown()
            self.messages.model_speaks()
            return self._chunk(time, update, CHUNKS[kind])
        if kind == "tool_call_update" and self._calls.get(tools.tool_id(update), {}).get("cut_off"):
            return []  # claude-agent-acp says so after its turn's end: nothing of the next turn
        if kind in ("tool_call", "tool_call_update"):
            self.messages.turn_shown()
            return [*self._flush(time), *self._tool(time, record, kind, update)]
        if kind == "plan":
            entries = objects_in(update.get("entries"))[:MAX_PLAN]
            items = (
                PlanItem(text=text_of(e.get("content"))[:2000], status=text_of(e.get("status"))[:50]) for e in entries
            )
            return [PlanUpdateEvent(time=time, items=tuple(items))]
        return []

    def is_pointless(self, question: Frame) -> bool:
        """Whether the call that a request for permission is about has ended since."""
        call = self._calls.get(tools.tool_id(approvals.call_of(question)), {})
        over, asked = call.get("over"), question.get(approvals.RECORD)
        return isinstance(over, int) and isinstance(asked, int) and over > asked

    def _tool(self, time: datetime, record: int, kind: str, call: Frame) -> list[EventBase]:
        if kind == "tool_call":
            tools.begun(call, self._calls)
        if call.get("status") in ("completed", "failed"):
            found = tools.ended(time, call, self._calls, self._outputs)
            self._calls[tools.tool_id(call)]["over"] = record
            self.messages.tool_ended()
            return found
        # A call that is only announced follows with what it is about.
        now = kind == "tool_call_update" or call.get("status") != "pending"
        found = tools.told(time, call, self._calls, now=now)
        return [*found, *tools.put_out(time, call, self._calls, self._outputs)] if kind == "tool_call_update" else found

    # ---- what the agent says

    def _chunk(self, time: datetime, update: Frame, kind: str) -> list[EventBase]:
        text, ident = text_of(object_at(update, "content").get("text")), name_of(update.get("messageId")) or ""
        if not text:
            return []
        found = self._flush(time) if (kind, ident) != (self._buffer_kind, self._buffer_id) else []
        self._buffer_kind, self._buffer_id = kind, ident
        room = MAX_TEXT - self._buffer_size
        self._buffer_cut = self._buffer_cut or len(text) > room
        if room > 0:
            self._buffer.append(text[:room])
            self._buffer_size += len(text[:room])
        if len(self._buffer) > MAX_PARTS:
            self._buffer = ["".join(self._buffer)]
        delta = MessageEvent.model_validate(
            {
                "time": time,
                "kind": kind,
                "text": text[:MAX_TEXT],
                "truncated": len(text) > MAX_TEXT,
                "delta": True,
                "message_id": ident or None,
            }
        )
        return [*found, delta]

    def _flush(self, time: datetime) -> list[EventBase]:
        """The whole of the message that came in parts."""
        text, kind, ident, cut = "".join(self._buffer), self._buffer_kind, self._buffer_id, self._buffer_cut
        self._buffer, self._buffer_kind, self._buffer_id = [], "", ""
        self._buffer_size, self._buffer_cut = 0, False
        if not text:
            return []
        if kind == "text":
            self.progress.said = self._spoken = text
        whole = {"time": time, "kind": kind, "text": text, "truncated": cut, "message_id": ident or None}
        return [MessageEvent.model_validate(whole)]

    def _turn_ended(self, time: datetime, command: str, result: Frame, error: object) -> list[EventBase]:
        found = self._flush(time)
        reason = text_of(result.get("stopReason"))[:100]
        asked_to = self.messages.stopping
        # Some agents answer a turn that was cancelled with the error that this was within them.
        cancelled = reason == "cancelled" or (error is not None and asked_to) or self._was_ended(command)
        self.messages.prompt_answered(command, cancelled=cancelled, failed=error is not None)
        self._calls = tools.cut_off(self._calls)
        found += [
            ToolResultEvent(
                time=time, id=ident, name=call["name"], text="the turn ended before its result", is_error=True
            )
            for ident, call in self._calls.items()
        ]
        self._outputs.clear()
        found += self._turn_used(time, result)
        if self._follows_again(command) or self.turn_open:
            return found
        if not (cancelled and self.forgets):
            self.told.clear()
        self._answered_once = True
        denied, self._denied = self._denied, ""
        self.parked = cancelled and asked_to
        if self.parked:
            return [*found, ProgressEvent(time=time, text=TURN_INTERRUPTED)]
        self.progress.text, self.progress.stop_reason = self._spoken, reason or None
        why = f"as {denied} was denied" if denied else "and nobody had asked it to"
        self._error = AgentFailed(f"the agent gave its turn up, {why}") if cancelled else None
        if error is not None:
            self._error = self._turn_failed(error)
        elif self._broken and reason == "end_turn":
            self._error = AgentFailed(
                f"the agent's turn failed: {self._spoken.strip()[:1000] or 'it does not say why'}"
            )
        elif reason == "refusal":
            self._error = AgentFailed("the agent refused to go on")
        elif reason in ("max_tokens", "max_turn_requests"):
            self._error = AgentFailed(f"the agent's turn ended at its own limit ({reason})")
        if self._structured:
            self.progress.structured = answer_in(self.progress.text)
        if self._error:
            found.append(ErrorEvent(time=time, message=self._error.message[:MAX_TEXT]))
        return found

    def _turn_used(self, time: datetime, result: Frame) -> list[EventBase]:
        """What a turn has used, by the answer to its prompt."""
        if not self._meter.turn_ended(result):
            return []
        self.progress.usage = self._meter.usage
        return [UsageEvent(time=time, usage=self._meter.usage, cost_usd=0, turns=0)]

    def _turn_failed(self, error: object) -> RunError:
        """Why a turn failed, by the answer to its prompt."""
        return agent_error(error, "the agent's turn failed")


def prompt_text(frame: Frame) -> str:
    """The text of a prompt that was written, without what precedes a person's words."""
    texts = _texts(frame)
    return texts[-1] if texts else ""


def _texts(frame: Frame) -> list[str]:
    blocks = objects_in(object_at(frame, "params").get("prompt"))
    return [text_of(each.get("text")) for each in blocks if each.get("type") == "text"]
