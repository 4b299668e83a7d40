"""What the conformance suite needs of each agent: how to make it answer, work, and die."""

import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from activities.agents.claude.agent import ClaudeAgent
from activities.agents.process import ProcessAgent
from steersman.contracts.agents import CAPABILITIES, Capabilities
from tests.agents.stage import Stage, staged
from tests.scripted_model import Hold, Say, ScriptedModel, Tool, answer, say
from tests.scripted_model.script import Script, Steps

Staged = AbstractAsyncContextManager[Stage]

FAMILY = """
import os, subprocess, sys, time
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('{}', 'w').close(); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child.format("child")], start_new_session=True)
while not os.path.exists("child"):
    time.sleep(0.01)
print("at work", flush=True)
time.sleep(600)
"""


class Kit(Protocol):
    """One agent, made to do things."""

    name: str

    def answering(self, text: str, **fields: Any) -> Staged:
        """It says the text and ends well."""
        ...

    def working(self, **fields: Any) -> Staged:
        """It says "at work", and goes on until it is stopped; a tool of its own works beside it in a session of its own
        and ignores SIGTERM.
        """
        ...

    def waiting(self, text: str, **fields: Any) -> Staged:
        """It says "at work", waits until `go_on`, says the text and ends well."""
        ...

    async def go_on(self, stage: Stage) -> None: ...

    def missing(self) -> Staged:
        """Its program is not installed."""
        ...

    def elsewhere(self, directory: Path) -> "Kit":
        """The same agent with a workspace, and with files of its own, in that directory."""
        ...

    @property
    def can(self) -> Capabilities:
        return CAPABILITIES[self.name]


class ProcessKit(Kit):
    name = "process"

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def run(self, code: str, **fields: Any) -> Staged:
        """A program in Python."""
        request = {"agent": "process", "command": [sys.executable, "-u", "-c", code], **fields}
        return staged(self._directory, ProcessAgent(), {}, request)

    def answering(self, text: str, **fields: Any) -> Staged:
        return self.run(f"print({text!r})", **fields)

    def working(self, **fields: Any) -> Staged:
        return self.run(FAMILY, **fields)

    def waiting(self, text: str, **fields: Any) -> Staged:
        waiting = "import os, time\nprint('at work')\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
        return self.run(f"{waiting}print({text!r})", **fields)

    async def go_on(self, stage: Stage) -> None:
        Path(stage.request.workspace.path, "go").touch()

    def missing(self) -> Staged:
        gone = self._directory / "workspace" / "program"
        gone.parent.mkdir()
        gone.touch()
        return staged(self._directory, ProcessAgent(), {}, {"agent": "process", "command": ["./program"]})

    def elsewhere(self, directory: Path) -> Kit:
        return ProcessKit(directory)


class ClaudeKit(Kit):
    name = "claude"

    def __init__(self, directory: Path, model: ScriptedModel) -> None:
        self._directory, self._model = directory, model
        self.script: Script

    def run(self, *steps: Steps, env: Mapping[str, str] | None = None, **fields: Any) -> Staged:
        """The real CLI, with this script for its model."""
        self.script = self._model.script(f"s{len(self._model._scripts)}", *steps)  # noqa: SLF001
        environment = {**self.script.env(self._directory / "config"), **(env or {})}
        request = {"agent": "claude", "prompt": "do it", "permissions": {"mode": "full"}, **fields}
        # The suite holds the agent to what it does with permissions; that root needs a sandbox is tested elsewhere.
        return staged(self._directory, ClaudeAgent({"IS_SANDBOX": "1"}), environment, request)

    def answering(self, text: str, **fields: Any) -> Staged:
        return self.run(say(text), **fields)

    def working(self, **fields: Any) -> Staged:
        family = Path(self._directory, "family.py")
        family.write_text(FAMILY)
        command = f"{sys.executable} {family}"
        return self.run(answer(Say("at work"), Tool("Bash", {"command": command, "timeout": 600_000})), **fields)

    def waiting(self, text: str, **fields: Any) -> Staged:
        return self.run(answer(Say("at work"), Hold(), Say(f"\n{text}")), **fields)

    async def go_on(self, stage: Stage) -> None:
        await self.script.wait_held()
        await self.script.release()

    def missing(self) -> Staged:
        agent = ClaudeAgent({}, cli=str(self._directory / "no-claude"))
        return staged(self._directory, agent, {}, {"agent": "claude", "prompt": "do it"})

    def elsewhere(self, directory: Path) -> Kit:
        return ClaudeKit(directory, self._model)
