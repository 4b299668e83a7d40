"""Machines of their own for workers, as far as those can tell: another boot, other processes, other scratch files.

The disk is the same but for what a test moves. Needs root, and namespaces of Linux.
"""

import subprocess
import sys
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

_SPACES: Final = ("unshare", "--mount", "--pid", "--time", "--mount-proc", "--kill-child")
_START: Final = """
set -e
mount --bind "$NODE/boot_id" /proc/sys/kernel/random/boot_id
while [ "$1" != -- ]; do mount --bind "$1" "$2"; shift 2; done
shift
for pid in $NODE_TAKEN; do echo $((pid - 1)) > /proc/sys/kernel/ns_last_pid; sleep 86400 & done
"$@" || true
exec sleep 86400
"""


def missing() -> str | None:
    """Why there can be no such machines here."""
    if sys.platform != "linux":
        return "machines of their own are namespaces of Linux"
    tried = subprocess.run([*_SPACES, "--fork", "true"], capture_output=True, check=False)
    if tried.returncode:
        return f"no namespaces for machines of their own: {tried.stderr.decode(errors='replace').strip()}"
    return None


class Node:
    """`root`: of what it has for itself; its processes carry it in their environment. `up_s`: seconds that it has been
    up longer than this machine. `taken`: numbers that processes of it have. `moved`: path -> what is there instead.
    """

    def __init__(
        self, root: Path, up_s: int = 0, taken: Collection[int] = (), moved: Mapping[Path, Path] | None = None
    ) -> None:
        self.root = root
        for each in (root, root / "home", root / "tmp"):
            each.mkdir()
        (root / "boot_id").write_text(f"{uuid.uuid4()}\n")
        numbers = " ".join(str(each) for each in sorted(taken))
        self.env = {"NODE": str(root), "NODE_TAKEN": numbers, "HOME": f"{root}/home", "TMPDIR": f"{root}/tmp"}
        places = (str(word) for target, source in (moved or {}).items() for word in (source, target))
        self.within = (*_SPACES, "--boottime", str(up_s), "--fork", "sh", "-c", _START, "sh", *places, "--")
        """Before a command: it runs there. The machine is up until this is killed, and all of it ends then."""
