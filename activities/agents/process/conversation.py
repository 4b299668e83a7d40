"""The talk with one live program: messages are lines of its stdin, and it says of none whether it has read it."""

import asyncio
import contextlib
from collections.abc import Callable

from activities.agents.command_ids import MESSAGE
from activities.agents.process.options import Messages, message_line
from activities.agents.process.transcript import ProcessTranscript
from activities.ports.runtime import Channel, ChannelClosed, Record
from steersman import timeouts
from steersman.contracts.activities import OutgoingDecision, OutgoingMessage, Settlement
from steersman.contracts.agents import CAPABILITIES, NO_IMAGES, cannot

RECORD_TIMEOUT_S = 20.0
"""The journal's record of what was written is awaited for this many seconds."""


class Silence:
    """The conversation with a program that takes no messages: the workflow's validators refuse them earlier."""

    async def open(self) -> None: ...

    async def hear(self, record: Record) -> None: ...

    async def say(self, message: OutgoingMessage) -> Settlement:
        return Settlement(id=message.id, state="rejected", how='agent "process" takes no messages')

    async def decide(self, decision: OutgoingDecision) -> None: ...

    async def close(self) -> None: ...


class Lines(Silence):
    """The conversation with a program that takes messages as lines of its stdin."""

    def __init__(self, messages: Messages, channel: Channel, transcript: ProcessTranscript) -> None:
        self._messages, self._channel, self._transcript = messages, channel, transcript
        self._heard = asyncio.Event()

    async def hear(self, record: Record) -> None:
        """Wake what waits for a record that is no output."""
        if record.stream in ("in", "eof"):
            self._heard.set()

    async def say(self, message: OutgoingMessage) -> Settlement:
        """Write a message once, and return its settlement so far. Raises ChannelClosed."""
        if message.kind != "steer":
            how = cannot("process", CAPABILITIES["process"], message.kind)
            return Settlement(id=message.id, state="rejected", how=how)
        if message.attachments:
            return Settlement(id=message.id, state="rejected", how=NO_IMAGES)
        try:
            line = message_line(self._messages, message)
        except ValueError as error:
            return Settlement(id=message.id, state="rejected", how=str(error))
        if not (self._transcript.wrote(message.id) or self._transcript.stdin_closed):
            await self._write(message, line)
        return self._given(message)

    async def _write(self, message: OutgoingMessage, line: str) -> None:
        """Write it once, and wait until the journal says what became of it. Raises ChannelClosed where it does not."""
        try:
            await self._channel.write(MESSAGE + message.id, line)
        except ChannelClosed:
            # What was written is in the journal before the end of the input.
            await self._until(lambda: self._transcript.stdin_closed)
            if not self._transcript.stdin_closed:
                raise
        else:
            await self._until(lambda: self._transcript.wrote(message.id))

    def _given(self, message: OutgoingMessage) -> Settlement:
        """What the journal says of a message that was to be written."""
        if self._transcript.stdin_closed and not self._transcript.wrote(message.id):
            return Settlement(id=message.id, state="too_late", how="the program has closed its stdin, or has ended")
        return Settlement(id=message.id, state="delivered")

    async def _until(self, condition: Callable[[], bool]) -> None:
        with contextlib.suppress(TimeoutError):
            async with timeouts.timeout(RECORD_TIMEOUT_S):
                while not condition():
                    self._heard.clear()
                    await self._heard.wait()
