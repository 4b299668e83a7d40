"""`steer` forked from a process that has loaded its modules: a command takes a fifth of the processor time."""

import asyncio
import fcntl
import os
import signal
import sys
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from steersman.cli.main import run
from tests.support.forkserver import Descriptor, Forked

PATIENCE_S = 60


async def forked(words: Sequence[str], env: Mapping[str, str], stdin: bytes) -> tuple[int, bytes, bytes]:
    """What became of the command on pipes: its exit code, its output, its complaints."""
    (their_in, our_in), (our_out, their_out), (our_err, their_err) = os.pipe(), os.pipe(), os.pipe()
    theirs = (their_in, their_out, their_err)
    try:
        process = Forked(_on_pipes, tuple(words), dict(env), str(Path.cwd()), *map(Descriptor, theirs))
    finally:
        for each in theirs:
            os.close(each)
    try:
        async with asyncio.timeout(PATIENCE_S):
            _, out, err = await asyncio.gather(_told(our_in, stdin), _said(our_out), _said(our_err))
            while (code := process.poll()) is None:
                await asyncio.sleep(0.005)
            return code, out, err
    finally:
        process.kill()
        process.wait()


async def _told(pipe: int, data: bytes) -> None:
    transport, protocol = await asyncio.get_running_loop().connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(pipe, "wb", buffering=0)
    )
    writer = asyncio.StreamWriter(transport, protocol, None, asyncio.get_running_loop())
    try:
        writer.write(data)
        await writer.drain()
    except (BrokenPipeError, ConnectionResetError):
        pass  # it has not read all of it, or nothing
    finally:
        transport.close()


async def _said(pipe: int) -> bytes:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb", buffering=0)
    )
    try:
        return await reader.read()
    finally:
        transport.close()


def at_terminal(words: Sequence[str], env: Mapping[str, str], directory: str | None, terminal: int) -> Forked:
    """The command with this terminal as its controlling one."""
    return Forked(_at_terminal, tuple(words), dict(env), directory or str(Path.cwd()), Descriptor(terminal))


def _on_pipes(words: tuple[str, ...], env: dict[str, str], directory: str, *streams: int) -> None:
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
