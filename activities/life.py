"""One process of an agent, from its start or adoption to its end, as one worker lives through it.

Feeds the journal to the transcript and the event log, keeps the talk going, holds the limits. Knows no Temporal.
"""

import asyncio
import json
import math
import time
from collections import deque
from collections.abc import Coroutine, Iterable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Protocol

from activities.eventlog import EventLog
from activities.limits import Limit
from activities.ports import (
    END,
    Channel,
    ChannelClosed,
    Conversation,
    ExitFact,
    Ladder,
    Progress,
    Record,
    Transcript,
)
from steersman.contracts.activities import DeliverInput, OutgoingMessage, Settlement
from steersman.contracts.events import ErrorEvent, EventBase, UsageEvent
from steersman.contracts.run import FINAL_STATES

SEE_OUT_S = 3.0
"""How long a process that owes nothing more may take to exit after its stdin was closed."""
TURN_END_S = 5.0
"""How long an agent may take to end its turn when the run is ended with it."""
STDERR_LINES = 20
SLICE_S = 0.02
"""How long records are taken before others of the loop have their turn."""
NEVER = 1 << 61
"""Beyond the last record of any journal."""


class Overseer(Protocol):
    """Whoever looks after several processes of one run: the session."""

    ladder: Ladder

    def observe(self, events: list[EventBase]) -> None: ...

    def settle(self, settlements: list[Settlement]) -> None: ...

    def tick(self) -> None: ...

    def limit(self) -> Limit | None:
        """The run's limit that is reached, over all its processes."""
        ...


