"""Every further agent on another machine, and in a pod: it works there, is interrupted, stopped, its work is here."""

import asyncio
import os
import secrets
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.casts import CASTS
from steersman.client import Steersman
from steersman.errors import RunCancelled
from tests.acceptance.own_cluster import SLOW_S, OwnCluster, settings
from tests.acceptance.site import Site, following, gone, heard, in_order
from tests.acceptance.test_changes import made
from tests.acceptance.test_ssh import THERE
from tests.scripted_model import Say, Script, ScriptedModel, answer, fail, hold, say
from tests.support.kubernetes import background_server
from tests.support.kubernetes import missing as no_cluster
from tests.support.processes import marked, until
from tests.support.programs import installed
from tests.support.sshd import Sshd
from tests.support.sshd import missing as no_sshd
from tests.support.temporal import new_namespace

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

NAP = """python3 -c 'import subprocess, time; subprocess.Popen(["setsid", "sleep", "600"]); time.sleep(600)'"""
"""A tool at work, with a process in a session of its own."""
EVERYWHERE = "STEERSMAN_TEST_EVERYWHERE" in os.environ
"""In pods, too, which do not see programs that are installed below /tmp, and Hermes, which once did not begin."""
KEYS = {"OPENAI_API_KEY": "sk-test", "GEMINI_API_KEY": "dummy", "ANTHROPIC_API_KEY": "sk-test"}
"""What the worker has: a request names it alone."""


def _key_alone(script: Script, home: Path) -> Mapping[str, str]:
    """Codex without a file of its own."""
    return {"HOME": str(home), "OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": f"{script.url}/v1"}


AGENTS = {**CASTS, "codex": replace(CASTS["codex"], environment=_key_alone, request={"model": "mock-model"})}


class Elsewhere:
    """Where agents work, with their programs on its PATH. `directory` is the same there as here, and anybody's."""

    def __init__(self, site: Site, runtime: Mapping[str, Any], flags: tuple[str, ...], **env: str) -> None:
        self.site, self._runtime, self._flags, self._env = site, runtime, flags, env
        self.directory = Path(tempfile.mkdtemp(prefix="steersman-agents-", dir="/tmp"))
        self.directory.chmod(0o777)

    async def worker(self) -> None:
        """One that is at work."""
        nothing = Script("", (), repeat=False, keep=None)
        names = {name for each in AGENTS.values() for name in each.environment(nothing, self.directory / "none")}
        allowed = (part for name in names for part in ("--allow-env", name))
        await self.site.worker(*self._flags, *allowed, **KEYS, **self._env).ready()

    def request(self, agent: str, script: Script, workspace: Path, mark: str) -> dict[str, Any]:
        cast, home = AGENTS[agent], self.directory / secrets.token_hex(4)
        home.mkdir()
        environment = {**cast.environment(script, home), "RUN_MARK": mark}
        for each in (home, *home.rglob("*")):
            each.chmod(0o777)  # whoever the agent's user is there
        del environment["HOME"]
        secret = {name: {"from_env": name} for name in KEYS if name in environment}
        return {
            "agent": agent,
            "prompt": "go",
            "workspace": {"path": str(workspace)},
            "permissions": {"mode": "full"},
            "runtime": self._runtime,
            "env": {**environment, **secret},
            **({"command": [cast.program]} if agent == "acp" else {}),
            **cast.request,
        }

    def close(self) -> None:
        self.site.end()
        subprocess.run(["rm", "-rf", str(self.directory)], check=False)


def wrappers(directory: Path) -> dict[str, str]:
    """Name -> a script that runs the program where it is installed: what it finds by its own path lies there."""
    directory.mkdir(parents=True, exist_ok=True)
    found = {}
    for each in AGENTS.values():
        if (program := installed(each.program)) is not None:
            script = directory / each.program
            script.write_text(_script(program))
            script.chmod(0o755)
            found[each.program] = str(script)
    return found


def _script(program: str) -> str:
    """A script of Python is what it is: its first line says who runs it."""
    head = Path(program).read_bytes()[:200]
    return Path(program).read_text() if b"python" in head else f'#!/bin/sh\nexec {shlex.quote(program)} "$@"\n'


@pytest.fixture(scope="module", params=["ssh", "kubernetes"] if EVERYWHERE else ["ssh"])
def elsewhere(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, dev_server: str
) -> Iterator[Elsewhere]:
    """With a worker at work."""
    if reason := (no_sshd if request.param == "ssh" else no_cluster)():
        pytest.skip(reason)
    site = Site(tmp_path_factory.mktemp(request.param), asyncio.run(new_namespace(dev_server)))
    yield from (_by_ssh if request.param == "ssh" else _in_pods)(site)


