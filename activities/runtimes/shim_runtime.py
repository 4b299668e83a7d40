"""The runtime: each process of a run under a shim, at the place where the run lives. There is no other one."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import PurePath

from activities.ports.place import PlaceInfo
from activities.ports.runtime import AlreadyStopped, Channel, Fenced, Incompatible, Launch, StopTimes, Unreachable
from activities.runtimes.leftovers import with_leftovers, without_directory
from activities.runtimes.mirror import Mirror, has_end
from activities.runtimes.place import LocalPlace, Place
from activities.runtimes.shim_channel import ShimChannel
from activities.runtimes.shim_handle import ShimHandle
from activities.runtimes.stop import PATIENT, QUICK, stop_attempt, unsealed
from activities.shim import client as shim
from activities.shim.client.access import LOCAL, LocalAccess
from activities.store import disk
from activities.store.run_directory import RunDirectory, RunGone
from activities.store.runs import RunStore
from steersman import timeouts
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import AgentFailed, AgentNotInstalled, RunError, WorkspaceError
from steersman.contracts.run import Handle, StopReport

log = logging.getLogger("steersman.runtime")

FILES = "files"
"""Where a shim puts `Launch.files`, in its directory."""
UNREACHABLE_S = 10.0
"""A stop tries to reach a machine for this many seconds; then nobody knows what lives there."""
_TRY_S = 5.0
"""What the machine has for its first word where the stop's last try begins late."""
_STOP_S = 50.0
"""What a stop may take beside its own times: a shim may wait for its disk, and what it left be killed by hand."""
_RELEASE_S = 30.0
"""What letting go of a run elsewhere may take; a sweep does what is left. Less than a finalize_run may take."""
_PAUSE_S = 0.5
_SILENT_S = 60.0
"""So long after a stop that could not reach a machine it counts as one that does not answer."""
_AGAIN_S = 2.0
"""What it then has for its first word, where nobody waits for it."""

PlaceOf = Callable[[RunDirectory], Place]
"""Makes the place of a run from its directory's `placement`, which is to be read as hostile. Raises MachineUnusable."""


class NoPlace(Unreachable):
    """This worker does not know how the run's machine is reached."""


