"""Where tests keep what they write: in memory, where there is room. On a disk they take a tenth more processor time:
each file that is made there is looked for a place beyond those of all that were removed in the last minute.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
MEMORY_BYTES = 4 << 30
"""Free before: all tests together write less than 2 GiB."""


def directory() -> Path | None:
    """Where new directories can be in memory, with programs that can be run."""
    if not os.access(MEMORY, os.W_OK) or os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        return None
    return MEMORY if shutil.disk_usage(MEMORY).free >= MEMORY_BYTES else None


def use() -> None:
    """Have temporary files there, also those of programs that this process starts, unless somebody has said where, or
    tests are on a cluster: of this machine's files its pods see /tmp alone.
    """
    if not {"TMPDIR", "KUBECONFIG"} & set(os.environ) and (chosen := directory()):
        os.environ["TMPDIR"] = str(chosen)
        tempfile.tempdir = None  # it is looked for again


def give_back(directory: Path) -> Path:
    """Move what is kept to a disk; where it is then. Of trees deeper than a path can name the top alone is kept: `mv`
    would leave all of it in memory, and a few runs that failed would leave the next ones none.
    """
    place = Path("/tmp") / directory.name
    if directory.parent != MEMORY or shutil.disk_usage(place.parent).free < MEMORY_BYTES:
        return directory
    subprocess.run(["cp", "-a", directory, place], stderr=subprocess.DEVNULL, check=False)
    subprocess.run(["rm", "-rf", directory], stderr=subprocess.DEVNULL, check=False)
    return place
