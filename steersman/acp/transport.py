"""JSON-RPC with an editor over pipes, one frame a line. What a frame asks for must not live here.

The library's own ends with the first frame that is JSON and no object, with all sessions of its editor.
"""

import asyncio
import json
from contextlib import suppress
from typing import Any, Final

from steersman.acp.errors import INTERNAL

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
CHUNK: Final = 1 << 16
OURS: Final = "steersman"
"""The part of a request's `_meta` that is read; the library makes arguments of all of it."""


class EditorTransport:
    """A Transport of the package `acp`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._writing = asyncio.Lock()
        self._read = bytearray()
        self._left = asyncio.Event()

    def leave(self) -> None:
        """As if the editor had left."""
        self._left.set()

    async def send(self, message: dict[str, Any]) -> None:
        """Send a frame. Raises OSError where the editor has left."""
        line = json.dumps(_brief(message), separators=(",", ":")).encode() + b"\n"
        async with self._writing:
            self._writer.write(line)
            await self._writer.drain()

    async def receive(self) -> dict[str, Any] | None:
        """The next frame; None when the editor has left. What is no frame is answered, as far as it can be."""
        while (line := await self._line()) is not None:
            if not line.strip():
                continue
            try:
                frame = json.loads(line)
            except (ValueError, RecursionError):
                await self._refuse(PARSE_ERROR, "no JSON")
                continue
            if (wrong := _wrong(frame)) is None:
                return _plain(frame)
            await self._refuse(INVALID_REQUEST, wrong, frame.get("id") if isinstance(frame, dict) else None)
        return None

    async def close(self) -> None:
        """Close this end."""
        self._writer.close()

    async def _refuse(self, code: int, why: str, id: object = None) -> None:
        known = id if isinstance(id, str | int) else None
        with suppress(OSError):
            await self.send({"jsonrpc": "2.0", "id": known, "error": {"code": code, "message": why}})

    async def _line(self) -> bytes | None:
        looked_at = 0
        while (end := self._read.find(b"\n", looked_at)) < 0:
            looked_at = len(self._read)
            if not (data := await self._chunk()):
                return None  # half a frame is none
            self._read += data
        line = bytes(self._read[:end])
        del self._read[: end + 1]
        return line

    async def _chunk(self) -> bytes:
        reading = asyncio.ensure_future(self._reader.read(CHUNK))
        left = asyncio.ensure_future(self._left.wait())
        try:
            await asyncio.wait({reading, left}, return_when=asyncio.FIRST_COMPLETED)
            return b"" if left.done() else reading.result()
        except OSError:
            return b""
        finally:
            reading.cancel()
            left.cancel()


def _wrong(frame: Any) -> str | None:
    """What keeps it from being taken for a frame; None where nothing does."""
    if not isinstance(frame, dict):
        return "a frame is one object"
    if not isinstance(frame.get("id"), str | int | None):
        return "id: a text or a whole number"
    if "method" not in frame:
        return None
    if not isinstance(frame["method"], str):
        return "method: a text"
    if not isinstance(frame.get("params"), dict | None):
        return "params: an object"
    return None


def _plain(frame: dict[str, Any]) -> dict[str, Any]:
    """The frame, without what the library stumbles over."""
    params, error = frame.get("params"), frame.get("error")
    if isinstance(params, dict) and "_meta" in params:
        meta = params["_meta"]
        ours = {OURS: meta[OURS]} if isinstance(meta, dict) and OURS in meta else {}
        return {**frame, "params": {**params, "_meta": ours}}
    if "method" not in frame and "error" in frame and not _is_error(error):
        return {**frame, "error": {"code": INTERNAL, "message": "an error that is none"}}
    return frame


def _is_error(error: object) -> bool:
    return isinstance(error, dict) and isinstance(error.get("code"), int) and isinstance(error.get("message"), str)


def _brief(message: dict[str, Any]) -> dict[str, Any]:
    """Of wrong parameters, which and why: neither what was given nor where pydantic explains itself."""
    error = message.get("error")
    data = error.get("data") if isinstance(error, dict) else None
    errors = data.get("errors") if isinstance(data, dict) else None
    if not isinstance(error, dict) or not isinstance(errors, list):
        return message
    brief = [{"field": ".".join(map(str, each.get("loc", ()))), "reason": each.get("msg")} for each in errors]
    return {**message, "error": {**error, "data": {"errors": brief}}}