class ShimRuntime:
    """`places`: how the place of a run is made, by the kind of runtime that its request names. `host`: this one."""

    def __init__(self, store: RunStore, host: str, places: Mapping[str, PlaceOf] | None = None) -> None:
        self._store, self._host = store, host
        self._places = places if places is not None else {"local": local_place}
        self._silent: dict[str, float] = {}
        """Placement -> when a stop could not reach it last, by the monotonic clock."""

    def attempts(self, key: RunKey) -> int:
        """How many processes this run has had here."""
        return self._store.directory(key).attempts()

    async def info(self, key: RunKey, programs: Sequence[str]) -> PlaceInfo | None:
        """The machine of the run's processes; None for this one. Raises RunError, Unreachable."""
        with _reaching(to_launch=True):
            return await self._place(self._store.directory(key)).info(programs)

    async def loss(self, key: RunKey) -> str | None:
        """See ports.runtime. Raises RunError."""
        with _reaching(to_launch=True):
            return await self._place(self._store.directory(key)).loss()

    async def files(self, key: RunKey, attempt: int) -> PurePath:
        """Where this attempt's process will find `Launch.files`. Raises RunError, Unreachable."""
        with _reaching(to_launch=True):
            return (await self._place(self._store.directory(key)).handle(attempt)).directory / FILES

    async def open(
        self, key: RunKey, attempt: int, epoch: int, launch: Launch | None, *, leads: bool = True
    ) -> Channel:
        """Attach to the attempt's process, or start it. Raises RunError, Fenced, AlreadyStopped, Unreachable."""
        directory, at_shim = self._store.directory(key), epoch if leads else None
        if launch is not None and directory.is_removed:
            raise AlreadyStopped("what the run had on its machine was removed: nothing starts there any more")
        place = self._place(directory)
        with _reaching(to_launch=launch is not None):
            handle, clock_ms = await place.handle(attempt), await place.clock_ms()
            if launch is not None:
                await self._clear_earlier(directory, place, attempt)
                await place.ensure(attempt)
                await _start(handle, launch, directory.tag)
            name = await place.name()
            try:
                connection = await _connect(handle, at_shim)
            except shim.ShimGone:
                await place.clear(attempt)
                connection = None
            except shim.Fenced as error:
                raise Fenced(str(error)) from error
            except shim.ProtocolMismatch as error:
                raise Incompatible(str(error)) from error
        mirror = None
        if place.mirrored:
            try:
                mirror = await asyncio.to_thread(Mirror, directory.attempt(attempt) / "journal", epoch, clock_ms)
            except BaseException:
                if connection:
                    await connection.aclose()
                raise
        clear = partial(place.clear, attempt)
        process = _process(self._host, connection.hello, name) if connection else None
        return ShimChannel(handle, clear, process, at_shim, connection, mirror, place.cause)

    async def stop(
        self, key: RunKey, times: StopTimes, reason: str, *, known: int = 0, patient: bool = True
    ) -> StopReport:
        """Stop the run's newest process, clear away what lost ones left, and see to it that no other starts."""
        directory = self._store.directory(key)
        try:
            await asyncio.to_thread(directory.require, known)
            await asyncio.to_thread(self._store.create, key)
        except (RunGone, OSError) as error:
            facts = {"run": key.run, "error": str(error)}
            log.warning(
                "a run is stopped without its directory", extra={"action": "stop_without_state", "facts": facts}
            )
            return without_directory(await self._store.kill_strays(directory.tag))
        here = await _stop(directory, LocalPlace(directory, LOCAL), times, reason)
        if directory.is_local:
            return here
        if here.processes:  # of an agent of this machine that has written that it lives elsewhere
            return unsealed(here)
        waits = patient or not self.is_silent(key)
        return await self._stop_elsewhere(directory, times, reason, waits=waits) or unsealed(None)

    def is_silent(self, key: RunKey) -> bool:
        """Whether a stop could not reach the run's machine a moment ago, whichever run's it was."""
        since = self._silent.get(_machine_of(self._store.directory(key)))
        return since is not None and time.monotonic() - since < _SILENT_S

    async def _stop_elsewhere(
        self, directory: RunDirectory, times: StopTimes, reason: str, *, waits: bool
    ) -> StopReport | None:
        """None where nobody knows what lives there. `waits`: for a machine that does not answer at once."""
        now = asyncio.get_running_loop().time
        until, why = now() + (UNREACHABLE_S if waits else 0), "no answer in time"
        machine = _machine_of(directory)
        try:
            async with timeouts.timeout(None) as deadline:
                while True:
                    deadline.reschedule(max(until, now() + (_TRY_S if waits else _AGAIN_S)))
                    try:
                        place = self._place_elsewhere(directory)
                        first = await place.handle(1)
                        if not waits:
                            await first.state()  # where its directories are may be known without a word of it
                        deadline.reschedule(now() + times.kill_after_s + _STOP_S)
                        if await _is_removed(directory, place):
                            report = await asyncio.to_thread(_report_of_removed, directory)
                        else:
                            report = await _stop(directory, place, times, reason)
                        self._silent.pop(machine, None)
                        return report.model_copy(update={"place": await place.name()})
                    except (shim.MachineUnreachable, shim.StartFailed, Unreachable) as error:
                        why = str(error)
                        if isinstance(error, NoPlace | shim.MachineUnusable) or now() > until:
                            break
                    await asyncio.sleep(_PAUSE_S)
        except TimeoutError:
            pass
        self._silent[machine] = time.monotonic()
        with contextlib.suppress(OSError):
            directory.note_left()  # whatever is written down: a sweep looks again
        facts = {"run": directory.key.run, "error": why}
        log.warning("a run's machine cannot be reached", extra={"action": "unreachable", "facts": facts})
        return None

    async def release(self, key: RunKey) -> bool:
        """Let the shims of ended processes go, and remove what the run has elsewhere; whether an agent of this machine
        is at work.
        """
        directory = self._store.directory(key)
        numbers = [int(each.name) for each in directory.all_attempts()]
        _, is_at_work = await _release(LocalPlace(directory, LOCAL), numbers)
        if not directory.is_local and not self.is_silent(key):
            await self._release_elsewhere(key, directory, numbers)
        return is_at_work

    async def _release_elsewhere(self, key: RunKey, directory: RunDirectory, numbers: Sequence[int]) -> None:
        try:
            async with timeouts.timeout(_RELEASE_S):
                place = self._place_elsewhere(directory)
                if await _is_removed(directory, place):
                    return
                kept, _ = await _release(place, numbers)
                if not await _is_left(place, kept):
                    await _removed(place)
                    directory.note_removed()
        except (shim.MachineUnreachable, Unreachable, TimeoutError) as error:  # a sweep tries again
            facts = {"run": key.run, "error": str(error) or type(error).__name__}
            log.info("what a run has elsewhere is not removed yet", extra={"action": "place_left", "facts": facts})
        except shim.StartFailed as error:  # so it does here, but a person may have to mend what the machine says
            facts = {"run": key.run, "error": str(error)}
            log.warning("what a run has elsewhere cannot be removed", extra={"action": "place_left", "facts": facts})

    def has_living(self, key: RunKey) -> bool:
        """Whether a shim of this run lives. What is elsewhere counts as living until it was removed."""
        directory = self._store.directory(key)
        if not directory.is_local and not directory.is_removed:
            return True
        return any(shim.is_alive(attempt) for attempt in directory.all_attempts())

    def _place(self, directory: RunDirectory) -> Place:
        if directory.is_removed:
            return LocalPlace(directory, LOCAL)  # its journals are all that is left
        return self._place_elsewhere(directory)

    def _place_elsewhere(self, directory: RunDirectory) -> Place:
        """The same, whether or not it was removed."""
        kind = directory.placement.get("kind")
        if kind is None:
            raise NoPlace(f"where the run's processes live was lost with {directory.path}/run.json")
        place_of = self._places.get(str(kind))
        if place_of is None:
            raise NoPlace(f"this worker does not know runtime {kind!r}: another version began the run")
        try:
            return place_of(directory)
        except shim.MachineUnusable as error:
            raise NoPlace(str(error)) from error

    async def _clear_earlier(self, directory: RunDirectory, place: Place, attempt: int) -> None:
        """No second agent beside what a lost shim's left. Raises AgentFailed."""
        for number in await _lost(place, range(1, attempt)):
            cleared = await place.clear(number)
            if cleared.left:
                raise AgentFailed(f"processes of an earlier attempt cannot be stopped: {list(cleared.left)}")
            if not cleared.proven:
                facts = {"run": directory.key.run, "suspects": cleared.suspects}
                log.warning("a lost shim's agent may have left something", extra={"action": "unproven", "facts": facts})


