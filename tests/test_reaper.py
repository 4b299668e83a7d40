"""The process that inherits the orphans of a test process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import reaper
from tests.support.processes import lives, parent, until

pytestmark = pytest.mark.linux

LEAVES_AN_ORPHAN = "sleep 600 >/dev/null 2>&1 </dev/null & echo $!"
ORPHANS = f"setsid sh -c '{LEAVES_AN_ORPHAN}'; read -r _; exit 7"


async def test_it_has_the_orphans_of_its_program_and_its_exit_code() -> None:
    with subprocess.Popen(
        reaper.command(["sh", "-c", ORPHANS]), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin
        assert process.stdout
        orphan = int(process.stdout.readline())
        await until(lambda: parent(orphan) == process.pid)
        os.kill(orphan, signal.SIGKILL)
        await until(lambda: parent(orphan) is None)
        process.stdin.close()
        assert process.wait(30) == 7


@pytest.mark.parametrize(("sent", "seen"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)])
async def test_it_and_its_program_end_together(sent: signal.Signals, seen: int) -> None:
    program = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"]
    with subprocess.Popen(reaper.command(program), stdout=subprocess.PIPE) as process:
        assert process.stdout
        pid = int(process.stdout.readline())
        process.send_signal(sent)
        assert process.wait(30) == seen
        await until(lambda: not lives(pid))


def test_each_process_of_the_tests_has_its_own(request: pytest.FixtureRequest) -> None:
    if not hasattr(request.config, "workerinput"):
        pytest.skip("these tests run in one process")
    assert reaper.__file__.encode() in Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
