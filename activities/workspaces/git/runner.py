"""Git processes: run in a given environment, bounded in time and output, and never left behind.

In which repository, and with which arguments, must not live here.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from activities.workspaces.git.stalls import wait_for_stall
from activities.workspaces.printable_text import printable
from steersman import timeouts

MAX_OUTPUT = 128 * 1024 * 1024
"""A git that prints more bytes fails."""
_MAX_ERRORS = 64 * 1024
_CHUNK = 256 * 1024
_TERMINATE_S = 2.0
STALL_S = 3.0
"""A git that does nothing for this many seconds hangs; one that works may go on until its deadline."""
_LOCK, _WORKER = "STEERSMAN_LOCK", "STEERSMAN_WORKER"

T = TypeVar("T")
Argument = str | bytes


class GitFailed(Exception):
    """git failed, took too long or is not installed. The message is a sentence, `command` the subcommand."""

    def __init__(self, sentence: str, command: str = "") -> None:
        super().__init__(sentence)
        self.command = command


class GitHung(GitFailed):
    """git did nothing for STALL_S, e.g. because it reads from a pipe: it would do so again."""


@dataclass(frozen=True)
class GitOutput:
    """What git printed. With `cut` there was more."""

    output: bytes
    cut: bool = False


@dataclass(frozen=True)
class GitRunner:
    """How git is run. No process outlives `deadline`, a time of the event loop. Each process inherits
    `lock_descriptor`, so that a lock on it lasts until the last of them has ended.
    """

    program: str
    directory: Path
    environment: Mapping[str, str]
    deadline: float
    lock_descriptor: int

    async def run(self, *arguments: Argument, stdin: bytes | Path = b"", ok_codes: Sequence[int] = (0,)) -> bytes:
        """All that git prints. `stdin`: bytes, or a file. Raises GitFailed for another exit code than `ok_codes`."""
        answer = await self.read(*arguments, stdin=stdin, ok_codes=ok_codes)
        if answer.cut:
            raise GitFailed(f"git {_name(arguments)} printed more than {MAX_OUTPUT // 1024 // 1024} MiB")
        return answer.output

    async def read(
        self, *arguments: Argument, stdin: bytes | Path = b"", limit: int = MAX_OUTPUT, ok_codes: Sequence[int] = (0,)
    ) -> GitOutput:
        """The first `limit` bytes that git prints. Raises GitFailed."""
        return await self._read(arguments, lambda process: _output(process, limit), stdin, ok_codes)

    async def to_file(self, path: Path, *arguments: Argument, stdin: bytes = b"") -> None:
        """Write all that git prints into a new file. Raises GitFailed, OSError."""
        await self._read(arguments, lambda process: _to_file(process, path), stdin, (0,))

    async def _read(
        self,
        arguments: Sequence[Argument],
        output: Callable[[asyncio.subprocess.Process], Coroutine[object, object, GitOutput]],
        stdin: bytes | Path,
        ok_codes: Sequence[int],
    ) -> GitOutput:
        name = _name(arguments)
        process = await self._started(arguments)
        hung = asyncio.Event()
        watch = asyncio.create_task(_end_stalled(process, hung))
        try:
            async with timeouts.timeout_at(self.deadline):
                answer, errors, _ = await asyncio.gather(output(process), _errors(process), _feed(process, stdin))
                code = await process.wait()
        except TimeoutError:
            raise GitFailed(f"git {name} took too long and was stopped", name) from None
        finally:
            if process.returncode is None:
                await _end(process)
            await _close(process)
            watch.cancel()
        if hung.is_set():
            raise GitHung(f"git {name} waited for {STALL_S:g} s without doing anything and was stopped", name)
        # git only warns about a directory that it cannot read, and leaves its files out.
        if not answer.cut and (code not in ok_codes or b"could not open directory" in errors):
            raise GitFailed(f"git {name}: {_error_line(errors) or f'exit code {code}'}", name)
        return answer

    async def _started(self, arguments: Sequence[Argument]) -> asyncio.subprocess.Process:
        """The process. A cancel in the moment of its start ends it with all that it has started meanwhile."""
        starting = asyncio.create_task(
            asyncio.create_subprocess_exec(
                self.program,
                *arguments,
                cwd=self.directory,
                env=self.environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                pass_fds=(self.lock_descriptor,),
            )
        )
        try:
            return await asyncio.shield(starting)
        except OSError as error:
            raise GitFailed(f"git cannot be run: {error.strerror}", _name(arguments)) from error
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                process = await starting
                await _end(process)
                await _close(process)
            raise


def owner_variables(lock: Path) -> dict[str, str]:
    """Environment variables that mark a git with the lock it holds and the worker that started it."""
    return {_LOCK: str(lock), _WORKER: str(os.getpid())}


def end_orphans(lock: Path, how: signal.Signals) -> None:
    """Signal gits whose worker has died: one that hangs would hold the lock for ever. Needs /proc to find them."""
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            variables = (each / "environ").read_bytes().split(b"\0")
            if f"{_LOCK}={lock}".encode("utf-8", "surrogateescape") not in variables:
                continue
            parent = (each / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
            if f"{_WORKER}={parent}".encode() not in variables:
                os.kill(int(each.name), how)


async def gather_or_cancel(*work: Coroutine[object, object, T]) -> list[T]:
    """The results of all. If one fails, the others are cancelled and waited for before its error is raised."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        # Only once: a second cancel would interrupt the wait for a git's end.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
    return [task.result() for task in tasks]


