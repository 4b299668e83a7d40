"""The server's port, which can be closed, opened again, and answer nothing.

What is spoken on a connection must not live here.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable


class Listener:
    """Accepts connections on a port of loopback, the same each time it is opened."""

    def __init__(self, protocol: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None) -> None:
        self.port = 0
        self.silent = False
        """Connections are taken, and nothing is read from them. Set to False it counts for new connections."""
        self._protocol, self._tls = protocol, tls
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._transports: dict[asyncio.BaseTransport, socket.socket] = {}
        self._kept: list[socket.socket] = []
        self._handshakes: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", self.port))
        self._socket.setblocking(False)
        self.port = self._socket.getsockname()[1]
        self._accepting = asyncio.get_running_loop().create_task(self._accept(self._socket))

    def close(self) -> None:
        """Refuse new connections, and cut those that there are."""
        if self._accepting:
            self._accepting.cancel()
        if self._socket:
            self._socket.close()
        self._accepting = self._socket = None
        self.cut()

    def cut(self) -> None:
        """Every connection that there is."""
        for transport, accepted in self._transports.items():
            # asyncio's abort() fails on a transport that was closed while it still had bytes to write, and has
            # written them since; its get_extra_info() on one of TLS that was closed twice (Python 3.11).
            if isinstance(transport, asyncio.Transport) and accepted.fileno() >= 0:
                transport.abort()
        self._transports.clear()
        for each in self._kept:
            each.close()
        self._kept.clear()

    def silence(self) -> None:
        """Be as a network that swallows everything: nothing is closed and nothing is answered.

        On connections that there are nothing more is read; what is already being answered may still come.
        """
        self.silent = True
        for transport in self._transports:
            if isinstance(transport, asyncio.ReadTransport) and not transport.is_closing():
                transport.pause_reading()

    def speak(self) -> None:
        """End the silence; what came in it is read now, but for new connections of that time."""
        self.silent = False
        for transport in self._transports:
            if isinstance(transport, asyncio.ReadTransport) and not transport.is_closing():
                transport.resume_reading()
        for each in self._kept:
            each.close()
        self._kept.clear()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            accepted, _ = await loop.sock_accept(listening)
            if self.silent:
                self._kept.append(accepted)
                continue
            task = loop.create_task(self._connect(accepted))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol, accepted, ssl=self._tls
            )
        except OSError:
            accepted.close()
            return
        there = {each: its for each, its in self._transports.items() if not each.is_closing()}
        self._transports = there | {transport: accepted}
