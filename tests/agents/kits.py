"""What the conformance suite needs of each agent: how to make it answer, work, and die."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from activities.agents.acp.agent import AcpAgent
from activities.agents.agent_kind import AgentKind
from activities.agents.catalog import AGENTS
from activities.agents.claude.agent import ClaudeAgent
from activities.agents.codex.agent import CodexAgent
from activities.agents.gemini.agent import GeminiAgent
from activities.agents.hermes.agent import HermesAgent
from activities.agents.opencode.agent import OpencodeAgent
from activities.agents.process.agent import ProcessAgent
from steersman.contracts.agents import Capabilities
from steersman.contracts.errors import ErrorType
from tests.agents.stage import Stage, staged
from tests.scripted_model import Answer, Hold, Say, ScriptedModel, Tool, answer, say, structured, tool
from tests.scripted_model.programs import codex_env, opencode_env
from tests.scripted_model.script import Script, Steps
from tests.support.programs import installed, program

Staged = AbstractAsyncContextManager[Stage]

PROGRAMS = Path(sys.prefix) / "agents" / "node_modules" / ".bin"
"""Programs of npm: `make agents` installs them."""

FAMILY = """
import os, subprocess, sys, time
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('{}', 'w').close(); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child.format("child")], start_new_session=True)
while not os.path.exists("child"):
    time.sleep(0.01)
print("at work", flush=True)
time.sleep(600)
"""

SHORT = f"for i in {' '.join(map(str, range(20)))}; do echo working; sleep 0.1; done"
ALOUD = f"{SHORT}; until [ -e go ]; do echo working; sleep 0.1; done; echo worked"

ASKED = "touch asked"
AGAIN = "touch again"


class Kit(Protocol):
    """One agent, made to do things."""

    name: str
    streams: bool = True
    """What it says comes in parts before it is whole."""

    def answering(self, text: str, **fields: Any) -> Staged:
        """It says the text and ends well."""
        ...

    def working(self, **fields: Any) -> Staged:
        """It says "at work", and goes on until it is stopped; a tool of its own works beside it in a session of its own
        and ignores SIGTERM.
        """
        ...

    more: frozenset[str] = frozenset()
    """What this program reports, and the agent does not declare, as others that it drives do not."""
    asked: Mapping[str, Any] = {}
    """Fields of a request without which a run lacks a capability of the agent, where there are such."""

    def waiting(self, text: str, **fields: Any) -> Staged:
        """It says "at work", waits until `go_on`, says the text and ends well. Told something meanwhile, it says the
        text once it has read that; begun again after a crash, at once.
        """
        ...

    broken_off: str = ""
    """A pattern of the names of files that it was writing, and does not read, when its process ended."""
    asks_twice: bool = False
    """Its model can give two calls one id, as some do: `asking` has two of them."""
    tells_output: bool = False
    """It tells what a tool of its own puts out while the tool works."""

    def working_aloud(self, **fields: Any) -> Staged | None:
        """A tool of its own puts out "working", again and again, for two seconds at least and until the workspace has a
        file `go`, and then "worked"; it says something, and ends well. None: it has no such tool.
        """
        return None

    def answering_by_schema(self, value: Mapping[str, Any], **fields: Any) -> Staged:
        """It answers with that value, as it does where the request has an `output_schema`."""
        return self.answering(json.dumps(value), **fields)

    def asking(self, **fields: Any) -> Staged:
        """It asks for leave to make the file `asked` in its workspace, makes it where it gets that, and ends. One that
        never asks for anything just answers. With `asks_twice`, the same follows for the file `again`.
        """
        return self.answering("there is nothing to ask for", **fields)

    async def go_on(self, stage: Stage) -> None: ...

    def asked_of_model(self) -> str:
        """All that its model was asked, in whatever form; empty where nobody sees that."""
        return ""

    def missing(self) -> Staged:
        """Its program is not installed."""
        ...

    def elsewhere(self, directory: Path) -> "Kit":
        """The same agent with a workspace, and with files of its own, in that directory."""
        ...

    def not_installed(self) -> str | None:
        """Why its program cannot be run here."""
        return None

    @property
    def kind(self) -> AgentKind:
        """The agent's row."""
        return AGENTS[self.name]

    @property
    def can(self) -> Capabilities:
        return self.kind.at_most


