"""`steer` forked from a process that has loaded its modules: a command takes a fifth of the processor time."""

import asyncio
import fcntl
import os
import signal
import sys
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from steersman.cli.main import run
from tests.support.forkserver import Descriptor, Forked

PATIENCE_S = 60


@dataclass(frozen=True)
class Piped:
    """The command on pipes, as asyncio's `Process` is a program's, as far as a test needs it. See `piped`."""

    process: Forked
    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader
    pipes: tuple[asyncio.BaseTransport, ...]

    async def wait(self) -> int:
        while (code := self.process.poll()) is None:
            await asyncio.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def close(self) -> None:
        """Kill it, if it is still there, and close the pipes."""
        self.process.kill()
        await self.wait()
        for each in self.pipes:
            each.close()
        await asyncio.sleep(0)  # they are closed by the loop, which may end with the test


def on_files(words: Sequence[str], env: Mapping[str, str], files: tuple[int, int, int]) -> Forked:
    """The command, still going, with these as its stdin, stdout and stderr."""
    return Forked(_on_files, tuple(words), dict(env), str(Path.cwd()), *map(Descriptor, files))


async def piped(words: Sequence[str], env: Mapping[str, str], limit: int = 1 << 16) -> Piped:
    """The command, still going. `limit`: bytes of its output's longest line, for whoever reads lines."""
    (their_in, our_in), (our_out, their_out), (our_err, their_err) = os.pipe(), os.pipe(), os.pipe()
    theirs = (their_in, their_out, their_err)
    try:
        process = on_files(words, env, theirs)
    finally:
        for each in theirs:
            os.close(each)
    stdin = await _writer(our_in)
    stdout, of_stdout = await _reader(our_out, limit)
    stderr, of_stderr = await _reader(our_err, limit)
    return Piped(process, stdin, stdout, stderr, (stdin.transport, of_stdout, of_stderr))


async def _writer(pipe: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    file = os.fdopen(pipe, "wb", buffering=0)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, file)
    return asyncio.StreamWriter(transport, protocol, None, loop)


async def _reader(pipe: int, limit: int) -> tuple[asyncio.StreamReader, asyncio.BaseTransport]:
    reader = asyncio.StreamReader(limit)
    file = os.fdopen(pipe, "rb", buffering=0)
    made = partial(asyncio.StreamReaderProtocol, reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(made, file)
    return reader, transport


async def forked(words: Sequence[str], env: Mapping[str, str], stdin: bytes) -> tuple[int, bytes, bytes]:
    """What became of the command on pipes: its exit code, its output, its complaints."""
    steer = await piped(words, env)
    try:
        async with asyncio.timeout(PATIENCE_S):
            _, out, err = await asyncio.gather(_told(steer.stdin, stdin), steer.stdout.read(), steer.stderr.read())
            return await steer.wait(), out, err
    finally:
        await steer.close()


async def _told(stdin: asyncio.StreamWriter, data: bytes) -> None:
    try:
        stdin.write(data)
        await stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        pass  # it has not read all of it, or nothing
    finally:
        stdin.close()


def at_terminal(words: Sequence[str], env: Mapping[str, str], directory: str | None, terminal: int) -> Forked:
    """The command with this terminal as its controlling one."""
    return Forked(_at_terminal, tuple(words), dict(env), directory or str(Path.cwd()), Descriptor(terminal))


def _on_files(words: tuple[str, ...], env: dict[str, str], directory: str, *streams: int) -> None:
    for number, each in enumerate(streams):
        os.dup2(each, number)
        os.close(each)
    _steer(words, env, directory)


def _at_terminal(words: tuple[str, ...], env: dict[str, str], directory: str, terminal: int) -> None:
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for number in range(3):
        os.dup2(terminal, number)
    os.close(terminal)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _steer(words, env, directory)


def _steer(words: tuple[str, ...], env: dict[str, str], directory: str) -> None:
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        like: Any = getattr(sys, f"__{name}__")
        fresh = open(number, mode, encoding=like.encoding, errors=like.errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, fresh)
        setattr(sys, f"__{name}__", fresh)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["steer", *words]
    run()
