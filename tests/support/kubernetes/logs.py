"""What a container has written, line by line with its times, and how much of it a request gets.

Which container a request means must not live here.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from tests.support.kubernetes import statuses
from tests.support.kubernetes.store import read_stamp


@dataclass(frozen=True)
class Line:
    """`data` ends with a newline, but for what was written last."""

    time: datetime
    stream: str
    data: bytes


class ContainerLog:
    """Of one start of a container."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.ended = False
        self._grown: set[asyncio.Event] = set()

    async def copy(self, stream: asyncio.StreamReader, name: str) -> None:
        """Keep what a process writes, until it has closed its end. A line is there once it is whole."""
        rest = b""
        while data := await stream.read(65536):
            *whole, rest = (rest + data).split(b"\n")
            for each in whole:
                self._append(name, each + b"\n")
        if rest:
            self._append(name, rest)

    def end(self) -> None:
        self.ended = True
        self._tell()

    async def read(self, options: "LogOptions") -> AsyncIterator[bytes]:
        """Lines as they were asked for; with `follow` until the container has ended."""
        left = options.limit_bytes
        grown = asyncio.Event()
        self._grown.add(grown)
        try:
            position = self._begin(options)
            while True:
                grown.clear()
                while position < len(self.lines):
                    data = options.show(self.lines[position])
                    position += 1
                    if left is not None:
                        data, left = data[:left], left - len(data[:left])
                    if data:
                        yield data
                    if left == 0:
                        return
                if self.ended or not options.follow:
                    return
                await grown.wait()
        finally:
            self._grown.discard(grown)

    def _begin(self, options: "LogOptions") -> int:
        since = options.since
        if since is not None:
            start = next((n for n, each in enumerate(self.lines) if each.time >= since), len(self.lines))
        else:
            start = 0
        return start if options.tail is None else max(start, len(self.lines) - options.tail)

    def _append(self, name: str, data: bytes) -> None:
        self.lines.append(Line(datetime.now(UTC), name, data))
        self._tell()

    def _tell(self) -> None:
        for each in self._grown:
            each.set()


@dataclass(frozen=True)
class LogOptions:
    """PodLogOptions, as a query has them."""

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail: int | None = None
    limit_bytes: int | None = None
    since: datetime | None = None

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "LogOptions":
        """Raises ApiError."""
        if "sinceTime" in query and "sinceSeconds" in query:
            raise statuses.bad_request("at most one of `sinceTime` or `sinceSeconds` may be specified")
        since = read_stamp(query["sinceTime"]) if "sinceTime" in query else None
        if "sinceSeconds" in query:
            since = datetime.fromtimestamp(datetime.now(UTC).timestamp() - int(query["sinceSeconds"]), UTC)
        return cls(
            follow=query.get("follow") in {"true", "1"},
            previous=query.get("previous") in {"true", "1"},
            timestamps=query.get("timestamps") in {"true", "1"},
            tail=int(query["tailLines"]) if "tailLines" in query else None,
            limit_bytes=int(query["limitBytes"]) if "limitBytes" in query else None,
            since=since.replace(microsecond=0) if since else None,
        )

    def show(self, line: Line) -> bytes:
        if not self.timestamps:
            return line.data
        return f"{line.time:%Y-%m-%dT%H:%M:%S.%f}000Z ".encode() + line.data
