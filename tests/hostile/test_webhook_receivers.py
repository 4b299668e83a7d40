"""Whoever a webhook is told to may answer anything: that costs a notice a bounded time, and a worker nothing."""

import asyncio
import contextlib
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from activities.admission.webhook_patterns import Target
from activities.webhooks.sender import MAX_ANSWER, REQUEST_S, Unsent, post

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\n"


@asynccontextmanager
async def receiver(answer: Answer, context: ssl.SSLContext | None = None) -> AsyncIterator[Target]:
    """Somebody on loopback who answers so."""
    handling: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        handling.add(task)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await answer(reader, writer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    scheme = "https" if context else "http"
    try:
        yield Target.of(f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook")
    finally:
        server.close()
        for task in handling:
            task.cancel()
        await asyncio.gather(*handling, return_exceptions=True)


def says(*parts: bytes) -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            writer.write(part)
            await writer.drain()

    return answer


async def told(target: Target) -> tuple[int, bytes]:
    return await post(target, {"content-type": "application/json"}, b"{}", may_be_inside=True)


async def forever(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A body without an end."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(OK + b"transfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"2000\r\n" + b"x" * 0x2000 + b"\r\n")
        await writer.drain()


async def test_of_an_answer_without_an_end_the_beginning_is_read() -> None:
    async with receiver(forever) as target:
        status, data = await told(target)
    assert (status, len(data)) == (200, MAX_ANSWER)


@pytest.mark.parametrize(
    "parts",
    [
        (b"",),
        (b"what is this?\r\n\r\n",),
        (b"SSH-2.0-OpenSSH_9.2\r\n",),
        (OK + b"content-length: 10\r\n\r\nabc",),
        (OK + b"content-length: -1\r\n\r\n",),
        (OK + b"content-length: 1\r\ncontent-length: 2\r\n\r\nab",),
        (OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n",),
        (OK, *[b"x-many: " + b"y" * 1000 + b"\r\n"] * 1000),
        (b"HTTP/1.1 " + b"9" * 500_000,),
        (b"HTTP/1.1 999 \xff\xfe\r\n\r\n",),
    ],
)
async def test_what_is_no_answer_is_tried_again(parts: tuple[bytes, ...]) -> None:
    async with receiver(says(*parts)) as target:
        begun = time.monotonic()
        with pytest.raises(Unsent) as raised:
            await told(target)
    assert not raised.value.final
    assert target.host in str(raised.value)
    assert time.monotonic() - begun < REQUEST_S / 2


@pytest.mark.parametrize(
    ("status", "final"), [(301, True), (400, True), (404, True), (408, False), (429, False), (500, False), (503, False)]
)
async def test_what_another_try_may_change(status: int, final: bool) -> None:  # noqa: FBT001 - pytest fills it in
    answer = b"HTTP/1.1 %d X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n" % status
    async with receiver(says(answer)) as target:
        with pytest.raises(Unsent, match=f"answered with status {status}") as raised:
            await told(target)
    assert raised.value.final == final


@pytest.mark.exhaustive
async def test_a_drip_is_left_in_the_end() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for byte in OK * 100:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(1)

    async with receiver(drip) as target:
        begun = time.monotonic()
        with pytest.raises(Unsent, match="did not answer within 20 s"):
            await told(target)
    assert time.monotonic() - begun < REQUEST_S + 10


async def test_a_certificate_of_nobody_is_not_taken(tmp_path: Path) -> None:
    """Nor is anything said before it is looked at."""
    got: list[bytes] = []

    async def listens(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        got.append(await reader.read(1))

    names = ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "certificate"), "-subj", "/CN=127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *names]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    async with receiver(listens, context) as target:
        with pytest.raises(Unsent, match="certificate"):
            await told(target)
    assert b"".join(got) == b""


async def test_a_name_with_an_address_inside_is_no_way() -> None:
    async with receiver(says(OK + b"\r\n")) as target:
        by_name = Target("http", "localhost", target.port, "/")
        with pytest.raises(Unsent, match="an address inside the network") as raised:
            await post(by_name, {}, b"{}", may_be_inside=False)
        assert raised.value.final
        with pytest.raises(Unsent, match="an address inside the network"):
            await post(target, {}, b"{}", may_be_inside=False)


async def test_nobody_there() -> None:
    async with receiver(says()) as target:
        pass
    with pytest.raises(Unsent, match=target.host) as raised:
        await told(target)
    assert not raised.value.final
    with pytest.raises(Unsent, match="no-such-host"):
        await post(Target("http", "no-such-host.invalid", 80, "/"), {}, b"{}", may_be_inside=True)
