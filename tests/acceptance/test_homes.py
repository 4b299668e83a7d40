"""An agent with a home of the run's own: nothing of its user's is read or changed, and nothing of the home is left."""

import asyncio
import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.casts import CASTS
from steersman.client import Steersman
from steersman.contracts.errors import InvalidRequest
from steersman.errors import RunCancelled
from tests.acceptance.site import Site, following, gone
from tests.scripted_model import Script, ScriptedModel, Step, Tool, answer, hold, say
from tests.support.processes import until
from tests.support.programs import installed

CANARY = "canary-of-the-user"


@dataclass(frozen=True)
class Keyed:
    """An agent that finds what it needs in its environment. `own`: a file of instructions of its user's, below HOME."""

    program: str | None
    environment: Callable[[Script], Mapping[str, str]]
    own: str
    shell: Callable[[str], Tool]
    model: str | None = None


def _opencode(script: Script) -> Mapping[str, str]:
    with tempfile.TemporaryDirectory() as elsewhere:
        given = script.opencode_env(Path(elsewhere))
    return {name: given[name] for name in given if name.startswith(("OPENCODE_", "npm_"))}


def _hermes(script: Script) -> Mapping[str, str]:
    custom = {"HERMES_INFERENCE_PROVIDER": "custom", "CUSTOM_BASE_URL": f"{script.url}/v1"}
    return {**custom, "HERMES_INFERENCE_MODEL": "mock-model", "OPENAI_API_KEY": "sk-test"}


AGENTS = {
    "claude": Keyed(
        None,
        lambda script: {"ANTHROPIC_BASE_URL": script.url, "ANTHROPIC_API_KEY": "sk-test"},
        ".claude/CLAUDE.md",
        lambda command: Tool("Bash", {"command": command}),
    ),
    "codex": Keyed(
        "codex",
        lambda script: {"OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": f"{script.url}/v1"},
        ".codex/AGENTS.md",
        CASTS["codex"].shell,
        "mock-model",
    ),
    "gemini": Keyed(
        "gemini",
        lambda script: {"GEMINI_API_KEY": "dummy", "GOOGLE_GEMINI_BASE_URL": script.url},
        ".gemini/GEMINI.md",
        CASTS["gemini"].shell,
    ),
    "opencode": Keyed("opencode", _opencode, ".config/opencode/AGENTS.md", CASTS["opencode"].shell),
    "hermes": Keyed("hermes", _hermes, ".hermes/SOUL.md", CASTS["hermes"].shell),
}


class Homes:
    """A worker whose user has a home of its own, and one agent, whose model plays these steps."""

    def __init__(self, site: Site, agent: str, script: Script, mark: str) -> None:
        self.site, self.agent, self.script, self._mark = site, agent, script, mark
        self.user = site.root / "user"
        own = self.user / AGENTS[agent].own
        own.parent.mkdir(parents=True)
        own.write_text(f"You are {CANARY}.\n")
        # Gemini CLI reads no settings below a directory that others can write to, as /tmp is.
        base = Path.home() / ".cache" / "steersman-tests"
        base.mkdir(parents=True, exist_ok=True)
        self.state = Path(tempfile.mkdtemp(dir=base))
        self.environment = dict(AGENTS[agent].environment(script))

    async def worker(self) -> Steersman:
        """A client, with a worker at work."""
        program = AGENTS[self.agent].program
        found = installed(program) if program else None
        path = f"{Path(found).parent}{os.pathsep}{os.environ['PATH']}" if found else os.environ["PATH"]
        allowed = (part for name in self.environment for part in ("--allow-env", name))
        own = {"HOME": str(self.user), "PATH": path, "CLAUDE_CONFIG_DIR": str(self.user / ".claude")}
        worker = self.site.worker("--state-dir", str(self.state), *allowed, **self.environment, **own, IS_SANDBOX="1")
        await worker.ready()
        return await self.site.steersman()

    def request(self, workspace: Path, **fields: Any) -> dict[str, Any]:
        cast = AGENTS[self.agent]
        return {
            "agent": self.agent,
            "prompt": "go",
            "model": cast.model,
            "workspace": {"path": str(workspace)},
            "permissions": {"mode": "full"},
            "env": {"RUN_MARK": self._mark, **{name: {"from_env": name} for name in self.environment}},
            **fields,
        }

    def of_user(self) -> list[str]:
        """The files below its user's home, but for those of compilers which an agent asks what they are."""
        found = (each.relative_to(self.user) for each in self.user.rglob("*") if each.is_file())
        return sorted(str(each) for each in found if each.parts[0] not in (".cache", ".rustup"))

    def homes(self, run: str) -> list[Path]:
        return [each for each in self.state.glob(f"runs/{run}/*/attempts/1/files/home/*") if any(each.iterdir())]


def _made(site: Site, agent: str, script: Script, mark: str) -> Iterator[Homes]:
    made = Homes(site, agent, script, mark)
    try:
        yield made
    finally:
        site.end()
        shutil.rmtree(made.state, ignore_errors=True)


