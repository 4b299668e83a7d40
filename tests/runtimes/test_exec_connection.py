"""Many programs over one connection, whatever comes on it, whoever does not read, and however they are let go."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.ports.machine import Stream
from activities.runtimes.exec_connection import ExecConnection
from activities.runtimes.remote_program.exec_server import COUNT, HEADER, MAX_FRAME, WINDOW
from activities.shim.client import MachineUnreachable
from tests.runtimes.multiplexed import MultiplexedMachine, StreamCarrier
from tests.runtimes.pod_site import said
from tests.shim.conftest import oldest_python
from tests.support.processes import lives, until

pytestmark = [pytest.mark.integration, pytest.mark.linux]

SLEEP = ("sleep", "600")
WRITE_FOR_EVER = ("sh", "-c", "exec yes")


def frame(kind: bytes, number: int, body: bytes = b"") -> bytes:
    return HEADER.pack(kind, number, len(body)) + body


def ended(code: object = 0, words: object = "") -> bytes:
    return json.dumps({"code": code, "said": words}).encode()


class Scripted:
    """A carrier whose other side says what the test says."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[bytes] = asyncio.Queue()
        self.sent = bytearray()

    async def send(self, data: bytes) -> None:
        self.sent += data

    async def receive(self) -> bytes:
        return await self.said.get()

    async def aclose(self) -> None:
        self.said.put_nowait(b"")


async def opened() -> tuple[ExecConnection, Scripted]:
    carrier = Scripted()
    connection = ExecConnection(carrier, "there")
    carrier.said.put_nowait(frame(b"h", 0))
    await connection.open(5)
    return connection, carrier


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[MultiplexedMachine]:
    made = MultiplexedMachine(tmp_path, {"PATH": os.environ["PATH"]}, oldest_python() or sys.executable)
    yield made
    await made.aclose()


async def server_of(machine: MultiplexedMachine) -> int:
    """The process that runs the programs."""
    return int(await said(await machine.exec("sh", "-c", "echo $PPID")))


# What comes from there.


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff" * 100,
        HEADER.pack(b"o", 1, MAX_FRAME + 1),
        frame(b"z", 1, b"not JSON"),
        frame(b"z", 1, b"[]"),
        frame(b"z", 1, b"{}"),
        frame(b"z", 1, b"[" * 100_000),
        frame(b"z", 1, b'{"code": 1e999, "said": ""}'),
        frame(b"z", 1, b'{"code": "one", "said": ""}'),
        frame(b"z", 1, ended(None)),
        frame(b"c", 1, b"one"),
        frame(b"o", 1, b"x" * WINDOW) * 6,
    ],
    ids=lambda garbage: repr(garbage[:24]),
)
async def test_what_our_program_does_not_say_ends_the_connection(garbage: bytes) -> None:
    connection, carrier = await opened()
    streams = [connection.run(SLEEP, None) for _ in range(3)]
    carrier.said.put_nowait(garbage)
    for each in streams:
        with pytest.raises(MachineUnreachable, match="not what our program says"):
            await asyncio.wait_for(each.wait(), 5)
    with pytest.raises(MachineUnreachable):
        connection.run(SLEEP, None)
    await connection.aclose()


async def test_what_comes_for_no_stream_or_for_one_that_has_ended_is_nothing() -> None:
    connection, carrier = await opened()
    stream, other = connection.run(SLEEP, None), connection.run(SLEEP, None)
    late = frame(b"o", 1, b"late") + frame(b"z", 1, ended(7)) + frame(b"c", 1, COUNT.pack(5))
    carrier.said.put_nowait(frame(b"o", 1, b"in time") + frame(b"z", 1, ended(3, "a word")) + late)
    carrier.said.put_nowait(frame(b"?", 2) + frame(b"o", 99, b"x") + frame(b"z", 99) + frame(b"h", 0) + frame(b"p", 0))
    assert await stream.wait() == 3
    assert (await stream.stdout.read(), stream.said()) == (b"in time", "a word")
    carrier.said.put_nowait(frame(b"z", 2, ended()))
    assert await other.wait() == 0
    await connection.aclose()


async def test_a_hello_that_does_not_come_is_not_waited_for() -> None:
    connection = ExecConnection(Scripted(), "there")
    with pytest.raises(MachineUnreachable, match="no answer"):
        await connection.open(0.1)


@pytest.mark.property
@settings(max_examples=50, deadline=None)
@given(pieces=st.lists(st.binary(max_size=40), max_size=8), whole=st.booleans())
def test_whatever_comes_every_stream_ends(pieces: list[bytes], *, whole: bool) -> None:
    async def run() -> None:
        connection, carrier = await opened()
        streams = [connection.run(SLEEP, b"x") for _ in range(2)]
        for number, piece in enumerate(pieces):
            kind = bytes([b"oczp?"[number % 5]])
            carrier.said.put_nowait(frame(kind, 1 + number % 3, piece) if whole else piece or b"o")
        carrier.said.put_nowait(b"")
        for each in streams:
            await asyncio.wait_for(asyncio.wait({each.watched}), 5)
            assert each.watched.exception() is None or isinstance(each.watched.exception(), MachineUnreachable)
            await asyncio.wait_for(each.stdout.read(), 5)
        await connection.aclose()

    asyncio.run(run())


