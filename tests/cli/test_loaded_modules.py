"""What a command loads: its own module and what it uses, so that it starts soon."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from steersman.client import Steersman
from tests.cli.steer import Steer
from tests.cli.test_commands import begin
from tests.client.fake_host import FakeHost

pytestmark = pytest.mark.acceptance

PROBE = """
import json, sys
import steersman.cli.main as main
code = main._code()
with open({file!r}, "w") as file:
    json.dump(dict(code=code, modules=sorted(sys.modules)), file)
main.os._exit(code)
"""
NOT_FOR_RUNS = (
    "temporalio.testing",
    "temporalio.worker",
    "steersman.contracts.loop",
    "steersman.contracts.loop_activities",
    "steersman.contracts.loop_messages",
    "steersman.contracts.loop_state",
    "steersman.encryption",
    "steersman.keys",
    "steersman.loop_items",
    "steersman.loops",
    "steersman._client.loop_calls",
    "steersman._client.loop_follower",
    "steersman._client.server_checks",
    "steersman.cli.worker_code",
    "steersman.cli.dev_processes",
    "steersman.cli.devserver",
    "steersman.cli.loop",
    "steersman.cli.terminal",
    "cryptography",
    "httpx2",
    "starlette",
    "typer.rich_utils",
    "uvicorn",
)
"""Packages and modules, with what is in them, that a command about one run or the list of runs has no use for."""


async def loaded(steer: Steer, file: Path, *words: str) -> tuple[int, set[str]]:
    """The exit code of a command, and the modules that it had loaded at its end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROBE.format(file=str(file)),
        *words,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env=steer.env,
    )
    steer.started.append(process)
    async with asyncio.timeout(60):
        await process.wait()
    found = json.loads(file.read_text())
    return found["code"], set(found["modules"])


def of(modules: set[str], *packages: str) -> set[str]:
    """Those that are one of the packages, or in one."""
    return {each for each in modules if any(each == name or each.startswith(f"{name}.") for name in packages)}


@pytest.mark.parametrize(
    ("words", "module"),
    [
        (["list"], "status"),
        (["list", "--json"], "status"),
        (["show", "RUN"], "status"),
        (["show", "RUN", "--json"], "status"),
        (["steer", "RUN", "Look left."], "control"),
        (["interrupt", "RUN"], "control"),
        (["stop", "RUN"], "control"),
    ],
    ids=" ".join,
)
async def test_a_command_about_runs_loads_its_own_module_and_no_loops(
    steer: Steer,
    steersman: Steersman,
    fake_host: FakeHost,
    workspace: str,
    tmp_path: Path,
    words: list[str],
    module: str,
) -> None:
    run = await begin(steersman, workspace)
    code, modules = await loaded(steer, tmp_path / "modules.json", *(run if word == "RUN" else word for word in words))
    assert code == 0
    commands = "steersman.cli.commands"
    assert of(modules, commands) == {commands, f"{commands}.{module}"}
    assert not of(modules, *NOT_FOR_RUNS)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "words", [["show", "RUN", "--json"], ["list", "--json"], ["steer", "RUN", "Look left."]], ids=" ".join
)
async def test_json_and_one_line_take_no_rich(
    steer: Steer, steersman: Steersman, fake_host: FakeHost, workspace: str, tmp_path: Path, words: list[str]
) -> None:
    run = await begin(steersman, workspace)
    _, modules = await loaded(steer, tmp_path / "modules.json", *(run if word == "RUN" else word for word in words))
    assert not of(modules, "rich")


async def test_a_command_about_loops_loads_no_other_command(steer: Steer, tmp_path: Path) -> None:
    code, modules = await loaded(steer, tmp_path / "modules.json", "loop", "list", "--json")
    assert code == 0
    assert not of(modules, "steersman.cli.commands", "steersman.cli.terminal", "temporalio.worker", "rich")
    assert of(modules, "steersman.cli.loop") == {f"steersman.cli.loop{name}" for name in ("", ".group", ".status")}


@pytest.mark.parametrize("words", [["--version"], ["agents", "--json"], ["loop", "limits", "some"]], ids=" ".join)
async def test_a_command_that_asks_no_server_loads_no_temporal_parts_of_others(
    steer: Steer, tmp_path: Path, words: list[str]
) -> None:
    _, modules = await loaded(steer, tmp_path / "modules.json", *words)
    assert not of(modules, "temporalio.worker", "temporalio.client", "steersman.client", "asyncio")


@pytest.mark.parametrize(("program", "built"), [("steersman.cli.main", False), ("steersman.client", True)])
def test_only_a_command_leaves_the_models_for_their_first_use(program: str, *, built: bool) -> None:
    """Others may use them in several threads."""
    script = f"import {program}; from steersman.contracts.run import RunState as R; print(R.__pydantic_complete__)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(built)
