"""The proxy before the Temporal Web UI: passes its own pages' requests on, and refuses what `weborigin` refuses.

A program of its own, `python -m steersman.cli.webproxy`: `steer dev` starts it, and the compose file does. The UI
behind it must not be within a browser's reach by itself: on a port of `weborigin.BLOCKED_PORTS`.
"""

import argparse
import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from steersman.cli.weborigin import OWN_NAMES, refusal

NAMES_VARIABLE: Final = "STEERSMAN_WEB_NAMES"
"""The environment variable with further names, separated by commas, where --name cannot be given."""
MAX_BODY: Final = 8 * 1024 * 1024
"""Bytes; twice what Temporal takes in one message."""
HOP_BY_HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    }
)
METHODS: Final = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
CONNECT_S: Final = 5
LIMITS: Final = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
"""One connection for each request that a client waits for: a long poll must keep no other request waiting."""
TIMEOUT: Final = httpx2.Timeout(None, connect=CONNECT_S, pool=CONNECT_S)
"""No limit on answers: the UI waits for events."""
GONE: Final = 499
"""The status where the client has closed its connection; nobody reads it."""
GRACE_S: Final = 2


def application(upstream: str, names: frozenset[str]) -> Starlette:
    """The proxy. `upstream`: the UI's own address, http://HOST:PORT. `names`: hosts under which it may be asked for."""
    # The transport alone: a client would keep cookies, follow redirects and heed proxies of the environment.
    transport = httpx2.AsyncHTTPTransport(limits=LIMITS)

    async def passed(request: Request) -> Response:
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw]
        why = refusal(request.method, request.scope["path"], headers, names)
        if why is not None:
            return PlainTextResponse(f"{why}\n", 403)
        try:
            body = await _body(request)
        except ClientDisconnect:
            return Response(status_code=GONE)
        if body is None:
            return PlainTextResponse(f"more than {MAX_BODY} bytes\n", 413)
        query = request.scope["query_string"]
        target = request.scope["raw_path"] + (b"?" + query if query else b"")
        asked = httpx2.Request(
            request.method,
            httpx2.URL(upstream).copy_with(raw_path=target),
            headers=[(name, value) for name, value in headers if name not in {*HOP_BY_HOP, "content-length"}],
            content=body,
            extensions={"timeout": TIMEOUT.as_dict()},
        )
        try:
            answer = await _while_wanted(transport.handle_async_request(asked), request)
        except httpx2.TransportError as error:
            return PlainTextResponse(f"the Web UI does not answer: {type(error).__name__}\n", 502)
        return Response(status_code=GONE) if answer is None else Streamed(answer)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with transport:
            yield

    return Starlette(routes=[Route("/{path:path}", passed, methods=METHODS)], lifespan=lifespan)


async def _body(request: Request) -> bytes | None:
    """All of it, or None where it is too long."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            return None
    return bytes(body)


async def _while_wanted(asking: Coroutine[Any, Any, httpx2.Response], request: Request) -> httpx2.Response | None:
    """The answer; None where the client goes first, and what was asked in its name is given up."""
    asked, gone = asyncio.create_task(asking), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait((asked, gone), return_when=asyncio.FIRST_COMPLETED)
        return asked.result() if asked.done() else None
    finally:
        asked.cancel()
        gone.cancel()
        await asyncio.gather(asked, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    """Returns once the client has closed its connection. The body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Streamed(StreamingResponse):
    """The answer as it comes, still compressed. It is closed when the client closes its connection."""

    def __init__(self, answer: httpx2.Response) -> None:
        super().__init__(answer.aiter_raw(), answer.status_code)
        self._answer = answer
        kept = [(name.lower(), value) for name, value in answer.headers.raw]
        self.raw_headers = [(name, value) for name, value in kept if name.decode("latin-1") not in HOP_BY_HOP]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass it on until it ends or the client does."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._answer.aclose()


def main() -> None:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser(prog="python -m steersman.cli.webproxy", description=__doc__.partition("\n")[0])
    parser.add_argument("--listen", required=True, metavar="IP:PORT")
    parser.add_argument("--upstream", required=True, metavar="URL", help="the Web UI itself, http://HOST:PORT")
    parser.add_argument("--name", action="append", help="a further host name under which people open it")
    options = parser.parse_args()
    ip, _, port = options.listen.rpartition(":")
    further = options.name or os.environ.get(NAMES_VARIABLE, "").split(",")
    names = OWN_NAMES | {name.strip().lower() for name in further if name.strip()}
    uvicorn.run(
        application(options.upstream, names),
        host=ip,
        port=int(port),
        http="h11",
        ws="none",  # the UI has none
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )


if __name__ == "__main__":
    main()
