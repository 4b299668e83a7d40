"""Messages and decisions, handed to one process of an agent. What its journal says of them is the transcript's."""

import asyncio
from collections.abc import Iterable

from activities.ports.agent import Conversation, Transcript
from activities.ports.runtime import ChannelClosed
from activities.running.approvals import as_told
from activities.running.attempt_state import AttemptState
from activities.running.observer import AttemptObserver
from steersman.contracts.activities import DeliverInput, OutgoingMessage, Settlement
from steersman.contracts.run import FINAL_STATES


class MessageWriter:
    """Writes to one process what people say, in order, and tells the observer what becomes of it."""

    def __init__(
        self, state: AttemptState, transcript: Transcript, conversation: Conversation, observer: AttemptObserver
    ) -> None:
        self._state, self._transcript = state, transcript
        self._conversation, self._observer = conversation, observer
        self._order = asyncio.Lock()
        self._reported: dict[str, Settlement] = {}

    @property
    def busy(self) -> bool:
        """Something is being written."""
        return self._order.locked()

    async def deliver(self, delivery: DeliverInput) -> list[Settlement] | None:
        """Hand over messages and decisions in order, once the talk is open; None if the process has ended."""
        if any(each.end for each in delivery.messages):
            return await self._deliver_end(delivery)
        await self._state.open.wait()
        try:
            async with self._order:
                return await self._hand_over(delivery)
        finally:
            self._state.woken.set()  # the process may have waited for no more than that

    async def _hand_over(self, delivery: DeliverInput) -> list[Settlement] | None:
        if self._state.closed or self._state.stopping:
            return self._late(delivery.messages)
        answers = []
        try:
            for decision in delivery.decisions:
                if (told := as_told(self._state, decision)) is not None:
                    await self._conversation.decide(told)
            for message in delivery.messages:
                if self._state.ended_at:
                    answers += self._late([message])
                    continue
                self._reported[message.id] = Settlement(id=message.id, state="delivered")
                answer = await self._say(message)
                self._reported[message.id] = answer
                answers.append(answer)
        except ChannelClosed:
            return answers or None
        return answers

    async def _deliver_end(self, delivery: DeliverInput) -> list[Settlement] | None:
        """An end does not wait behind other messages, which are of no use any more, nor for an agent's handshake."""
        await self._state.live.wait()
        if self._state.is_over(finished=self._transcript.finished) and not self._state.ended_at:
            return self._late(delivery.messages)
        self._state.ended_at = self._state.ended_at or self._state.now()
        self._state.woken.set()
        answers = self._late(each for each in delivery.messages if not each.end)
        try:
            for message in delivery.messages:
                if not message.end:
                    continue
                if self._state.closed and not self._transcript.finished:  # it is stopped, as if it did not obey
                    answers.append(Settlement(id=message.id, state="delivered"))
                else:
                    answers.append(await self._say(message))
        except ChannelClosed:
            return None
        return answers

    def report(self) -> None:
        """Tell the observer of messages that the journal has settled since they were written."""
        news = []
        for each in self._transcript.settlements():
            known = self._reported.get(each.id)
            if known is not None and known.state not in FINAL_STATES and each.state in FINAL_STATES:
                self._reported[each.id] = each
                news.append(each)
        if news:
            self._observer.settle(news)

    def _late(self, messages: Iterable[OutgoingMessage]) -> list[Settlement]:
        """Nothing is written any more. A message that was written, by any worker, is not too late for that."""
        known = {each.id: each for each in self._transcript.settlements()}
        return [known.get(each.id) or self._unread(each.id) for each in messages]

    def _unread(self, message_id: str) -> Settlement:
        if self._transcript.wrote(message_id):
            return Settlement(id=message_id, state="delivered")
        return Settlement(id=message_id, state="too_late", how="the agent had finished")

    async def _say(self, message: OutgoingMessage) -> Settlement:
        before = {each.id: each for each in self._transcript.settlements()}
        known = before.get(message.id)
        # Another worker has said it. Said again, an interrupt would wait for the end of a turn that is not its own.
        if known is not None and known.state in FINAL_STATES:
            return known
        if known is not None and known.how == "interrupted" and message.kind == "interrupt" and not message.text:
            return known.model_copy(update={"state": "acknowledged"})
        answer = await self._conversation.say(message)
        if message.id not in before and answer.state in ("delivered", "acknowledged"):
            self._observer.delivered(self._state.number, message.kind, answer)
        return answer
