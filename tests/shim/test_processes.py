"""Process tables: who descends from whom, by each way of finding out."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from activities.shim.program.shim import MARK, ProcTable, PsTable, kill_all
from tests.shim.agents import python


def entry(proc: Path, pid: int, parent: int, *children: int, state: str = "S", threads: int = 1) -> None:
    task = proc / str(pid) / "task" / str(pid)
    task.mkdir(parents=True)
    fields = [state, str(parent), *["0"] * 15, str(threads), "0", "4711"]
    (proc / str(pid) / "stat").write_text(f"{pid} (a (bad) name) {' '.join(fields)}\n")
    (task / "children").write_text("".join(f"{child} " for child in children))


@pytest.mark.parametrize("has_children_files", [True, False])
def test_descendants_are_found_with_and_without_the_kernels_list_of_children(
    tmp_path: Path, *, has_children_files: bool
) -> None:
    here = os.getpid()
    if has_children_files:
        (tmp_path / "self" / "task" / str(here)).mkdir(parents=True)
        (tmp_path / "self" / "task" / str(here) / "children").touch()
    entry(tmp_path, here, 1, 100_001, 100_002)
    entry(tmp_path, 100_001, here, 100_003)
    entry(tmp_path, 100_002, here, state="Z")
    entry(tmp_path, 100_003, 100_001, 100_004, state="T")
    entry(tmp_path, 100_004, 100_003, state="Z", threads=2)
    entry(tmp_path, 100_005, 1)
    (tmp_path / "100006").mkdir()
    table = ProcTable(root=str(tmp_path))
    assert table.alive() == {100_001: "S", 100_003: "T", 100_004: "Z"}
    assert table.start_time(100_001) == 4711
    assert table.start_time(100_099) == 0


@pytest.fixture
def marked_orphan() -> Iterator[int]:
    code = "import os\nif os.fork() == 0:\n    os.setsid(); print(os.getpid()); import time; time.sleep(600)"
    with subprocess.Popen(python(code), env={MARK: "m4rk"}, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.wait()
        yield pid
        os.kill(pid, 9)


@pytest.mark.integration
@pytest.mark.linux
def test_an_orphan_is_found_by_its_mark_and_nobody_else_is(marked_orphan: int) -> None:
    assert set(ProcTable("m4rk").alive(-1)) == {marked_orphan}
    assert ProcTable("m4r").alive(-1) == {}
    assert not ProcTable("m4rk").certain()
    assert set(PsTable("m4rk").alive(-1)) == {marked_orphan}
    assert not PsTable("m4rk").certain()


@pytest.fixture(params=["UTC0", "America/New_York"])
def zone(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.integration
@pytest.mark.linux
def test_ps_remembers_who_became_an_orphan(zone: None) -> None:
    code = (
        "import os, sys\nif os.fork() == 0:\n    os.setsid(); print(os.getpid()); import time; time.sleep(600)\n"
        "sys.stdin.read()"
    )
    table = PsTable("nobody-has-this-mark")
    others = set(table.alive())  # children of this process that other tests have
    with subprocess.Popen(python(code), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        child = int(parent.stdout.readline())
        assert set(table.alive()) - others == {parent.pid, child}
        assert abs(table.start_time(child) - time.time()) < 30
        parent.stdin.close()
        parent.wait()
        assert set(table.alive()) - others == {child}
        os.kill(child, 9)


@pytest.mark.integration
@pytest.mark.linux
def test_killing_reaches_those_who_are_forked_meanwhile() -> None:
    code = """
import os, time
end = time.monotonic() + 20
while time.monotonic() < end:
    if os.fork() == 0:
        os.setsid()
        time.sleep(0.01)
        if os.fork():
            os._exit(0)
        time.sleep(600)
    time.sleep(0.001)
"""
    mark = f"test{os.getpid()}"
    table = ProcTable(mark)

    class Marked(ProcTable):
        def alive(self, root: int | None = None) -> dict[int, str]:
            return super().alive(-1)

    with subprocess.Popen(python(code), env={MARK: mark}) as bomb:
        deadline = time.monotonic() + 10
        while len(table.alive(-1)) < 20:
            assert time.monotonic() < deadline
        while table.alive(-1):
            kill_all(Marked(mark))
            assert time.monotonic() < deadline
        assert bomb.wait() == -9
