"""An editor, as the official Python client of the Agent Client Protocol makes one: `steer acp` is its agent."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import acp
from acp.connection import StreamDirection, StreamEvent
from acp.interfaces import Client
from acp.schema import AllowedOutcome, DeniedOutcome, RequestPermissionResponse

from tests.acceptance.site import Site
from tests.cli.forked_steer import Piped, piped
from tests.scripted_model import Script
from tests.support.processes import until

LIMIT = 64 << 20


class Screen:
    """What the editor's user sees, and what they answer when they are asked."""

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.cursors: list[str] = []
        self.asked: list[Any] = []
        self.answer: Callable[[], Awaitable[str | None]] | None = None
        """The option that is taken; None cancels. Without it a question stays open."""
        self.raw_answer: dict[str, Any] | None = None
        """What a frame has that answers a question in their place."""
        self.errors: dict[str, Any] = {}
        """Errors of requests, by their ids."""

    async def session_update(self, session_id: str, update: Any, **meta: Any) -> None:
        self.updates.append(update)
        if "steersman" in meta:
            self.cursors.append(meta["steersman"]["cursor"])

    async def request_permission(
        self, session_id: str, tool_call: Any, options: Any, **_: Any
    ) -> RequestPermissionResponse:
        self.asked.append(tool_call)
        if self.answer is None or self.raw_answer is not None:
            await asyncio.Event().wait()
            raise AssertionError
        option = await self.answer()
        outcome = AllowedOutcome(option_id=option, outcome="selected") if option else DeniedOutcome(outcome="cancelled")
        return RequestPermissionResponse(outcome=outcome)

    def on_connect(self, conn: Any) -> None:
        pass

    def told(self, kind: str) -> str:
        """The text of all updates of a kind, e.g. "agent_message_chunk"."""
        return "".join(each.content.text for each in self.updates if each.session_update == kind)

    def tools(self) -> dict[str, list[str | None]]:
        """The states that each tool call has had, by its title."""
        titles: dict[str, str] = {}
        states: dict[str, list[str | None]] = {}
        for each in self.updates:
            if each.session_update == "tool_call":
                titles[each.tool_call_id] = each.title
            if each.session_update in ("tool_call", "tool_call_update"):
                states.setdefault(titles[each.tool_call_id], []).append(each.status)
        return states


class Editor:
    """Its process of `steer acp`, initialized."""

    def __init__(self, process: Piped, screen: Screen, agent: Any, about: Any) -> None:
        self.process, self.screen, self.agent, self.about = process, screen, agent, about

    async def prompt(self, session: str, text: str) -> Any:
        return await self.agent.prompt(session, [acp.text_block(text)])

    async def close(self) -> str:
        """As by the user: its end of the pipe closes. Returns what the process said on stderr."""
        self.process.stdin.close()
        said = await self.process.stderr.read()
        assert await asyncio.wait_for(self.process.wait(), 20) == 0, said.decode()
        return said.decode()


@asynccontextmanager
async def editor(
    site: Site, *arguments: str, env: Mapping[str, str] | None = None, command: Sequence[str] = ()
) -> AsyncIterator[Editor]:
    """An editor for the length of a block. `arguments`: of `steer acp`; `env`, `command`: of its agents."""
    options = [part for name, value in (env or {}).items() for part in ("--env", f"{name}={value}")]
    words = ["acp", *options, *arguments, *(("--", *command) if command else ())]
    variables = {"PATH": os.environ["PATH"], "HOME": str(site.root / "home"), **site.namespace.env}
    process = await piped(words, variables, LIMIT)
    screen = Screen()

    def observe(event: StreamEvent) -> None:
        frame = event.message
        if event.direction is StreamDirection.INCOMING and "error" in frame:
            screen.errors[str(frame["id"])] = frame["error"]
        if screen.raw_answer is not None and frame.get("method") == "session/request_permission":
            process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": frame["id"], **screen.raw_answer}).encode() + b"\n")

    conn = acp.connect_to_agent(
        cast("Client", screen), process.stdin, process.stdout, use_unstable_protocol=True, observers=[observe]
    )
    try:
        try:
            about = await asyncio.wait_for(conn.initialize(protocol_version=acp.PROTOCOL_VERSION), 30)
        except ConnectionError as error:
            raise AssertionError((await process.stderr.read()).decode()) from error
        yield Editor(process, screen, conn, about)
    finally:
        await conn.close()
        await process.close()


def environment(script: Script, mark: str) -> dict[str, str]:
    return {"ANTHROPIC_BASE_URL": script.url, "RUN_MARK": mark}


async def shown(screen: Screen, text: str, kind: str = "agent_message_chunk") -> None:
    """Wait until the user sees it."""
    await until(lambda: text in screen.told(kind))
