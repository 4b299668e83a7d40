"""The conversation with one live process of Codex: what is written to it, and when.

Each command is written once, under an id that is the same in every worker. What is due is read from the transcript: a
worker that takes the talk over goes on where the one before it stood.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from activities.agents.codex import frames
from activities.agents.codex.approvals import answer_of, approval_id, approval_of, is_approval, tool_of
from activities.agents.codex.options import options_of
from activities.agents.codex.transcript import CodexTranscript
from activities.agents.command_ids import INTERRUPT, MESSAGE, id_of
from activities.agents.frames import Frame
from activities.ports.agent import END_PREFIX, ApprovalRequester
from activities.ports.runtime import Channel, ChannelClosed, Record
from steersman import timeouts
from steersman.contracts.activities import ApprovalAsked, OutgoingDecision, OutgoingMessage, Settlement
from steersman.contracts.attachments import Attachment
from steersman.contracts.request import RunRequest
from steersman.contracts.run import Approval

READING_TIME_S = 0.3
"""A written text may take this many seconds to be read and still be answered as acknowledged at once."""
SETTLEMENT_TIMEOUT_S = 20.0
"""The agent's report on a message is awaited for this many seconds."""
TAKEN_S = 2.0
"""Codex takes a text within this many seconds; some milliseconds as a rule."""
UNANSWERABLE = "nobody can answer this here"


