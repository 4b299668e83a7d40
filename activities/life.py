"""One process of an agent, from its start or adoption to its end, as one worker lives through it.

Feeds the journal to the transcript and the event log, keeps the talk going, holds the limits. Knows no Temporal.
"""

import asyncio
import json
import math
import time
from collections import deque
from collections.abc import Coroutine, Iterable
from contextlib import aclosing, suppress
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
from activities.snapshots import Snapshot, Snapshots
from steersman.contracts.activities import DeliverInput, OutgoingMessage, Settlement
from steersman.contracts.events import ErrorEvent, EventBase, UsageEvent
from steersman.contracts.run import FINAL_STATES, StopReport

SEE_OUT_S = 3.0
"""How long a process that owes nothing more may take to exit after its stdin was closed."""
TURN_END_S = 5.0
"""How long an agent may take to end its turn when the run is ended with it."""
QUIET_S = 1.5
"""How long the journal of a stopped agent may say nothing; then its end is not waited for: a full disk has no room."""
STDERR_LINES = 20
SLICE_S = 0.01
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

    def live(self, number: int) -> None:
        """Process `number` is at work, and all that it has said before is read."""
        ...

    def delivered(self, number: int, kind: str, settlement: Settlement) -> None:
        """Process `number` was given a message, for the first time."""
        ...

    def stopping(self, reason: str) -> None:
        """The process is stopped before its work was done."""
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
        self._snapshots: Snapshots | None = None
        self._fed = 0
        self._entry = (0, 0)
        self._unfinished: set[str] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._until = math.inf
        self._first_ms: int | None = None
        self._last_ms = 0
        self._seq = 0
        self._heard = time.monotonic()
        self._silent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closing = False
        self.read_whole = True
        """The journal was read to its end."""
        self.ended_at: float | None = None
        """When a person ended the run with the turn, in seconds since 1970."""
        self.limit: Limit | None = None
        self.last_word = time.time()
        """When something was last said, by the agent or to it: then its silence begins."""

    def resume(self, snapshots: Snapshots, snapshot: Snapshot | None) -> None:
        """Keep snapshots, and go on from this one, which the transcript has been restored from."""
        self._snapshots = snapshots
        if snapshot is not None:
            self._fed, self._entry = snapshot.record, snapshot.entry
            self.last_word, self.ended_at = snapshot.last_word, snapshot.ended_at
            self._first_ms = snapshot.first_ms or None
            self._stderr.extend(snapshot.stderr)

    async def run(self) -> ExitFact:
        """Live until the process has ended. Raises Fenced, or what the handshake raised."""
        reading = asyncio.create_task(self._read())
        watch = asyncio.create_task(self._watch())
        try:
            either: set[asyncio.Future[Any]] = {reading, self._failure, self._silent}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                return reading.result()
            if self._failure.done():
                self._failure.result()
            return self._give_up("the end of the agent's journal never came: it could not be written")
        finally:
            self._failure.cancel()
            self._silent.cancel()
            tasks = [reading, watch, *self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._snapshots:
                await self._snapshots.close()
            await self._conversation.close()
            await self.channel.close()

    @property
    def lasted_s(self) -> float:
        """From the process's start to the last that was read of it, by its host's clock."""
        return max(self._last_ms - (self._first_ms or self._last_ms), 0) / 1000

    def hurry(self, patience_s: float) -> None:
        """The process was stopped: read what it left behind for this long, then leave the rest to the journal."""
        self._until = time.monotonic() + patience_s
        self._spawn(self._await_silence())

    async def _await_silence(self) -> None:
        self._heard, left = time.monotonic(), QUIET_S
        while left > 0:
            await asyncio.sleep(left)
            left = self._heard + QUIET_S - time.monotonic()
        if not self._silent.done():
            self._silent.set_result(None)

    async def _read(self) -> ExitFact:
        exit_record: Record | None = None
        came_round = time.monotonic()
        if self._fed and self._fed >= self.channel.known:
            self._go_live()
        async with aclosing(self.channel.records(*self._entry)) as batches:
            async for batch in batches:
                self._seq = batch[-1].seq
                for record in batch:
                    self._heard = time.monotonic()
                    if record.stream == "exit":
                        exit_record = record
                        await self._save_last()
                    await self._take(record)
                    if time.monotonic() - came_round > SLICE_S:  # nothing in a record of the past waits for anybody
                        await asyncio.sleep(0)
                        came_round = time.monotonic()
                if time.monotonic() > self._until and batch[-1].stream != "exit":
                    return self._give_up("the agent was stopped with too much of it unread")
                self._entry = (batch[-1].seq, self.channel.offset)
                if self._snapshots and self._snapshots.due(self.channel.offset) and not self._unfinished:
                    self._snapshots.put(self._snapshot(), self.transcript.snapshot())
        if exit_record is None:
            await self._save_last()
        return self._exit_fact(exit_record)

    async def _save_last(self) -> None:
        """Without the process's end, which is always read from its journal."""
        if self._snapshots and not self._unfinished:
            await self._snapshots.put_last(self._snapshot(), self.transcript.snapshot())

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            record=self._fed,
            entry=self._entry,
            source=self._log.source,
            first_ms=self._first_ms or 0,
            last_word=self.last_word,
            ended_at=self.ended_at,
            stderr=tuple(self._stderr),
        )

    def _give_up(self, why: str) -> ExitFact:
        self.read_whole = False
        text = f"output after record {self._seq} was left out: {why}"
        with suppress(OSError):  # the disk may be why
            self._overseer.observe(
                self._log.append(self.number, NEVER, [ErrorEvent(time=datetime.now(UTC), message=text)])
            )
        return ExitFact(reason="stopped", why="stopped", stderr=tuple(self._stderr))

    async def deliver(self, parcel: DeliverInput) -> list[Settlement] | None:
        """Hand over messages and decisions in order, once the talk is open; None if the process has ended."""
        if any(each.end for each in parcel.messages):
            return await self._deliver_end(parcel)
        await self._open.wait()
        async with self._order:
            if self.closing:
                return self._late(parcel.messages)
            answers = []
            try:
                for decision in parcel.decisions:
                    await self._conversation.decide(decision)
                for message in parcel.messages:
                    if self.ended_at:
                        answers += self._late([message])
                        continue
                    self._reported[message.id] = Settlement(id=message.id, state="delivered")
                    answer = await self._say(message)
                    self._reported[message.id] = answer
                    answers.append(answer)
            except ChannelClosed:
                return answers or None
            return answers

    async def _deliver_end(self, parcel: DeliverInput) -> list[Settlement] | None:
        """An end does not wait behind other messages, which are of no use any more, nor for an agent's handshake."""
        await self._live.wait()
        if self.closing and not self.ended_at:
            return self._late(parcel.messages)
        self.ended_at = self.ended_at or time.time()
        answers = self._late(each for each in parcel.messages if not each.end)
        try:
            for message in parcel.messages:
                if message.end:
                    answers.append(await self._say(message))
        except ChannelClosed:
            return None
        return answers

    def _late(self, messages: Iterable[OutgoingMessage]) -> list[Settlement]:
        """Nothing is written any more. What was, by this worker or an earlier one, is not too late for that."""
        known = {each.id: each for each in self.transcript.settlements()}
        return [known.get(each.id) or self._unread(each.id) for each in messages]

    def _unread(self, message_id: str) -> Settlement:
        if self.transcript.wrote(message_id):
            return Settlement(id=message_id, state="delivered")
        return Settlement(id=message_id, state="too_late", how="the agent had finished")

    async def _say(self, message: OutgoingMessage) -> Settlement:
        before = {each.id for each in self.transcript.settlements()}
        answer = await self._conversation.say(message)
        if message.id not in before and answer.state in ("delivered", "acknowledged"):
            self._overseer.delivered(self.number, message.kind, answer)
        return answer

    async def _take(self, record: Record) -> None:
        if record.seq <= self._fed:
            return
        self._fed = record.seq
        if record.stream in ("out+", "err+"):
            self._unfinished.add(record.stream[:-1])
        self._unfinished.discard(record.stream)
        self._first_ms, self._last_ms = self._first_ms or record.time_ms, record.time_ms
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
        if record.seq >= self.channel.known:
            self._go_live()
        if record.seq > self.channel.known:
            await self._conversation.hear(record)
        self._report()
        self._consider()

    def _go_live(self) -> None:
        if not self._live.is_set():
            self._live.set()
            self._overseer.live(self.number)
            self._spawn(self._open_conversation())

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
        self._overseer.stopping(reason)
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
            time_ms=record.time_ms,
            stop=StopReport.model_validate({"phase": "running", **facts["stop"]}) if facts["stop"] else None,
        )
