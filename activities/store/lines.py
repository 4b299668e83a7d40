"""A file of lines, read from any byte on: of a log of gigabytes only what is asked for is read.

What the lines mean must not live here.
"""

import os
from collections.abc import Callable
from typing import BinaryIO

MAX_LINE = 32 * 1024 * 1024
"""A line of more bytes than this was not written by a worker."""
_BLOCK = 64 * 1024
_NEAR = 256 * 1024
"""Within this many bytes of what is looked for, lines are read one after another."""


def begin_of(file: BinaryIO, place: int) -> int:
    """The byte at which the line begins that this byte belongs to; of a newline, the line that it ends."""
    while place > 0:
        start = max(place - _BLOCK, 0)
        file.seek(start)
        found = file.read(place - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        place = start
    return 0


def last_line(file: BinaryIO) -> tuple[int, bytes]:
    """Where the last line begins that has its newline, and the line; (0, b"") where there is none.

    A line longer than MAX_LINE is cut off there.
    """
    end = begin_of(file, file.seek(0, os.SEEK_END))
    if end == 0:
        return 0, b""
    begin = begin_of(file, end - 1)
    file.seek(begin)
    return begin, file.read(min(end - begin, MAX_LINE))


def past(file: BinaryIO, low: int, passes: Callable[[bytes], bool]) -> int:
    """A byte at which a line begins, close before the first line that does not pass. Raises what `passes` raises.

    Lines that pass come first, as in a log whose lines are numbered. The last whole line is never passed over.

    Args:
        file: the file of lines.
        low: where a line begins before which all lines pass.
        passes: whether a line lies before what is looked for.
    """
    high, _ = last_line(file)
    while high - low > _NEAR:
        begin = max(begin_of(file, (low + high) // 2), low)
        file.seek(begin)
        line = file.readline(MAX_LINE)
        if passes(line):
            low = begin + len(line)
        else:
            high = begin
    return low
