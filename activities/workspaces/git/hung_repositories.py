"""Repositories in which git has hung: searched longer before the next git, which waits for a cool-down.

What counts as a hang must not live here (see runner), nor which files cause one (see blocking_files).
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from activities.workspaces.git.blocking_files import find_blocking_file
from activities.workspaces.git.repository import Repository
from activities.workspaces.git.runner import GitFailed, GitHung

SEARCH_S, LONG_SEARCH_S = 1.0, 5.0
"""Seconds of search for blocking files before each git, and before the next one after a git that did not end."""
COOL_DOWN_S = 60.0
"""No git is started in a repository for this many seconds after one hung there."""
_MAX_KNOWN = 1000


@dataclass
class HungRepositories:
    """Work trees whose last git did not end by itself: when that was, and the error if it hung."""

    _known: dict[Path, tuple[float, str | None]] = field(default_factory=dict)

    async def check(self, repository: Repository) -> None:
        """Raises GitFailed where git would hang, or has hung within the cool-down."""
        since, error = self._known.get(repository.top, (0.0, None))
        seconds = LONG_SEARCH_S if repository.top in self._known else SEARCH_S
        if path := await asyncio.to_thread(find_blocking_file, repository, seconds):
            raise GitFailed(f"git would hang at {path}")
        left = since + COOL_DOWN_S - time.monotonic()
        if error is not None and left > 0:
            raise GitFailed(f"{error}; it is asked again in {left:.0f} s")

    @contextmanager
    def recorded(self, repository: Repository) -> Iterator[None]:
        """Record whether the git run within hung, or was cancelled before its end."""
        if len(self._known) > _MAX_KNOWN:
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