def _by_ssh(site: Site) -> Iterator[Elsewhere]:
    home = site.root / "elsewhere"
    wrappers(home / ".local" / "bin")
    (home / ".profile").write_text('export IS_SANDBOX=1 PATH="$HOME/.local/bin:$PATH"\n')
    sshd = Sshd(site.root / "sshd", home)
    made = Elsewhere(site, THERE, ("--allow-ssh", "place", "--ssh-config", str(sshd.config)))
    try:
        asyncio.run(made.worker())
        yield made
    finally:
        made.close()
        sshd.close()


def _in_pods(site: Site) -> Iterator[Elsewhere]:
    (site.root / "cluster").mkdir()
    with background_server(site.root / "cluster", settings()) as cluster:
        pods = OwnCluster(site, cluster)
        made = Elsewhere(site, pods.runtime(), pods.flags, KUBECONFIG=str(pods.config))
        cluster.server.settings.programs |= wrappers(made.directory / "bin")
        cluster.server.settings.shared += (str(made.directory),)
        try:
            asyncio.run(made.worker())
            yield made
        finally:
            made.close()


@pytest.fixture
async def steersman(elsewhere: Elsewhere) -> Steersman:
    return await elsewhere.site.steersman()


@pytest.mark.parametrize(
    "agent",
    [
        pytest.param(each, marks=() if each == "codex" else pytest.mark.exhaustive)
        for each in AGENTS
        if EVERYWHERE or each != "hermes"
    ],
)
async def test_it_works_there_is_interrupted_and_stopped(
    elsewhere: Elsewhere, steersman: Steersman, model: ScriptedModel, mark: str, agent: str
) -> None:
    cast = AGENTS[agent]
    if installed(cast.program) is None:
        pytest.skip(f"{cast.program} is not installed: make agents")
    workspace = made(elsewhere.site.workspace())
    steps = (answer(cast.shell("echo once >> made")), hold("at work"), answer(Say("then"), cast.shell(NAP)))
    script = model.script(agent, *steps)
    run = await steersman.start(elsewhere.request(agent, script, workspace, mark))
    async with following(steersman, run) as events:
        async with asyncio.timeout(120):
            await script.wait_held()
        await heard(steersman, run, await steersman.interrupt(run, "rather that"))
        await until(lambda: any(line.startswith("sleep 600") for line in marked(mark).values()), SLOW_S)
        assert script.requests[2].saw("rather that")
        report = await steersman.stop(run)
        assert (report.outcome, report.phase) == ("stopped", "running")
        with pytest.raises(RunCancelled):
            await steersman.result(run)
        all_events = await events.end(SLOW_S)
    await gone(mark)
    assert in_order(all_events)
    assert [each.attempt for each in all_events if each.type == "init"] == [1]
    closed = await steersman.state(run)
    assert closed.finalize is not None
    assert (closed.finalize.status, closed.messages[0].state) == ("succeeded", "acknowledged")
    assert (workspace / "made").read_text() == "once\n"


@pytest.mark.exhaustive
async def test_another_agent_goes_on_there(
    elsewhere: Elsewhere, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    """Claude Code is not installed there, Gemini CLI works until its key is refused, Codex ends it in the same copy."""
    if any(installed(AGENTS[each].program) is None for each in ("codex", "gemini")):
        pytest.skip("codex and gemini are not installed: make agents")
    workspace = made(elsewhere.site.workspace())
    begun = answer(Say("I begin with the gate"), AGENTS["gemini"].shell("echo new > gate"))
    second, third = model.script("b", begun, *[fail(401, "no such key")] * 5), model.script("c", say("mended"))
    asked = elsewhere.request("codex", third, workspace, mark)
    env = {**elsewhere.request("gemini", second, workspace, mark)["env"], **asked["env"]}
    fallback = [{"agent": "gemini"}, {"agent": "codex", "model": asked["model"]}]
    request = {**asked, "agent": "claude", "model": None, "prompt": "mend the fence", "env": env, "fallback": fallback}
    run = await steersman.start(request)
    result = await steersman.result(run)
    assert (result.status, result.text) == ("succeeded", "mended")
    assert [each.agent for each in result.parts] == ["claude", "gemini", "codex"]
    assert "not on PATH of a login" in (result.parts[0].error or "")
    told = "\n".join(third.requests[0].texts)
    for words in ("I begin with the gate", "mend the fence"):
        assert words in told
    assert (workspace / "gate").read_text() == "new\n"
    await gone(mark)
