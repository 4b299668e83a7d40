"""Reaching the socket of a shim.

What must not live here: what is said on it.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path


def connect_socket(sock: socket.socket, directory: str | os.PathLike[str]) -> None:
    """Connect to `shim.sock`, however long the directory's path is (an address has room for 107 bytes)."""
    if sys.platform == "linux":
        folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sock.connect(f"/proc/self/fd/{folder}/shim.sock")
        finally:
            os.close(folder)
    else:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="steersman-", dir="/tmp") as short:
            link = Path(short, "d")
            link.symlink_to(Path(directory).absolute())
            sock.connect(f"{link}/shim.sock")