class Life:
    """Drives one process. `run` returns how it ended; `deliver` and `stop` may be called meanwhile."""

    def __init__(
        self,
        number: int,
        channel: Channel,
        transcript: Transcript,
        conversation: Conversation,
        log: EventLog,
        overseer: Overseer,
        before: Progress,
    ) -> None:
        self.number, self.channel, self.transcript = number, channel, transcript
        self._conversation, self._log, self._overseer, self._before = conversation, log, overseer, before
        self._live = asyncio.Event()
        self._open = asyncio.Event()
        self._order = asyncio.Lock()
        self._reported: dict[str, Settlement] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._until = math.inf
        self.closing = False
        self.ended_at: float | None = None
        """When a person ended the run with the turn, in seconds since 1970."""
        self.limit: Limit | None = None
        self.last_word = time.time()
        """When something was last said, by the agent or to it: then its silence begins."""

    async def run(self) -> ExitFact:
        """Live until the process has ended. Raises Fenced, or what the handshake raised."""
        reading = asyncio.create_task(self._read())
        watch = asyncio.create_task(self._watch())
        try:
            either: set[asyncio.Future[Any]] = {reading, self._failure}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                self._failure.result()
            return reading.result()
        finally:
            self._failure.cancel()
            tasks = [reading, watch, *self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._conversation.close()
            await self.channel.close()

    def hurry(self, patience_s: float) -> None:
        """The process was stopped: read what it left behind for this long, then leave the rest to the journal."""
        self._until = time.monotonic() + patience_s

    async def _read(self) -> ExitFact:
        exit_record: Record | None = None
        came_round = time.monotonic()
        async with aclosing(self.channel.records()) as batches:
            async for batch in batches:
                for record in batch:
                    if record.stream == "exit":
                        exit_record = record
                    await self._take(record)
                    if time.monotonic() - came_round > SLICE_S:  # nothing in a record of the past waits for anybody
                        await asyncio.sleep(0)
                        came_round = time.monotonic()
                if time.monotonic() > self._until and batch[-1].stream != "exit":
                    return self._give_up(batch[-1])
        return self._exit_fact(exit_record)

    def _give_up(self, last: Record) -> ExitFact:
        text = f"output after record {last.seq} was left out: the agent was stopped with too much of it unread"
        self._overseer.observe(self._log.append(self.number, NEVER, [ErrorEvent(time=datetime.now(UTC), message=text)]))
        return ExitFact(reason="stopped", why="stopped", stderr=tuple(self._stderr))

    async def deliver(self, parcel: DeliverInput) -> list[Settlement] | None:
        """Hand over messages and decisions in order, once the talk is open; None if the process has ended."""
        if any(each.end for each in parcel.messages):
            return await self._deliver_end(parcel)
        await self._open.wait()
        async with self._order:
            if self.closing:
                return _too_late(parcel.messages)
            answers = []
            try:
                for decision in parcel.decisions:
                    await self._conversation.decide(decision)
                for message in parcel.messages:
                    if self.ended_at:
                        answers += _too_late([message])
                        continue
                    self._reported[message.id] = Settlement(id=message.id, state="delivered")
                    answer = await self._conversation.say(message)
                    self._reported[message.id] = answer
                    answers.append(answer)
            except ChannelClosed:
                return answers or None
            return answers

    async def _deliver_end(self, parcel: DeliverInput) -> list[Settlement] | None:
        """An end does not wait behind other messages, which are of no use any more, nor for an agent's handshake."""
        await self._live.wait()
        if self.closing and not self.ended_at:
            return _too_late(parcel.messages)
        self.ended_at = self.ended_at or time.time()
        answers = _too_late(each for each in parcel.messages if not each.end)
        try:
            for message in parcel.messages:
                if message.end:
                    answers.append(await self._conversation.say(message))
        except ChannelClosed:
            return None
        return answers

    async def _take(self, record: Record) -> None:
        events = [self._over_all(event) for event in self.transcript.feed(record)]
        if record.stream in ("in", "out", "err"):
            self.last_word = record.time_ms / 1000
        if record.stream == "in" and record.id.startswith(END):
            self.ended_at = self.ended_at or record.time_ms / 1000
        if record.stream == "err":
            self._stderr.append(record.data[:2000].decode("utf-8", "replace"))
        if added := self._log.append(self.number, record.seq, events):
            self._overseer.observe(added)
            self.enforce()
        if record.stream == "exit":
            return
        if record.seq >= self.channel.known and not self._live.is_set():
            self._live.set()
            self._spawn(self._open_conversation())
        if record.seq > self.channel.known:
            await self._conversation.hear(record)
        self._report()
        self._consider()

    async def _open_conversation(self) -> None:
        await self._conversation.open()
        self._open.set()
        self._consider()

    def _over_all(self, event: EventBase) -> EventBase:
        """Usage counts over all processes of the run."""
        if not isinstance(event, UsageEvent):
            return event
        past = self._before
        total = {
            "usage": past.usage + event.usage,
            "cost_usd": round(past.cost_usd + event.cost_usd, 6),
            "turns": past.turns + event.turns,
        }
        return event.model_copy(update=total)

    def _report(self) -> None:
        news = []
        for each in self.transcript.settlements():
            known = self._reported.get(each.id)
            if known is not None and known.state not in FINAL_STATES and each.state in FINAL_STATES:
                self._reported[each.id] = each
                news.append(each)
        if news:
            self._overseer.settle(news)

    def _consider(self) -> None:
        """Close the process's stdin once nothing is owed and nothing is being said, or that does not matter."""
        if self.closing or not self.transcript.finished:
            return
        quiet = self._open.is_set() and not self._order.locked()
        if quiet or (self.ended_at and self._live.is_set()):
            self.closing = True
            self._spawn(self._see_out())

    async def _see_out(self) -> None:
        await self.channel.write("close", None)
        until = time.monotonic() + SEE_OUT_S
        while time.monotonic() < until:
            await asyncio.sleep(0.1)
            if not self.transcript.finished:  # a background task's end has begun another turn
                until = time.monotonic() + SEE_OUT_S
        await self.channel.stop(Ladder(0, 1.5), "finished")

    async def _watch(self) -> None:
        while self.limit is None:
            await asyncio.sleep(0.25)
            self.enforce()
            self._overseer.tick()
            self._consider()

    def enforce(self) -> None:
        """Stop the process if a limit is reached; a dead process's journal is only read."""
        if self.closing or not self._live.is_set():
            return
        if self.ended_at:
            if time.time() - self.ended_at > TURN_END_S:
                self.closing = True
                self._spawn(self._stop("interrupted"))
        elif self.transcript.hopeless:
            self.closing = True
            self._spawn(self._stop("hopeless"))
        elif self.limit is None and (reached := self._overseer.limit()) is not None:
            self.limit = reached
            self._spawn(self._stop(reached.message))

    async def _stop(self, reason: str) -> None:
        await self.channel.stop(self._overseer.ladder, reason)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ChannelClosed) and not self._failure.done():
            self._failure.set_exception(error)

    def _exit_fact(self, record: Record | None) -> ExitFact:
        stderr = tuple(self._stderr)
        if record is None:
            return ExitFact(reason="lost", lost=True, stderr=stderr)
        facts = json.loads(record.data)
        return ExitFact(
            code=facts["code"],
            signal=facts["signal"],
            reason=facts["reason"],
            why=(facts["stop"] or {}).get("reason"),
            stderr=stderr,
        )


def _too_late(messages: Iterable[OutgoingMessage]) -> list[Settlement]:
    return [Settlement(id=each.id, state="too_late", how="the agent had finished") for each in messages]
