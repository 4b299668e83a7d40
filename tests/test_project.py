"""What a person who clones the repository relies on: locks that are whole and name no index, and a tidy tree.

No behaviour of Steersman is tested here.
"""

import ast
import asyncio
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

TOP_LEVEL = {
    ".ci",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "activities",
    "bench",
    "conformance",
    "deploy",
    "docker-compose.temporal.yml",
    "docs",
    "pyproject.toml",
    "requirements.lock",
    "steersman",
    "tests",
    "worker.py",
    "workers",
    "workflows",
}

LOCKS = ["requirements.lock", "deploy/worker.lock"]

# An index is the user's own choice, by pip's settings.
INDEX = re.compile(
    r"pypi\.org|pythonhosted|--(extra-)?index-url|--find-links|--trusted-host|index-url\s*=", re.IGNORECASE
)


def tracked_files() -> list[Path]:
    """The files of this commit, relative to the root. Skips where this is no git checkout (a source archive)."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("no git checkout")
    return [Path(name) for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]


def pins(lock: str) -> dict[str, str]:
    """Name -> version of each pinned requirement of a lock."""
    return dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", (ROOT / lock).read_text(), re.MULTILINE))


def requirement_names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower() for requirement in requirements}


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_holds_a_hash_for_every_pin_and_no_address(lock: str) -> None:
    text = (ROOT / lock).read_text()
    entries = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert entries
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []
    assert "://" not in text


def test_lock_holds_everything_that_the_project_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    groups = project["dependency-groups"]
    named = [*project["project"]["dependencies"], *extras["worker"], *extras["web"]]
    assert requirement_names(named) <= pins("deploy/worker.lock").keys()
    everything = [*named, *extras["dev-server"][1:], *(item for item in groups["test"] if isinstance(item, str))]
    assert requirement_names(everything) <= pins("requirements.lock").keys()


def test_worker_image_has_the_versions_that_are_tested() -> None:
    tested, image = pins("requirements.lock"), pins("deploy/worker.lock")
    assert image == {name: tested[name] for name in image}
    assert "pytest" not in image


def test_no_file_names_an_index_host() -> None:
    naming = {
        str(path)
        for path in tracked_files()
        if path != Path(__file__).relative_to(ROOT)
        and INDEX.search((ROOT / path).read_bytes().decode(errors="ignore"))
        and path != Path("Makefile")
    }
    assert naming == set()
    makefile = (ROOT / "Makefile").read_text()
    assert not INDEX.search(makefile.replace("--no-emit-index-url", "").replace("--no-emit-find-links", ""))


def test_top_level_holds_nothing_else() -> None:
    assert {path.parts[0] for path in tracked_files()} - TOP_LEVEL == set()


def test_only_steersman_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["steersman"]


def test_what_steersman_imports_is_what_it_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [each for extra in project["optional-dependencies"].values() for each in extra]
    asked = requirement_names([*project["dependencies"], *extras])
    imported = set()
    for path in (ROOT / "steersman").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.partition(".")[0])
    others = {name.replace("_", "-") for name in imported - sys.stdlib_module_names - {"steersman"}}
    # protobuf is temporalio's; acp is the module of agent-client-protocol.
    assert others - asked == {"google", "acp"}
    assert "agent-client-protocol" in asked


PYTHON = """#!/bin/sh
case "$1 $2" in
"-m venv")
    mkdir -p .venv/bin; cp "$0" .venv/bin/python; echo venv >> made; read -r word < go ;;
"-m pip")
    echo pip >> made ;;
*)
    exec {python} "$@" ;;
esac
"""
"""Makes an environment of itself, once somebody writes into the pipe `go`."""


async def test_two_makes_at_once_fill_the_environment_once(tmp_path: Path) -> None:
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / "python"
    python.write_text(PYTHON.format(python=sys.executable))
    python.chmod(0o755)
    os.mkfifo(tmp_path / "go")

    # Not as a part of the make that has begun these tests.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}

    async def make() -> asyncio.subprocess.Process:
        started = await asyncio.create_subprocess_exec(
            *("make", "setup", f"PYTHON={python}"), cwd=tmp_path, env=env, stdout=asyncio.subprocess.PIPE
        )
        assert started.stdout
        said.append((await started.stdout.readline()).decode())
        return started

    said: list[str] = []
    makes = [await make(), await make()]
    with (tmp_path / "go").open("r+b", buffering=0) as pipe:
        pipe.write(b"go\ngo\n")
        ends = [await each.wait() for each in makes]
    assert ends == [0, 0]
    assert said[1] == "waiting for another make, which fills .venv\n"
    assert (tmp_path / "made").read_text().split() == ["venv", "pip", "pip"]
