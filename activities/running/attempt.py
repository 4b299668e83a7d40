"""One attempt of a run: one process of the agent, from its start or adoption to its end, as one worker leads it.

Feeds the journal to the transcript and the event log, and live records to the conversation. Which attempt follows must
not live here.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Coroutine
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from activities.ports.agent import END_PREFIX, Conversation, ExitFact, Progress, Transcript
from activities.ports.runtime import Channel, ChannelClosed, Record
from activities.running.approvals import answered_unasked, as_logged
from activities.running.attempt_state import AttemptState
from activities.running.limits import Limit
from activities.running.messages import MessageWriter
from activities.running.observer import AttemptObserver
from activities.running.result import exit_fact_of
from activities.running.supervision import SILENT_S, Supervisor
from activities.store.eventlog import EventLog
from activities.store.snapshots import Snapshot, Snapshots
from steersman.contracts.activities import DeliverInput, Settlement
from steersman.contracts.events import ErrorEvent, EventBase, PermissionEvent, UsageEvent

QUIET_S = 1.5
"""A stopped agent's journal is given up after this many seconds without a record: a full disk takes no last one."""
STDERR_LINES = 20
SLICE_S = 0.01
"""Records are taken for this many seconds before other tasks of the event loop have their turn."""
NEVER = 1 << 61
"""A record number beyond the last of any journal."""