class ProcessKit(Kit):
    name = "process"
    streams = False
    asked: Mapping[str, Any] = {"options": {"messages": "lines"}}

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


def asking_twice(*calls: Answer) -> tuple[Answer, ...]:
    """These calls of a tool one after the other, all of one id, and an end."""
    same = (Answer((replace(call, id="call_0"),)) for each in calls for call in each.parts if isinstance(call, Tool))
    return (*same, say("done"))


class ScriptedKit(Kit):
    """An agent that asks a model, which a script plays."""

    def __init__(self, directory: Path, model: ScriptedModel) -> None:
        self._directory, self._model = directory, model
        self.script: Script

    def play(self, *steps: Steps) -> None:
        """These are the steps of its model from now on."""
        self.script = self._model.script(f"s{len(self._model._scripts)}", *steps)  # noqa: SLF001

    def run(self, *steps: Steps, env: Mapping[str, str] | None = None, **fields: Any) -> Staged:
        """The real program, with this script for its model."""
        raise NotImplementedError

    def shell(self, command: str) -> Tool:
        """A call of its tool for commands."""
        raise NotImplementedError

    def answering(self, text: str, **fields: Any) -> Staged:
        return self.run(say(text), **fields)

    def working(self, **fields: Any) -> Staged:
        family = Path(self._directory, "family.py")
        family.write_text(FAMILY)
        return self.run(answer(Say("at work"), self.shell(f"{sys.executable} {family}")), **fields)

    def working_aloud(self, **fields: Any) -> Staged | None:
        return self.run(answer(Say("at work"), self.shell(ALOUD)), say("done"), **fields)

    def waiting(self, text: str, **fields: Any) -> Staged:
        return self.run(answer(Say("at work"), Hold(), Say(f"\n{text}")), say(text), **fields)

    async def go_on(self, stage: Stage) -> None:
        await self.script.wait_held()
        await self.script.release()

    def asked_of_model(self) -> str:
        return json.dumps([each.body for each in self.script.requests])

    def elsewhere(self, directory: Path) -> Kit:
        return type(self)(directory, self._model)


class ClaudeKit(ScriptedKit):
    name = "claude"
    asks_twice = True

    def run(self, *steps: Steps, env: Mapping[str, str] | None = None, **fields: Any) -> Staged:
        """The real CLI, with this script for its model."""
        self.play(*steps)
        environment = {**self.script.env(self._directory / "config"), **(env or {})}
        request = {"agent": "claude", "prompt": "do it", "permissions": {"mode": "full"}, **fields}
        # The suite holds the agent to what it does with permissions; that root needs a sandbox is tested elsewhere.
        return staged(self._directory, ClaudeAgent({"IS_SANDBOX": "1"}), environment, request)

    def answering_by_schema(self, value: Mapping[str, Any], **fields: Any) -> Staged:
        return self.run(structured(value), **fields)

    def asking(self, **fields: Any) -> Staged:
        return self.run(*asking_twice(tool("Bash", command=ASKED), tool("Bash", command=AGAIN)), **fields)

    def shell(self, command: str) -> Tool:
        return Tool("Bash", {"command": command, "timeout": 600_000})

    def missing(self) -> Staged:
        agent = ClaudeAgent({}, cli=str(self._directory / "no-claude"))
        return staged(self._directory, agent, {}, {"agent": "claude", "prompt": "do it"})


class CodexKit(ScriptedKit):
    name = "codex"
    asks_twice = True
    tells_output = True
    broken_off = r"shell_snapshots/[^/]+\.tmp-\d+"

    @property
    def home(self) -> Path:
        """Where Codex has its own files."""
        return self._directory / "home"

    def run(self, *steps: Steps, env: Mapping[str, str] | None = None, **fields: Any) -> Staged:
        """The real app-server, with this script for its model."""
        self.play(*steps)
        environment = {**self.script.codex_env(self.home), **(env or {})}
        request = {"agent": "codex", "prompt": "do it", "permissions": {"mode": "full"}, **fields}
        return staged(self._directory, CodexAgent(environment, program("codex")), environment, request)

    def asking(self, **fields: Any) -> Staged:
        return self.run(*asking_twice(tool("exec_command", cmd=ASKED), tool("exec_command", cmd=AGAIN)), **fields)

    def shell(self, command: str) -> Tool:
        return Tool("exec_command", {"cmd": command, "yield_time_ms": 600_000})

    def missing(self) -> Staged:
        agent = CodexAgent({}, cli=str(self._directory / "no-codex"))
        return staged(self._directory, agent, {}, {"agent": "codex", "prompt": "do it"})


