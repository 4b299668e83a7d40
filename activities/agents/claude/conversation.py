"""The conversation with one live Claude Code process: the SDK's client over a Channel.

The SDK carries the control protocol (initialize, permission requests, interrupts, user frames). The agent's other
frames are read by the transcript, from numbered records, so the SDK is handed control frames only.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    PermissionResultAllow,
    PermissionResultDeny,
    ToolPermissionContext,
)

from activities.agents.claude.approvals import approval_id, approval_of, asks, is_approval
from activities.agents.claude.frames import is_control_frame, user_frame
from activities.agents.claude.messages import Messages
from activities.agents.claude.transcript import ClaudeTranscript
from activities.agents.claude.transport import ChannelTransport, writing_as
from activities.agents.command_ids import INTERRUPT, MESSAGE
from activities.agents.frames import Frame, TooMuch, parse_frame
from activities.agents.interrupts import LastInterrupt
from activities.ports.agent import END_PREFIX, ApprovalRequester
from activities.ports.runtime import Channel, ChannelClosed, Record
from steersman import timeouts
from steersman.contracts.activities import ApprovalAsked, OutgoingDecision, OutgoingMessage, RunKey, Settlement
from steersman.contracts.events import REFUSED_BY_MODE
from steersman.contracts.request import PermissionMode
from steersman.contracts.run import Approval

READING_TIME_S = 0.3
"""A written message may take this many seconds to be read and still be answered as acknowledged at once."""
SETTLEMENT_TIMEOUT_S = 20.0
"""The agent's report on a message is awaited for this many seconds."""


