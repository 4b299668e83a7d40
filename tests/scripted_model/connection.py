"""As much of HTTP/1.1 as the server needs: one request at a time, chunked streams, a hang-up noticed at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any


class HungUpError(Exception):
    """The client closed the connection in the middle of an answer."""


@dataclass(frozen=True)
class Incoming:
    """A request as it came in. `path` is without its query."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        parsed = json.loads(self.body)
        if not isinstance(parsed, dict):
            raise TypeError(f"{self.path}: the body is no JSON object")
        return parsed


class Connection:
    """One keep-alive connection. The next head is awaited while an answer goes out: that is how a hang-up shows."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._head: asyncio.Task[bytes] = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
        self._to_head = False

    async def receive(self) -> Incoming | None:
        """The next request; None when the client is done."""
        try:
            head = (await self._head).decode("latin-1")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        first, *lines = head.rstrip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        try:
            body = await self._reader.readexactly(int(headers.get("content-length", "0")))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise HungUpError from error
        self._head = asyncio.create_task(self._reader.readuntil(b"\r\n\r\n"))
        self._to_head = method == "HEAD"
        return Incoming(method, target.partition("?")[0], headers, body)

    async def respond(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        payload = json.dumps(body).encode()
        fields = {"content-type": "application/json", "content-length": str(len(payload)), **(headers or {})}
        await self._begin(status, fields, b"" if self._to_head else payload)

    async def begin_stream(self, headers: Mapping[str, str]) -> None:
        await self._begin(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked", **headers})

    async def send(self, data: bytes) -> None:
        await self._write(b"%x\r\n%s\r\n" % (len(data), data))

    async def end_stream(self) -> None:
        await self._write(b"0\r\n\r\n")

    async def unless_hung_up(self, work: Coroutine[Any, Any, None], ping: bytes = b"", every_s: float = 60.0) -> None:
        """Await `work`, sending `ping` now and then. Raises HungUpError when the client closes first."""
        task = asyncio.create_task(work)
        try:
            while not task.done():
                await asyncio.wait({task, self._head}, timeout=every_s, return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    break
                if self._head.done():
                    raise HungUpError
                if ping:
                    await self.send(ping)
            await task
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def close(self) -> None:
        self._head.cancel()
        await asyncio.gather(self._head, return_exceptions=True)
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def _begin(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        reason = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Overloaded"
        fields = "".join(f"{k}: {v}\r\n" for k, v in headers.items())
        await self._write(f"HTTP/1.1 {status} {reason}\r\n{fields}\r\n".encode() + body)

    async def _write(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except ConnectionError as error:
            raise HungUpError from error
