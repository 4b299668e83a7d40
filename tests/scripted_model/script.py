"""A script in play: which step is next, what was asked so far, and what is being held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.scripted_model import programs
from tests.scripted_model.requests import Dialect, Request
from tests.scripted_model.steps import Failure, Step

Steps = Step | Callable[[Request], Step | None]
"""A step, or a function that answers every request until it returns None."""


class ScriptError(AssertionError):
    """The agent asked for more than its script holds, or for a script that does not exist."""


class Script:
    """The steps for one agent, its subagents included, served under `url`. Made by `ScriptedModel.script`."""

    def __init__(self, url: str, steps: tuple[Steps, ...], *, repeat: bool, keep: int | None) -> None:
        if repeat and not steps:
            raise ValueError("a script that repeats needs a step")
        self.url = url
        self.requests: list[Request] = []
        self.side_requests: list[Request] = []
        self.unexpected: list[Request] = []
        self._steps = steps
        self._repeat = repeat
        self._keep = keep
        self._asked = 0
        self._position = 0
        self._holding = 0
        self._released = 0
        self._changed = asyncio.Condition()

    @property
    def remaining(self) -> int:
        """Steps not played yet; of a repeating script those of this round."""
        return len(self._steps) - self._position

    @property
    def holding(self) -> bool:
        return self._holding > 0

    def env(self, config_dir: Path | str) -> dict[str, str]:
        """Environment variables that make Claude Code talk to this script and keep its state in `config_dir`."""
        return programs.claude_env(self.url, Path(config_dir))

    def codex_env(self, home: Path) -> dict[str, str]:
        """The same for Codex, with its files in `home`. Its config.toml there says what `codex_arguments` do."""
        return programs.codex_env(self.url, home)

    @property
    def codex_arguments(self) -> list[str]:
        """Arguments that make Codex talk to this script where it has another config.toml."""
        return programs.codex_arguments(self.url)

    def gemini_env(self, home: Path) -> dict[str, str]:
        """The same for Gemini CLI, with its files in `home`."""
        return programs.gemini_env(self.url, home)

    def hermes_env(self, home: Path) -> dict[str, str]:
        """The same for Hermes, with its files in `home`."""
        return programs.hermes_env(self.url, home)

    def opencode_env(self, home: Path) -> dict[str, str]:
        """The same for opencode, with its files in `home`. The model is `mock/mock-model`."""
        return programs.opencode_env(self.url, home)

    async def release(self) -> None:
        """Let one hold go on: the present one, else the next."""
        async with self._changed:
            self._released += 1
            self._changed.notify_all()

    async def wait_held(self) -> None:
        """Return once a stream is being held."""
        await self._wait(lambda: self.holding)

    async def wait_requests(self, count: int) -> Request:
        """Return the request number `count` (from 1) of the conversation once it has arrived."""
        await self._wait(lambda: self._asked >= count)
        return next(r for r in self.requests if r.number == count)

    async def wait_outcome(self, request: Request) -> str:
        """Return how `request` ended, once it has."""
        await self._wait(lambda: request.outcome != "open")
        return request.outcome

    async def held(self) -> None:
        """Wait for a release. For the server."""
        async with self._changed:
            self._holding += 1
            self._changed.notify_all()
            try:
                await self._changed.wait_for(lambda: self._released > 0)
                self._released -= 1
            finally:
                self._holding -= 1
                self._changed.notify_all()

    async def record(
        self, body: Mapping[str, Any], headers: Mapping[str, str], dialect: Dialect, model: str, *, streams: bool
    ) -> Request:
        """Keep a request that has arrived. For the server."""
        now = asyncio.get_running_loop().time()
        request = Request(self._asked + 1, body, headers, now, dialect, model, streams)
        async with self._changed:
            if request.side:
                self.side_requests.append(request)
            else:
                self._asked += 1
                self.requests.append(request)
                if self._keep is not None:
                    del self.requests[: -self._keep]
            self._changed.notify_all()
        return request

    async def ended(self, request: Request, outcome: str) -> None:
        """Keep how a request ended. For the server."""
        async with self._changed:
            if request.outcome == "open":
                request.outcome = outcome
            self._changed.notify_all()

    def next_step(self, request: Request) -> Step:
        """The step that answers `request`. A request after the last step is kept as unexpected."""
        if self._repeat and not self.remaining:
            self._position = 0
        while self.remaining:
            item = self._steps[self._position]
            if isinstance(item, Step):
                self._position += 1
                return item
            step = item(request)
            if step is not None:
                return step
            self._position += 1
        request.outcome = "unexpected"
        self.unexpected.append(request)
        message = f"the script {self.url} has run out at request {request.number}"
        return Failure(request.dialect.RAN_OUT, message, {"x-should-retry": "false"})

    async def _wait(self, condition: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(condition)