class ClaudeConversation:
    """See ports.Conversation."""

    def __init__(
        self,
        key: RunKey,
        mode: PermissionMode,
        channel: Channel,
        transcript: ClaudeTranscript,
        approvals: ApprovalRequester,
    ) -> None:
        self._key, self._mode, self._approvals, self._transcript = key, mode, approvals, transcript
        self._channel = channel
        self._transport = ChannelTransport(channel)
        self._client = ClaudeSDKClient(ClaudeAgentOptions(can_use_tool=self._may_use), self._transport)
        self._waiting: dict[str, tuple[str, asyncio.Future[OutgoingDecision]]] = {}
        self._remembered: dict[str, OutgoingDecision] = {}
        self._is_open = False
        self._changed = asyncio.Condition()
        self._last_interrupt = LastInterrupt(transcript.messages.interrupted_by)

    async def open(self) -> None:
        """Initialize (harmless to a CLI at work), and hand unanswered requests to the SDK again."""
        self._is_open = True
        for frame in self._transcript.pending.values():
            self._transport.push(frame)
        with contextlib.suppress(ChannelClosed):
            await self._client.connect()

    async def close(self) -> None:
        """Disconnect from the process; the next conversation hands open requests to its SDK again."""
        await self._client.disconnect()

    async def hear(self, record: Record) -> None:
        """Pass a control frame to the SDK, and wake what waits for a change of the transcript."""
        if record.stream != "out":
            return
        if self._is_open and b'"control_' in record.data:  # what is asked before that, `open` finds
            with contextlib.suppress(TooMuch):  # the transcript has made an event of it
                if (frame := parse_frame(record.data)) is not None and is_control_frame(frame):
                    self._transport.push(frame)
        self._last_interrupt.note(self._messages.interrupted_by)
        async with self._changed:
            self._changed.notify_all()

    async def say(self, message: OutgoingMessage) -> Settlement:
        """Deliver a message once, and return its settlement so far. Raises ChannelClosed."""
        if message.end:
            return await self._end(message)
        running = self._transcript.turn_open
        if message.kind == "steer":
            # In a turn it is read at the next tool boundary, whenever that is; between turns at once.
            return await self._deliver_text(message, reading_time_s=0 if running else READING_TIME_S)
        already = self._written(INTERRUPT + message.id)
        if not already and (first := self._messages.interrupting if running else self._last_interrupt.beside()):
            return await self._settle_second(message, first)
        if running and not already:
            with writing_as(INTERRUPT + message.id):
                await self._client.interrupt()
        elif already:
            await self._until(lambda: self._messages.settlement(message.id) is not None, SETTLEMENT_TIMEOUT_S)
        if message.text:
            return await self._deliver_text(message, READING_TIME_S)
        how = "interrupted" if running or already else "nothing was running"
        return Settlement(id=message.id, state="acknowledged", how=how)

    async def _settle_second(self, message: OutgoingMessage, first: str) -> Settlement:
        """Settle an interrupt of a turn that the interrupt `first` is ending, or has ended."""
        if message.text:
            return await self._deliver_text(message, READING_TIME_S)
        await self._until(lambda: self._messages.interrupting != first, SETTLEMENT_TIMEOUT_S)
        return Settlement(id=message.id, state="acknowledged", how=f"{first} was at work")

    async def decide(self, decision: OutgoingDecision) -> None:
        """Answer the request that awaits this decision; remember it for the tool if it says so."""
        if decision.decision.remember:
            self._remembered[decision.tool] = decision
        for ident, (tool, waiting) in self._waiting.items():
            remembered = decision.decision.remember and tool == decision.tool
            if (ident == decision.decision.id or remembered) and not waiting.done():
                waiting.set_result(decision)

    # ---- messages

    @property
    def _messages(self) -> Messages:
        return self._transcript.messages

    def _written(self, command: str) -> bool:
        return command in self._messages.written

    async def _end(self, message: OutgoingMessage) -> Settlement:
        """Interrupt the turn and end the run with it. Only the first end of a run is written.

        The SDK is not used: a hung process would not answer its handshake. The request also cancels queued messages, so
        that no further turn begins.
        """
        if not self._messages.ending:
            request = {"subtype": "interrupt", "cancel_queued": True}
            frame = {"type": "control_request", "request_id": END_PREFIX + message.id, "request": request}
            await self._channel.write(END_PREFIX + message.id, json.dumps(frame) + "\n")
        await self._until(lambda: self._transcript.finished, SETTLEMENT_TIMEOUT_S)
        if not self._transcript.finished:
            return Settlement(id=message.id, state="delivered")
        known = self._messages.settlement(message.id)  # None for a second end, which is not written
        return known or Settlement(id=message.id, state="acknowledged", how="interrupted")

    async def _deliver_text(self, message: OutgoingMessage, reading_time_s: float) -> Settlement:
        """Write the text once; wait until Claude Code has taken it, and up to `reading_time_s` until it was read."""
        command = MESSAGE + message.id
        if not self._written(command):
            with writing_as(command):
                await self._client.query(_one(user_frame(self._key, command, message.text or "", message.attachments)))

        def state() -> str | None:
            known = self._messages.settlement(message.id)
            return known.state if known else None

        await self._until(lambda: state() is not None, SETTLEMENT_TIMEOUT_S)
        await self._until(lambda: state() != "delivered", reading_time_s)
        return self._messages.settlement(message.id) or Settlement(id=message.id, state="delivered")

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with timeouts.timeout(timeout_s), self._changed:
                await self._changed.wait_for(condition)

    # ---- permissions

    async def _may_use(
        self, tool: str, tool_input: dict[str, Any], context: ToolPermissionContext
    ) -> PermissionResultAllow | PermissionResultDeny:
        if self._mode == "full" and not self._transcript.hopeless:
            return PermissionResultAllow()
        if self._mode != "ask":
            return PermissionResultDeny(message=f"{tool} {REFUSED_BY_MODE}{self._mode}). Go on without it.")
        if (decision := self._remembered.get(tool)) is None:
            asked = {"tool_name": tool, "input": tool_input, "tool_use_id": context.tool_use_id}
            if (question := self._question(asked)) is None:
                return PermissionResultDeny(message=f"Nobody could be asked about {tool}. Go on without it.")
            decision = await self._ask(tool, approval_of(question, datetime.now(UTC)))
        if decision.decision.decision == "allow":
            return PermissionResultAllow()
        return PermissionResultDeny(message=decision.decision.message or f"A person refused {tool}. Go on without it.")

    def _question(self, asked: Frame) -> Frame | None:
        """The request that the SDK means, which does not say its id: one that waits, and nobody is asked about yet."""
        for frame in self._transcript.pending.values():
            if is_approval(frame) and approval_id(frame) not in self._waiting and asks(frame, asked):
                return frame
        return None  # dropped, as one of too many, or withdrawn

    async def _ask(self, tool: str, approval: Approval) -> OutgoingDecision:
        waiting: asyncio.Future[OutgoingDecision] = asyncio.get_running_loop().create_future()
        self._waiting[approval.id] = (tool, waiting)
        await self._approvals.ask(ApprovalAsked(approval=approval))
        try:
            return await waiting
        except asyncio.CancelledError:
            # The SDK also cancels if the worker disconnects within the handshake: then the agent withdrew nothing.
            if approval.id in self._transcript.withdrawn:
                await self._approvals.ask(ApprovalAsked(approval=approval, withdrawn=True))
            raise
        finally:
            del self._waiting[approval.id]


async def _one(frame: Frame) -> AsyncIterator[Frame]:
    yield frame
