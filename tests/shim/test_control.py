"""The program's commands as another machine gets them: copied there, run as child processes, nothing but pipes."""

import asyncio
import json
import os
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any

import pytest

from activities.runtimes.installation import COMMAND
from activities.shim.client import Connection, Record, RecordParser, Spec
from activities.shim.client.dialing import ask
from activities.shim.client.launching import PROGRAM
from activities.shim.program.control import GONE, UNRESPONSIVE
from activities.shim.program.strays import tag_of
from tests.shim.agents import SLEEP, lives, python, until
from tests.shim.conftest import oldest_python

pytestmark = [pytest.mark.integration, pytest.mark.linux]

FAMILY = "import os, time; os.fork() or (os.setsid(), os.fork()); print('ready', flush=True); time.sleep(600)"
CAT = "import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(line); sys.stdout.flush()"


class Elsewhere:
    """A machine of which only this is known: it runs programs."""

    def __init__(self, root: Path) -> None:
        shutil.copytree(PROGRAM, root / "steersman" / "program", ignore=shutil.ignore_patterns("__pycache__"))
        self.root = root
        self.python = oldest_python() or sys.executable
        self.directory = root / "attempts" / "1"
        self.tag = tag_of(self.directory.parent, "1")

    async def exec(self, *words: str | os.PathLike[str]) -> Process:
        command = [self.python, "-I", "-S", "-c", COMMAND, self.root / "steersman", *words]
        env = {"HOME": str(self.root)}
        return await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=env, cwd=self.root, limit=1 << 20
        )

    async def ask(self, *words: str | os.PathLike[str], said: bytes = b"") -> dict[str, Any]:
        process = await self.exec(*words)
        output, errors = await asyncio.wait_for(process.communicate(said), 30)
        assert output, errors.decode()
        answer: dict[str, Any] = json.loads(output)
        assert answer["ok"] == (process.returncode == 0)
        return answer

    def spec(self, *argv: str) -> bytes:
        spec = Spec(argv, self.root, {"PATH": os.environ["PATH"]}, tag=self.tag)
        return json.dumps(spec.to_wire()).encode()

    async def start(self, *argv: str) -> dict[str, Any]:
        return await self.ask("run", self.directory, said=self.spec(*argv))

    async def connect(self, epoch: int | None = 1) -> Connection:
        process = await self.exec("dial", self.directory)
        assert process.stdin
        assert process.stdout
        hello = await ask(process.stdout, process.stdin, {"op": "hello", "protocol": 1, "epoch": epoch})
        return Connection(process.stdout, process.stdin, hello)

    async def dialed(self) -> int:
        process = await self.exec("dial", self.directory)
        await process.communicate()
        assert process.returncode is not None
        return process.returncode

    async def journal(self, after: int = 0, offset: int = 0) -> tuple[int, bytes]:
        process = await self.exec("journal", self.directory, str(after), str(offset))
        output, _ = await process.communicate()
        head, _, rest = output.partition(b"\n")
        return json.loads(head)["offset"], rest


@pytest.fixture
async def elsewhere(tmp_path: Path) -> Any:
    machine = Elsewhere(tmp_path)
    yield machine
    for _ in range(3):  # a shim that was killed leaves what its tag tells of
        await machine.ask("kill-strays", tmp_path / "attempts", "1", machine.tag)
        await machine.ask("kill", machine.directory)


async def test_a_look_loads_no_more_than_it_needs(elsewhere: Elsewhere) -> None:
    """Each look at another machine pays for it again."""
    code = COMMAND.replace("sys.exit(code)", "sys.stderr.write(' '.join(sys.modules)); sys.exit(code)")
    arguments = [
        elsewhere.python,
        "-I",
        "-S",
        "-c",
        code,
        str(elsewhere.root / "steersman"),
        "alive",
        str(elsewhere.root),
    ]
    process = await asyncio.create_subprocess_exec(*arguments, stdout=PIPE, stderr=PIPE)
    _, loaded = await process.communicate()
    assert process.returncode == 0
    needless = {"hashlib", "pathlib", "shutil", "subprocess", "tempfile", "threading", "typing"}
    assert not needless & set(loaded.decode().split())


async def test_a_run_from_start_to_end(elsewhere: Elsewhere) -> None:
    started = await elsewhere.start(*python(CAT))
    agent = started["status"]["pid"]
    assert lives(agent)
    assert await elsewhere.ask("alive", elsewhere.directory) == {
        "ok": True,
        "alive": True,
        "used": True,
        "ended": False,
        "stopped": False,
        "stray": False,
    }
    assert (await elsewhere.ask("entomb", elsewhere.directory))["entombed"] is False
    assert (await elsewhere.start(*SLEEP))["error"] == "already_running"
    long = "x" * 5_000_000
    async with await elsewhere.connect() as connection:
        assert connection.hello.pid == agent
        assert not (await connection.write(f"{long}\n", id="long")).duplicate
        assert (await connection.write(f"{long}\n", id="long")).duplicate
        await connection.close_stdin()
        async with asyncio.timeout(30):
            while (status := await connection.status()).exit is None:
                await asyncio.sleep(0.02)
        assert status.exit.code == 0
        await connection.release()
    await until(lambda: not lives(started["status"]["shim_pid"]))
    assert await elsewhere.dialed() == GONE
    offset, stored = await elsewhere.journal()
    records = RecordParser(0, offset).feed(stored)
    assert b"".join(record.data for record in records if record.stream.startswith("out")) == long.encode()
    assert records[-1].stream == "exit"
    assert await elsewhere.ask("alive", elsewhere.directory) == {
        "ok": True,
        "alive": False,
        "used": True,
        "ended": True,
        "stopped": False,
        "stray": False,
    }
    # From the last record on, at the byte where it begins, and at one where nothing begins.
    last = stored.rindex(b"\n%d " % records[-1].seq) + 1
    assert (await elsewhere.journal(records[-2].seq, last))[1] == stored[last:]
    assert (await elsewhere.journal(records[-2].seq, last + 1)) == (0, stored)
    assert (await elsewhere.journal(records[-1].seq, len(stored)))[1] == b""


