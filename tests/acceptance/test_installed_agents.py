"""Agents of other packages: installed beside a real worker, led by it, and held to what every agent owes."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from steersman.contracts.errors import InvalidRequest, RunError
from steersman.errors import RunCancelled
from tests.acceptance.site import Site, following, gone, heard, phase
from tests.support.packages import agent_point, install_example, write_package
from tests.support.processes import until

ROOT = Path(__file__).parents[2]
SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
LIAR = """
import dataclasses
from steersman.contracts.agents import Capabilities
from steersman_recipe.kind import RECIPE
from steersman_recipe.kit import RecipeKit

CAN = RECIPE.can.model_copy(update={"fork": True, "interrupt": True, "permissions": True, "cost": True, "steer": False})
ROW = dataclasses.replace(RECIPE, can=CAN)

class Kit(RecipeKit):
    kind = ROW
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the worked example, as pip installs it."""
    target = tmp_path_factory.mktemp("target")
    install_example(target)
    return target


@pytest.fixture
def flags() -> tuple[str, ...]:
    return ("--agent", "recipe", "--agent", "process")


def recipe(site: Site, *steps: str, **fields: Any) -> dict[str, Any]:
    return {"agent": "recipe", "prompt": "\n".join(steps), "workspace": {"path": str(site.workspace())}, **fields}


async def test_it_is_led_as_any_agent(site: Site, installed: Path, flags: tuple[str, ...], mark: str) -> None:
    """Told something, handed from a worker that is killed to the next, resumed, and answering by a schema."""
    path = {"PYTHONPATH": str(installed), "RECIPE_HOME": str(site.root / "recipes")}
    first = site.worker(*flags, **path)
    await first.ready()
    added = first.said("agent_added")
    assert added
    assert (added["agent"], added["package"]) == ("recipe", "steersman-recipe 1.0.0")
    steersman = await site.steersman()
    request = recipe(site, "say at work", "wait go", 'answer {"answer": 42}', output_schema=SCHEMA)
    run = await steersman.start({**request, "env": {"RUN_MARK": mark}})
    async with following(steersman, run) as events:
        await events.until(lambda event: event.type == "message" and event.text == "at work")
        state = await steersman.state(run)
        assert state.capabilities is not None
        assert (state.agent, state.capabilities.steer, state.capabilities.interrupt) == ("recipe", True, False)
        await heard(steersman, run, await steersman.steer(run, "say as you wish"))
        with pytest.raises(Exception, match='agent "recipe" cannot interrupt'):
            await steersman.interrupt(run, "stop")
        first.kill()
        await site.worker(*flags, **path).ready()
        Path(request["workspace"]["path"], "go").touch()
        await events.until(lambda event: event.type == "message" and event.text == "as you wish")
        await events.end()
    result = await steersman.result(run)
    assert (result.structured, result.attempts, result.text) == ({"answer": 42}, 1, "as you wish")
    said = {"prompt": "say the same session", "session": result.session_id}
    again = await steersman.start({"agent": "recipe", "workspace": request["workspace"], **said})
    resumed = await steersman.result(again)
    assert (resumed.text, resumed.session_id) == ("the same session", result.session_id)
    assert [each.id for each in await steersman.list('AgentName="recipe"')]
    await gone(mark)


@pytest.mark.exhaustive
async def test_its_loop_keeps_its_variables_from_the_verification(
    site: Site, installed: Path, flags: tuple[str, ...]
) -> None:
    worker = site.worker(*flags, PYTHONPATH=str(installed), RECIPE_HOME=str(site.root / "recipes"))
    await worker.ready()
    steersman = await site.steersman()
    workspace = site.workspace()
    run = {
        "agent": "recipe",
        "workspace": {"path": str(workspace)},
        "env": {"RECIPE_HOME": {"from_env": "RECIPE_HOME"}},
    }
    command = 'test -z "$RECIPE_HOME" && test -e made'
    plan = {
        "plan": "run touch made",
        "prompt": "{plan}",
        "done": {"verify": {"command": command}},
        "pause_between_s": 0,
    }
    result = await steersman.loops.result(await steersman.loops.start({"run": run, **plan}))
    assert (result.status, result.iterations) == ("completed", 1), result


async def test_a_worker_without_the_package_refuses_it_and_says_what_it_has(site: Site) -> None:
    await site.worker().ready()
    steersman = await site.steersman()
    with pytest.raises(InvalidRequest, match=r'^agent: this worker has no "recipe" that can be used; it has process$'):
        await steersman.result(await steersman.start(recipe(site, "say no")))
    loop: dict[str, Any] = {"run": {"agent": "recipe", "workspace": {"path": str(site.workspace())}}, "plan": "p"}
    loop["done"] = {"verify": {"command": "true"}}
    with pytest.raises(RunError, match=r'this worker has no "recipe"'):
        await steersman.loops.result(await steersman.loops.start(loop))


@pytest.mark.exhaustive
async def test_a_run_whose_package_has_gone_waits_for_it_and_can_be_stopped(
    site: Site, installed: Path, flags: tuple[str, ...], mark: str
) -> None:
    path = {"PYTHONPATH": str(installed), "RECIPE_HOME": str(site.root / "recipes")}
    worker = site.worker(*flags, **path)
    await worker.ready()
    steersman = await site.steersman()
    waits = [recipe(site, "say at work", "wait go", "say the end", env={"RUN_MARK": mark}) for _ in range(2)]
    runs = [await steersman.start(each) for each in waits]
    for run in runs:
        await phase(steersman, run, "running")
    await worker.terminate()
    without = site.worker("--agent", "process")
    await without.ready()
    line = await until(lambda: without.said("not_led"))
    assert 'this worker has no agent "recipe"' in line["message"]
    await steersman.stop(runs[0])
    with pytest.raises(RunCancelled) as stopped:
        await steersman.result(runs[0])
    assert stopped.value.stop_report
    assert stopped.value.stop_report.outcome == "stopped"
    await without.terminate()
    await site.worker(*flags, **path).ready()
    Path(waits[1]["workspace"]["path"], "go").touch()
    result = await steersman.result(runs[1])
    assert (result.text, result.attempts) == ("the end", 1)
    await gone(mark)


@pytest.mark.exhaustive
async def test_broken_packages_are_told_at_the_start_and_harm_no_other(site: Site, tmp_path: Path) -> None:
    target = tmp_path / "broken"
    write_package(target, "evil-claude", agent_point("claude", "evil_claude:ROW"), "raise AssertionError")
    write_package(target, "cannot-load", agent_point("unloadable", "cannot_load:ROW"), "import no_such_module_at_all")
    write_package(target, "twin-a", agent_point("twin", "twin_a:ROW"))
    write_package(target, "twin-b", agent_point("twin", "twin_b:ROW"))
    worker = site.bare_worker(PYTHONPATH=str(target))
    await worker.ready()
    lines = [json.loads(line) for line in worker.log.read_text().splitlines() if '"agent_unusable"' in line]
    assert sorted(line["message"].partition(": ")[0] for line in lines) == [
        "agent claude of evil-claude 1.0",
        "agent twin of twin-a 1.0 and twin-b 1.0",
        "agent unloadable of cannot-load 1.0",
    ]
    assert {line["level"] for line in lines} == {"error"}
    steersman = await site.steersman()
    result = await steersman.result(await steersman.start(site.process("echo", "well")))
    assert result.text == "well"
    with pytest.raises(InvalidRequest, match='no "twin" that can be used; it has acp, claude, codex, gemini, '):
        await steersman.result(await steersman.start({**recipe(site, "say no"), "agent": "twin"}))


RAISING = """
import dataclasses
from steersman_recipe.agent import RecipeAgent
from steersman_recipe.kind import RECIPE
from steersman_recipe.transcript import RecipeTranscript