def _machine_of(directory: RunDirectory) -> str:
    return json.dumps(directory.placement, sort_keys=True)


def local_place(directory: RunDirectory, forks: shim.ForkServer | None = None) -> Place:
    """The place of a run on this machine."""
    return LocalPlace(directory, LocalAccess(forks) if forks else LOCAL)


async def _stop(directory: RunDirectory, place: Place, times: StopTimes, reason: str) -> StopReport:
    """Raises MachineUnreachable: then nothing is known, and what was stopped is found stopped the next time."""
    known = directory.attempts()
    first = number = max(known, 1)
    report: StopReport | None = None
    while True:
        began = number <= known
        sealing = asyncio.create_task(_seal(place, number + 1)) if began else None
        try:
            found, sealed = await stop_attempt(await place.handle(number), times, reason, began=began)
            if began and found is None:
                found = unsealed(None)  # its journal is here, and the machine knows of nothing: is it where that was?
            is_last = await sealing if sealing else not await _may_follow(place, number)
        finally:
            if sealing:
                sealing.cancel()
                await asyncio.gather(sealing, return_exceptions=True)
        report = found or report
        if not sealed:
            report = unsealed(report)
            break
        if is_last:
            break
        number += 1
    report = report or StopReport(outcome="stopped", phase="running", how="exited")
    for lost in await _lost(place, range(1, first)):
        report = with_leftovers(report, await place.clear(lost))
    return report


async def _seal(place: Place, number: int) -> bool:
    """Keep this attempt from being started; False where one may be at work. While the one before it is being stopped:
    each look at another machine takes its time.
    """
    return await (await place.handle(number)).seal()


async def _is_removed(directory: RunDirectory, place: Place) -> bool:
    """Whether what the run had there has been removed. The machine is asked: what is written down here an agent of this
    machine can have written, and what is not so is taken back. Raises MachineUnreachable, OSError.
    """
    if not directory.is_removed:
        return False
    for number in range(1, directory.attempts() + 2):
        state = await (await place.handle(number)).state()
        if state.alive or state.used or state.stray:
            directory.note_left()
            return False
    return True


def _report_of_removed(directory: RunDirectory) -> StopReport:
    """The report of a stop that finds nothing on the run's machine: the copy of the last journal tells whether its shim
    saw the agent's end.
    """
    newest = directory.attempts()
    if newest and not has_end(directory.attempt(newest) / "journal"):
        return unsealed(None)
    return StopReport(outcome="already_finished", phase="running", how="exited")


