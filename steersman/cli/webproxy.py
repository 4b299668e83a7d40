"""The proxy before the Temporal Web UI: passes its own pages' requests on, and refuses what `weborigin` refuses.

A program of its own, `python -m steersman.cli.webproxy`: `steer dev` starts it, and the compose file does. The UI
behind it must not be within a browser's reach by itself: on a port of `weborigin.BLOCKED_PORTS`.
"""

import argparse
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Final

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from steersman.cli.weborigin import OWN_NAMES, refusal

NAMES_VARIABLE: Final = "STEERSMAN_WEB_NAMES"
"""Further names, separated by commas, for those who cannot say --name."""
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
GRACE_S: Final = 2


def application(upstream: str, names: frozenset[str]) -> Starlette:
    """The proxy. `upstream`: the UI's own address, http://HOST:PORT. `names`: hosts under which it may be asked for."""
    # The transport alone: a client would keep cookies, follow redirects and heed proxies of the environment.
    transport = httpx2.AsyncHTTPTransport()

    async def passed(request: Request) -> Response:
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw]
        why = refusal(request.method, request.scope["path"], headers, names)
        if why is not None:
            return PlainTextResponse(f"{why}\n", 403)
        body = await _body(request)
        if body is None:
            return PlainTextResponse(f"more than {MAX_BODY} bytes\n", 413)
        query = request.scope["query_string"]
        target = request.scope["raw_path"] + (b"?" + query if query else b"")
        asked = httpx2.Request(
            request.method,
            httpx2.URL(upstream).copy_with(raw_path=target),
            headers=[(name, value) for name, value in headers if name not in {*HOP_BY_HOP, "content-length"}],
            content=body,
            # No limit on answers: the UI waits for events.
            extensions={"timeout": httpx2.Timeout(None, connect=CONNECT_S).as_dict()},
        )
        try:
            answer = await transport.handle_async_request(asked)
        except httpx2.TransportError as error:
            return PlainTextResponse(f"the Web UI does not answer: {type(error).__name__}\n", 502)
        return _streamed(answer)

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


def _streamed(answer: httpx2.Response) -> StreamingResponse:
    """The answer as it comes, still compressed."""

    async def parts() -> AsyncIterator[bytes]:
        try:
            async for part in answer.aiter_raw():
                yield part
        finally:
            await answer.aclose()

    response = StreamingResponse(parts(), answer.status_code)
    kept = [(name.lower(), value) for name, value in answer.headers.raw]
    response.raw_headers = [(name, value) for name, value in kept if name.decode("latin-1") not in HOP_BY_HOP]
    return response


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
