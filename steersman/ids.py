"""Ids of runs, threads, loops and messages, as clients generate them.

Those of runs and loops are for people: words of what is asked, and enough at random that no two are the same. Where
payloads are encrypted they say nothing of it: ids are not. The others are UUIDs of version 7 (RFC 9562), which sort by
the time of their generation. Nothing is parsed out of an id again: everywhere else it is an opaque string.
"""

import re
import secrets
import time
import uuid

from steersman.contracts.errors import InvalidRequest

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")
_LOOP_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,179}")


_LETTERS = "23456789bcdfghjkmnpqrstvwxz"
"""Without those that are mistaken for others, and without vowels: they make no words."""
_RANDOM = 6
"""Letters at random: of 1,000 runs of one name two are the same once in 800 times, and the second is refused."""
_MAX_WORD, _MAX_WORDS = 12, 3
_SMALL = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be by do does for from has have how i if in into is it its me my of on or our out please "
        "so that the their them then there these this those to us was we what when where which why with you your",
    )
)


def new_run_id(task: str = "") -> str:
    """Words of the task and random letters, `fix-tests-7k3fqm`; `run-` and a uuid where there is no word to be had."""
    return _readable(task) or f"run-{uuid7()}"


def new_thread_id() -> str:
    """`thread-` and a time-ordered uuid."""
    return f"thread-{uuid7()}"


def new_loop_id(plan: str = "") -> str:
    """As of a run; else `loop-` and a uuid."""
    return _readable(plan) or f"loop-{uuid7()}"


def new_message_id() -> str:
    """`msg-` and a time-ordered uuid."""
    return f"msg-{uuid7()}"


def _readable(text: str) -> str:
    """Empty where the first line has no word of Latin letters. What has digits or signs in it may be a key."""
    line = text.strip().partition("\n")[0][:400].lower()
    words = [word for word in re.findall(r"(?<![^\s\"'(])[a-z]{2,}(?![^\s\"'),.:;!?])", line) if word not in _SMALL]
    chosen = [word for word in words if len(word) <= _MAX_WORD][:_MAX_WORDS]
    if not chosen:
        return ""
    return "-".join((*chosen, "".join(secrets.choice(_LETTERS) for _ in range(_RANDOM))))


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
