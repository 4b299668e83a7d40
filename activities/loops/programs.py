"""Programs that say what is left to do, each under a shim: nothing of one survives its end, a timeout or the worker.

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

from activities.loops.sentences import printable
from activities.shim import client as shim
from activities.store import disk

TIMEOUT = timedelta(seconds=60)
MAX_OUTPUT = 4 * 1024 * 1024
MAX_LINES = 200_000
_MAX_ERRORS = 64 * 1024
_LEASE = timedelta(seconds=8)
_RENEWAL_S = 2.0
_EPOCH = 1
_STALE_S = 300.0


class ProgramFailed(Exception):
    """It could not be run, took too long, said too much, or ended badly; how, in the end of a sentence."""


@dataclass
class _Said:
    output: bytearray = field(default_factory=bytearray)
    errors: bytearray = field(default_factory=bytearray)


async def output_of(
    argv: Sequence[str],
    workspace: Path,
    environment: Mapping[str, str],
    place: Path,
    timeout: timedelta = TIMEOUT,
) -> bytes:
    """What a program prints. `place`: where directories of programs are made, and removed. Raises ProgramFailed."""
    await asyncio.to_thread(_tidy, place)
    directory = Path(tempfile.mkdtemp(dir=place)) / "shim"
    spec = shim.Spec(argv=argv, cwd=workspace, env=environment, close_stdin=True, lease=_LEASE)
    said = _Said()
    try:
        async with asyncio.timeout(timeout.total_seconds()), _running(directory, spec) as connection:
            await _listen(directory, said)
            end = (await connection.status()).exit
    except TimeoutError:
        raise ProgramFailed(f"took longer than {timeout.total_seconds():g} s and was stopped") from None
    except (shim.ShimError, OSError) as error:
        raise ProgramFailed(f"could not be run: {printable(str(error))}") from error
    finally:
        await asyncio.to_thread(shutil.rmtree, directory.parent, ignore_errors=True)
    if end is None or end.code != 0:
        how = f"signal {end.signal}" if end and end.signal else f"exit code {end.code if end else None}"
        raise ProgramFailed(f"ended with {how}{_last_line(bytes(said.errors or said.output))}")
    return bytes(said.output)


@asynccontextmanager
async def _running(directory: Path, spec: shim.Spec) -> AsyncIterator[shim.Connection]:
    """The program at work; stopped at the end, whatever the end is."""
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


async def _listen(directory: Path, said: _Said) -> None:
    stream = shim.records(directory, epoch=_EPOCH)
    lines = 0
    try:
        async for record in stream:
            lines += 1
            text = record.data if record.stream.endswith("+") else record.data + b"\n"
            if record.stream in ("out", "out+"):
                said.output += text
            elif record.stream in ("err", "err+"):
                said.errors = (said.errors + text)[-_MAX_ERRORS:]
            if len(said.output) > MAX_OUTPUT:
                raise ProgramFailed(f"printed more than {MAX_OUTPUT // 1024 // 1024} MiB and was stopped")
            if lines > MAX_LINES:
                raise ProgramFailed(f"printed more than {MAX_LINES} lines and was stopped")
    finally:
        await stream.aclose()


def _tidy(place: Path) -> None:
    """Remove what a worker that was killed has left; a program that is still at work is its shim's affair."""
    place.mkdir(mode=0o700, exist_ok=True)
    for each in (place / name for name in disk.names(place)):
        with contextlib.suppress(FileNotFoundError):  # another program of the loop has ended
            if each.stat().st_mtime < time.time() - _STALE_S and not shim.is_alive(each / "shim"):
                shutil.rmtree(each, ignore_errors=True)


def _last_line(data: bytes) -> str:
    lines = data.decode("utf-8", "replace").split("\n")
    line = next((each.strip() for each in reversed(lines) if each.strip()), "")
    return f": {printable(line, 300)}" if line else ""
