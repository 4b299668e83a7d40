"""Sessions that agents held in copies, and to which workspace each of them belongs.

held/<agent>@<session>    the workspace, resolved

An agent's own record of such a session names the copy, which is gone. Agents run as the same user and may forge an
entry, as they may that record.
"""

import os
from contextlib import suppress
from pathlib import Path

from activities.store import disk


def note_held(state: Path, agent: str, session: str, workspace: str) -> None:
    """Record that. Raises OSError."""
    directory = state / "held"
    directory.mkdir(mode=0o700, exist_ok=True)
    disk.write_new(directory / f"{agent}@{session}", workspace)


def held_in(state: Path, agent: str, session: str) -> Path | None:
    """The workspace; None where nothing is recorded. `session` is an id that the agent takes."""
    try:
        return Path(disk.read_text(state / "held" / f"{agent}@{session}"))
    except (OSError, ValueError):
        return None


def prune_held(state: Path, horizon: float) -> None:
    """Forget what was recorded before this unix time."""
    for name in disk.names(state / "held"):
        path = state / "held" / name
        with suppress(OSError):
            if os.lstat(path).st_mtime < horizon:
                path.unlink()
