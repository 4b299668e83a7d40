"""Ids of runs, threads, loops and messages, as clients generate them.

They sort by the time of their generation (UUID version 7, RFC 9562). Nothing is parsed out of an id again: everywhere
else it is an opaque string.
"""

import re
import secrets
import time
import uuid

from steersman.contracts.errors import InvalidRequest

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")
_LOOP_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,179}")


def new_run_id() -> str:
    """`run-` and a time-ordered uuid."""
    return f"run-{uuid7()}"


def new_thread_id() -> str:
    """`thread-` and a time-ordered uuid."""
    return f"thread-{uuid7()}"


def new_loop_id() -> str:
    """`loop-` and a time-ordered uuid."""
    return f"loop-{uuid7()}"


def new_message_id() -> str:
    """`msg-` and a time-ordered uuid."""
    return f"msg-{uuid7()}"


def uuid7() -> uuid.UUID:
    """A UUID version 7: 48 bits of Unix time in ms, and 74 random bits around version and variant."""
    value = (time.time_ns() // 1_000_000 & (1 << 48) - 1) << 80 | secrets.randbits(80)
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return uuid.UUID(int=value)


def check_run_id(run_id: str) -> str:
    """The id unchanged. Raises InvalidRequest for one that cannot name a directory on every system."""
    if not _RUN_ID.fullmatch(run_id):
        raise InvalidRequest("run_id: must be 1 to 200 of A-Z a-z 0-9 . _ : - and begin with a letter or digit")
    return run_id


def check_loop_id(loop_id: str) -> str:
    """The id unchanged. Raises InvalidRequest for one that is wrong, or too long for the ids of the loop's runs."""
    if not _LOOP_ID.fullmatch(loop_id):
        raise InvalidRequest("loop_id: must be 1 to 180 of A-Z a-z 0-9 . _ : - and begin with a letter or digit")
    return loop_id
