"""What the doctor says of an agent's program."""

from pathlib import Path

import pytest

from activities.agents import programs
from activities.agents.agent_kind import Finding
from activities.agents.catalog import AGENTS


def found(program: Path) -> Finding:
    return programs.findings(
        "x", lambda: str(program), lambda path: (path, "--version"), lambda: Finding("key", ""), "pip install x"
    )[0]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo first >&2; echo 'no such library' >&2; exit 3", "ended with exit code 3: no such library"),
        ("exit 3", "ended with exit code 3"),
        ("kill -9 $$", "was ended by signal 9"),
    ],
)
def test_a_program_that_does_not_start_is_told_in_its_own_words(tmp_path: Path, script: str, said: str) -> None:
    (program := tmp_path / "x").write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    finding = found(program)
    assert (finding.ok, finding.detail) == (False, f"{program}: {said}")


@pytest.mark.parametrize("name", ["gemini", "opencode", "hermes"])
def test_what_is_not_installed_is_said_with_how_it_would_be(name: str, tmp_path: Path) -> None:
    """Also where hints are not shown, as it is no problem."""
    (finding, *_) = AGENTS[name].findings({"PATH": str(tmp_path)})
    assert finding.ok
    assert finding.detail.startswith("not installed (")