class CodexConversation:
    """See ports.Conversation."""

    def __init__(
        self, request: RunRequest, channel: Channel, transcript: CodexTranscript, requester: ApprovalRequester
    ) -> None:
        self._request, self._channel, self._transcript, self._requester = request, channel, transcript, requester
        self._effort = options_of(request).effort
        self._asked: dict[str, Approval] = {}
        self._remembered: dict[str, OutgoingDecision] = {}
        self._changed = asyncio.Condition()

    async def open(self) -> None:
        """Write what is due, and ask again for the approvals that nobody gave."""
        await self._advance()

    async def close(self) -> None:
        """Nothing is held."""

    async def hear(self, record: Record) -> None:
        """Write what is due now, and wake what waits for a change of the transcript."""
        if record.stream == "out":
            await self._advance()
        async with self._changed:
            self._changed.notify_all()

    async def say(self, message: OutgoingMessage) -> Settlement:
        """Deliver a message once, and return its settlement so far. Raises ChannelClosed."""
        if message.kind == "interrupt" or message.end:
            await self._interrupt(message)
            if message.end:
                return self._known(message)
        if message.kind == "steer" or message.text:
            return await self._deliver_text(message)
        known = self._known(message)
        return Settlement(id=message.id, state="acknowledged", how=known.how or "nothing was running")

    async def decide(self, decision: OutgoingDecision) -> None:
        """Answer the request that awaits this decision; remember it for the tool if it says so."""
        if decision.decision.remember:
            self._remembered[decision.tool] = decision
        for frame in list(self._transcript.state.pending.values()):
            if not is_approval(frame):
                continue
            remembered = decision.decision.remember and tool_of(frame) == decision.tool
            if approval_id(frame) == decision.decision.id or remembered:
                allowed = decision.decision.decision == "allow"
                if not allowed and decision.decision.message:
                    await self._steer_in(id_of(frames.DENIAL, str(frame["id"])), decision.decision.message)
                await self._answer(frame, allowed=allowed)

    async def _steer_in(self, command: str, text: str) -> None:
        """Give the words of a denial, for which Codex's answer has no field, to be read with the refusal.

        Codex has them before it has that: else its turn could be over, and they begin another one.
        """
        await self._write_text(command, text)
        state = self._transcript.state
        await self._until(lambda: command in state.written and bool(state.owed.get(command, command)), TAKEN_S)

    # ---- what is due

    async def _advance(self) -> None:
        state = self._transcript.state
        with contextlib.suppress(ChannelClosed):
            for turn, thread in list(self._transcript.left_at_work.items()):
                await self._write(id_of(frames.SUBAGENT, turn), "turn/interrupt", threadId=thread, turnId=turn)
            for turn, thread in list(state.unclean.items()):
                await self._write(id_of(frames.CLEAN, turn), "thread/backgroundTerminals/clean", threadId=thread)
            opening = self._transcript.opening
            if self._transcript.thread and opening and not state.over and opening[0] not in state.written:
                images = self._request.attachments if opening[0] == frames.PROMPT else ()
                await self._write_text(*opening, images)
            for frame in list(state.pending.values()):
                await self._requested(frame)
            for ident in self._asked.keys() - {str(each.get("id")) for each in state.pending.values()}:
                approval = self._asked.pop(ident)
                if approval.id in state.withdrawn:
                    await self._requester.ask(ApprovalAsked(approval=approval, withdrawn=True))

    async def _requested(self, frame: Frame) -> None:
        """Answer a request of the agent's, or ask people to."""
        ident, mode = str(frame.get("id")), self._request.permissions.mode
        if ident in self._asked:
            return
        if not is_approval(frame):
            await self._channel.write(id_of(frames.ANSWER, ident), frames.refusal(frame.get("id"), UNANSWERABLE))
        elif mode != "ask":
            await self._answer(frame, allowed=mode == "full")
        elif remembered := self._remembered.get(tool_of(frame)):
            await self._answer(frame, allowed=remembered.decision.decision == "allow")
        else:
            self._asked[ident] = approval = approval_of(frame, self._transcript.state, datetime.now(UTC))
            await self._requester.ask(ApprovalAsked(approval=approval))

    async def _answer(self, frame: Frame, *, allowed: bool) -> None:
        ident, decision = frame.get("id"), answer_of(frame, allowed=allowed)
        await self._channel.write(id_of(frames.ANSWER, str(ident)), frames.answer(ident, decision))

    async def _write(self, command: str, method: str, **params: object) -> None:
        if command not in self._transcript.state.written:
            await self._channel.write(command, frames.request(command, method, **params))

    async def _write_text(self, command: str, text: str, images: Sequence[Attachment] = ()) -> None:
        thread, schema = self._transcript.thread or "", self._request.output_schema
        line = frames.turn(command, thread, text, schema, self._effort, images)
        await self._channel.write(command, line)

    # ---- messages

    async def _interrupt(self, message: OutgoingMessage) -> None:
        """End the turn, once it has begun: Codex refuses to interrupt one that has not."""
        command = (END_PREFIX if message.end else INTERRUPT) + message.id
        state = self._transcript.state
        if command not in state.written:
            await self._until(lambda: bool(state.turn) or not self._begins, SETTLEMENT_TIMEOUT_S)
            thread, turn = self._transcript.at_work
            if not turn and not message.end:
                return
            if not state.interrupting or message.end:
                await self._write(command, "turn/interrupt", threadId=thread, turnId=turn)
                await self._until(lambda: command in state.written, SETTLEMENT_TIMEOUT_S)
        await self._until(self._is_over, SETTLEMENT_TIMEOUT_S)

    def _is_over(self) -> bool:
        """The interrupt has done what it does, or another one has."""
        state = self._transcript.state
        return not state.turn and not state.interrupting and not self._transcript.stopping

    @property
    def _begins(self) -> bool:
        """A turn will begin by itself."""
        state, opening = self._transcript.state, self._transcript.opening
        awaited = opening is not None and opening[0] not in state.written and not state.session_error
        return bool(state.owed) or awaited or (state.goal and not state.parked)

    async def _deliver_text(self, message: OutgoingMessage) -> Settlement:
        """Write the text once; wait until Codex has taken it, and a moment for the model to be given it."""
        command, transcript = MESSAGE + message.id, self._transcript
        await self._until(lambda: transcript.thread is not None, SETTLEMENT_TIMEOUT_S)
        opening = transcript.opening
        if opening and opening[0] not in transcript.state.written:
            await self._advance()  # the prompt comes first
        if command not in transcript.state.written and transcript.thread:
            await self._write_text(command, message.text or "", message.attachments)
        await self._until(lambda: command in transcript.state.written, SETTLEMENT_TIMEOUT_S)
        await self._until(lambda: command not in transcript.state.owed, READING_TIME_S)
        return self._known(message)

    def _known(self, message: OutgoingMessage) -> Settlement:
        return self._transcript.settlement(message.id) or Settlement(id=message.id, state="delivered")

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with timeouts.timeout(timeout_s), self._changed:
                await self._changed.wait_for(condition)