def _steps(cast: Keyed) -> tuple[Step, ...]:
    return answer(cast.shell("echo once >> made")), hold("half"), say("whole")


@pytest.fixture
def claude(site: Site, model: ScriptedModel, mark: str) -> Iterator[Homes]:
    """Claude Code, which says "half" and waits."""
    yield from _made(site, "claude", model.script("claude", hold("half")), mark)


@pytest.fixture(
    params=[pytest.param(each, marks=() if each == "claude" else pytest.mark.exhaustive) for each in AGENTS]
)
def homes(request: pytest.FixtureRequest, site: Site, model: ScriptedModel, mark: str) -> Iterator[Homes]:
    cast = AGENTS[request.param]
    if cast.program and installed(cast.program) is None:
        pytest.skip(f"{cast.program} is not installed: make agents")
    yield from _made(site, request.param, model.script(request.param, *_steps(cast)), mark)


async def test_nothing_is_of_the_user_and_nothing_is_left(homes: Homes, mark: str) -> None:
    """Its process is killed on the way: the next one goes on with the session in the same home."""
    steersman, workspace = await homes.worker(), homes.site.workspace()
    run = await steersman.start(homes.request(workspace, home="isolated"))
    async with following(steersman, run) as events:
        await homes.script.wait_requests(2)
        assert len(homes.homes(run)) == 1
        handle = await until(lambda: _handle(steersman, run))
        os.kill(handle, signal.SIGKILL)
        all_events = await events.end(90)
    result = await steersman.result(run)
    assert (result.text, result.attempts) == ("whole", 2)
    assert {each.session_id for each in all_events if each.type == "init"} == {result.session_id}
    assert (workspace / "made").read_text() == "once\n"
    assert homes.homes(run) == []
    assert homes.of_user() == [AGENTS[homes.agent].own]
    assert not any(CANARY in json.dumps(each.body) for each in homes.script.requests)
    await gone(mark)


async def _handle(steersman: Steersman, run: str) -> int | None:
    handle = (await steersman.state(run)).handle
    return handle.pid if handle else None


@pytest.mark.exhaustive
async def test_without_being_asked_it_has_its_users(claude: Homes) -> None:
    steersman = await claude.worker()
    run = await steersman.start(claude.request(claude.site.workspace()))
    await claude.script.wait_held()
    await claude.script.release()
    assert (await steersman.result(run)).text == "half"
    assert claude.homes(run) == []
    assert any(each.endswith(".jsonl") for each in claude.of_user())
    assert CANARY in json.dumps(claude.script.requests[0].body)


@pytest.mark.exhaustive
async def test_a_home_goes_with_a_run_that_is_stopped(claude: Homes, mark: str) -> None:
    steersman = await claude.worker()
    run = await steersman.start(claude.request(claude.site.workspace(), home="isolated"))
    await claude.script.wait_held()
    assert len(claude.homes(run)) == 1
    await steersman.stop(run)
    with pytest.raises(RunCancelled):
        await steersman.result(run)
    await gone(mark)
    assert claude.homes(run) == []


@pytest.fixture
def opencode(site: Site, model: ScriptedModel, mark: str) -> Iterator[Homes]:
    if installed("opencode") is None:
        pytest.skip("opencode is not installed: make agents")
    yield from _made(site, "opencode", model.script("opencode", say("whole")), mark)


async def test_opencode_installs_nothing_in_such_a_home(opencode: Homes) -> None:
    """What it would install comes from npm's registry: here one that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as registry:
        registry.setblocking(False)
        opencode.environment["npm_config_registry"] = f"http://127.0.0.1:{registry.getsockname()[1]}/"
        del opencode.environment["npm_config_offline"]
        steersman = await opencode.worker()
        run = await steersman.start(opencode.request(opencode.site.workspace(), home="isolated"))
        assert (await asyncio.wait_for(steersman.result(run), 60)).text == "whole"
        with pytest.raises(BlockingIOError):
            registry.accept()
    assert not list((opencode.site.root / "tmp").glob(".*.so"))


async def test_what_goes_on_with_a_session_has_no_such_home(site: Site) -> None:
    await site.worker().ready()
    steersman = await site.steersman()
    workspace = site.workspace()
    request = {"agent": "claude", "prompt": "go", "workspace": {"path": str(workspace)}, "home": "isolated"}
    session = {"session": "5a42e4bb-d9a0-5ad9-97e0-cd95c49a5b71"}
    with pytest.raises(InvalidRequest, match="session: there is none in an isolated home"):
        await steersman.start({**request, **session})
    with pytest.raises(InvalidRequest, match="home: nobody knows where the command"):
        await steersman.start({**request, "agent": "process", "command": ["true"]})
    with pytest.raises(InvalidRequest, match="home: a session in an isolated home goes with its run"):
        steersman.thread(agent="claude", workspace=workspace, home="isolated")  # type: ignore[call-arg]
