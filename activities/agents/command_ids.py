"""Ids of the commands that are written to an agent, and of what they say: the same in every worker, so that each is
written once, and taken once by an agent that knows ids.

ARCHITECTURE.md has the table of all command ids.
"""

import re
from typing import Final
from uuid import NAMESPACE_URL, uuid5

from steersman.contracts.activities import RunKey

MESSAGE = "message-"
"""The write of a message's text has the id `message-<message id>`."""
INTERRUPT = "interrupt-"
"""The write of an interrupt has the id `interrupt-<message id>`."""

_ID: Final = re.compile(r"[!-~]{1,200}")


def uuid_for(key: RunKey, name: str) -> str:
    """The uuid of something that the run writes under this name."""
    return str(uuid5(NAMESPACE_URL, f"steersman:{key.run}:{key.execution}:{name}"))


def id_of(prefix: str, theirs: str) -> str:
    """The id of a command about what the agent itself has given a name: that name where a shim takes it for an id,
    printable ASCII and not too long, else a uuid of it.
    """
    ident = prefix + theirs
    return ident if _ID.fullmatch(ident) else f"{prefix}{uuid5(NAMESPACE_URL, theirs)}"