def _name(arguments: Sequence[Argument]) -> str:
    """The subcommand."""
    words = [os.fsdecode(each) for each in arguments]
    while words and words[0] == "-c":
        words = words[2:]
    return words[0]


async def _output(process: asyncio.subprocess.Process, limit: int) -> GitOutput:
    assert process.stdout
    data = bytearray()
    while chunk := await process.stdout.read(_CHUNK):
        data += chunk
        if len(data) > limit:
            await _end(process)
            return GitOutput(bytes(data[:limit]), cut=True)
    return GitOutput(bytes(data))


async def _to_file(process: asyncio.subprocess.Process, path: Path) -> GitOutput:
    assert process.stdout
    with path.open("xb") as file:
        while chunk := await process.stdout.read(_CHUNK):
            await asyncio.to_thread(file.write, chunk)
    return GitOutput(b"")


async def _errors(process: asyncio.subprocess.Process) -> bytes:
    assert process.stderr
    kept = bytearray()
    while chunk := await process.stderr.read(_CHUNK):
        kept += chunk[: max(_MAX_ERRORS - len(kept), 0)]
    return bytes(kept)


async def _feed(process: asyncio.subprocess.Process, data: bytes | Path) -> None:
    assert process.stdin
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        if isinstance(data, bytes):
            process.stdin.write(data)
            await process.stdin.drain()
        else:
            with data.open("rb") as file:
                while chunk := await asyncio.to_thread(file.read, _CHUNK):
                    process.stdin.write(chunk)
                    await process.stdin.drain()
    process.stdin.close()


async def _end_stalled(process: asyncio.subprocess.Process, hung: asyncio.Event) -> None:
    await wait_for_stall(process.pid, STALL_S)
    hung.set()
    await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Send SIGTERM, at which git removes its lock files; SIGKILL if it does not end."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with timeouts.timeout(_TERMINATE_S):
                await process.wait()
                return


async def _close(process: asyncio.subprocess.Process) -> None:
    """Drain the pipes of a git that has ended: asyncio keeps a pipe open until it was read to its end."""
    with contextlib.suppress(TimeoutError):
        async with timeouts.timeout(_TERMINATE_S):
            for stream in (process.stdout, process.stderr):
                while stream and await stream.read(_CHUNK):
                    pass


def _error_line(errors: bytes) -> str:
    """The line of stderr that names the reason, printable."""
    lines = [line.strip() for line in errors.decode("utf-8", "replace").splitlines() if line.strip()]
    found = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines
    # The first error names the file, the last one only that something failed.
    text = found[0].removeprefix("fatal:").removeprefix("error:").strip() if found else ""
    return printable(text, 500)
