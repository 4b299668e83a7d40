"""Reaching a shim's socket, and the first words on it.

What must not live here: commands, records, and whether to try again after it was reached.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
from datetime import timedelta
from typing import Any

from activities.shim.client.errors import ShimGone, ShimUnresponsive, error_of
from activities.shim.client.reports import MIN_PROTOCOL, PROTOCOL
from activities.shim.program.census import is_impostor
from activities.shim.program.lock import is_alive
from activities.shim.program.sockets import connect_socket
from steersman import timeouts

DIAL_TIMEOUT = timedelta(seconds=10)
BUFFER_SIZE = 1024 * 1024
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""A lack of ours says nothing about the shim."""
_CLOSE_S = 1.0


async def dial(
    directory: str | os.PathLike[str], epoch: int | None, timeout: timedelta = DIAL_TIMEOUT
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, dict[str, Any]]:
    """A connection to the shim of this directory and its answer to `hello`.

    Raises:
        ShimGone, ShimUnresponsive, Fenced, ProtocolMismatch: see `connection.connect`.
        OSError: this process has no descriptors or memory left.
    """
    try:
        async with timeouts.timeout(timeout.total_seconds()):
            while True:
                reached = await _try(directory, epoch)
                if reached is not None:
                    return reached
                if not is_alive(directory):
                    raise ShimGone(f"no shim lives in {os.fspath(directory)}")
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise ShimUnresponsive(f"the shim in {os.fspath(directory)} lives and does not answer") from None


async def _try(
    directory: str | os.PathLike[str], epoch: int | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, dict[str, Any]] | None:
    """None where nobody answered: the shim is gone, or not there yet, or has too many connections."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(0)
        connect_socket(sock, directory)
        if is_impostor(sock, directory):
            raise ShimUnresponsive(f"what listens in {os.fspath(directory)} is no shim")
        reader, writer = await asyncio.open_unix_connection(sock=sock, limit=BUFFER_SIZE)
    except OSError as error:
        sock.close()
        if error.errno in EXHAUSTED:
            raise
        return None
    except BaseException:
        sock.close()
        raise
    try:
        reply = await say_hello(reader, writer, epoch)
    except OSError:
        await let_go(writer)
        return None
    except Exception:
        await let_go(writer)
        raise
    except BaseException:
        writer.close()
        raise
    return reader, writer, reply


async def let_go(writer: asyncio.StreamWriter) -> None:
    """Close it before the loop may end. A shim that does not read, as one that is frozen, is not waited for."""
    writer.close()
    try:
        async with timeouts.timeout(_CLOSE_S):
            await writer.wait_closed()
    except TimeoutError:
        writer.transport.abort()
    except OSError:
        pass  # it broke before, and is closed


async def say_hello(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, epoch: int | None, controller: str | None = None
) -> dict[str, Any]:
    """The first words on a connection, and their answer. Raises as `ask`.

    `controller`: a secret of 16 to 64 characters, for a controller whose connections come from several processes: else
    an epoch belongs to the process that brought it.
    """
    hello = {"op": "hello", "protocol": PROTOCOL, "min_protocol": MIN_PROTOCOL, "epoch": epoch}
    return await ask(reader, writer, hello if controller is None else {**hello, "controller": controller})


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, command: dict[str, Any]) -> dict[str, Any]:
    """Send one command and read its answer; raises the error that the answer stands for, OSError without one."""
    writer.write(json.dumps(command).encode() + b"\n")
    try:
        line = await reader.readline()
    except ValueError:  # longer than any answer
        raise ShimUnresponsive("what answers there is no shim") from None
    if not line.endswith(b"\n"):
        raise ConnectionResetError("the shim went away")
    try:
        reply = json.loads(line)
    except (ValueError, RecursionError):
        reply = None
    if not isinstance(reply, dict):
        raise ShimUnresponsive("what answers there is no shim")
    if not reply.get("ok"):
        raise error_of(reply)
    return reply
