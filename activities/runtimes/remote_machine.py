"""Another machine, as one worker process knows it: its shims, what a login has there, and where our directories are.

How bytes get there must not live here.
"""

import json
import math
import time
from collections.abc import Sequence
from pathlib import PurePath

from activities.ports.place import PlaceInfo
from activities.runtimes.exec_access import ExecAccess
from activities.shim.client import MachineUnreachable

DIRECTORY = PurePath(".local", "state", "steersman")
"""In the home of the user there."""
_LOOK_S = 600.0
"""Seconds between two looks at its clock."""
_AGREES_MS = 2000
"""Two clocks that differ by less count as one: so long an answer may take."""
_RECENT_S = 2.0
"""What a login has is asked for twice before a process, to judge the run and to start it: once does, within this."""


class RemoteMachine:
    """`name`: as people know it. `directory`: where everything of ours is kept there; by default in the user's home.

    Every method raises MachineUnreachable.
    """

    def __init__(self, name: str, access: ExecAccess, directory: str | None = None) -> None:
        self.name, self.access = name, access
        self._named, self._directory = directory, PurePath(directory or "")
        self._clock_ms, self._looked = 0, -math.inf
        self._told: tuple[float, list[str], PlaceInfo] | None = None

    @property
    def known_directory(self) -> PurePath:
        """The same, where it was named."""
        return self._directory

    async def directory(self) -> PurePath:
        """Where everything of ours is kept there."""
        await self._look()
        return self._directory

    async def clock_ms(self) -> int:
        """What has to be added to its times to have them by this machine's clock; 0 where the two agree well enough."""
        await self._look()
        return self._clock_ms

    async def _look(self) -> None:
        if time.monotonic() - self._looked < _LOOK_S:
            return
        answer = await self.access.ask("home")
        home, clock = answer.get("home"), answer.get("time_ms")
        if not isinstance(home, str) or not home.startswith("/") or "\0" in home or not isinstance(clock, int):
            raise MachineUnreachable(f"{self.name} does not say where its user's home is: {home!r:.100}")
        if self._looked == -math.inf:  # it stays where it was: what is at work there is looked for by its path
            self._directory = PurePath(self._named) if self._named else PurePath(home, DIRECTORY)
        self._compare(clock)

    def _compare(self, clock: int) -> None:
        behind = round(time.time() * 1000) - clock
        self._clock_ms = behind if abs(behind) > _AGREES_MS else 0
        self._looked = time.monotonic()

    async def info(self, programs: Sequence[str]) -> PlaceInfo:
        """What a login has there, and which of these programs are on its PATH. The machine may answer as it likes."""
        told, self._told = self._told, None
        if told and told[1] == list(programs) and time.monotonic() - told[0] < _RECENT_S:
            return told[2]
        answer = await self.access.ask("info", json.dumps(list(programs)))
        paths = {name: path for name, path in _texts(answer.get("programs")).items() if path.startswith("/")}
        if self._named and isinstance(clock := answer.get("time_ms"), int):
            self._compare(clock)  # which a look at its home would cost a program of its own
        found = PlaceInfo(self.name, _texts(answer.get("environ")), paths, is_root=answer.get("root") is True)
        self._told = (time.monotonic(), list(programs), found)
        return found


def _texts(value: object) -> dict[str, str]:
    """What of an answer are names and values that a process's environment can have."""
    pairs = value.items() if isinstance(value, dict) else ()
    return {name: text for name, text in pairs if isinstance(text, str) and "\0" not in name + text and "=" not in name}
