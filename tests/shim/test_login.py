"""What a login has there: PATH as profiles set it, whatever the login shell prints, and however long it takes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from activities.shim.program import login

ROOT = Path(__file__).resolve().parents[2]


def info(home: Path, *programs: str, **env: str) -> dict[str, Any]:
    """The command's answer, from a home of the test's own. The login shell is this user's."""
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from program.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(ROOT / "activities" / "shim"), "info", json.dumps(programs)]
    given = {"PATH": os.environ["PATH"], "HOME": str(home), **env}
    said = subprocess.run(command, env=given, capture_output=True, check=True, timeout=30).stdout
    answer: dict[str, Any] = json.loads(said)
    return answer


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "agent"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return tmp_path


def profile(home: Path, text: str) -> None:
    for name in (".profile", ".zprofile"):
        (home / name).write_text(text)


def test_path_is_as_profiles_set_it(home: Path) -> None:
    profile(home, 'echo "welcome {\\"a\\": 1}"; export PATH="$HOME/bin:$PATH" QUOTED="a\'b"\n')
    answer = info(home, "agent", "sh", "no-such", "../agent")
    assert answer["programs"]["agent"] == str(home / "bin" / "agent")
    assert set(answer["programs"]) == {"agent", "sh"}
    assert answer["environ"]["QUOTED"] == "a'b"
    assert (answer["ok"], answer["root"]) == (True, os.geteuid() == 0)
    assert answer["free"] > 0


@pytest.mark.parametrize("text", ["exit 3\n", "exec false\n", "kill -9 $$\n", "printf x; exec 1>&-\n"])
def test_a_profile_that_ends_the_shell_is_done_without(home: Path, text: str) -> None:
    profile(home, text)
    assert info(home, "sh", MARKED="yes")["environ"]["MARKED"] == "yes"


def test_what_a_profile_leaves_at_work_holds_nothing_up(home: Path) -> None:
    profile(home, "sleep 600 &\n")
    assert info(home, "sh")["programs"]["sh"]


def test_a_flood_of_variables_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in range(200):
        monkeypatch.setenv(f"LARGE_{name}", "x" * 5000)
    monkeypatch.setenv("SMALL", "y")
    monkeypatch.setattr(login, "_shell", lambda: "/bin/false")
    found = login.environment()
    assert found["SMALL"] == "y"
    assert len(json.dumps(found)) <= login.MAX_ENVIRONMENT + 1000
