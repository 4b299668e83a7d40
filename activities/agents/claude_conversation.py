"""Talking to one live Claude Code process: the SDK's client over a Channel.

The SDK carries the control protocol (initialize, permission requests, interrupts, user frames). What Claude says is
read by the transcript, from numbered records, so the SDK is handed control frames only.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    CLIConnectionError,
    PermissionResultAllow,
    PermissionResultDeny,
    ToolPermissionContext,
    Transport,
)

from activities.agents.claude_frames import TooMuch, bounded, is_sound, parse
from activities.agents.claude_messages import INTERRUPT, MESSAGE, Messages
from activities.agents.claude_transcript import ClaudeTranscript, approval_id
from activities.ports.agent import END_PREFIX, ApprovalRequester
from activities.ports.runtime import Channel, ChannelClosed, Record
from steersman.contracts.activities import ApprovalAsked, OutgoingDecision, OutgoingMessage, RunKey, Settlement
from steersman.contracts.request import PermissionMode
from steersman.contracts.run import Approval

READING_TIME_S = 0.3
"""How long a delivered message may take to be read and still be answered as acknowledged at once."""
PATIENCE_S = 20.0
SHOWN_INPUT = 4096

_command: ContextVar[str] = ContextVar("command")


def frame_uuid(key: RunKey, name: str) -> str:
    """The uuid of what we say: the same in every worker, so that Claude takes it once."""
    return str(uuid5(NAMESPACE_URL, f"steersman:{key.run}:{key.execution}:{name}"))


def user_frame(key: RunKey, name: str, text: str) -> dict[str, Any]:
    """A user frame of the stream-json input."""
    return {
        "type": "user",
        "message": {"role": "user", "content": text},
        "parent_tool_use_id": None,
        "session_id": "default",
        "uuid": frame_uuid(key, name),
    }


class ChannelTransport(Transport):
    """The SDK's transport over a Channel. Every write has an id and is done once, whichever worker tries."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._frames: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def connect(self) -> None: ...

    def is_ready(self) -> bool:
        return True

    async def end_input(self) -> None: ...

    async def close(self) -> None:
        self.push(None)

    async def write(self, data: str) -> None:
        await self._channel.write(_command_of(json.loads(data)), data)

    def push(self, frame: dict[str, Any] | None) -> None:
        """A frame for the SDK; None ends its reading."""
        self._frames.put_nowait(frame)

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        while (frame := await self._frames.get()) is not None:
            yield frame


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
        self._changed = asyncio.Condition()

    async def open(self) -> None:
        """Initialize (harmless to a CLI at work), and ask again what nobody has answered."""
        for frame in self._transcript.pending.values():
            self._transport.push(frame)
        with contextlib.suppress(ChannelClosed):
            await self._client.connect()

    async def close(self) -> None:
        """Leave the process alone; requests that wait are asked again by the next conversation."""
        await self._client.disconnect()

    async def hear(self, record: Record) -> None:
        """Pass control frames on; wake whoever waits for news in the transcript."""
        if record.stream != "out":
            return
        if b'"control_' in record.data:
            with contextlib.suppress(TooMuch):  # the transcript has told it
                if (frame := parse(record.data)) is not None and is_sound(frame):
                    self._transport.push(frame)
        async with self._changed:
            self._changed.notify_all()

    async def say(self, message: OutgoingMessage) -> Settlement:
        """Deliver once; says how far it got. Raises ChannelClosed."""
        if message.end:
            return await self._end(message)
        running = self._transcript.turn_open and not self._transcript.parked
        if message.kind == "steer":
            # In a turn it is read at the next tool boundary, whenever that is; between turns at once.
            return await self._tell(message, reading_time_s=0 if running else READING_TIME_S)
        already = self._written(INTERRUPT + message.id)
        if not already and (first := self._messages.interrupting if running else self._messages.interrupted_by):
            return await self._second(message, first)
        if running and not already:
            with _named(INTERRUPT + message.id):
                await self._client.interrupt()
        elif already:
            await self._until(lambda: self._messages.settlement(message.id) is not None, PATIENCE_S)
        if message.text:
            return await self._tell(message, READING_TIME_S)
        how = "interrupted" if running or already else "nothing was running"
        return Settlement(id=message.id, state="acknowledged", how=how)

    async def _second(self, message: OutgoingMessage, first: str) -> Settlement:
        """An interrupt of a turn that another one is ending, or has ended."""
        if message.text:
            return await self._tell(message, READING_TIME_S)
        await self._until(lambda: self._messages.interrupting != first, PATIENCE_S)
        return Settlement(id=message.id, state="acknowledged", how=f"{first} was at work")

    async def decide(self, decision: OutgoingDecision) -> None:
        """Answer the request that waits for this; remember it for the tool if that is asked."""
        if decision.decision.remember:
            self._remembered[decision.tool] = decision
        for asked, (tool, waiting) in self._waiting.items():
            remembered = decision.decision.remember and tool == decision.tool
            if (asked == decision.decision.id or remembered) and not waiting.done():
                waiting.set_result(decision)

    # ---- messages

    @property
    def _messages(self) -> Messages:
        return self._transcript.messages

    def _written(self, command: str) -> bool:
        return command in self._messages.written

    async def _end(self, message: OutgoingMessage) -> Settlement:
        """Interrupt for good, without the SDK, whose handshake a hung process would not answer; the first end does it.

        What is queued is cancelled in the same request, so that no further turn begins.
        """
        if not self._messages.ending:
            request = {"subtype": "interrupt", "cancel_queued": True}
            frame = {"type": "control_request", "request_id": END_PREFIX + message.id, "request": request}
            await self._channel.write(END_PREFIX + message.id, json.dumps(frame) + "\n")
        await self._until(lambda: self._transcript.finished, PATIENCE_S)
        if not self._transcript.finished:
            return Settlement(id=message.id, state="delivered")
        known = self._messages.settlement(message.id)  # None of a second end: the first one did it
        return known or Settlement(id=message.id, state="acknowledged", how="interrupted")

    async def _tell(self, message: OutgoingMessage, reading_time_s: float) -> Settlement:
        """Write the text once; wait until Claude has it, and a little longer for Claude to read it."""
        command = MESSAGE + message.id
        if not self._written(command):
            with _named(command):
                await self._client.query(_one(user_frame(self._key, command, message.text or "")))

        def state() -> str | None:
            known = self._messages.settlement(message.id)
            return known.state if known else None

        await self._until(lambda: state() is not None, PATIENCE_S)
        await self._until(lambda: state() != "delivered", reading_time_s)
        return self._messages.settlement(message.id) or Settlement(id=message.id, state="delivered")

    async def _until(self, condition: Any, patience_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s), self._changed:
                await self._changed.wait_for(condition)

    # ---- permissions

    async def _may_use(
        self, tool: str, tool_input: dict[str, Any], context: ToolPermissionContext
    ) -> PermissionResultAllow | PermissionResultDeny:
        if self._mode == "full":
            return PermissionResultAllow()
        if self._mode != "ask":
            return PermissionResultDeny(
                message=f"{tool} is not allowed here (permission mode {self._mode}). Go on without it."
            )
        decision = self._remembered.get(tool) or await self._ask(tool, tool_input, context)
        if decision.decision.decision == "allow":
            return PermissionResultAllow()
        return PermissionResultDeny(message=decision.decision.message or f"A person refused {tool}. Go on without it.")

    async def _ask(self, tool: str, tool_input: dict[str, Any], context: ToolPermissionContext) -> OutgoingDecision:
        asked = approval_id({"tool_use_id": context.tool_use_id, "tool_name": tool, "input": tool_input})
        approval = Approval(id=asked, tool=tool[:200], input=bounded(tool_input, SHOWN_INPUT), since=datetime.now(UTC))
        waiting: asyncio.Future[OutgoingDecision] = asyncio.get_running_loop().create_future()
        self._waiting[asked] = (tool, waiting)
        await self._approvals.ask(ApprovalAsked(approval=approval))
        try:
            return await waiting
        except asyncio.CancelledError:
            # Of a worker that leaves before its handshake is over the SDK cancels, too: that is no word of Claude's.
            if asked in self._transcript.withdrawn:
                await self._approvals.ask(ApprovalAsked(approval=approval, withdrawn=True))
            raise
        finally:
            del self._waiting[asked]


async def _one(frame: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    yield frame


@contextlib.contextmanager
def _named(command: str) -> Iterator[None]:
    """What the SDK writes within goes by this name. Raises ChannelClosed, also if the process ended before `open`."""
    token = _command.set(command)
    try:
        yield
    except CLIConnectionError as error:
        raise ChannelClosed(str(error)) from error
    finally:
        _command.reset(token)


def _command_of(frame: dict[str, Any]) -> str:
    """The id under which a frame is written once: an answer by the request's, a message by its own."""
    if frame.get("type") == "control_response":
        request_id = str(frame["response"]["request_id"])
        return f"answer-{uuid5(NAMESPACE_URL, request_id)}"
    if frame.get("type") == "user":
        return _command.get()
    if frame["request"].get("subtype") == "interrupt":
        return _command.get()
    return f"control-{frame['request_id']}"
