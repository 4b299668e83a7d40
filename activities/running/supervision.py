"""When one process of an agent is to end: its stdin is closed once its work is done, a limit stops it."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from activities.ports.agent import Transcript
from activities.ports.runtime import Channel, StopTimes
from activities.running.attempt_state import AttemptState
from activities.running.messages import MessageWriter
from activities.running.observer import AttemptObserver
from steersman import timeouts

EXIT_S = 3.0
"""A process that owes nothing more is stopped this many seconds after its stdin was closed."""
TURN_END_S = 5.0
"""An agent is stopped this many seconds after a person ended the run with its turn, if the turn goes on."""
WATCH_S, LAST_WATCH_S = 1.0, 30.0
"""Seconds between two looks at a process: at one at work, and at the most."""
ENDED_WATCH_S = 0.25
"""The same, once a person has ended the run with the turn."""
SILENT_S = 10.0
"""A process that has been silent for this many seconds is looked at ever less often."""
FINISHED, HOPELESS, INTERRUPTED = "finished", "hopeless", "interrupted"
OWN_STOPS = (FINISHED, HOPELESS, INTERRUPTED)
"""Reasons for which a supervisor itself stops a process: its transcript says what that end means."""

Spawn = Callable[[Coroutine[Any, Any, None]], None]
"""Runs something beside the reading of the journal, until the attempt is over."""


class Supervisor:
    """Closes or stops one process."""

    def __init__(
        self,
        state: AttemptState,
        channel: Channel,
        transcript: Transcript,
        messages: MessageWriter,
        observer: AttemptObserver,
        spawn: Spawn,
    ) -> None:
        self._state, self._channel, self._transcript = state, channel, transcript
        self._messages, self._observer, self._spawn = messages, observer, spawn

    async def watch(self) -> None:
        """Look at limits and silence until a limit is reached."""
        while self._state.limit is None:
            await self._pause()
            self.enforce()
            self._observer.tick()
            self.close_if_finished()

    async def _pause(self) -> None:
        """Until the next look: of a silent process in proportion to its silence, and at once when it is woken."""
        state = self._state
        state.woken.clear()
        if state.ended_at:
            pause_s = ENDED_WATCH_S
        else:
            silent_s = state.now() - state.last_word
            pause_s = min(max(silent_s / SILENT_S, 1) * WATCH_S, LAST_WATCH_S, max(self._observer.silence_left_s(), 0))
        with suppress(TimeoutError):
            async with timeouts.timeout(pause_s):
                await state.woken.wait()

    def enforce(self) -> None:
        """Stop the process if a limit is reached; a dead process's journal is only read."""
        state = self._state
        if state.is_over(finished=self._transcript.finished) or not state.live.is_set():
            return
        if state.ended_at:
            if state.now() - state.ended_at > TURN_END_S:
                state.stopping = True
                self._spawn(self._stop(INTERRUPTED))
        elif self._transcript.hopeless:
            state.stopping = True
            self._spawn(self._stop(HOPELESS))
        elif state.limit is None and (reached := self._observer.limit()) is not None:
            state.limit = reached
            self._spawn(self._stop(reached.message))

    def close_if_finished(self) -> None:
        """Close the process's stdin once nothing is owed and nothing is being said, or that does not matter."""
        state = self._state
        if state.closed or state.stopping or not self._transcript.finished:
            return
        quiet = state.open.is_set() and not self._messages.busy
        if quiet or (state.ended_at and state.live.is_set()):
            state.closed = True
            self._spawn(self._close())

    async def _close(self) -> None:
        await self._channel.write("close", None)
        until = time.monotonic() + EXIT_S
        while time.monotonic() < until:
            await asyncio.sleep(0.1)
            if not self._transcript.finished:  # a background task's end has begun another turn
                until = time.monotonic() + EXIT_S
        await self._channel.stop(StopTimes(0, 1.5), FINISHED)

    async def _stop(self, reason: str) -> None:
        self._observer.stopping(reason)
        await self._channel.stop(self._observer.stop_times, reason)
