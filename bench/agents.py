"""The agents that are measured: requests for runs, and the same Claude Code through its SDK alone."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient

from bench import marks
from bench.stack import Stack
from tests.scripted_model import Script, ScriptedModel

TOOL = "python3 -c 'import time; time.sleep(600)'"
PATIENCE_S = 60.0

T = TypeVar("T")


@dataclass(frozen=True)
class Bench:
    """What measures share: the stack with its worker, the model, a place for workspaces."""

    stack: Stack
    model: ScriptedModel
    workspace: Path
    config: Path
    worker: tuple[str, ...]
    """The flags of a worker."""
    scripts: list[Script] = field(default_factory=list)

    def script(self, name: str, *steps: Any) -> Script:
        """A script that is played over and over."""
        made = self.model.script(f"{name}-{secrets.token_hex(3)}", *steps, repeat=True, keep=4)
        self.scripts.append(made)
        return made

    def claude(self, script: Script) -> dict[str, Any]:
        """A RunRequest."""
        return {
            "agent": "claude",
            "prompt": "Go.",
            "workspace": {"path": str(self.own_workspace())},
            "permissions": {"mode": "accept_edits", "allow": ["Bash"]},
            "env": {"ANTHROPIC_BASE_URL": script.url},
            "lease_s": 300,
        }

    def process(self, *command: str, **more: Any) -> dict[str, Any]:
        """A RunRequest."""
        return {"agent": "process", "command": list(command), "workspace": {"path": str(self.own_workspace())}, **more}

    @property
    def workspaces(self) -> Path:
        """The directory of all that `own_workspace` makes."""
        return self.workspace.with_name("workspaces")

    def own_workspace(self) -> Path:
        """A new one: runs that are at work at once need one each."""
        path = self.workspaces / secrets.token_hex(6)
        path.mkdir(parents=True)
        return path

    @contextlib.asynccontextmanager
    async def sdk(self, script: Script, mark: str = "sdk") -> AsyncIterator[ClaudeSDKClient]:
        """Claude Code by claude-agent-sdk alone, not connected yet; disconnected at the end."""
        env = {**script.env(self.config), marks.NAME: mark}
        client = ClaudeSDKClient(self.options(env))
        try:
            yield client
        finally:
            await client.disconnect()

    def options(self, env: Mapping[str, str]) -> ClaudeAgentOptions:
        """As our runs have it."""
        return ClaudeAgentOptions(
            cwd=self.workspace,
            permission_mode="acceptEdits",
            allowed_tools=["Bash"],
            include_partial_messages=True,
            env=dict(env),
        )


async def soon(work: Awaitable[T], what: str, patience_s: float = PATIENCE_S) -> T:
    """Its result. Raises TimeoutError saying what did not come."""
    try:
        return await asyncio.wait_for(work, patience_s)
    except TimeoutError as error:
        raise TimeoutError(f"{what}: not within {patience_s:.0f} s") from error
