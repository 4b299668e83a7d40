"""Ids of the commands that are written to an agent, and of what they say: the same in every worker, so that each is
written once, and taken once by an agent that knows ids.

ARCHITECTURE.md has the table of all command ids.
"""

from uuid import NAMESPACE_URL, uuid5

from steersman.contracts.activities import RunKey

MESSAGE = "message-"
"""The write of a message's text has the id `message-<message id>`."""
INTERRUPT = "interrupt-"
"""The write of an interrupt has the id `interrupt-<message id>`."""


def uuid_for(key: RunKey, name: str) -> str:
    """The uuid of something that the run writes under this name."""
    return str(uuid5(NAMESPACE_URL, f"steersman:{key.run}:{key.execution}:{name}"))