# In pieces of any size.


class Pieces(StreamCarrier):
    """What goes both ways goes in pieces of this size."""

    size = 1

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self._received = bytearray()

    async def send(self, data: bytes) -> None:
        for start in range(0, len(data), self.size):
            await super().send(data[start : start + self.size])

    async def receive(self) -> bytes:
        if not self._received:
            self._received += await super().receive()
        piece = bytes(self._received[: self.size])
        del self._received[: self.size]
        return piece


@pytest.mark.parametrize(("size", "length"), [(1, 5_000), (7, 50_000), (8191, 3_000_000), (1 << 20, 3_000_000)])
async def test_frames_may_come_in_pieces_of_any_size(
    machine: MultiplexedMachine, size: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.runtimes.multiplexed.StreamCarrier", Pieces)
    monkeypatch.setattr(Pieces, "size", size)
    data = os.urandom(length)
    assert await said(await machine.exec("cat", stdin=data)) == data


# Who does not read, and who does not stop.


async def test_what_nobody_reads_is_in_nobodys_way_and_fills_no_memory(machine: MultiplexedMachine) -> None:
    unread = [await machine.exec(*WRITE_FOR_EVER) for _ in range(5)]
    server = await server_of(machine)
    before = memory(server)
    for _ in range(20):
        assert await said(await machine.exec("cat", stdin=b"y" * 100_000)) == b"y" * 100_000
    assert memory(server) - before < 8_000
    assert machine.connection
    assert machine.connection._outbox.qsize() < 100  # noqa: SLF001
    for each in unread:
        assert len(each.stdout._buffer) <= 4 * WINDOW  # type: ignore[attr-defined] # noqa: SLF001
        each.kill()
        assert await asyncio.wait_for(each.wait(), 10) == 137


async def test_who_writes_more_than_is_taken_waits_alone(machine: MultiplexedMachine) -> None:
    deaf = await machine.exec(*SLEEP)

    async def flood(stream: Stream, pieces: int) -> None:
        for _ in range(pieces):
            stream.stdin.write(b"x" * 100_000)
            await stream.stdin.drain()

    flooding = asyncio.create_task(flood(deaf, 1000))
    counting = await machine.exec("wc", "-c")
    await asyncio.wait_for(flood(counting, 200), 30)
    counting.stdin.close()
    assert await said(counting) == b"20000000\n"
    assert not flooding.done()
    deaf.kill()
    with pytest.raises((ConnectionError, BrokenPipeError)):
        await asyncio.wait_for(flooding, 10)
    assert await deaf.wait() == 137


async def test_a_program_that_ends_without_reading_holds_up_nobody(machine: MultiplexedMachine) -> None:
    for program in (("true",), ("sh", "-c", "exec <&-; sleep 0.2"), ("head", "-c", "10")):
        stream = await machine.exec(*program, stdin=b"x" * 5_000_000)
        assert await asyncio.wait_for(stream.wait(), 20) == 0
    assert await said(await machine.exec("echo", "on")) == b"on\n"


async def test_what_holds_stdout_open_after_its_program_keeps_nobody_waiting(machine: MultiplexedMachine) -> None:
    stream = await machine.exec("sh", "-c", "echo pid; setsid sleep 600 & echo $!")
    found = await asyncio.wait_for(said(stream), 10)
    left = int(found.split()[1])
    assert lives(left), "what went into the background stays"
    os.kill(left, 9)


async def test_what_cannot_be_run_is_told_and_costs_the_others_nothing(machine: MultiplexedMachine) -> None:
    other = await machine.exec("cat")
    for argv, code in ((("no-such-program",), 127), (("/etc/passwd",), 126), (("echo", "x" * 300_000), 126)):
        stream = await machine.exec(*argv)
        assert await stream.wait() == code
        assert stream.said()
    with pytest.raises(ValueError, match="null"):
        await machine.exec("echo", "a\0b")
    other.stdin.write(b"still\n")
    other.stdin.close()
    assert await said(other) == b"still\n"


# Many, and let go in every state.


def memory(pid: int) -> int:
    """In kB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(each.split()[1]) for each in lines if each.startswith("VmRSS:"))


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def open_files(pid: int) -> set[str]:
    """What each descriptor leads to: a pipe or a socket has a name of its own."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that by which they are listed
            found.add(str(descriptor.readlink()))
    return found


@pytest.mark.exhaustive
async def test_hundreds_of_programs_leave_nothing_behind(machine: MultiplexedMachine) -> None:
    async def one(number: int) -> None:
        stream = await machine.exec("sh", "-c", "cat; echo $0 >&2", str(number), stdin=b"%d" % number)
        if number % 3:
            assert await said(stream) == b"%d" % number
            assert stream.said() == str(number)
        else:
            stream.kill()

    server = await server_of(machine)
    await asyncio.gather(*(one(number) for number in range(50)))
    await until(lambda: not children(server))
    before = (open_files(server), open_files(os.getpid()), memory(server))
    for start in range(50, 650, 50):
        await asyncio.gather(*(one(number) for number in range(start, start + 50)))
    await until(lambda: not children(server))
    # One fewer may be of an earlier test.
    assert (open_files(server) - before[0], open_files(os.getpid()) - before[1]) == (set(), set())
    assert memory(server) - before[2] < 4_000
    connection = machine.connection
    assert connection
    await until(lambda: not connection._streams)  # noqa: SLF001


async def test_a_program_may_be_killed_in_any_state(machine: MultiplexedMachine) -> None:
    async def begun(stream: Stream) -> None:
        await stream.stdout.read(1)

    async def paused(stream: Stream) -> None:
        await asyncio.sleep(0.3)

    async def closed(stream: Stream) -> None:
        stream.stdin.close()

    async def at_once(stream: Stream) -> None:
        pass

    async def flooded(stream: Stream) -> None:
        stream.stdin.write(b"x" * 3 * WINDOW)

    for state in (at_once, begun, paused, closed, flooded):
        stream = await machine.exec("sh", "-c", "trap '' TERM; yes & wait")
        await state(stream)
        stream.kill()
        stream.kill()
        assert await asyncio.wait_for(stream.wait(), 10) == 137
        stream.kill()
        stream.stdin.write(b"nobody")
        assert len(await asyncio.wait_for(stream.stdout.read(), 10)) >= 0
    server = await server_of(machine)
    await until(lambda: not children(server))


class Ending(StreamCarrier):
    """Its end is that of the other side's stdin, as in a pod."""

    async def aclose(self) -> None:
        self.stream.stdin.close()


async def test_all_end_with_their_connection_in_whatever_state(
    machine: MultiplexedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.runtimes.multiplexed.StreamCarrier", Ending)
    streams = [
        await machine.exec("sh", "-c", "echo $$; exec cat"),
        await machine.exec("sh", "-c", "echo $$; exec yes"),
        await machine.exec("sh", "-c", "echo $$; exec sleep 600"),
        await machine.exec("sh", "-c", "trap '' TERM HUP; echo $$; exec 1>&- 0<&-; sleep 600"),
    ]
    pids = [int(await each.stdout.readline()) for each in streams]
    server = await server_of(machine)
    streams[2].stdin.write(b"x" * 3 * WINDOW)
    assert machine.connection
    await machine.connection.aclose()
    await until(lambda: not lives(server))
    await until(lambda: not any(map(lives, pids)))
    for each in streams:
        with pytest.raises(MachineUnreachable, match="let go"):
            await each.wait()
    assert await said(await machine.exec("echo", "again")) == b"again\n"


Step = tuple[int, str, int]
STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["write", "read", "close", "kill", "pause"]), st.integers(1, 400_000)),
    max_size=30,
)