class Torn(RecipeTranscript):
    def feed(self, record):
        raise KeyError("fed")

class Agent(RecipeAgent):
    name = "raising"

    def load(self):
        raise KeyError("loaded")

    def check(self, request):
        if request.prompt == "say check":
            raise KeyError("checked")

    def launch(self, key, request, *rest):
        if request.prompt == "say launch":
            raise KeyError("launched")
        return super().launch(key, request, *rest)

    def transcript(self, key, request, resumption):
        return Torn(structured=False)

    def stop_times(self, request):
        if request.prompt == "say stop_times":
            raise KeyError("how it is stopped")
        return super().stop_times(request)

ROW = dataclasses.replace(RECIPE, name="raising", make=lambda environ, lent: Agent(environ), findings=lambda environ: 3)
"""


@pytest.mark.exhaustive
async def test_an_agent_whose_code_raises_fails_its_own_runs_alone(site: Site, installed: Path, tmp_path: Path) -> None:
    write_package(tmp_path / "more", "raising", agent_point("raising", "raising:ROW"), RAISING)
    both = f"{installed}{os.pathsep}{tmp_path / 'more'}"
    flags = [flag for name in ("recipe", "raising", "process") for flag in ("--agent", name)]
    worker = site.worker(*flags, PYTHONPATH=both, RECIPE_HOME=str(site.root / "recipes"))
    await worker.ready()
    await until(lambda: worker.said("agent_not_loaded"))
    steersman = await site.steersman()
    raised = {"check": "KeyError: 'checked'", "launch": "KeyError: 'launched'", "feed": "KeyError: 'fed'"}
    runs = {where: await steersman.start({**recipe(site, f"say {where}"), "agent": "raising"}) for where in raised}
    assert (await steersman.result(await steersman.start(recipe(site, "say well")))).text == "well"
    # It is led and stopped all the same.
    unsaid = await steersman.start({**recipe(site, "say stop_times"), "agent": "raising"})
    with pytest.raises(RunError, match="KeyError: 'fed'"):
        await asyncio.wait_for(steersman.result(unsaid), 60)
    assert worker.said("no_stop_times")
    for where, run in runs.items():
        with pytest.raises(RunError) as failed:
            await steersman.result(run)
        assert (failed.value.type, raised[where] in failed.value.message) == ("AgentFailed", True), failed.value
    state = {"STEERSMAN_STATE_DIR": str(tmp_path / "state"), "STEERSMAN_AGENTS": "raising"}
    checks = json.loads(steer(Path(both), "doctor", "--json", **state).stdout)
    (found,) = [each for each in checks if each["check"] == "agent raising"]
    assert "its check failed: TypeError" in found["detail"]


def steer(target: Path, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    command = [str(Path(sys.executable).with_name("steer")), *words]
    return subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(target), **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )


@pytest.mark.exhaustive
def test_steer_shows_it_with_its_package(installed: Path, tmp_path: Path) -> None:
    write_package(
        tmp_path / "more", "cannot-load", agent_point("unloadable", "cannot_load:ROW"), "import no_such_thing"
    )
    unmade = (
        "import dataclasses\nfrom steersman_recipe.kind import RECIPE\n"
        'ROW = dataclasses.replace(RECIPE, name="unmade", make=lambda environ, lent: object())\n'
    )
    write_package(tmp_path / "more", "cannot-make", agent_point("unmade", "cannot_make:ROW"), unmade)
    both = Path(f"{installed}{os.pathsep}{tmp_path / 'more'}")
    shown = steer(both, "agents")
    assert not [line for line in shown.stdout.splitlines() if line.startswith("unmade ")]
    assert "agent unmade of cannot-make 1.0: what it makes is no Agent" in shown.stderr
    (line,) = [line for line in shown.stdout.splitlines() if line.startswith("recipe ")]
    assert line.endswith("steersman-recipe 1.0.0")
    assert "agent unloadable of cannot-load 1.0: it could not be loaded: ModuleNotFoundError" in shown.stderr
    row = json.loads(steer(both, "agents", "--json").stdout)["recipe"]
    assert (row["package"], row["steer"], row["fork"]) == ("steersman-recipe 1.0.0", True, False)
    state = {"STEERSMAN_STATE_DIR": str(tmp_path / "state"), "STEERSMAN_AGENTS": "recipe,unloadable,unmade"}
    checks = json.loads(steer(both, "doctor", "--json", **state).stdout)
    found = {each["check"]: each for each in checks}
    assert (found["agent recipe"]["ok"], found["agent recipe"]["detail"]) == (True, "of steersman-recipe 1.0.0")
    assert found["program of recipe"]["ok"]
    for name in ("unloadable", "unmade"):
        assert (found[f"agent {name}"]["ok"], bool(found[f"agent {name}"]["hint"])) == (False, True)


@pytest.mark.exhaustive
def test_the_suite_passes_on_the_example(installed: Path) -> None:
    done = steer(installed, "agents", "test", "recipe", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "failed" not in done.stdout


@pytest.mark.exhaustive
def test_the_suite_fails_where_declared_is_not_observed(installed: Path, tmp_path: Path) -> None:
    """A row that claims what does not work, and leaves out what does."""
    points = agent_point("recipe", "liar:ROW") + "[steersman.agent_kits]\nrecipe = liar:Kit\n"
    write_package(tmp_path / "lies", "liar", points, LIAR)
    # The kit alone counts: of two packages with one the suite takes neither.
    both = steer(Path(f"{installed}{os.pathsep}{tmp_path / 'lies'}"), "agents", "test", "recipe", "-q")
    assert both.returncode == 2
    assert "liar, steersman-recipe" in both.stdout + both.stderr
    only = tmp_path / "only"
    only.mkdir()
    (only / "steersman_recipe").symlink_to(installed / "steersman_recipe")
    path = Path(f"{tmp_path / 'lies'}{os.pathsep}{only}")
    done = steer(path, "agents", "test", "recipe", "-q", "-k", "declared")
    assert done.returncode == 1
    failed = {line.split("::")[1].split("[")[0] for line in done.stdout.splitlines() if line.startswith("FAILED")}
    assert failed == {
        "test_messages_are_taken_as_declared",
        "test_it_is_interrupted_as_declared",
        "test_it_resumes_and_forks_sessions_as_declared",
        "test_it_asks_for_approval_as_declared",
        "test_it_reports_what_it_uses_as_declared",
    }


@pytest.mark.exhaustive
def test_without_the_suite_it_says_what_to_do(installed: Path) -> None:
    done = steer(installed, "agents", "test", "no-such-agent", "-q")
    assert done.returncode == 2
    assert 'agent "no-such-agent": one package has to have its kit' in done.stdout + done.stderr