class AttemptRunner:
    """Runs one attempt. `run` returns how the process ended; `deliver` and `hurry` may be called meanwhile.

    The channel is closed by whoever opened it.
    """

    def __init__(
        self,
        state: AttemptState,
        channel: Channel,
        transcript: Transcript,
        conversation: Conversation,
        log: EventLog,
        observer: AttemptObserver,
        before: Progress,
    ) -> None:
        self._state, self.channel, self.transcript = state, channel, transcript
        self._conversation, self._log, self._observer, self._before = conversation, log, observer, before
        self._messages = MessageWriter(self._state, transcript, conversation, observer)
        self._supervisor = Supervisor(self._state, channel, transcript, self._messages, observer, self._spawn)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self._snapshots: Snapshots | None = None
        self._fed = 0
        self._entry = (0, 0)
        self._unfinished: set[str] = set()
        """Streams of which the last record is a piece of a line."""
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._silent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._until = math.inf
        self._last_ms = 0
        self._seq = 0
        self._heard = time.monotonic()
        self.read_whole = True
        """The journal was read to its end."""

    @property
    def number(self) -> int:
        """Which process of the run it is."""
        return self._state.number

    @property
    def is_over(self) -> bool:
        """The process has done its work and is to end, or it is being stopped."""
        return self._state.is_over(finished=self.transcript.finished)

    @property
    def is_live(self) -> bool:
        """All that the process had said before this worker led it is read."""
        return self._state.live.is_set()

    @property
    def fed(self) -> int:
        """The number of the last record that was read."""
        return self._fed

    @property
    def limit(self) -> Limit | None:
        """The limit for which the process is stopped."""
        return self._state.limit

    @property
    def ended_at(self) -> float | None:
        """When a person ended the run with the turn, in seconds since 1970."""
        return self._state.ended_at

    @property
    def silent_s(self) -> float:
        """Seconds since something was last said, by the agent or to it."""
        return self._state.now() - self._state.last_word

    @property
    def lasted_s(self) -> float:
        """Seconds from the process's start to its last record that was read, by its host's clock."""
        return max(self._last_ms - (self._state.first_ms or self._last_ms), 0) / 1000

    def resume(self, snapshots: Snapshots, snapshot: Snapshot | None) -> None:
        """Keep snapshots, and go on from this one, which the transcript has been restored from."""
        self._snapshots = snapshots
        if snapshot is not None:
            self._fed, self._entry = snapshot.record, snapshot.entry
            self._state.last_word, self._state.ended_at = snapshot.last_word, snapshot.ended_at
            self._state.first_ms = snapshot.first_ms or None
            self._stderr.extend(snapshot.stderr)

    async def run(self) -> ExitFact:
        """Lead the process until it has ended. Raises Fenced, or what the handshake raised."""
        reading = asyncio.create_task(self._read())
        watch = asyncio.create_task(self._supervisor.watch())
        watch.add_done_callback(self._on_done)
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
            try:
                await asyncio.gather(*tasks, return_exceptions=True)
                if self._snapshots:
                    await self._snapshots.close()
            finally:  # whatever a second cancel cuts off: else what it waits with is left to the garbage collector
                await self._conversation.close()

    async def deliver(self, delivery: DeliverInput) -> list[Settlement] | None:
        """See MessageWriter."""
        return await self._messages.deliver(delivery)

    def fail(self, error: Exception) -> None:
        """End the lead with this error, of what the conversation was given."""
        if not self._failure.done():
            self._failure.set_exception(error)

    def hurry(self, patience_s: float) -> None:
        """The process was stopped: read what it left behind for this many seconds, and no more."""
        self._until = time.monotonic() + patience_s
        self._spawn(self._await_silence())

    async def _await_silence(self) -> None:
        self._heard, left = time.monotonic(), QUIET_S
        while left > 0:
            await asyncio.sleep(left)
            left = self._heard + QUIET_S - time.monotonic()
        if not self._silent.done():
            self._silent.set_result(None)

    # ---- the journal

    async def _read(self) -> ExitFact:
        exit_record: Record | None = None
        slice_began = time.monotonic()
        if self._fed >= self.channel.known:  # none yet, where a program is given no prompt
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
                    if time.monotonic() - slice_began > SLICE_S:  # nothing in a record of the past waits for anybody
                        await asyncio.sleep(0)
                        slice_began = time.monotonic()
                if time.monotonic() > self._until and batch[-1].stream != "exit":
                    return self._give_up("the agent was stopped with too much of it unread")
                self._entry = (batch[-1].seq, self.channel.offset)
                if self._snapshots and self._snapshots.due(self.channel.offset) and self._may_be_kept:
                    self._snapshots.put(self._snapshot(), self.transcript.snapshot())
        if exit_record is None:
            await self._save_last()
        fact = exit_fact_of(exit_record, tuple(self._stderr))
        return replace(fact, cause=await self.channel.cause()) if fact.reason in ("lost", "terminated") else fact

    async def _take(self, record: Record) -> None:
        if record.seq <= self._fed:
            return
        self._note(record)
        events = [self._in_run(event) for event in self.transcript.feed(record)]
        if added := self._log.append(self.number, record.seq, events):
            self._observer.observe(added)
            self._supervisor.enforce()
            for asked in answered_unasked(self._state, added):
                await self._observer.ask(asked)
        if record.stream == "exit":
            return
        if record.seq >= self.channel.known:
            self._go_live()
        if record.seq > self.channel.known:
            await self._conversation.hear(record)
        self._messages.report()
        self._supervisor.close_if_finished()

    def _note(self, record: Record) -> None:
        """Keep what snapshots, limits and the end of the process need of a record."""
        self._fed = record.seq
        if record.stream in ("out+", "err+"):
            self._unfinished.add(record.stream[:-1])
        self._unfinished.discard(record.stream)
        self._state.first_ms, self._last_ms = self._state.first_ms or record.time_ms, record.time_ms
        if record.stream in ("in", "out", "err"):
            # What is said now is said now, whatever became of the clock by which its time was taken.
            said = self._state.now() if self._state.live.is_set() else record.time_ms / 1000
            if said - self._state.last_word > SILENT_S:
                self._state.woken.set()
            self._state.last_word = said
        if record.stream == "in" and record.id.startswith(END_PREFIX):
            self._state.ended_at = self._state.ended_at or record.time_ms / 1000
        if record.stream == "err":
            self._stderr.append(record.data[:2000].decode("utf-8", "replace"))

    def _in_run(self, event: EventBase) -> EventBase:
        """An event of the process as the run's: approvals have ids of the run, usage counts over all its processes."""
        if isinstance(event, PermissionEvent):
            return as_logged(self._state, event)
        if not isinstance(event, UsageEvent):
            return event
        past = self._before
        total = {
            "usage": past.usage + event.usage,
            "cost_usd": round(past.cost_usd + event.cost_usd, 6),
            "turns": past.turns + event.turns,
        }
        return event.model_copy(update=total)

    def _go_live(self) -> None:
        if not self._state.live.is_set():
            self._state.live.set()
            self._observer.live(self.number)
            self._spawn(self._open_conversation())

    async def _open_conversation(self) -> None:
        await self._conversation.open()
        self._state.open.set()
        self._supervisor.close_if_finished()

    def _give_up(self, why: str) -> ExitFact:
        self.read_whole = False
        text = f"output after record {self._seq} was left out: {why}"
        with suppress(OSError):  # the disk may be why
            self._observer.observe(
                self._log.append(self.number, NEVER, [ErrorEvent(time=datetime.now(UTC), message=text)])
            )
        return ExitFact(reason="stopped", why="stopped", stderr=tuple(self._stderr))

    async def _save_last(self) -> None:
        """Without the process's end, which is always read from its journal."""
        if self._snapshots and self._may_be_kept:
            await self._snapshots.put_last(self._snapshot(), self.transcript.snapshot())

    @property
    def _may_be_kept(self) -> bool:
        """Whether a snapshot can be taken here. Beside a log that has ended, none would say what the log has of it."""
        return not self._unfinished and not self._log.ended

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            record=self._fed,
            entry=self._entry,
            source=self._log.source,
            first_ms=self._state.first_ms or 0,
            last_word=self._state.on_clock(self._state.last_word),
            ended_at=self._state.ended_at and self._state.on_clock(self._state.ended_at),
            stderr=tuple(self._stderr),
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and not isinstance(error, ChannelClosed):
            self.fail(error)
