"""The codec server: what Temporal's Web UI and CLI ask to decode payloads for the person who looks at them.

Whoever may ask it can read everything, so it listens on loopback alone, and takes only requests of this user's programs
under a name of its own, and of browsers only those of the Web UI's pages. Temporal's protocol: POST PREFIX/decode or
/encode, Payloads as JSON.
"""

import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final

from google.protobuf import json_format
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.converter import PayloadCodec

IP: Final = "127.0.0.1"
NAMES: Final = frozenset({IP, "localhost"})
"""Any other name that resolves to this address is DNS rebinding."""
MAX_BODY: Final = 16 * 1024 * 1024
"""Bytes; four times what Temporal takes in one message."""
PREFLIGHT: Final = {
    "access-control-allow-methods": "POST",
    "access-control-allow-headers": "content-type, x-namespace, authorization",
    # A page from elsewhere that may ask: browsers want to know that this machine is meant.
    "access-control-allow-private-network": "true",
}
Work = Callable[[list[Payload]], Awaitable[list[Payload]]]


def application(codec: PayloadCodec, origins: Iterable[str], uid: int) -> Starlette:
    """The server. `origins`: of the pages that may ask, SCHEME://HOST[:PORT]; `uid`: whose programs may."""
    pages = frozenset(origin.rstrip("/").lower() for origin in origins)
    verbs: dict[str, Work] = {"decode": codec.decode, "encode": codec.encode}

    async def answered(request: Request) -> Response:
        why = refusal(request, pages) or _stranger(request, uid)
        if why is not None:
            return PlainTextResponse(f"{why}\n", 403)
        origin = request.headers.get("origin")
        headers = {"cache-control": "no-store", "vary": "origin"}
        if origin is not None:
            headers["access-control-allow-origin"] = origin
        if request.method == "OPTIONS":
            return Response(status_code=204, headers={**headers, **PREFLIGHT})
        return await _worked(request, verbs[request.url.path.rpartition("/")[2]], headers)

    routes = [
        Route(f"{prefix}/{verb}", answered, methods=["POST", "OPTIONS"])
        for verb in verbs
        for prefix in ("", "/{prefix:path}")
    ]
    return Starlette(routes=routes)


def refusal(request: Request, pages: frozenset[str]) -> str | None:
    """Why these headers must not pass, or None."""
    hosts, origins = request.headers.getlist("host"), request.headers.getlist("origin")
    if len(hosts) != 1 or hosts[0].lower().rpartition(":")[0] not in NAMES:
        return "this address is not one of the codec server's own names"
    if len(origins) > 1 or any(origin.lower() not in pages for origin in origins):
        return "the request comes from a page that may not ask (see --origin)"
    if not origins and "sec-fetch-site" in request.headers:
        return "a browser's request must name its origin"
    return None


def _stranger(request: Request, uid: int) -> str | None:
    """Why the program of another user of this machine, who reaches loopback too, may not ask. Known on Linux only."""
    table = Path("/proc/net/tcp")
    if sys.platform != "linux" or request.client is None:
        return None
    asker = uid_of(table.read_text(), request.client, request.scope["server"])
    return None if asker in {uid, 0} else "only programs of the user who started the codec server may ask"


def uid_of(table: str, client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Whose socket is the client's end of a connection; `table`: /proc/net/tcp."""
    ends = [f"{_hex(ip)}:{port:04X}" for ip, port in (client, server)]
    for line in table.splitlines()[1:]:
        words = line.split()
        if words[1:3] == ends:
            return int(words[7])
    return None


def _hex(ip: str) -> str:
    """An IPv4 address as the kernel writes it: one number in the machine's byte order."""
    parts = bytes(int(part) for part in ip.split("."))
    return f"{int.from_bytes(parts, sys.byteorder):08X}"


async def _worked(request: Request, work: Work, headers: dict[str, str]) -> Response:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return PlainTextResponse("the payloads must be application/json\n", 415, headers)
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            return PlainTextResponse(f"more than {MAX_BODY} bytes\n", 413, headers)
    try:
        said = json_format.Parse(bytes(body), Payloads())
    except (json_format.ParseError, ValueError, RecursionError):
        return PlainTextResponse("this is no JSON of Temporal's Payloads\n", 400, headers)
    try:
        done = Payloads(payloads=await work(list(said.payloads)))
    except Exception as error:  # noqa: BLE001 - a codec may raise what it will
        return PlainTextResponse(f"{error}\n", 400, headers)
    return Response(json_format.MessageToJson(done, indent=None), 200, headers, "application/json")
