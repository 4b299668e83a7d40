"""Repositories at which git has hung: looked through before the next git, and left alone for a while.

What a hang is, is git's affair; what it may come from, that of traps.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from activities.loops.git import GitFailed, GitHung
from activities.loops.repository import Repository
from activities.loops.traps import find_trap

SEARCH_S, LONG_SEARCH_S = 1.0, 5.0
"""How long a work tree is looked through for what git would hang at: always, and after a git did not end by itself."""
COOL_DOWN_S = 60.0
_MANY = 1000


@dataclass
class Hangs:
    """Work trees whose last git did not end by itself: when, and what was said where it hung."""

    _known: dict[Path, tuple[float, str | None]] = field(default_factory=dict)

    async def check(self, repository: Repository) -> None:
        """Raises GitFailed where git would hang, or has hung just now."""
        since, said = self._known.get(repository.top, (0.0, None))
        seconds = LONG_SEARCH_S if repository.top in self._known else SEARCH_S
        if trap := await asyncio.to_thread(find_trap, repository, seconds):
            raise GitFailed(f"git would hang at {trap}")
        left = since + COOL_DOWN_S - time.monotonic()
        if said is not None and left > 0:
            raise GitFailed(f"{said}; it is asked again in {left:.0f} s")

    @contextmanager
    def watched(self, repository: Repository) -> Iterator[None]:
        """Remembers a git that hung, or that nobody waited for to its end."""
        if len(self._known) > _MANY:
            self._known.clear()
        try:
            yield
        except GitHung as error:
            self._known[repository.top] = (time.monotonic(), str(error))
            raise
        except asyncio.CancelledError:
            self._known[repository.top] = (time.monotonic(), None)
            raise
        else:
            self._known.pop(repository.top, None)