async def test_the_journal_comes_live_through_a_dial(elsewhere: Elsewhere) -> None:
    await elsewhere.start(*python("import time\nfor n in range(20): print(n, flush=True)\ntime.sleep(600)"))
    process = await elsewhere.exec("dial", elsewhere.directory)
    assert process.stdin
    assert process.stdout
    await ask(process.stdout, process.stdin, {"op": "hello", "protocol": 1, "epoch": 1})
    await ask(process.stdout, process.stdin, {"op": "attach", "after": 5})
    parser = RecordParser(5)
    records: list[Record] = []
    async with asyncio.timeout(30):
        while len(records) < 15:
            records += parser.feed(await process.stdout.read(100))
    assert [record.data for record in records] == [b"%d" % number for number in range(5, 20)]
    process.stdin.close()
    async with await elsewhere.connect(epoch=2) as newer:  # which fences the first one off
        assert (await asyncio.wait_for(process.stdout.read(), 10)) == b""
        assert (await newer.stop()).outcome == "stopped"


async def test_what_a_dead_shim_left_is_killed_and_proven(elsewhere: Elsewhere) -> None:
    started = await elsewhere.start(*python(FAMILY))
    assert (await elsewhere.ask("clear", elsewhere.directory))["error"] == "already_running"
    os.kill(started["status"]["shim_pid"], signal.SIGKILL)
    await until(lambda: not lives(started["status"]["shim_pid"]))
    cleared = await elsewhere.ask("clear", elsewhere.directory)
    assert (cleared["processes"] > 0, cleared["left"]) == (True, [])
    assert not lives(started["status"]["pid"])
    assert (await elsewhere.ask("entomb", elsewhere.directory))["entombed"]
    assert (await elsewhere.start(*SLEEP))["error"] == "stopped"


async def test_a_frozen_shim_is_woken_or_ended_with_its_agent(elsewhere: Elsewhere) -> None:
    started = await elsewhere.start(*python(FAMILY))
    shim, agent = started["status"]["shim_pid"], started["status"]["pid"]
    os.kill(shim, signal.SIGSTOP)
    assert await elsewhere.ask("thaw", elsewhere.directory) == {"ok": True, "waits_for_disk": False}
    async with await elsewhere.connect(None) as connection:
        assert connection.hello.state == "running"
    os.kill(shim, signal.SIGSTOP)
    cleared = await elsewhere.ask("kill", elsewhere.directory)
    assert (cleared["proven"], cleared["left"]) == (True, [])
    assert not lives(agent)
    assert not lives(shim)


async def test_agents_without_a_directory_are_found(elsewhere: Elsewhere) -> None:
    started = await elsewhere.start(*python(FAMILY))
    root = elsewhere.directory.parent
    os.kill(started["status"]["shim_pid"], signal.SIGSTOP)  # else it would see to it by itself
    (tag,) = (await elsewhere.ask("strays", root, "1"))["tags"]
    cleared = await elsewhere.ask("kill-strays", root, "1", tag)
    assert (cleared["processes"] > 0, cleared["left"], cleared["proven"]) == (True, [], False)
    assert not lives(started["status"]["pid"])
    assert (await elsewhere.ask("strays", root, "1"))["tags"] == []


async def test_nobody_there_and_something_else_there(elsewhere: Elsewhere) -> None:
    assert await elsewhere.dialed() == GONE
    assert (await elsewhere.ask("journal", elsewhere.directory, "0", "0"))["error"] == "gone"
    await elsewhere.start(*SLEEP)
    (elsewhere.directory / "state.json").write_text(json.dumps({"mark": "0" * 32, "shim_pid": 1, "start_time": 1}))
    assert await elsewhere.dialed() == UNRESPONSIVE
    process = await elsewhere.exec("dance")
    output, errors = await process.communicate()
    assert (process.returncode, output) == (2, b"")
    assert b"dial DIRECTORY" in errors


async def test_in_the_foreground_it_stays_until_it_is_told_to_end(elsewhere: Elsewhere) -> None:
    process = await elsewhere.exec("run", "--foreground", elsewhere.directory)
    assert process.stdin
    assert process.stdout
    process.stdin.write(elsewhere.spec(*python(FAMILY)))
    process.stdin.close()
    status = json.loads(await asyncio.wait_for(process.stdout.readline(), 30))["status"]
    assert status["shim_pid"] == process.pid
    assert process.returncode is None
    async with await elsewhere.connect() as connection:
        assert connection.hello.pid == status["pid"]
    process.terminate()
    assert await asyncio.wait_for(process.wait(), 30) == 0
    assert not lives(status["pid"])
    _, stored = await elsewhere.journal()
    assert b'"reason": "terminated"' in stored