class HermesKit(ScriptedKit):
    name = "hermes"

    @property
    def home(self) -> Path:
        """Where Hermes has its own files."""
        return self._directory / "home" / ".hermes"

    def not_installed(self) -> str | None:
        return None if installed("hermes") else "hermes is not installed: make agents"

    def run(self, *steps: Steps, env: Mapping[str, str] | None = None, **fields: Any) -> Staged:
        """The real gateway, with this script for its model."""
        self.play(*steps)
        environment = {**self.script.hermes_env(self.home.parent), **(env or {})}
        request = {"agent": "hermes", "prompt": "do it", "permissions": {"mode": "full"}, **fields}
        agent = HermesAgent({"PATH": str(Path(program("hermes")).parent)})
        return staged(self._directory, agent, environment, request)

    def shell(self, command: str) -> Tool:
        """A call of its tool for commands."""
        return Tool("terminal", {"command": command, "timeout": 600})

    def missing(self) -> Staged:
        agent = HermesAgent({"PATH": str(self._directory)})
        request = {"agent": "hermes", "prompt": "do it", "permissions": {"mode": "full"}}
        return staged(self._directory, agent, {}, request)


ADAPTER = {
    "CLAUDE_CODE_EXECUTABLE": ClaudeAgent({}).program(),
    "CLAUDE_CODE_ENABLE_PROMPT_SUGGESTION": "false",  # a request beside the conversation, after each turn
}


class AcpKit(ScriptedKit):
    """Agent "acp" with a program that speaks the protocol: the adapter for Claude Code."""

    name = "acp"
    asks_twice = True
    command: tuple[str, ...] = (str(PROGRAMS / "claude-agent-acp"),)
    # In its own "auto" mode the adapter asks the service whether it may, not us.
    own: Mapping[str, Any] = {"options": {"mode": "default"}}
    more = frozenset({"tokens"})
    steers = True
    """It announces `_session/steering`."""
    goes_on = True
    """It goes on with its turn when a tool is denied."""
    gives_up = False
    """It says then that its turn was cancelled."""
    asks_for_all = True
    """It asks even where the answer is always yes."""
    refused: ErrorType | None = None
    """What becomes of a refused key; None where it is tried again for minutes, without a word."""
    silent_s = 20.0
    """It has begun to ask its model within this many seconds, on a busy machine too."""

    def agent(self) -> AcpAgent:
        return AcpAgent()

    def not_installed(self) -> str | None:
        program = Path(self.command[0])
        return None if program.exists() else f"{program.name} is not installed: make agents"

    @property
    def unreachable(self) -> Mapping[str, str]:
        """Where its model is not."""
        return {"ANTHROPIC_BASE_URL": "http://127.0.0.1:1"}

    def environment(self) -> dict[str, str]:
        """That of the program, with the script for its model."""
        return {**self.script.env(self._directory / "config"), **ADAPTER}

    def run(self, *steps: Steps, env: Mapping[str, str] | None = None, **fields: Any) -> Staged:
        """The real program, with this script for its model."""
        self.play(*steps)
        command = {"command": list(self.command)} if self.name == "acp" else {}
        request = {
            "agent": self.name,
            "prompt": "do it",
            "permissions": {"mode": "full"},
            **command,
            **self.own,
            **fields,
        }
        return staged(self._directory, self.agent(), {**self.environment(), **(env or {})}, request)

    def again(self, *steps: Steps, **fields: Any) -> Staged:
        """The same, in the same workspace and with the same files of its own."""
        return self.run(*steps, **fields)

    def shell(self, command: str) -> Tool:
        """A call of its tool for commands."""
        return Tool("Bash", {"command": command, "timeout": 600_000})

    def asking(self, **fields: Any) -> Staged:
        return self.run(*asking_twice(answer(self.shell(ASKED)), answer(self.shell(AGAIN))), **fields)

    def missing(self) -> Staged:
        gone = self._directory / "workspace" / "program"
        gone.parent.mkdir()
        gone.touch()
        request = {"agent": "acp", "command": ["./program"], "prompt": "do it"}
        return staged(self._directory, self.agent(), {}, request)