async def _may_follow(place: Place, number: int) -> bool:
    """Whether a further attempt might be starting: it is looked at, and entombed, too."""
    following, this = await place.handle(number + 1), await place.handle(number)
    next_state, state = await asyncio.gather(following.state(), this.state())
    return not next_state.stopped and state.used


async def _lost(place: Place, numbers: Iterable[int]) -> list[int]:
    """The attempts whose shim did not live to see its agent's end."""
    return [number for number in numbers if (await (await place.handle(number)).state()).lost]


def _process(host: str, status: shim.Status, place: str | None) -> Handle:
    boot_id, pid, start_time = status.boot_id, status.pid, status.start_time
    return Handle(host=host, boot_id=boot_id, pid=pid, start_time=start_time, place=place)


async def _start(handle: ShimHandle, launch: Launch, tag: str) -> None:
    spec = shim.Spec(
        argv=launch.argv,
        cwd=launch.cwd,
        cwd_resolved=True,
        env=launch.env,
        files=launch.files,
        input=[shim.Input(command, data) for command, data in launch.first_input],
        close_stdin=launch.close_stdin,
        stdin="socket" if launch.stdin_has_authority else "pipe",
        tag=tag,
        lease=timedelta(seconds=launch.lease_s),
        terminate_after=timedelta(seconds=launch.stop_times.terminate_after_s),
        kill_after=timedelta(seconds=launch.stop_times.kill_after_s),
    )
    try:
        await handle.start(spec)
    except (shim.AlreadyRunning, shim.AlreadyUsed):
        pass  # a worker that died in this very moment had started it: it is adopted
    except shim.Tombstoned as error:
        raise AlreadyStopped(str(error)) from error
    except shim.StartRefused as error:
        if lack := disk.exhaustion(error):  # of this worker or its machine: the agent is as well as before
            raise OSError(lack.errno, f"the agent could not be started: {lack.strerror}") from error
        raise _translated(error, launch) from error


async def _connect(handle: ShimHandle, epoch: int | None) -> shim.Connection:
    try:
        return await handle.connect(epoch, QUICK)
    except shim.ShimUnresponsive:
        await handle.thaw()
        return await handle.connect(epoch)


async def _release(place: Place, numbers: Iterable[int]) -> tuple[list[int], bool]:
    """The attempts whose shim did not answer that it goes, and whether one has an agent at work.

    Raises MachineUnreachable.
    """
    kept, is_at_work = [], False
    for number in numbers:
        try:
            async with await (await place.handle(number)).connect(None, PATIENT) as connection:
                await connection.release()
        except shim.MachineUnreachable:
            raise
        except shim.ShimError as error:
            kept.append(number)  # it is gone, or has an agent that works
            is_at_work = is_at_work or isinstance(error, shim.AgentRunning)
    return kept, is_at_work


async def _is_left(place: Place, numbers: Iterable[int]) -> bool:
    """Whether something of lost shims is there and cannot be killed. Raises MachineUnreachable."""
    return any([(await place.clear(number)).left for number in await _lost(place, numbers)])


async def _removed(place: Place) -> None:
    """Remove the place once its last shim has gone. Raises MachineUnreachable."""
    until = time.monotonic() + UNREACHABLE_S
    while True:
        try:
            return await place.remove()
        except shim.AlreadyRunning as error:
            if time.monotonic() > until:
                raise shim.MachineUnreachable(str(error)) from error
        await asyncio.sleep(_PAUSE_S)


@contextlib.contextmanager
def _reaching(*, to_launch: bool) -> Iterator[None]:
    """A machine that a person has to mend fails a process that is not there yet. One that is at work is waited for."""
    try:
        yield
    except (shim.MachineUnusable, shim.StartFailed) as error:
        if to_launch and not disk.exhaustion(error):
            raise AgentFailed(f"the agent could not be started: {error}") from error
        raise Unreachable(str(error)) from error
    except shim.MachineUnreachable as error:
        raise Unreachable(str(error)) from error


def _translated(error: shim.StartRefused, launch: Launch) -> RunError:
    if isinstance(error, shim.AgentNotFound | shim.AgentNotExecutable):
        return AgentNotInstalled(f"{launch.argv[0]}: {error}")
    if isinstance(error, shim.NoDirectory | shim.Moved):
        return WorkspaceError(f"workspace.path: {error}")
    return AgentFailed(f"the agent could not be started: {error}")
