"""Reading a shim's state.json, which its agent may have replaced by anything.

What must not live here: what follows from it.
"""

from __future__ import annotations

import json
import os
import re
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LIMIT = 64 * 1024
_MARK = re.compile("[0-9a-f]{32}")


def read_state(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """Raises OSError or ValueError for whatever no shim has written."""
    fd = os.open(os.path.join(directory, "state.json"), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LIMIT:
            raise ValueError("no state that a shim writes")
        state = json.loads(os.read(fd, _LIMIT))
    except RecursionError:
        raise ValueError("no state that a shim writes") from None
    finally:
        os.close(fd)
    if not isinstance(state, dict) or not _MARK.fullmatch(str(state.get("mark"))):
        raise ValueError("no state that a shim writes")
    return state


def state_of(directory: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The same; None where there is none that a shim writes."""
    try:
        return read_state(directory)
    except (OSError, ValueError):
        return None