@pytest.mark.exhaustive
@pytest.mark.property
@settings(max_examples=15, deadline=None)
@given(steps=STEPS)
def test_streams_in_any_order_are_whole_and_apart(steps: list[Step]) -> None:
    async def run() -> None:
        machine = MultiplexedMachine(Path("/"), {"PATH": os.environ["PATH"]}, oldest_python() or sys.executable)
        streams = [await machine.exec("cat") for _ in range(4)]
        written, got, dead = [bytearray() for _ in streams], [bytearray() for _ in streams], set[int]()
        for which, what, size in steps:
            stream = streams[which]
            if what == "write" and not stream.stdin.is_closing():
                data = bytes([65 + which]) * size
                stream.stdin.write(data)
                written[which] += data
            elif what == "read" and len(got[which]) < len(written[which]) and which not in dead:
                got[which] += await asyncio.wait_for(stream.stdout.read(size), 10)
            elif what == "close":
                stream.stdin.close()
            elif what == "kill":
                stream.kill()
                dead.add(which)
            elif what == "pause":
                await asyncio.sleep(0.001)
        for which, stream in enumerate(streams):
            stream.stdin.close()
            got[which] += await asyncio.wait_for(stream.stdout.read(), 20)
            code = await asyncio.wait_for(stream.wait(), 10)
            assert code in ((0, 137) if which in dead else (0,))
            if which not in dead:
                assert got[which] == written[which]
            else:
                assert written[which].startswith(got[which])
        await machine.aclose()

    asyncio.run(run())
