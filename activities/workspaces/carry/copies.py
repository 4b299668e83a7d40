"""Copies of workspaces on a machine, by the program that makes them there (copy_program)."""

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from io import BufferedWriter
from pathlib import Path
from typing import Any

from activities.ports.machine import Machine, Stream
from activities.shim.client import MachineUnreachable
from activities.untrusted_json import parse_object
from activities.workspaces.carry.copy_program import SILENCE_S
from activities.workspaces.carry.snapshots import Known
from activities.workspaces.printable_text import printable
from steersman import timeouts

PROGRAM = Path(__file__).with_name("copy_program.py")
MAX_PACK = 16 * 1024**3
"""More bytes are not taken from a copy."""
MAX_KNOWN = 10_000
"""Of the objects that a machine says it has, this many are looked at."""
SNAPSHOT_S = 3600.0
"""Seconds that a machine has to make a snapshot of a copy: each git that it takes for that may take half of them."""
ANSWER_S = 60.0
"""A removal, and a look at what is there, may take this many seconds; what takes longer is done again later."""
_END_S = 10.0
"""The same for the end of a program that has said something else than it should."""
_CHUNK = 1024 * 1024
_RUN = (
    "import os, sys; sys.path.append(os.path.dirname(sys.argv[1])); from copy_program import main; main(*sys.argv[2:])"
)
"""Imported rather than run, the program comes compiled from its cache."""


class CopyFailed(Exception):
    """The copy cannot be made, or cannot be had back. The message is a sentence."""


class CopyLacks(CopyFailed):
    """The machine has not what it was thought to have, or cannot make it of that: all has to be sent."""


@dataclass(frozen=True)
class WorkspaceCopy:
    """One copy, in the directory `root` of a machine. `python`: the interpreter there; `program`: where it has PROGRAM.

    `stores`: the directory there for objects that copies share; None where they share none. A relative one, as `root`,
    is in the directory in which the machine runs programs.

    Each method raises CopyFailed, and MachineUnreachable where the machine cannot be asked.
    """

    machine: Machine
    root: str
    python: str
    program: str = str(PROGRAM)
    stores: str | None = None
    name: str = ""
    """The machine, as people know it; empty for this one."""
    is_here: bool = True
    """On this machine: what is in the workspace's repository need not be brought there."""

    @property
    def outlives_machine(self) -> bool:
        """Whether another machine may have it once its own is gone."""
        return False

    async def prepare(self, run: str, tell: Callable[[str], None] = lambda _: None) -> None:
        """Have a machine for it, where it takes one of its own. `run`: whose it is, for people; `tell` hears what is
        waited for. Raises RunError, MachineUnreachable.
        """

    async def known(self, store: str) -> Known:
        """What the machine has of the workspace with this name for its store."""
        async with self._command("known") as stream:
            with _patience("what the machine has of the workspace was not said"):
                async with timeouts.timeout(ANSWER_S):
                    await _feed(stream, {"store": store}, None)
                    answer = await self._answer(stream)
        return Known(*(_names(answer.get(name)) for name in ("snapshots", "tips")))

    async def receive(self, header: dict[str, Any], pack: Path | None) -> str:
        """Make the copy of a snapshot, if it is not there yet; its directory there. Raises CopyLacks."""
        async with self._command("receive") as stream:
            feeding = asyncio.create_task(_feed(stream, header, pack))
            try:
                answer = await self._answer(stream)
            finally:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
        directory = answer.get("directory")
        if not isinstance(directory, str) or not directory.startswith("/"):
            raise CopyFailed("the copy's directory was not named")
        return directory

    async def send(self, header: dict[str, Any], pack: Path) -> str:
        """Write what the copy has beyond `header["have"]` into a file, as a pack; the copy's snapshot."""
        return await self._snapshot("send", header, pack)

    async def back_up(self, header: dict[str, Any], pack: Path) -> str:
        """As `send`, while an agent works in the copy."""
        return await self._snapshot("back_up", header, pack)

    async def _snapshot(self, command: str, header: dict[str, Any], pack: Path) -> str:
        async with self._command(command) as stream:
            with _patience("a snapshot of the copy was not made"):
                async with timeouts.timeout(SNAPSHOT_S):
                    await _feed(stream, header, None)
                    answer = await self._answer(stream)
            snapshot, size = answer.get("snapshot"), answer.get("size")
            if not isinstance(snapshot, str) or not isinstance(size, int) or not 0 <= size <= MAX_PACK:
                raise CopyFailed("the copy's answer makes no sense")
            await asyncio.to_thread(_check_room, pack.parent, size)
            with pack.open("xb") as file, _patience("what the copy has did not come"):
                while size and (chunk := await _chunk(stream, size)):
                    await asyncio.to_thread(_write, file, chunk)
                    size -= len(chunk)
            if size:
                raise CopyFailed("what the copy has was cut off on its way")
        return snapshot

    async def remove(self) -> None:
        """Remove the copy, with all that is in it."""
        async with self._command("remove") as stream:
            with _patience("the copy was not removed"):
                async with timeouts.timeout(ANSWER_S):
                    await self._answer(stream)

    async def _answer(self, stream: Stream) -> dict[str, Any]:
        try:
            return await _answer(stream)
        except CopyFailed as error:
            if not self.name:
                raise
            raise type(error)(f"{self.name}: {error}") from error

    async def _program(self) -> str:
        """Where the machine has PROGRAM."""
        return self.program

    @contextlib.asynccontextmanager
    async def _command(self, command: str) -> AsyncIterator[Stream]:
        stores = (self.stores,) if self.stores else ()
        program = await self._program()
        stream = await self.machine.exec(self.python, "-I", "-S", "-c", _RUN, program, command, self.root, *stores)
        try:
            yield stream
        finally:
            stream.kill()


