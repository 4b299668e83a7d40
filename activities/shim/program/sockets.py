"""Reaching the socket of a shim.

What must not live here: what is said on it.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket


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
            link = os.path.join(short, "d")
            os.symlink(os.path.join(os.getcwd(), directory), link)
            sock.connect(f"{link}/shim.sock")
