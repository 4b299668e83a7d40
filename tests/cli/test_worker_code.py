"""Where `steer` finds the code of workers, and what it says where that cannot be run."""

import json
import subprocess
from pathlib import Path

import pytest
import typer

from steersman.cli import worker_code
from steersman.cli.exits import Exit


def test_in_a_checkout_it_is_beside_the_package() -> None:
    command = worker_code.worker_command("check")
    assert command[1:] == [str(Path(worker_code.CHECKOUT, "worker.py")), "check"]
    assert worker_code.has_worker()


def test_a_worker_whose_log_nobody_takes_ends_as_any_other() -> None:
    command = ["bash", "-c", '"$@" 2>&-', "bash", *worker_code.worker_command("agents")]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    assert done.returncode == 0
    assert json.loads(done.stdout)


def test_where_it_is_installed_it_is_within_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(worker_code, "INSTALLED", tmp_path)
    (tmp_path / "worker.py").touch()
    assert worker_code.worker_command()[1] == str(tmp_path / "worker.py")
    assert worker_code.demo_command("claude")[1] == tmp_path


def test_what_a_worker_needs_is_named_with_what_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker_code, "_NEEDED", ("jsonschema", "no_such_package"))
    with pytest.raises(typer.Exit) as ended:
        worker_code.worker_command()
    assert ended.value.exit_code == Exit.USAGE
    assert "no_such_package cannot be imported: install 'steersman[worker]'" in capsys.readouterr().err
    assert not worker_code.has_worker()
