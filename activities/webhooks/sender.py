"""Sends a request to a webhook: to no address inside the network, by no redirect, with bounds in time and size."""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Iterable, Mapping

import httpcore2

from activities.admission.webhook_patterns import PORTS, Target
from steersman import timeouts

REQUEST_S = 20.0
MAX_ANSWER = 64 * 1024


class Unsent(Exception):
    """Nobody has taken it. `final`: another try would come to the same. Of a URL the message has the host alone."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


async def post(target: Target, headers: Mapping[str, str], body: bytes, *, may_be_inside: bool) -> tuple[int, bytes]:
    """The status, 2xx, and the beginning of the answer. `may_be_inside`: the operator has named it. Raises Unsent."""
    try:
        async with timeouts.timeout(REQUEST_S):
            return await _post(target, headers, body, _Backend(may_be_inside=may_be_inside))
    except TimeoutError as error:
        raise Unsent(f"{target.host} did not answer within {REQUEST_S:g} s") from error
    except (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError, OSError) as error:
        raise Unsent(f"{target.host}: {str(error) or type(error).__name__}") from error


async def _post(target: Target, headers: Mapping[str, str], body: bytes, backend: "_Backend") -> tuple[int, bytes]:
    host = f"[{target.host}]" if ":" in target.host else target.host
    url = f"{target.scheme}://{host}:{target.port}{target.path}"
    async with httpcore2.AsyncConnectionPool(
        ssl_context=ssl.create_default_context(), network_backend=backend, retries=0
    ) as pool:
        given = [("host", _host_header(target, host)), ("user-agent", "steersman"), *headers.items()]
        async with pool.stream("POST", url, headers=given, content=body) as response:
            data = b""
            async for part in response.aiter_stream():
                data += part
                if len(data) > MAX_ANSWER:
                    break
    if 200 <= response.status < 300:
        return response.status, data[:MAX_ANSWER]
    final = 300 <= response.status < 500 and response.status not in (408, 425, 429)
    raise Unsent(f"{target.host} answered with status {response.status}", final=final)


def _host_header(target: Target, host: str) -> str:
    # The library leaves the brackets of an address of version 6 out.
    return host if target.port == PORTS[target.scheme] else f"{host}:{target.port}"


class _Backend(httpcore2.AsyncNetworkBackend):
    """Connects to no address inside the network, unless it may.

    The name is looked up here, and what was looked at is what is connected to: a second answer changes nothing.
    """

    def __init__(self, *, may_be_inside: bool) -> None:
        self._may_be_inside = may_be_inside
        self._backend = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """See the library."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise Unsent(f"{host}: {error.strerror or error}") from error
        except UnicodeError as error:
            raise Unsent(f"{host} is no name of a host", final=True) from error
        addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
        failure: Exception = Unsent(f"{host} has no address")
        for address in addresses:
            if not self._may_be_inside and not is_outside(address):
                raise Unsent(f"{host} has an address inside the network", final=True)
        for address in addresses:
            try:
                return await self._backend.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure


def is_outside(address: str) -> bool:
    """Whether the address is one of the internet: none of a private network, this machine, its link or a group."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None) or _nat64(found)
        if inner is not None and not is_outside(str(inner)):
            return False
    return found.is_global and not found.is_multicast


def _nat64(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address behind a translator's prefix (RFC 6052)."""
    known = address in ipaddress.ip_network("64:ff9b::/96")
    return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if known else None
