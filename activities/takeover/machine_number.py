"""Which of the machines that a state directory has been on is the newest: the number that a worker's identity bears.

A host is one machine. Where its directory was moved to another one while the first was only cut off from the server,
workers of both are at work once that is back, and what the first one has is old. By the number they tell which is
which; the server says who is there. What is done about it must not live here.

The number is the time of the first start there, and above the one before. A count in the directory alone would go back
with a backup of it, below the workers that the server has had since, and be one for two copies of a machine.
"""

import re
import time
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from activities.store.directory_lock import exclusively
from activities.store.notes import note, noted
from activities.takeover.liveness import boot_id

FILE: Final = "machine.json"
_LAST: Final = 999_999_999
_UNIT_S: Final = 10
"""In seconds since 1970 the number would have more than nine digits."""
_BORNE: Final = re.compile(r"[0-9]+-[0-9a-f]+-([0-9a-f]{8})\.([0-9]{1,9})@")


class _Machine(BaseModel):
    model_config = ConfigDict(frozen=True)

    number: int = Field(ge=1, le=_LAST)
    boot: str


class Generation(NamedTuple):
    """Of which store a worker is, and on which of its machines."""

    store: str
    number: int

    def is_older_than(self, other: "Generation") -> bool:
        """Whether the other one is at work on a machine to which the directory has come later."""
        return self.store == other.store and self.number < other.number


async def machine_number(state: Path) -> int:
    """Of this machine: a higher one than before where the directory has come from another, or this was restarted.
    Raises OSError.
    """
    return await exclusively(state, lambda: _numbered(state / FILE))


def identity_of(name: str, store: str, number: int, hostname: str) -> str:
    """What the server shows of a worker."""
    return f"{name}-{store[:8]}.{number}@{hostname}"


def generation_of(identity: str) -> Generation | None:
    """None of a worker of an older version, and of one that could not count."""
    found = _BORNE.match(identity)
    return Generation(found[1], int(found[2])) if found else None


def _numbered(path: Path) -> int:
    here, before = boot_id(), noted(path, _Machine)
    if before and here in (None, before.boot):
        return before.number
    number = max(int(time.time()) // _UNIT_S, before.number + 1 if before else 1)
    now = _Machine(number=min(number, _LAST), boot=here or "")
    note(path, now)
    return now.number
