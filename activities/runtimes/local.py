"""This machine as a runtime: each process under a shim in the run's directory."""

import asyncio
import contextlib
import logging
from datetime import timedelta
from pathlib import Path

from activities.ports.runtime import AlreadyStopped, Channel, Fenced, Incompatible, Launch, StopTimes
from activities.runtimes.leftovers import clear, lost, was_used, with_leftovers, without_directory
from activities.runtimes.shim_channel import ShimChannel
from activities.runtimes.stop import PATIENT, QUICK, stop_attempt, unsealed
from activities.shim import client as shim
from activities.store.run_directory import RunDirectory, RunGone
from activities.store.runs import RunStore
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import AgentFailed, AgentNotInstalled, RunError, WorkspaceError
from steersman.contracts.run import StopReport

log = logging.getLogger("steersman.local")


class LocalRuntime:
    """Runtime {"kind": "local"}."""

    def __init__(self, store: RunStore, host: str, spare: shim.Spare | None = None) -> None:
        self._store, self._host, self._spare = store, host, spare

    def attempts(self, key: RunKey) -> int:
        """How many processes this run has had here."""
        return self._store.directory(key).attempts()

    async def open(self, key: RunKey, attempt: int, epoch: int, launch: Launch | None) -> Channel:
        """Attach to the attempt's process, or start it. Raises RunError, Fenced, AlreadyStopped."""
        directory = self._store.directory(key).attempt(attempt)
        if launch is not None:
            await self._clear_earlier(key, attempt)
            await self._start(directory, launch, self._store.directory(key).tag)
        try:
            connection = await self._connect(directory, epoch)
        except shim.ShimGone:
            await clear(directory)
            return ShimChannel(directory, self._host, epoch, None)
        except shim.Fenced as error:
            raise Fenced(str(error)) from error
        except shim.ProtocolMismatch as error:
            raise Incompatible(str(error)) from error
        return ShimChannel(directory, self._host, epoch, connection)

    async def stop(self, key: RunKey, times: StopTimes, reason: str, *, known: int = 0) -> StopReport:
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
        first = number = max(directory.attempts(), 1)
        report: StopReport | None = None
        while True:
            found, sealed = await stop_attempt(directory.attempt(number), times, reason)
            report = found or report
            if not sealed:
                report = unsealed(report)
                break
            if not _may_follow(directory, number):
                break
            number += 1
        report = report or StopReport(outcome="stopped", phase="running", how="exited")
        for each in lost(directory, first):
            report = with_leftovers(report, await clear(each))
        return report

    async def release(self, key: RunKey) -> None:
        """Let the shims of ended processes go."""
        for attempt in self._store.directory(key).all_attempts():
            with contextlib.suppress(shim.ShimError):
                async with await shim.connect(attempt, epoch=None, timeout=PATIENT) as connection:
                    await connection.release()

    def has_living(self, key: RunKey) -> bool:
        """Whether a shim of this run lives."""
        return any(shim.is_alive(attempt) for attempt in self._store.directory(key).all_attempts())

    async def _start(self, directory: Path, launch: Launch, tag: str) -> None:
        directory.parent.mkdir(mode=0o700, exist_ok=True)
        spec = shim.Spec(
            argv=launch.argv,
            cwd=launch.cwd,
            cwd_resolved=True,
            env=launch.env,
            input=[shim.Input(command, data) for command, data in launch.first_input],
            close_stdin=launch.close_stdin,
            stdin="socket" if launch.stdin_has_authority else "pipe",
            tag=tag,
            lease=timedelta(seconds=launch.lease_s),
            terminate_after=timedelta(seconds=launch.stop_times.terminate_after_s),
            kill_after=timedelta(seconds=launch.stop_times.kill_after_s),
        )
        try:
            await shim.start(directory, spec, spare=self._spare)
        except (shim.AlreadyRunning, shim.AlreadyUsed):
            pass  # a worker that died in this very moment had started it: it is adopted
        except shim.Tombstoned as error:
            raise AlreadyStopped(str(error)) from error
        except shim.StartRefused as error:
            raise _translated(error, launch) from error

    async def _connect(self, directory: Path, epoch: int) -> shim.Connection:
        try:
            return await shim.connect(directory, epoch=epoch, timeout=QUICK)
        except shim.ShimUnresponsive:
            await shim.thaw(directory)
            return await shim.connect(directory, epoch=epoch)

    async def _clear_earlier(self, key: RunKey, attempt: int) -> None:
        """No second agent beside what a lost shim's left. Raises AgentFailed."""
        for each in lost(self._store.directory(key), attempt):
            cleared = await clear(each)
            if cleared.left:
                raise AgentFailed(f"processes of an earlier attempt cannot be stopped: {list(cleared.left)}")
            if not cleared.proven:
                facts = {"run": key.run, "suspects": cleared.suspects}
                log.warning("a lost shim's agent may have left something", extra={"action": "unproven", "facts": facts})


def _may_follow(directory: RunDirectory, number: int) -> bool:
    """Whether a further attempt might be starting: it is looked at, and entombed, too."""
    return not (directory.attempt(number + 1) / "stopped").exists() and was_used(directory.attempt(number))


def _translated(error: shim.StartRefused, launch: Launch) -> RunError:
    if isinstance(error, shim.AgentNotFound | shim.AgentNotExecutable):
        return AgentNotInstalled(f"{launch.argv[0]}: {error}")
    if isinstance(error, shim.NoDirectory | shim.Moved):
        return WorkspaceError(f"workspace.path: {error}")
    return AgentFailed(f"the agent could not be started: {error}")