def _check_room(directory: Path, size: int) -> None:
    """Raises CopyFailed where so many bytes have no room here."""
    if size > (free := shutil.disk_usage(directory).free):
        mib = 1024**2
        text = f"what the copy has takes {size / mib:.1f} MiB, and {free / mib:.1f} MiB are free here"
        raise CopyFailed(f"{text}, in {directory}")


def _write(file: BufferedWriter, chunk: bytes) -> None:
    """Raises CopyFailed."""
    try:
        file.write(chunk)
        file.flush()
    except OSError as error:
        raise CopyFailed(f"what the copy has cannot be kept here, in {file.name}: {error.strerror}") from error


def _names(told: object) -> list[str]:
    return [each for each in told[:MAX_KNOWN] if isinstance(each, str)] if isinstance(told, list) else []


async def _feed(stream: Stream, header: dict[str, Any], pack: Path | None) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stream.stdin.write(json.dumps(header).encode() + b"\n")
        await stream.stdin.drain()
        if pack:
            with pack.open("rb") as file:
                while chunk := await asyncio.to_thread(file.read, _CHUNK):
                    stream.stdin.write(chunk)
                    await stream.stdin.drain()
    stream.stdin.close()


async def _chunk(stream: Stream, most: int) -> bytes:
    """What comes next. Raises TimeoutError."""
    async with timeouts.timeout(SILENCE_S):
        return await stream.stdout.read(min(most, _CHUNK))


@contextlib.contextmanager
def _patience(what: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise MachineUnreachable(f"{what} in time") from None


async def _answer(stream: Stream) -> dict[str, Any]:
    try:
        answer = parse_object(await stream.stdout.readline())
    except ValueError:
        try:
            async with timeouts.timeout(_END_S):
                code = await stream.wait()
        except TimeoutError:  # it may say so much that it waits for a reader
            raise CopyFailed("the program that keeps the copy says what it should not, and does not end") from None
        said = printable(stream.said())[-500:]
        raise CopyFailed(said or f"the program that keeps the copy ended with exit code {code}") from None
    if not answer.get("ok"):
        failure, error = CopyLacks if answer.get("lacking") is True else CopyFailed, answer.get("error")
        told = printable(error)[:1000].strip() if isinstance(error, str) else ""
        raise failure(told or "the copy's machine refused, and does not say why")
    return answer
