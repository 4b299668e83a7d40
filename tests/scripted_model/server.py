"""The server: HTTP on loopback, one script per first path segment.

`POST` to one of these plays the script, whose steps are the same for all:
    /<script>/v1/messages                       Anthropic Messages
    /<script>/v1/chat/completions               OpenAI Chat Completions
    /<script>/v1/responses                      OpenAI Responses
    /<script>/v1beta/models/MODEL:VERB          Gemini; generateContent, or streamGenerateContent (as with ?alt=sse)
`/<script>/_requests` (GET) and `/<script>/_release` (POST) control it from another process.
Anything else that a program asks of its API is answered harmlessly.
"""

from __future__ import annotations

import asyncio
import json
from types import TracebackType
from typing import Any, Self

from tests.scripted_model.connection import Connection, HungUpError, Incoming
from tests.scripted_model.dialects import chat, gemini, messages, responses
from tests.scripted_model.requests import Dialect, Pause, Request
from tests.scripted_model.script import Script, ScriptError, Steps
from tests.scripted_model.steps import Answer, Cut, Failure, Hold, Say, Step

PING_S = 5.0
CUT_AFTER_S = 0.1  # the CLI drops what arrives together with the end of the connection
DIALECTS: dict[str, Dialect] = {"v1/messages": messages, "v1/chat/completions": chat, "v1/responses": responses}
GEMINI = "v1beta/models/"
SIDE_ANSWER = Answer((Say('{"title": "Scripted"}'),))


class ScriptedModel:
    """The scripted model. `async with` starts it; leaving raises ScriptError if a script ran out."""

    def __init__(self, port: int = 0, address: str = "127.0.0.1") -> None:
        self._port, self._address = port, address
        self._scripts: dict[str, Script] = {}
        self._strays: list[str] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://{self._address}:{self._port}"

    def script(self, name: str, *steps: Steps, repeat: bool = False, keep: int | None = None) -> Script:
        """Serve `steps` under `name`, one a request; with `repeat` over and over.

        Every request is kept with its whole conversation; `keep` bounds that to the last so many, for benchmarks.
        """
        if not name or "/" in name:
            raise ValueError(f"a script's name is one path segment, not {name!r}")
        if name in self._scripts:
            raise ValueError(f"there is a script {name!r} already")
        script = self._scripts[name] = Script(f"{self.url}/{name}", steps, repeat=repeat, keep=keep)
        return script

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self._address, self._port, limit=2**26)
        self._port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop serving. Raises ScriptError naming the requests that no script had an answer for."""
        if self._server:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if complaint := self.complaint():
            raise ScriptError(complaint)

    def complaint(self) -> str:
        """What was asked that no script had an answer for; empty if nothing."""
        lines = [f"unknown script: {stray}" for stray in self._strays]
        for name, script in self._scripts.items():
            for request in script.unexpected:
                last = request.texts[-1][:200] if request.texts else ""
                lines.append(f"script {name!r} ran out at request {request.number}, which ended with: {last!r}")
        return "\n".join(lines)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except ScriptError as complaint:
            if error is None:
                raise
            error.add_note(str(complaint))  # the test's own failure matters more

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._connections.add(task)
        connection = Connection(reader, writer)
        try:
            while incoming := await connection.receive():
                await self._answer(incoming, connection)
        except (HungUpError, asyncio.CancelledError):  # asyncio.start_server logs a cancelled handler as an error
            pass
        finally:
            self._connections.discard(task)
            await connection.close()

    async def _answer(self, incoming: Incoming, connection: Connection) -> None:
        name, _, path = incoming.path.lstrip("/").partition("/")
        script = self._scripts.get(name)
        dialect = gemini if path.startswith(GEMINI) else DIALECTS.get(path.removesuffix("/count_tokens"), messages)
        if script is None:
            self._strays.append(f"{incoming.method} {incoming.path}")
            await connection.respond(404, dialect.error(404, f"no script {name!r}"))
            return
        match incoming.method, path:
            case "POST", _ if path.endswith(("/count_tokens", ":countTokens")):
                await connection.respond(200, dialect.TOKENS)
            case "POST", _ if path in DIALECTS or path.startswith(GEMINI):
                await self._message(script, incoming, dialect, path, connection)
            case "GET", "_requests":
                await connection.respond(200, _described(script))
            case "POST", "_release":
                await script.release()
                await connection.respond(200, {"holding": script.holding})
            case _:
                await connection.respond(200, {})

    async def _message(
        self, script: Script, incoming: Incoming, dialect: Dialect, path: str, connection: Connection
    ) -> None:
        body = incoming.json()
        model, streams = body.get("model", "scripted"), bool(body.get("stream"))
        if path.startswith(GEMINI):  # which has neither in its bodies
            model, _, verb = path.removeprefix(GEMINI).partition(":")
            streams = verb == "streamGenerateContent"
        request = await script.record(body, incoming.headers, dialect, model, streams=streams)
        step: Step = SIDE_ANSWER if request.side else script.next_step(request)
        outcome = "hung up"
        try:
            outcome = await _play(step, request, script, connection)
        finally:
            await script.ended(request, outcome)


async def _play(step: Step, request: Request, script: Script, connection: Connection) -> str:
    dialect = request.dialect
    if isinstance(step, Failure):
        await connection.respond(step.status, dialect.error(step.status, step.message), step.headers)
        return "failed"
    answer = step.for_tools(request.tools)
    if request.streams:
        await connection.begin_stream(step.headers)
    for item in dialect.stream(answer, request):
        match item:
            case Hold():
                await connection.unless_hung_up(script.held(), dialect.PING if request.streams else b"", PING_S)
            case Cut():
                await connection.unless_hung_up(asyncio.sleep(CUT_AFTER_S))
                await connection.close()
                return "cut"
            case Pause(seconds=seconds):
                await connection.unless_hung_up(asyncio.sleep(seconds))
            case bytes() if request.streams:
                await connection.send(item)
    if request.streams:
        await connection.end_stream()
    else:
        await connection.respond(200, dialect.message(answer, request), step.headers)
    return "answered"


def _described(script: Script) -> dict[str, Any]:
    def rows(requests: list[Request]) -> list[dict[str, Any]]:
        return [{"number": r.number, "outcome": r.outcome, "body": json.loads(json.dumps(r.body))} for r in requests]

    return {
        "requests": rows(script.requests),
        "side_requests": rows(script.side_requests),
        "unexpected": [r.number for r in script.unexpected],
        "holding": script.holding,
        "remaining": script.remaining,
    }
