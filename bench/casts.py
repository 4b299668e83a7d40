"""The other agents than Claude Code, as the demo and the benchmarks make them work with the scripted model."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from activities.agents.claude.agent import ClaudeAgent
from bench.stack import Stack, StackError
from tests.scripted_model import Script, Tool
from tests.support.programs import installed


@dataclass(frozen=True)
class Cast:
    """How one agent is made to work with the scripted model."""

    program: str
    environment: Callable[[Script, Path], Mapping[str, str]]
    shell: Callable[[str], Tool]
    request: Mapping[str, Any]


CASTS: Final[Mapping[str, Cast]] = {
    "codex": Cast(
        "codex", Script.codex_env, lambda command: Tool("exec_command", {"cmd": command, "yield_time_ms": 600_000}), {}
    ),
    "gemini": Cast(
        "gemini",
        Script.gemini_env,
        lambda command: Tool("run_shell_command", {"command": command, "description": "as asked"}),
        {},
    ),
    "opencode": Cast(
        "opencode",
        Script.opencode_env,
        lambda command: Tool("bash", {"command": command, "description": "as asked"}),
        {},
    ),
    "hermes": Cast(
        "hermes", Script.hermes_env, lambda command: Tool("terminal", {"command": command, "timeout": 600}), {}
    ),
    "acp": Cast(
        "claude-agent-acp",
        lambda script, home: {
            **script.env(home / "claude"),
            # The adapter brings a Claude Code of its own, for some platforms.
            "CLAUDE_CODE_EXECUTABLE": ClaudeAgent({}).program(),
            "CLAUDE_CODE_ENABLE_PROMPT_SUGGESTION": "false",
        },
        lambda command: Tool("Bash", {"command": command, "timeout": 600_000}),
        {"options": {"mode": "default"}},
    ),
}


class Player:
    """An agent whose model plays a script, on a stack. Raises StackError where its program is not installed."""

    def __init__(self, agent: str) -> None:
        self.agent, self.cast = agent, CASTS[agent]
        found = installed(self.cast.program)
        if found is None:
            raise StackError(f"{self.cast.program} is not installed: make agents, or put it on PATH")
        self.program = found
        self.env: dict[str, str] = {}
        """Of the program itself, HOME and PATH included."""

    async def start_worker(self, stack: Stack, script: Script, *flags: str) -> tuple[str, ...]:
        """A worker that has the agent; its flags, for another one."""
        home = stack.home / f"home-{self.agent}"
        home.mkdir(exist_ok=True)
        path = f"{Path(self.program).parent}{os.pathsep}{os.environ['PATH']}"
        self.env = {**self.cast.environment(script, home), "HOME": str(home), "PATH": path}
        stack.agent_env(self.env)
        all_flags = (*flags, *(each for name in self._lent for each in ("--allow-env", name)))
        await stack.start_worker(*all_flags)
        return all_flags

    def request(self, workspace: Path, prompt: str) -> dict[str, Any]:
        """A RunRequest of a run that is asked nothing."""
        return {
            "agent": self.agent,
            "prompt": prompt,
            "workspace": {"path": str(workspace)},
            "permissions": {"mode": "full"},
            "env": {name: {"from_env": name} for name in self._lent},
            "limits": {"duration_s": 300},
            "lease_s": 120,
            **({"command": [self.program]} if self.agent == "acp" else {}),
            **self.cast.request,
        }

    @property
    def _lent(self) -> list[str]:
        """The variables that a request names."""
        return [name for name in self.env if name not in ("HOME", "PATH")]
