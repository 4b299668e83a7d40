"""Gives the activities of a fallen worker of this host back to the server, so that another attempt begins at once.

Temporal itself would wait for the heartbeat timeout. What is done follows from what the server says of each run, not
from what was done before: an activity that a fallen worker is said to be at is failed, until the server knows of a
living one. So it does not matter which worker died in the middle of what. The shim's epoch tells two controllers of
one run apart.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client
from temporalio.service import RPCError

from activities.takeover.peers import Peer
from activities.takeover.pending import STARTED, PendingActivities, is_unled
from activities.takeover.registry import Registry
from activities.takeover.run_slots import RunSlots
from activities.takeover.sticky_queue import close_sticky_queue
from steersman import timeouts
from steersman.contracts import names
from steersman.contracts.activities import RunKey

log = logging.getLogger("steersman.takeover")

LOOK_S = 0.1
"""Seconds between two looks at the other workers."""
PULSE_S = 0.5
"""Seconds between two pulses of this worker."""
FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 2.0
"""Seconds until the server is asked again about a run that nobody leads yet."""
LATE_PAUSE_S = 20.0
"""The same, once no fallen worker can be handed anything any more: such a run waits for a free place."""
SCAN_S = 2.0
"""Those that wait are looked through this often, in seconds, and for this long after a death: the worker may have been
handed one that it had not entered yet."""
ENTRY_S = 10.0
"""A worker that was handed a run enters it within this many seconds."""
LAST_POLL_S = 70.0
"""A frozen process may be handed tasks for this many seconds, while its last polls stand."""
FIRST_LOOK_S = 5.0
CLAIM_S = 3.0
"""A claim that another worker holds is waited for at most this many seconds: that worker may be frozen."""


@dataclass
class Fallen:
    """A worker that does not do what it was given. `until`: after this moment the server gives it no more tasks."""

    peer: Peer
    until: float
    over: bool = False


class Takeover:
    """`run` watches over the other workers of this host. `waiting`: the runs and loops that wait for a workspace of it;
    called in a thread. `slots`: those of this worker's runs.
    """

    def __init__(
        self, client: Client, registry: Registry, waiting: Callable[[], Iterable[str]], slots: RunSlots
    ) -> None:
        self._client, self._registry, self._waiting, self._slots = client, registry, waiting, slots
        self._identities: set[str] = set()
        """The identities of fallen workers at the server, also of those whose directories are gone."""
        self._fallen: dict[tuple[str, bool], Fallen] = {}
        self._next = self._next_scan = 0.0
        self._pause = FIRST_PAUSE_S
        self._has_fallen = asyncio.Event()
        """There is a fallen worker, or there was one since this was looked at."""
        self._closing: set[asyncio.Task[None]] = set()
        self._pending = PendingActivities(client)
        self._looked = asyncio.Event()
        self._unled: set[RunKey] = set()
        """The runs with an agent at work that the server hands out to whoever asks, or has handed to this worker, which
        has not entered them; as of the last look."""

    async def looked(self) -> None:
        """Wait until the runs of workers that had fallen before are given back, for at most FIRST_LOOK_S seconds: a
        worker that takes further runs before has no room for them.
        """
        with suppress(TimeoutError):
            async with timeouts.timeout(FIRST_LOOK_S):
                await self._looked.wait()

    async def run(self) -> None:
        """Until cancelled."""
        beside = [asyncio.create_task(self._pulse()), asyncio.create_task(self._watch_fallen())]
        try:
            while True:
                self._note(await asyncio.to_thread(self._registry.peers))
                if not self._fallen:
                    self._looked.set()
                await asyncio.sleep(LOOK_S)
        finally:
            for task in (*beside, *self._closing):
                task.cancel()
            await asyncio.gather(*beside, *self._closing, return_exceptions=True)

    async def _pulse(self) -> None:
        while True:
            await asyncio.to_thread(self._registry.pulse)
            await asyncio.sleep(PULSE_S)

    def _note(self, peers: list[Peer]) -> None:
        living = {peer.facts.identity for peer in peers if peer.state == "alive"} | {self._registry.identity}
        self._identities = (self._identities | {peer.facts.identity for peer in peers}) - living
        fallen = {(peer.path.name, peer.is_gone): peer for peer in peers if peer.facts.identity not in living}
        self._fallen = {how: known for how, known in self._fallen.items() if how in fallen}
        for how, peer in fallen.items():
            if how not in self._fallen:
                self._next = self._next_scan = 0.0
                self._pause = FIRST_PAUSE_S
                self._has_fallen.set()
                until = time.monotonic() + (SCAN_S if peer.is_gone else LAST_POLL_S)
                self._fallen[how] = Fallen(peer, until)
                if peer.state == "ended":
                    continue  # it has said so itself, and has closed its sticky queue
                _log("worker_fallen", "a worker of this host is gone; its runs are given back", peer)
                task = asyncio.create_task(self._close_sticky_queue(peer))
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    async def _watch_fallen(self) -> None:
        while True:
            await self._has_fallen.wait()
            await asyncio.sleep(FIRST_PAUSE_S)
            fallen = [each for each in self._fallen.values() if not each.over]
            if not fallen:
                self._has_fallen.clear()
                self._slots.expect(())
            if not fallen or time.monotonic() < self._next:
                continue
            try:
                async with self._claim():
                    given = await self._give_back(fallen)
                self._slots.expect(self._unled)
                self._looked.set()
            except Exception as error:  # noqa: BLE001 - whatever it is, the other workers are to be watched on
                told = f"{type(error).__name__}: {error}"
                _log(
                    "takeover_failed", "a fallen worker's runs could not be given back yet", fallen[0].peer, error=told
                )
                given = False
                self._slots.expect(())
            now = time.monotonic()
            longest_s = LAST_PAUSE_S if self._unled or any(now <= each.until for each in fallen) else LATE_PAUSE_S
            self._pause = FIRST_PAUSE_S if given else min(self._pause * 2, longest_s)
            self._next = now + self._pause

    @asynccontextmanager
    async def _claim(self) -> AsyncIterator[None]:
        """Keep other workers from seeing to the same runs: two could fail the attempt that has just begun.

        That costs no more than another attempt, so a worker that keeps the claim is not waited for: it may be frozen.
        """
        until = time.monotonic() + CLAIM_S
        while True:
            with self._registry.claim() as ours:
                if ours or time.monotonic() > until:
                    yield
                    return
            await asyncio.sleep(FIRST_PAUSE_S)

    async def _give_back(self, fallen: list[Fallen]) -> bool:
        """Give back what these workers are at; whether there was anything. Raises RPCError."""
        led: dict[RunKey, list[Fallen]] = {}
        self._unled = set()
        for each in fallen:
            for key in await asyncio.to_thread(each.peer.runs):
                led.setdefault(key, []).append(each)
        given = await _all(self._give_back_run(key, leaders) for key, leaders in led.items())
        now = time.monotonic()
        if now >= self._next_scan and any(now <= each.until + SCAN_S for each in fallen):
            self._next_scan = now + SCAN_S
            given.append(await self._give_back_waiting())
        for each in fallen:
            if now > each.until and not await asyncio.to_thread(each.peer.runs):
                each.over = True
                if each.peer.is_gone:
                    await asyncio.to_thread(each.peer.remove)
        return any(given)

    async def _give_back_run(self, key: RunKey, leaders: list[Fallen]) -> bool:
        """Give back what of one run a fallen worker is at; whether there was anything. Raises RPCError."""
        pending = await self._pending.of(key.run)
        given = await self._pending.give_back(key.run, pending, self._identities)
        leading = [each for each in pending if each.activity_type.name == names.RUN_AGENT]
        if any(self._is_on_its_way(key, each) or is_unled(each, self._identities) for each in leading):
            self._unled.add(key)
        waits = any(each.state not in STARTED for each in leading)
        # A worker that is handed the run names itself as soon as it enters it: until then, this is all that names it.
        # Not for long: another run may have the id by now, or another host the run.
        if leading and not waits and any(time.monotonic() <= each.until + ENTRY_S for each in leaders):
            waits = await asyncio.to_thread(self._registry.holder, key) is None
        if not given and not waits:
            for each in leaders:
                await asyncio.to_thread(each.peer.forget, key)
        return given

    def _is_on_its_way(self, key: RunKey, activity: PendingActivityInfo) -> bool:
        """Whether the server has handed it to this worker, which a busy machine keeps from entering it."""
        is_here = activity.state in STARTED and activity.last_worker_identity == self._registry.identity
        return is_here and key not in self._registry.leads()

    async def _give_back_waiting(self) -> bool:
        """Of a task that came when a worker died, or had stopped polling, there is no other trace. Raises RPCError."""

        async def give_back(run: str) -> bool:
            return await self._pending.give_back(run, await self._pending.of(run), self._identities)

        runs = {*await self._pending.queued_runs(), *await asyncio.to_thread(self._waiting)}
        return any(await _all(map(give_back, runs)))

    async def _close_sticky_queue(self, peer: Peer) -> None:
        """Best effort: it only spares the runs that the worker had in memory a pause."""
        try:
            keys = [*await asyncio.to_thread(peer.runs), *self._registry.leads()]
            await close_sticky_queue(self._client, peer.facts.identity, [key.run for key in keys])
        except RPCError as error:
            _log("takeover_slowed", "a fallen worker's sticky queue could not be closed", peer, error=error.message)


async def _all(work: Iterable[Coroutine[Any, Any, bool]]) -> list[bool]:
    """The results. Raises the first failure, after all have ended."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


def _log(action: str, message: str, peer: Peer, **facts: object) -> None:
    about = {"worker": peer.facts.queue, "state": peer.state, **facts}
    log.warning(message, extra={"action": action, "facts": about})
