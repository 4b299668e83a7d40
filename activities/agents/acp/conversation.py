"""The conversation with one live process of an ACP agent.

It is driven by what the transcript has read: after each record, whatever is due is written under an id that every
worker makes the same. So a worker that takes over in the middle of a handshake, a question or an answer goes on with
the next frame.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar, Final, Literal

from activities.agents.acp import approvals, frames, session_start, tools
from activities.agents.acp.messages import Messages
from activities.agents.acp.session_start import Setting
from activities.agents.acp.transcript import AcpTranscript
from activities.agents.command_ids import INTERRUPT, MESSAGE
from activities.agents.frames import Frame
from activities.agents.interrupts import LastInterrupt
from activities.agents.prompts import told_again
from activities.agents.structured import asking_again
from activities.ports.agent import END_PREFIX, AnswerCheck, ApprovalRequester
from activities.ports.runtime import Channel, ChannelClosed, Record
from activities.untrusted_json import object_at
from steersman import timeouts
from steersman.contracts.activities import ApprovalAsked, OutgoingDecision, OutgoingMessage, Settlement
from steersman.contracts.attachments import Attachment
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.request import PermissionMode

SPEAKS: Final = (b'"agent_message_chunk"', b'"agent_thought_chunk"', b'"tool_call"')
"""In updates with which a turn goes on: the model has been asked."""
SETTLEMENT_TIMEOUT_S: Final = 20.0
"""The agent's answer to a message is awaited for this many seconds."""
READING_TIME_S: Final = 0.3
"""A written prompt may take this many seconds to be read and still be answered as acknowledged at once."""
QUIET_S, LOADED_S = 0.2, 30.0
"""A loaded session has been told again once the agent was silent for this many seconds, or after so many."""
UNANNOUNCED: Final = "the agent does not announce that it takes images"


@dataclass(frozen=True)
class Opening:
    """What a process is told before people speak to it."""

    session: str | None
    """The session to go on with; None for a new one."""
    fork: bool
    settings: tuple[Setting, ...]
    prompt: tuple[str, str] | None
    """The first prompt's command id and text; None where a person's message is the first."""
    images: tuple[Attachment, ...] = ()
    """What goes with that."""
    wait_s: Callable[[str], float] = lambda _session: 0.0
    """Seconds before this session may be asked for."""


