"""The conversation with one live process of Hermes: what is written to it, and when.

Each command is written once, under an id that is the same in every worker. What is due is read from the transcript: a
worker that takes the talk over goes on where the one before it stood.
"""

import asyncio
import contextlib
from collections.abc import Callable

from activities.agents.command_ids import INTERRUPT, MESSAGE, id_of
from activities.agents.hermes import frames
from activities.agents.hermes.frames import AGAIN, ANSWER, DIRECTORY, PROMPT, REPAIR, USAGE
from activities.agents.hermes.transcript import HermesTranscript
from activities.agents.structured import asking_again
from activities.ports.agent import END_PREFIX, AnswerCheck
from activities.ports.runtime import Channel, ChannelClosed, Record
from steersman import timeouts
from steersman.contracts.activities import OutgoingDecision, OutgoingMessage, Settlement
from steersman.contracts.agents import NO_IMAGES

READING_TIME_S = 0.3
"""A written text may take this many seconds to be read and still be answered as acknowledged at once."""
SETTLEMENT_TIMEOUT_S = 20.0
"""The agent's report on a message is awaited for this many seconds."""


class HermesConversation:
    """See ports.Conversation."""

    def __init__(self, channel: Channel, transcript: HermesTranscript, check: AnswerCheck) -> None:
        self._channel, self._transcript, self._check = channel, transcript, check
        self._changed = asyncio.Condition()

    async def open(self) -> None:
        """Write what is due."""
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
        if message.attachments:
            return Settlement(id=message.id, state="rejected", how=NO_IMAGES)
        if message.kind == "interrupt" or message.end:
            if not await self._interrupt(message):
                return Settlement(id=message.id, state="delivered")  # it comes again
            if message.end:
                return self._known(message)
        if message.kind == "steer" or message.text:
            return await self._deliver_text(message)
        known = self._known(message)
        return Settlement(id=message.id, state="acknowledged", how=known.how or "nothing was running")

    async def decide(self, decision: OutgoingDecision) -> None:
        """Hermes asks for no approval."""

    # ---- what is due

    async def _advance(self) -> None:
        script = self._transcript
        state, opening = script.state, script.opening
        with contextlib.suppress(ChannelClosed):
            for ident, asked in list(state.asking.items()):
                command = id_of(ANSWER, ident)
                await self._channel.write(command, frames.answer(command, ident, asked, state.live))
            if state.live and state.resumed:
                await self._write(DIRECTORY, "session.cwd.set", cwd=state.directory)
            if not script.ready or state.over:
                return
            if state.turn == "open" and state.results:
                await self._write(USAGE + str(state.results), "session.usage")
            if opening and opening[0] not in state.written:
                await self._prompt(*opening)
            elif not script.turn_open:
                await self._follow_up()

    async def _follow_up(self) -> None:
        """What begins a turn where none runs."""
        script = self._transcript
        if script.state.late and not script.parked:
            ident = script.state.late[0]
            await self._prompt(AGAIN + ident, script.state.texts.get(ident, ""))
        elif script.answer_due:
            wrong = await self._check(script.progress.structured)
            if wrong is None:
                script.answer_accepted = True
            else:
                await self._prompt(REPAIR, asking_again(wrong[:1000]))

    async def _write(self, command: str, method: str, **params: object) -> None:
        if command not in self._transcript.state.written:
            line = frames.request(command, method, session_id=self._transcript.state.live, **params)
            await self._channel.write(command, line)

    async def _prompt(self, command: str, text: str) -> None:
        preamble = self._transcript.state.preamble if command == PROMPT else ""
        await self._write(command, frames.SUBMIT, text=f"{preamble}\n\n{text}" if preamble else text)

    # ---- messages

    async def _interrupt(self, message: OutgoingMessage) -> bool:
        """End the turn, once it has begun: one that has not Hermes would drop without a word. Whether that was done."""
        command = (END_PREFIX if message.end else INTERRUPT) + message.id
        state = self._transcript.state
        if command not in state.written:
            await self._until(lambda: state.turn == "open" or not self._begins)
            if self._begins and state.turn != "open":
                return False
            if state.turn != "open" and not message.end:
                return True
            if not state.interrupting or message.end:
                await self._write(command, frames.INTERRUPT)
        return await self._until(lambda: self._is_over(command))

    def _is_over(self, command: str) -> bool:
        """The interrupt has done what it does, or another one has; an end, once nothing of the turn is left."""
        state = self._transcript.state
        if command.startswith(END_PREFIX):
            return command in state.written and not state.turn
        return state.turn != "open"

    @property
    def _begins(self) -> bool:
        """A turn will begin by itself, or one is about to be over."""
        state, opening = self._transcript.state, self._transcript.opening
        awaited = opening is not None and opening[0] not in state.written and not state.session_error
        return bool(state.owed) or state.turn == "ending" or awaited

    async def _deliver_text(self, message: OutgoingMessage) -> Settlement:
        """Write the text once, and wait a moment until it was read."""
        command, state = MESSAGE + message.id, self._transcript.state
        if command not in state.written:
            # What is written while a turn is about to begin or to end would be dropped, or interrupt the next one.
            await self._until(lambda: (self._transcript.ready and not self._begins) or bool(state.session_error))
            if self._begins or not self._transcript.ready:
                return Settlement(id=message.id, state="delivered")  # it comes again
            if state.turn == "open" and message.kind == "steer":
                await self._write(command, frames.STEER, text=message.text or "")
            else:
                await self._prompt(command, message.text or "")
            await self._until(lambda: command in state.written)
        await self._until(lambda: self._known(message).state != "delivered", READING_TIME_S)
        return self._known(message)

    def _known(self, message: OutgoingMessage) -> Settlement:
        return self._transcript.settlement(message.id) or Settlement(id=message.id, state="delivered")

    async def _until(self, condition: Callable[[], bool], timeout_s: float = SETTLEMENT_TIMEOUT_S) -> bool:
        """Wait for a condition of the transcript; whether it holds."""
        with contextlib.suppress(TimeoutError):
            async with timeouts.timeout(timeout_s), self._changed:
                await self._changed.wait_for(condition)
        return condition()
