"""Runs programs for whoever is at the other end of its stdin and stdout: many at once over one connection.

Where each program that is run costs a connection, as in a pod, one of this program makes one of them do. It ends with
its stdin, and what it runs then with it; what has gone into the background by itself stays. Frames go both ways:

    kind (1 byte), stream (4), length (4), bytes    numbers in network order

    to here      b"x" start the program with this argv, a JSON list, as this stream
                 b"i" bytes for its stdin        b"e" the end of its stdin        b"k" kill it
                 b"c" the reader has taken this many bytes of its stdout (4 bytes)
                 b"p" answer this with the same
    from here    b"h" the first one: this program has begun
                 b"o" bytes of its stdout        b"c" its stdin has taken this many bytes (4 bytes)
                 b"z" it has ended: {"code", "said"}: the last that it said on stderr; nothing follows of this stream
                 b"p" see above

Of each stream at most WINDOW bytes are on their way in each direction, so that one that nobody reads is in no other's
way. What must not live here: anything that is not in the standard library of Python 3.9; what is run, and why.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import struct
import subprocess
import sys
import time
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WINDOW = 1024 * 1024
HEADER = struct.Struct("!cII")
COUNT = struct.Struct("!I")
MAX_FRAME = 4 * 1024 * 1024
_READ = 64 * 1024
_SAID = 4096
_UNSENT = 1024 * 1024
"""With more bytes on the way to fd 1, nothing more is read from any program."""
_ENDED_S = 0.5
"""How long the stdout of a program that has ended is read while something else holds it open."""


class Stream:
    """One program."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        self.process = process
        self.fds = {"in": process.stdin.fileno(), "out": process.stdout.fileno(), "err": process.stderr.fileno()}
        for fd in self.fds.values():
            os.set_blocking(fd, False)
        self.pending: deque[bytes] = deque()
        self.ending = False
        self.credit = WINDOW
        self.said = b""
        self.ended_at: float | None = None

    def close(self, name: str) -> None:
        if self.fds.pop(name, None) is not None:
            getattr(self.process, "std" + name).close()