class AcpConversation:
    """See ports.Conversation."""

    _end_method: ClassVar[str] = "session/cancel"
    """What ends the run with its turn."""

    def __init__(
        self,
        opening: Opening,
        mode: PermissionMode,
        channel: Channel,
        transcript: AcpTranscript,
        approvals: ApprovalRequester,
        check: AnswerCheck,
    ) -> None:
        self._opening, self._mode, self._channel, self._transcript = opening, mode, channel, transcript
        self._approvals, self._check = approvals, check
        self._sent: set[str] = set()
        self._heard = self._spoken = 0
        self._told_again = False
        """The session that is gone on with has been told again."""
        self._remembered: dict[str, OutgoingDecision] = {}
        self._waiting: dict[str, Frame] = {}
        """Questions that a person has been asked, by the approval's id."""
        self._denials: dict[str, tuple[str, int]] = {}
        """What goes with denials, by the command that will write it, and how often the model had spoken by then."""
        self._changed = asyncio.Condition()
        self._last_interrupt = LastInterrupt(transcript.messages.interrupted_by)
        self._news = asyncio.Event()
        self._driver: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin, or go on with, what precedes people's messages; returns once they may be written."""
        self._driver = asyncio.create_task(self._drive())
        opened = asyncio.create_task(self._until(lambda: self._is_open, None))
        try:
            await asyncio.wait([opened, self._driver], return_when=asyncio.FIRST_COMPLETED)
        finally:
            opened.cancel()
        self._check_driver()

    async def close(self) -> None:
        """Let go: the next conversation goes on by the journal."""
        if self._driver:
            self._driver.cancel()
            await asyncio.gather(self._driver, return_exceptions=True)

    async def hear(self, record: Record) -> None:
        """Wake what waits for a change of the transcript."""
        if record.stream not in ("in", "out"):
            return
        self._last_interrupt.note(self._messages.interrupted_by)
        self._check_driver()
        self._heard += 1
        self._spoken += record.stream == "out" and any(each in record.data for each in SPEAKS)
        self._news.set()
        async with self._changed:
            self._changed.notify_all()

    async def say(self, message: OutgoingMessage) -> Settlement:
        """Deliver a message once, and return its settlement so far. Raises ChannelClosed."""
        if message.end:
            return await self._end(message)
        if self._transcript.hopeless:  # it is being stopped, and may have no session: the next process is told
            raise ChannelClosed("the process is being stopped")
        if message.attachments and not self._sees:
            return Settlement(id=message.id, state="rejected", how=UNANNOUNCED)  # and the turn goes on
        if message.kind == "steer":
            return await self._steer(message)
        running, already = self._transcript.turn_open, self._was_written(INTERRUPT + message.id)
        first = self._messages.interrupting if running else self._last_interrupt.beside()
        if running and first is None and not already:
            await self._cancel(INTERRUPT + message.id)
        if running and not await self._until(lambda: not self._transcript.turn_open, SETTLEMENT_TIMEOUT_S):
            return Settlement(id=message.id, state="delivered")  # it comes again: its text is written then
        if message.text:
            return await self._say_text(message)
        how = "interrupted" if running or already else "nothing was running"
        if first is not None and first != message.id:
            how = f"{first} was at work"
        return Settlement(id=message.id, state="acknowledged", how=how)

    async def decide(self, decision: OutgoingDecision) -> None:
        """Answer the questions that this decides; remember it for the tool if it says so."""
        if decision.decision.remember:
            self._remembered[decision.tool] = decision
        for ident, question in list(self._waiting.items()):
            remembered = decision.decision.remember and _tool(question) == decision.tool
            if ident == decision.decision.id or remembered:
                await self._answer(question, decision.decision.decision, for_good=decision.decision.remember)
                if decision.decision.decision == "deny" and decision.decision.message:
                    self._owe(f"{MESSAGE}denial-{ident}", decision.decision.message)

    # ---- messages

    @property
    def _messages(self) -> Messages:
        return self._transcript.messages

    async def _cancel(self, command: str, method: str = "session/cancel") -> None:
        """End the turn. The protocol has clients answer what the agent asks at that moment, as cancelled."""
        self._denials.clear()
        self._transcript.owed.clear()
        session = self._transcript.progress.session_id or ""
        await self._write(command, frames.notification(method, {"sessionId": session}))
        for question in list(self._transcript.pending.values()):
            if approvals.is_approval(question):
                await self._withdraw(question)

    async def _end(self, message: OutgoingMessage) -> Settlement:
        """Interrupt the turn and end the run with it. Only the first end of a run is written."""
        if not self._messages.ending:
            await self._cancel(END_PREFIX + message.id, self._end_method)
        if not await self._until(lambda: self._transcript.finished, SETTLEMENT_TIMEOUT_S):
            return Settlement(id=message.id, state="delivered")
        known = self._messages.settlement(message.id)  # None for a second end, which is not written
        return known or Settlement(id=message.id, state="acknowledged", how="interrupted")

    async def _steer(self, message: OutgoingMessage) -> Settlement:
        if not self._transcript.turn_open:
            return await self._say_text(message)
        if not self._steers:
            return Settlement(
                id=message.id, state="rejected", how="the agent takes no messages in a turn: interrupt it"
            )
        command = MESSAGE + message.id
        await self._write_steer(command, self._content((message.text or "",), message.attachments))
        await self._until(
            lambda: self._was_written(command) and message.id not in self._messages.steering, SETTLEMENT_TIMEOUT_S
        )
        # The model may be given it in an hour: that is told when it has been.
        return await self._settled(message.id, 0 if message.id in self._messages.injected else READING_TIME_S)

    async def _write_steer(self, command: str, content: Sequence[Frame]) -> None:
        params = {
            "sessionId": self._transcript.progress.session_id,
            "prompt": list(content),
            # What comes too late must not begin a turn of its own, of which nobody would hear the end.
            "_meta": {"steering": {"idleBehavior": "promptRequired"}},
        }
        await self._write(command, frames.request(command, "_session/steering", params))

    async def _say_text(self, message: OutgoingMessage) -> Settlement:
        """Write the text once, as a prompt, and wait a moment until it was read."""
        await self._prompt(MESSAGE + message.id, self._content((message.text or "",), message.attachments))
        await self._until(lambda: self._was_written(MESSAGE + message.id), SETTLEMENT_TIMEOUT_S)
        return await self._settled(message.id, READING_TIME_S)

    async def _settled(self, message_id: str, patience_s: float) -> Settlement:
        def state() -> str:
            known = self._messages.settlement(message_id)
            return known.state if known else "delivered"

        await self._until(lambda: state() != "delivered", patience_s)
        return self._messages.settlement(message_id) or Settlement(id=message_id, state="delivered")

    async def _until(self, condition: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait for a condition of the transcript; whether it holds."""
        with contextlib.suppress(TimeoutError):
            async with timeouts.timeout(timeout_s), self._changed:
                await self._changed.wait_for(condition)
        return condition()

    # ---- what is due

    @property
    def _is_open(self) -> bool:
        """The first prompt was written, or none is to be."""
        script, prompt = self._transcript, self._opening.prompt
        begun = self._told_again if prompt is None else self._was_written(prompt[0])
        return (script.opened is not None and begun) or script.hopeless is not None or script.finished

    async def _drive(self) -> None:
        """Write what is due after each record, until cancelled or the process has ended."""
        with contextlib.suppress(ChannelClosed):
            while True:
                self._news.clear()
                await self._meet_questions()
                if await self._begin():
                    await self._tell_denied()
                    await self._write_late()
                    await self._check_answer()
                await self._news.wait()

    def _check_driver(self) -> None:
        """Raise what ended the driver before its time."""
        if self._driver and self._driver.done() and not self._driver.cancelled():
            self._driver.result()

    async def _begin(self) -> bool:
        """Write what the session's beginning needs next; whether nothing is left of it."""
        script, opening = self._transcript, self._opening
        if not script.abilities or script.hopeless or self._messages.ending:
            return False
        if not self._was_written(frames.SESSION):
            await self._open_session()
            return False
        if script.opened is None:
            return False
        for setting in opening.settings:
            command = frames.SETTING + setting.name
            if command not in script.set_up:
                line = session_start.set_value(setting, script.progress.session_id or "", script.opened)
                if line is None:
                    offered = ", ".join(session_start.offered(setting.name, script.opened)) or "none"
                    self._fail(f"{setting.name}: the agent does not offer {setting.value}, but {offered}")
                else:
                    await self._write(command, line)
                return False
        if not self._told_again:
            await self._quiet()
        if opening.prompt is not None and not self._was_written(opening.prompt[0]):
            command, text = opening.prompt
            if opening.images and not self._sees:
                self._fail(f"attachments: {UNANNOUNCED}")
                return False
            await self._prompt(command, self._content((script.start.preamble, text), opening.images))
        return True

    async def _quiet(self) -> None:
        """Wait until a session that is loaded has been told again: Gemini CLI (0.61) does that after its answer."""
        until, heard = time.monotonic() + LOADED_S, -1
        is_new = self._opening.session is None or self._transcript.prompted
        while not is_new and self._heard != heard and time.monotonic() < until:
            heard = self._heard
            await asyncio.sleep(QUIET_S)
        self._told_again = True
        async with self._changed:
            self._changed.notify_all()

    async def _open_session(self) -> None:
        script, opening = self._transcript, self._opening
        if opening.session is not None:
            await asyncio.sleep(opening.wait_s(opening.session))
        line = session_start.open_session(script.start.directory, opening.session, script.abilities, fork=opening.fork)
        if line is None:
            what = "fork_session" if opening.fork else "session"
            self._fail(f"{what}: the agent does not announce that it can do that")
        else:
            await self._write(frames.SESSION, line)

    def _fail(self, why: str) -> None:
        """The request asks for what this program cannot do: the process is stopped for it."""
        self._transcript.hopeless = InvalidRequest(why[:4000])

    def _owe(self, command: str, text: str) -> None:
        """Have words written that go with a denial, for which the protocol's answer has no field."""
        self._denials[command] = text, self._spoken
        self._transcript.owed.add(command)
        self._news.set()

    async def _tell_denied(self) -> None:
        """Write what goes with denials once the turn has gone on or ended.

        Some agents end their turn with the answer (opencode, codex-acp), and would not read it in that one. Gemini CLI
        ends its turn with this prompt. None goes on before it is told about all that it asks.
        """
        for command, (text, before) in list(self._denials.items()):
            if self._transcript.turn_open and (self._waiting or self._spoken == before):
                continue
            del self._denials[command]
            content = self._content((text,))
            if self._steers and self._transcript.turn_open:
                await self._write_steer(command, content)
            else:
                await self._prompt(command, content)

    async def _write_late(self) -> None:
        """Messages that found no turn to steer begin one."""
        for message_id in list(self._messages.late):
            await self._prompt(frames.AGAIN + message_id, self._transcript.steered.get(message_id, []))

    async def _check_answer(self) -> None:
        """Hold a structured answer against its schema, and ask once more for one that does not fit."""
        script = self._transcript
        if not (script.turn_over and script.answer_due and not script.parked):
            return
        wrong = await self._check(script.progress.structured)
        if wrong is None:
            script.answer_accepted = True
        else:
            await self._prompt(frames.REPAIR, self._content((asking_again(wrong[:1000]),)))

    async def _prompt(self, command: str, content: Sequence[Frame]) -> None:
        script, opening = self._transcript, self._opening
        lost = [] if script.turn_open else script.told
        # Begun again while it waits for a person, the agent is given no prompt that would have this.
        is_first = opening.session is None and opening.prompt is None and not script.prompted
        before = frames.text_blocks(script.start.preamble if is_first else "", told_again(lost))
        session = script.progress.session_id or ""
        await self._write(command, frames.prompt(command, session, [*before, *content]))

    def _content(self, texts: tuple[str, ...], images: Sequence[Attachment] = ()) -> list[Frame]:
        said = session_start.plain(texts) if self._transcript.start.restricted else texts
        return [*frames.text_blocks(*said), *frames.image_blocks(images)]

    @property
    def _steers(self) -> bool:
        """The agent announces that it takes messages in a turn."""
        return object_at(self._transcript.abilities, "_meta", "steering").get("supported") is True

    @property
    def _sees(self) -> bool:
        """The agent announces that prompts may have images."""
        return object_at(self._transcript.abilities, "agentCapabilities", "promptCapabilities").get("image") is True

    async def _write(self, command: str, line: str) -> None:
        """Write once; the journal says so a moment later."""
        if command not in self._sent and not self._was_written(command):
            self._sent.add(command)
            await self._channel.write(command, line)

    def _was_written(self, command: str) -> bool:
        return command in self._messages.written

    # ---- permissions

    async def _meet_questions(self) -> None:
        """Answer new questions of the agent, or ask a person; forget those that it has withdrawn."""
        pending = {approvals.approval_id(each): each for each in self._transcript.pending.values()}
        for ident, question in list(self._waiting.items()):
            if ident in self._transcript.withdrawn or self._transcript.is_pointless(question):
                await self._withdraw(question)
            elif ident not in pending:
                del self._waiting[ident]
        for ident, question in pending.items():
            if ident in self._waiting or _answer_id(question) in self._sent:
                continue
            if not approvals.is_approval(question):
                line = frames.refusal(question.get("id"), str(question.get("method"))[:200])
                await self._write(_answer_id(question), line)
            elif self._transcript.is_pointless(question):
                await self._withdraw(question)
            elif decided := self._decided(question):
                await self._answer(question, decided, for_good=True)  # by a mode, or a word on the tool
            else:
                self._waiting[ident] = question
                await self._approvals.ask(ApprovalAsked(approval=approvals.approval_of(question, datetime.now(UTC))))

    def _decided(self, question: Frame) -> Literal["allow", "deny", "cancel"] | None:
        """What is answered without asking anybody."""
        if self._messages.interrupting or self._messages.ending:
            return "cancel"
        remembered = self._remembered.get(_tool(question))
        return remembered.decision.decision if remembered else approvals.automatic(self._mode, question)

    async def _answer(
        self, question: Frame, decision: Literal["allow", "deny", "cancel"], *, for_good: bool = False
    ) -> None:
        chosen = approvals.answer(question, decision, for_good=for_good)
        await self._write(_answer_id(question), frames.result(question.get("id"), chosen))

    async def _withdraw(self, question: Frame) -> None:
        """Take back what a person was asked; the agent is answered all the same, in case that it waits."""
        if self._waiting.pop(approvals.approval_id(question), None) is not None:
            approval = approvals.approval_of(question, datetime.now(UTC))
            await self._approvals.ask(ApprovalAsked(approval=approval, withdrawn=True))
        await self._answer(question, "cancel")


def _answer_id(question: Frame) -> str:
    return f"answer-{approvals.approval_id(question)}"


def _tool(question: Frame) -> str:
    return tools.tool_name(approvals.call_of(question))
