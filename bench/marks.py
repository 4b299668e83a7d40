"""Whose processes are whose: by a mark in their environment, which every descendant inherits. Linux only."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

NAME = "STEERSMAN_MARK"


def mark_of(state: Path, run: str) -> str:
    """The mark that the run's newest process carries."""
    newest = max(state.glob(f"runs/{run}/*/attempts/*/state.json"), key=lambda path: path.stat().st_mtime)
    return str(json.loads(newest.read_bytes())["mark"])


def marked(mark: str) -> set[int]:
    """Every process with that mark, zombies left out."""
    wanted = f"\0{NAME}={mark}\0".encode()
    found = set()
    for name in os.listdir("/proc"):  # noqa: PTH208 - this is timed
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:  # noqa: PTH123 - this is timed
                    if wanted in b"\0" + file.read():
                        found.add(int(name))
            except OSError:
                continue
    return found


@dataclass(frozen=True)
class Gone:
    """When the last process with the mark was gone, by time.monotonic(), and what was still there at the deadline."""

    at: float
    left: frozenset[int]


def wait_until_gone(mark: str, patience_s: float = 30) -> Gone:
    """Look every millisecond. For a thread of its own."""
    deadline = time.monotonic() + patience_s
    known = marked(mark)
    while True:
        while alive := {pid for pid in known if _lives(pid)}:
            if time.monotonic() > deadline:
                return Gone(time.monotonic(), frozenset(alive))
            time.sleep(0.001)
        at = time.monotonic()
        # Looking through all of /proc takes some milliseconds, which belong to the looking.
        known = marked(mark)
        if not known:
            return Gone(at, frozenset())


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - this is timed
            return file.read().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False
