"""Programs that print items, each under a shim: no process of one survives its end, a timeout or the worker.

What their output means must not live here.
"""

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from activities.shim import client as shim
from activities.store import disk
from activities.workspaces.printable_text import printable
from steersman import timeouts

TIMEOUT = timedelta(seconds=60)
MAX_OUTPUT = 4 * 1024 * 1024
"""A program that prints more bytes is stopped."""
MAX_LINES = 200_000
"""A program that prints more lines, on stdout and stderr together, is stopped."""
_MAX_ERRORS = 64 * 1024
_LEASE = timedelta(seconds=8)
_RENEWAL_S = 2.0
_EPOCH = 1
_STALE_S = 300.0
"""A directory without a living shim is removed after this many seconds."""


class ProgramFailed(Exception):
    """A program could not be run, took too long, printed too much, or failed.

    The message is the end of a sentence that begins with the program's name.
    """


@dataclass
class _Output:
    output: bytearray = field(default_factory=bytearray)
    errors: bytearray = field(default_factory=bytearray)


async def run_program(
    argv: Sequence[str],
    workspace: Path,
    environment: Mapping[str, str],
    parent: Path,
    timeout: timedelta = TIMEOUT,
) -> bytes:
    """What a program prints. Its shim's directory is made in `parent`, and removed. Raises ProgramFailed."""
    await asyncio.to_thread(_remove_stale, parent)
    directory = Path(tempfile.mkdtemp(dir=parent)) / "shim"
    spec = shim.Spec(argv=argv, cwd=workspace, env=environment, close_stdin=True, lease=_LEASE)
    printed = _Output()
    try:
        async with timeouts.timeout(timeout.total_seconds()), _running(directory, spec) as connection:
            await _collect(directory, printed)
            end = (await connection.status()).exit
    except TimeoutError:
        raise ProgramFailed(f"took longer than {timeout.total_seconds():g} s and was stopped") from None
    except (shim.ShimError, OSError) as error:
        raise ProgramFailed(f"could not be run: {printable(str(error))}") from error
    finally:
        await asyncio.to_thread(shutil.rmtree, directory.parent, ignore_errors=True)
    if end is None or end.code != 0:
        how = f"signal {end.signal}" if end and end.signal else f"exit code {end.code if end else None}"
        raise ProgramFailed(f"ended with {how}{_last_line(bytes(printed.errors or printed.output))}")
    return bytes(printed.output)


@asynccontextmanager
async def _running(directory: Path, spec: shim.Spec) -> AsyncIterator[shim.Connection]:
    """The running program; stopped when the context ends, whatever the reason."""
    try:
        await shim.start(directory, spec)
        async with await shim.connect(directory, epoch=_EPOCH) as connection:
            renewal = asyncio.create_task(_renew(connection))
            try:
                yield connection
            finally:
                renewal.cancel()
    finally:
        await _stop(directory)


async def _stop(directory: Path) -> None:
    try:
        async with await shim.connect(directory, epoch=None) as connection:
            await connection.stop(terminate_after=timedelta(0), kill_after=timedelta(seconds=0.5))
            await connection.release()
    except shim.ShimGone:
        await shim.kill_marked(directory)


async def _renew(connection: shim.Connection) -> None:
    with contextlib.suppress(shim.ShimError):
        while True:
            await asyncio.sleep(_RENEWAL_S)
            await connection.renew()


async def _collect(directory: Path, printed: _Output) -> None:
    stream = shim.records(directory, epoch=_EPOCH)
    lines = 0
    try:
        async for record in stream:
            lines += 1
            text = record.data if record.stream.endswith("+") else record.data + b"\n"
            if record.stream in ("out", "out+"):
                printed.output += text
            elif record.stream in ("err", "err+"):
                printed.errors = (printed.errors + text)[-_MAX_ERRORS:]
            if len(printed.output) > MAX_OUTPUT:
                raise ProgramFailed(f"printed more than {MAX_OUTPUT // 1024 // 1024} MiB and was stopped")
            if lines > MAX_LINES:
                raise ProgramFailed(f"printed more than {MAX_LINES} lines and was stopped")
    finally:
        await stream.aclose()


def _remove_stale(parent: Path) -> None:
    """Remove directories that a killed worker has left. A program that still runs is ended by its shim's lease."""
    parent.mkdir(mode=0o700, exist_ok=True)
    for each in (parent / name for name in disk.names(parent)):
        with contextlib.suppress(FileNotFoundError):  # another program of the loop has ended
            if each.stat().st_mtime < time.time() - _STALE_S and not shim.is_alive(each / "shim"):
                shutil.rmtree(each, ignore_errors=True)


def _last_line(data: bytes) -> str:
    lines = data.decode("utf-8", "replace").split("\n")
    line = next((each.strip() for each in reversed(lines) if each.strip()), "")
    return f": {printable(line, 300)}" if line else ""