class CodexAcpKit(AcpKit):
    """Agent "acp" with the adapter for Codex."""

    command = (str(PROGRAMS / "codex-acp"),)
    # In its own "agent" mode it asks about nothing within the workspace.
    own: Mapping[str, Any] = {"options": {"mode": "read-only"}}
    goes_on = False
    gives_up = True
    tells_output = True
    refused = ErrorType.AUTHENTICATION_FAILED

    @property
    def unreachable(self) -> Mapping[str, str]:
        return codex_env("http://127.0.0.1:1", self._directory / "nowhere")

    def environment(self) -> dict[str, str]:
        # A model that Codex does not know, it warns of in the agent's own words.
        settings = json.dumps({"model": "gpt-5.5"})
        own = {"CODEX_PATH": program("codex"), "CODEX_CONFIG": settings, "MODEL_PROVIDER": "mock", "NO_BROWSER": "1"}
        return {**self.script.codex_env(self._directory / "config"), **own}

    def shell(self, command: str) -> Tool:
        asks = {"sandbox_permissions": "require_escalated", "justification": "as asked"}
        return Tool("exec_command", {"cmd": command, "yield_time_ms": 600_000, **asks})


class OpencodeKit(AcpKit):
    """Agent "opencode"."""

    name = "opencode"
    command = (str(PROGRAMS.parent / "opencode-linux-x64" / "bin" / "opencode"),)
    own: Mapping[str, Any] = {}
    more = frozenset[str]()
    tells_output = True
    goes_on = False
    silent_s = 30.0
    asks_for_all = False
    refused = ErrorType.AUTHENTICATION_FAILED

    @property
    def unreachable(self) -> Mapping[str, str]:
        return opencode_env("http://127.0.0.1:1", self._directory / "config")

    def agent(self) -> AcpAgent:
        return OpencodeAgent({"PATH": f"{Path(self.command[0]).parent}:{os.environ['PATH']}"})

    def environment(self) -> dict[str, str]:
        """With a model that costs money, in dollars for a million tokens."""
        environment = self.script.opencode_env(self._directory / "config")
        config = json.loads(environment["OPENCODE_CONFIG_CONTENT"])
        config["provider"]["mock"]["models"]["mock-model"]["cost"] = {"input": 10, "output": 100}
        return {**environment, "OPENCODE_CONFIG_CONTENT": json.dumps(config)}

    def shell(self, command: str) -> Tool:
        return Tool("bash", {"command": command, "description": "as asked"})

    def missing(self) -> Staged:
        agent = OpencodeAgent({"PATH": str(self._directory)})
        return staged(self._directory, agent, {}, {"agent": "opencode", "prompt": "do it"})


class GeminiKit(AcpKit):
    """Agent "gemini"."""

    name = "gemini"
    more = frozenset()
    command = (str(PROGRAMS / "gemini"),)
    own: Mapping[str, Any] = {}
    steers = False
    refused = ErrorType.AUTHENTICATION_FAILED

    @property
    def unreachable(self) -> Mapping[str, str]:
        return {"GOOGLE_GEMINI_BASE_URL": "http://127.0.0.1:1"}

    def agent(self) -> AcpAgent:
        home = str(self._directory / "config")
        return GeminiAgent({"PATH": f"{PROGRAMS}:{os.environ['PATH']}", "HOME": home})

    def environment(self) -> dict[str, str]:
        own = ("HOME", "GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL")
        given = self.script.gemini_env(self._directory / "config")
        (self._directory / "config" / ".gemini" / "settings.json").unlink()  # the agent's own are what is tried
        return {name: given[name] for name in own}

    def shell(self, command: str) -> Tool:
        return Tool("run_shell_command", {"command": command, "description": "as asked"})

    def missing(self) -> Staged:
        agent = GeminiAgent({"PATH": str(self._directory)})
        return staged(self._directory, agent, {}, {"agent": "gemini", "prompt": "do it"})


ACP_KITS: dict[str, Callable[[Path, ScriptedModel], AcpKit]] = {
    "acp": AcpKit,
    "codex-acp": CodexAcpKit,
    "opencode": OpencodeKit,
    "gemini": GeminiKit,
}
"""Programs that speak ACP."""
