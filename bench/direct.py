"""Each agent's program driven without Steersman, by its own protocol: what the figures of runs are held against."""

import asyncio
import contextlib
import itertools
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from activities.admission.variables import BASE_ENV
from bench.agents import soon
from bench.casts import Player
from tests.support.programs import HERMES

LIMIT: Final = 64 << 20
END_S: Final = 5
"""A program has so many seconds to end by itself."""
Frame = dict[str, Any]


class Program(ABC):
    """One process and one session of it."""

    def __init__(self, process: asyncio.subprocess.Process, workspace: Path) -> None:
        self._process, self._workspace = process, workspace
        self._numbers = itertools.count(1)
        self._waiting: list[tuple[Callable[[Frame], bool], asyncio.Future[Frame]]] = []
        self._reading = asyncio.create_task(self._read())

    @abstractmethod
    async def begin(self) -> None:
        """Until it has named its session: a run's first event."""

    @abstractmethod
    async def prompt(self, text: str) -> None:
        """Begin a turn."""

    @abstractmethod
    async def interrupt(self) -> None:
        """End the turn, until it says that it has ended."""

    async def _asked(self, method: str, **params: Any) -> Frame:
        """The answer to a request."""
        number = next(self._numbers)
        answered = self._next(lambda frame: frame.get("id") == number and "method" not in frame)
        self._write({"id": number, "method": method, "params": params})
        answer = await soon(answered, f"the answer to {method}")
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result = answer["result"]
        assert isinstance(result, dict)
        return result

    def _next(self, fits: Callable[[Frame], bool]) -> asyncio.Future[Frame]:
        found: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._waiting.append((fits, found))
        return found

    def _write(self, frame: Frame) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **frame}).encode() + b"\n")

    async def _read(self) -> None:
        assert self._process.stdout
        async for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                self._take(json.loads(line))

    def _take(self, frame: Frame) -> None:
        for each in [each for each in self._waiting if each[0](frame)]:
            self._waiting.remove(each)
            each[1].set_result(frame)

    async def aclose(self) -> None:
        """Close its stdin, as a run does."""
        assert self._process.stdin
        self._process.stdin.close()
        try:
            async with asyncio.timeout(END_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        self._reading.cancel()


class Acp(Program):
    """A program that speaks the Agent Client Protocol."""

    async def begin(self) -> None:
        await self._asked("initialize", protocolVersion=1, clientCapabilities={})
        self._session = (await self._asked("session/new", cwd=str(self._workspace), mcpServers=[]))["sessionId"]

    async def prompt(self, text: str) -> None:
        number = next(self._numbers)
        self._ended = self._next(lambda frame: frame.get("id") == number and "method" not in frame)
        params = {"sessionId": self._session, "prompt": [{"type": "text", "text": text}]}
        self._write({"id": number, "method": "session/prompt", "params": params})

    async def interrupt(self) -> None:
        self._write({"method": "session/cancel", "params": {"sessionId": self._session}})
        await soon(self._ended, "the turn ends")


class Codex(Program):
    """`codex app-server`."""

    async def begin(self) -> None:
        client = {"name": "bench", "title": "bench", "version": "1"}
        await self._asked("initialize", clientInfo=client, capabilities={"experimentalApi": True})
        self._write({"method": "initialized"})
        started = await self._asked(
            "thread/start", cwd=str(self._workspace), sandbox="danger-full-access", approvalPolicy="never"
        )
        self._thread = started["thread"]["id"]

    async def prompt(self, text: str) -> None:
        given = [{"type": "text", "text": text}]
        self._turn = (await self._asked("turn/start", threadId=self._thread, input=given))["turn"]["id"]

    async def interrupt(self) -> None:
        ended = self._next(lambda frame: frame.get("method") == "turn/completed")
        await self._asked("turn/interrupt", threadId=self._thread, turnId=self._turn)
        await soon(ended, "the turn ends")


class Hermes(Program):
    """Hermes's gateway."""

    async def begin(self) -> None:
        created = await self._asked("session.create", cols=100, cwd=str(self._workspace))
        self._session = created["session_id"]

    async def prompt(self, text: str) -> None:
        await self._asked("prompt.submit", session_id=self._session, text=text)

    async def interrupt(self) -> None:
        ended = self._next(lambda frame: frame.get("params", {}).get("type") == "message.complete")
        await self._asked("session.interrupt", session_id=self._session)
        await soon(ended, "the turn ends")


def _command(player: Player) -> tuple[type[Program], list[str]]:
    match player.agent:
        case "codex":
            return Codex, [player.program, "app-server"]
        case "hermes":
            return Hermes, [str(HERMES / "python"), "-m", "tui_gateway.entry"]
        case "gemini":
            return Acp, [player.program, "--acp"]
        case "opencode":
            return Acp, [player.program, "acp"]
        case _:
            return Acp, [player.program]


@contextlib.asynccontextmanager
async def begun(player: Player, workspace: Path) -> AsyncIterator[tuple[Program, float]]:
    """The program with a session, and the milliseconds from its start until it had one; ended then."""
    driver, command = _command(player)
    at = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        cwd=workspace,
        env=_environment(player.env),
        limit=LIMIT,
    )
    program = driver(process, workspace)
    try:
        await soon(program.begin(), f"{player.agent} has a session")
        yield program, 1000 * (time.monotonic() - at)
    finally:
        await program.aclose()


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    """As of a run: node, for one, takes 30 ms to load the certificates of `NODE_EXTRA_CA_CERTS`."""
    ours = {name: os.environ[name] for name in BASE_ENV if name in os.environ}
    return {"TERM": "dumb", "LANG": "C.UTF-8", **ours, **env}