class Server:
    """`run` ends with stdin, or where nobody reads what is said."""

    def __init__(self, source: int, sink: int) -> None:
        self.source, self.sink = source, sink
        self.streams: dict[int, Stream] = {}
        self.received, self.unsent = bytearray(), bytearray()
        self.selector = selectors.DefaultSelector()
        self.watched: dict[int, int] = {}
        for fd in (source, sink):
            os.set_blocking(fd, False)

    def run(self) -> None:
        wakeup, signals = os.pipe()
        for fd in (wakeup, signals):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(signals, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.say(b"h", 0, b"")
        try:
            while True:
                self._watch(wakeup)
                timeout = 0.05 if any(each.ended_at for each in self.streams.values()) else None
                for key, mask in self.selector.select(timeout):
                    if key.fd == wakeup:
                        os.read(wakeup, 4096)
                    elif key.fd == self.source:
                        if not self._receive():
                            return
                    elif key.fd == self.sink and mask & selectors.EVENT_WRITE:
                        self._send()
                    elif key.data:
                        self._move(*key.data)
                self._reap()
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            for stream in self.streams.values():
                _kill(stream.process)

    def say(self, kind: bytes, number: int, data: bytes) -> None:
        self.unsent += HEADER.pack(kind, number, len(data)) + data

    # What is waited for.

    def _watch(self, wakeup: int) -> None:
        wanted: dict[int, tuple[int, Any]] = {
            wakeup: (selectors.EVENT_READ, None),
            self.source: (selectors.EVENT_READ, None),
        }
        if self.unsent:
            wanted[self.sink] = (selectors.EVENT_WRITE, None)
        for number, stream in self.streams.items():
            if "in" in stream.fds and stream.pending:
                wanted[stream.fds["in"]] = (selectors.EVENT_WRITE, (number, "in"))
            if "out" in stream.fds and stream.credit > 0 and len(self.unsent) < _UNSENT:
                wanted[stream.fds["out"]] = (selectors.EVENT_READ, (number, "out"))
            if "err" in stream.fds:
                wanted[stream.fds["err"]] = (selectors.EVENT_READ, (number, "err"))
        for fd in [fd for fd in self.watched if fd not in wanted]:
            self._forget(fd)
        for fd, (mask, data) in wanted.items():
            if fd not in self.watched:
                self.selector.register(fd, mask, data)
            elif self.watched[fd] != mask or self.selector.get_key(fd).data != data:
                self.selector.modify(fd, mask, data)
            self.watched[fd] = mask

    def _forget(self, fd: int) -> None:
        if self.watched.pop(fd, None) is not None:
            self.selector.unregister(fd)

    # The connection.

    def _receive(self) -> bool:
        """False at the end of the connection."""
        try:
            data = os.read(self.source, _READ)
        except BlockingIOError:
            return True
        if not data:
            return False
        self.received += data
        while len(self.received) >= HEADER.size:
            kind, number, length = HEADER.unpack_from(self.received)
            if length > MAX_FRAME:
                return False
            if len(self.received) < HEADER.size + length:
                break
            body = bytes(self.received[HEADER.size : HEADER.size + length])
            del self.received[: HEADER.size + length]
            self._obey(kind, number, body)
        return True

    def _obey(self, kind: bytes, number: int, body: bytes) -> None:
        stream = self.streams.get(number)
        if kind == b"x":
            self._start(number, json.loads(body.decode("utf-8", "surrogatepass")))
        elif kind == b"p":
            self.say(b"p", number, body)
        elif stream is None:
            pass  # it has ended meanwhile
        elif kind == b"i":
            if "in" in stream.fds:
                stream.pending.append(body)
            else:
                self.say(b"c", number, COUNT.pack(len(body)))  # nobody reads it: who writes is not held up
        elif kind == b"e":
            stream.ending = True
            if not stream.pending:
                self._close(stream, "in")
        elif kind == b"c":
            stream.credit += COUNT.unpack(body)[0]
        elif kind == b"k":
            _kill(stream.process)
            stream.credit = max(stream.credit, WINDOW)

    def _start(self, number: int, argv: list[str]) -> None:
        try:
            process = subprocess.Popen(
                [os.fsencode(word) for word in argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126
            self._end(number, code, str(error).encode("utf-8", "replace"))
            return
        self.streams[number] = Stream(process)

    def _send(self) -> None:
        try:
            sent = os.write(self.sink, memoryview(self.unsent)[:_READ])
        except BlockingIOError:
            return
        del self.unsent[:sent]

    # The programs.

    def _move(self, number: int, name: str) -> None:
        stream = self.streams.get(number)
        if stream is None or name not in stream.fds:
            return
        if name == "in":
            self._write(number, stream)
            return
        try:
            data = os.read(stream.fds[name], min(_READ, stream.credit) if name == "out" else _READ)
        except BlockingIOError:
            return
        if not data:
            self._close(stream, name)
        elif name == "out":
            stream.credit -= len(data)
            self.say(b"o", number, data)
        else:
            stream.said = (stream.said + data)[-_SAID:]

    def _write(self, number: int, stream: Stream) -> None:
        body = stream.pending.popleft()
        try:
            written = os.write(stream.fds["in"], body)
        except BlockingIOError:
            written = 0
        except BrokenPipeError:
            written = len(body) + sum(map(len, stream.pending))
            stream.pending.clear()
            self._close(stream, "in")
            self.say(b"c", number, COUNT.pack(written))
            return
        if written < len(body):
            stream.pending.appendleft(body[written:])
        if written:
            self.say(b"c", number, COUNT.pack(written))
        if stream.ending and not stream.pending:
            self._close(stream, "in")

    def _close(self, stream: Stream, name: str) -> None:
        if name in stream.fds:
            self._forget(stream.fds[name])
            stream.close(name)

    def _reap(self) -> None:
        now = time.monotonic()
        for number, stream in list(self.streams.items()):
            code = stream.process.poll()
            if code is None:
                continue
            stream.ended_at = stream.ended_at or now
            if "out" in stream.fds:
                if stream.credit <= 0 or len(self.unsent) >= _UNSENT:
                    stream.ended_at = now  # what is in its pipe waits for its reader
                if now < stream.ended_at + _ENDED_S:
                    continue
            for name in list(stream.fds):
                self._close(stream, name)
            del self.streams[number]
            self._end(number, code if code >= 0 else 128 - code, stream.said)

    def _end(self, number: int, code: int, said: bytes) -> None:
        words = json.dumps({"code": code, "said": said.decode("utf-8", "replace")})
        self.say(b"z", number, words.encode())


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except OSError:
            process.kill()


def main() -> None:
    """Serve stdin and stdout, until stdin ends."""
    Server(os.dup(0), os.dup(1)).run()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
