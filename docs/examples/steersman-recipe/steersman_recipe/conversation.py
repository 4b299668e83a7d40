"""The talk with one live process: messages are lines of its stdin, and it says of each when it has read it."""

import asyncio
import contextlib
import json
from collections.abc import Callable

from activities.agents.command_ids import MESSAGE
from activities.ports.runtime import Channel, ChannelClosed, Record
from steersman.contracts.activities import OutgoingDecision, OutgoingMessage, Settlement
from steersman_recipe.transcript import RecipeTranscript

RECORD_TIMEOUT_S = 20.0


class RecipeConversation:
    """See activities.ports.agent.Conversation."""

    def __init__(self, channel: Channel, transcript: RecipeTranscript) -> None:
        self._channel, self._transcript = channel, transcript
        self._heard = asyncio.Event()

    async def open(self) -> None:
        """There is nothing to agree on: the prompt was written as the process began."""

    async def hear(self, record: Record) -> None:
        """The transcript has been fed: what was waited for may be there."""
        self._heard.set()

    async def say(self, message: OutgoingMessage) -> Settlement:
        """Write a message once. A second worker that is given it again finds it in the journal."""
        if message.kind != "steer":
            how = 'agent "recipe" cannot interrupt: stop the run, or wait for its end'
            return Settlement(id=message.id, state="rejected", how=how)
        known = self._transcript
        if not known.wrote(message.id) and not known.finished and not known.stdin_closed:
            line = json.dumps({"type": "message", "id": message.id, "text": message.text or ""}) + "\n"
            with contextlib.suppress(ChannelClosed):
                await self._channel.write(MESSAGE + message.id, line)
            await self._until(lambda: known.wrote(message.id) or known.finished or known.stdin_closed)
        if not known.wrote(message.id):
            return Settlement(id=message.id, state="too_late", how="the program has ended")
        return Settlement(id=message.id, state="acknowledged" if known.was_read(message.id) else "delivered")

    async def decide(self, decision: OutgoingDecision) -> None:
        """It asks for no approvals."""

    async def close(self) -> None:
        """Nothing is held."""

    async def _until(self, condition: Callable[[], bool]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RECORD_TIMEOUT_S):
                while not condition():
                    self._heard.clear()
                    await self._heard.wait()
