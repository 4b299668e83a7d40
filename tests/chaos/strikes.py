"""Faults that strike from below: worker, shim, agent, server, disk, clock. Targets are found in /proc, not asked for:
what Steersman says of its processes is not believed here.
"""

import os
import signal
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.machine import Machine
from tests.chaos.schedule import Step
from tests.chaos.subjects import Subject
from tests.support.processes import children, command_lines

FROM_BELOW = ("worker_", "shim_", "agent_", "server_", "disk_", "clock_")
SHIM = "steersman-shim "
STEPS_S = (-86_400, -3600, -30, -2, 2, 30, 3600, 86_400)
CLOCK_S = 4.0


@dataclass(frozen=True)
class Living:
    """A shim that lives, and the agent below it."""

    subject: Subject
    run: str
    shim: int
    agent: int | None


def living(state: Path, subjects: Collection[Subject]) -> list[Living]:
    """The shims of these subjects, as the machine's process table has them."""
    shims: list[tuple[int, str]] = []
    for pid, line in sorted(command_lines().items()):
        directory = line.strip().removeprefix(SHIM)
        if line.startswith(SHIM) and directory.startswith(f"{state}/runs/"):
            shims.append((pid, Path(directory).relative_to(state / "runs").parts[0]))
    agents = children([pid for pid, _ in shims])
    return [
        Living(subject, run, pid, agents[pid][0] if pid in agents else None)
        for pid, run in shims
        for subject in subjects
        if subject.owns(run)
    ]


class Strikes:
    """`strike` says what it did, or None where nothing was there to be struck."""

    def __init__(self, machine: Machine, subjects: Callable[[], list[Subject]]) -> None:
        self._machine, self._subjects = machine, subjects

    def strike(self, step: Step) -> str | None:
        """Strike once."""
        what, _, how = step.fault.partition("_")
        if what in {"shim", "agent"}:
            return self._process(step, what, how)
        strikes = {"worker": self._worker, "server": self._server, "disk": self._disk, "clock": self._clock}
        told = strikes[what](step, how)
        if told is not None:
            for subject in self._subjects():
                subject.befell[step.fault] += 1
        return told

    def _server(self, step: Step, how: str) -> str | None:
        if self._machine.server_struck:
            return None
        seconds = 0.2 + 4 * step.chance
        self._machine.strike_server(how, seconds)
        return f"for {seconds:.1f} s"

    def _disk(self, step: Step, how: str) -> str | None:
        if self._machine.disk_full or not self._machine.can_fill:
            return None
        seconds = 0.3 + 3 * step.chance
        self._machine.fill_disk(seconds)
        return f"for {seconds:.1f} s"

    def _clock(self, step: Step, how: str) -> str | None:
        if not self._machine.can_step:
            return None
        by = STEPS_S[int(step.chance * len(STEPS_S))]
        self._machine.step_clock(by, CLOCK_S)
        return f"by {by} s, for {CLOCK_S:g} s"

    def _worker(self, step: Step, how: str) -> str | None:
        workers = self._machine.workers()
        if not workers:
            return None
        number = workers[step.target % len(workers)]
        log = self._machine.places[number].worker.log.name
        if how == "frozen":
            seconds = 0.5 + 15 * step.chance
            self._machine.freeze_worker(number, seconds)
        else:
            seconds = 2 * step.chance
            (self._machine.kill_worker if how == "killed" else self._machine.end_worker)(number, seconds)
        return f"{log}, for {seconds:.1f} s"

    def _process(self, step: Step, what: str, how: str) -> str | None:
        there = living(self._machine.site.state, self._subjects())
        there = [each for each in there if what == "shim" or each.agent is not None]
        if not there:
            return None
        each = there[step.target % len(there)]
        pid = each.shim if what == "shim" else each.agent
        assert pid is not None
        each.subject.befell[step.fault] += 1
        try:
            if how == "frozen":
                seconds = 0.2 + 6 * step.chance
                self._machine.freeze(pid, seconds)
                return f"{each.run} ({pid}), for {seconds:.1f} s"
            os.kill(pid, signal.SIGKILL if how == "killed" else signal.SIGTERM)
        except ProcessLookupError:
            return None
        return f"{each.run} ({pid})"
