"""What an agent and other processes of its user can do to its shim: command it, speak in its place, read its memory."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from activities.shim.client import ForkServer, Input, Moved, Spec, StdinClosed, is_alive, launching, records, start
from activities.shim.program.shim import NAME
from tests.agents.kits import ClaudeKit
from tests.scripted_model import say, tool
from tests.shim.agents import SLEEP, collect, output, python, until
from tests.shim.conftest import Running, Shims
from tests.support.processes import environment

pytestmark = [pytest.mark.integration, pytest.mark.linux]

SPEAK = """
import json, os, socket, sys, time
def speak(directory, *commands):
    sock = socket.socket(socket.AF_UNIX)
    os.chdir(directory)
    while True:  # an agent may be there before its shim listens
        try:
            sock.connect("shim.sock")
            break
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(0.01)
    try:
        for command in commands:
            sock.sendall(json.dumps(command).encode() + b"\\n")
        said = sock.recv(65536)
    except OSError as error:
        said = repr(error).encode()
    print("said", said.decode(), flush=True)
hello = {"op": "hello", "protocol": 1, "epoch": 1 << 62}
"""
AS_CHILD = SPEAK + "speak(sys.argv[1], hello)\n"
AS_ORPHAN = f"""{SPEAK}
if os.fork() == 0:
    os.setsid()
    middle = os.getpid()
    if os.fork() == 0:
        while os.getppid() == middle: time.sleep(0.01)
        speak(sys.argv[1], hello)
    os._exit(0)
time.sleep(600)
"""
"""Speaks from a grandchild whose own parent has gone."""


class TestPeers:
    @pytest.mark.parametrize("code", [AS_CHILD, AS_ORPHAN], ids=["child", "orphan"])
    async def test_an_agent_cannot_command_its_own_shim(self, shims: Shims, code: str) -> None:
        directory = shims.directory()
        shim = await shims.start([*python(code), str(directory)], directory=directory)
        async with shim.controller(epoch=1) as worker:
            assert '"ok": true' not in await first_said(shim)
            assert (await worker.status()).epoch == 1
            await worker.renew()
        assert "it descends from the agent" in (directory / "shim.log").read_text()

    async def test_an_agent_cannot_command_the_shim_of_another(self, shims: Shims) -> None:
        other = await shims.start(SLEEP)
        attacker = await shims.start([*python(AS_CHILD), str(other.directory)])
        assert '"ok": true' not in await first_said(attacker)
        async with other.observer() as observer:
            assert (await observer.status()).epoch is None
        assert "another shim" in (other.directory / "shim.log").read_text()

    async def test_who_is_gone_before_it_was_looked_at_is_not_heard(self, shims: Shims) -> None:
        shim = await shims.start(SLEEP)
        os.kill(shim.status.shim_pid, 19)
        left = f"""
import json, os, socket
os.chdir({str(shim.directory)!r})
sock = socket.socket(socket.AF_UNIX); sock.connect("shim.sock")
sock.sendall(b'{{"op": "hello", "protocol": 1, "epoch": 77}}\\n')
"""
        subprocess.run(python(left), check=True)
        os.kill(shim.status.shim_pid, 18)
        async with shim.observer() as observer:
            assert (await observer.status()).epoch is None

    async def test_an_epoch_belongs_to_the_process_that_came_with_it(self, shims: Shims) -> None:
        shim = await shims.start(SLEEP)
        async with shim.controller(epoch=5) as worker:
            code = SPEAK + "speak(sys.argv[1], {**hello, 'epoch': 5}, {'op': 'write', 'id': 'x', 'data': 'yes'})"
            ran = subprocess.run([*python(code), str(shim.directory)], check=True, capture_output=True, text=True)
            assert '"error": "fenced"' in ran.stdout
            await worker.renew()
            async with shim.controller(epoch=5):
                pass  # the same process again is the same controller

    async def test_steersman_works_within_an_agent_of_steersman(self, shims: Shims) -> None:
        inner = shims.directory()
        code = f"""
import asyncio, os, sys
sys.path.insert(0, {str(Path(launching.__file__).parents[3])!r})
from activities.shim.client import Spec, connect, start
async def main():
    await start({str(inner)!r}, Spec(["sleep", "600"], "/", dict(os.environ)))
    async with await connect({str(inner)!r}, epoch=1) as connection:
        print("led", (await connection.status()).state, flush=True)
        print("stopped", (await connection.stop()).outcome, flush=True)
        await connection.release()
asyncio.run(main())
"""
        outer = await shims.start([sys.executable, "-c", code])
        found = await collect(records(outer.directory))
        assert output(found) == [b"led running", b"stopped stopped"], output(found, "err")

    async def test_ps_shows_whose_shim_it_is(self, shims: Shims) -> None:
        directory = shims.directory()
        async with ForkServer() as forks:
            status = await start(directory, Spec(SLEEP, "/", dict(os.environ)), forks=forks)
        shown = Path(f"/proc/{status.shim_pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().split()
        assert shown == [NAME, str(directory)]
        assert Path(f"/proc/{status.shim_pid}/comm").read_text().strip() == NAME
        assert NAME not in Path(f"/proc/{status.pid}/comm").read_text()


async def first_said(shim: Running) -> str:
    """What an attacker prints of its attempt."""
    async with aclosing(records(shim.directory)) as stream:
        async for record in stream:
            if record.data.startswith(b"said"):
                return record.data.decode()
            assert record.stream != "err", record.data
    raise AssertionError("the attacker said nothing")


class TestStdin:
    """A socket in place of a pipe: nobody opens it by a path, and it does all that a pipe does."""

    async def started(self, shims: Shims, code: str, **spec: Any) -> Running:
        directory = shims.directory()
        return Running(
            directory, await start(directory, Spec(python(code), "/", dict(os.environ), stdin="socket", **spec))
        )

    async def test_nobody_can_open_it(self, shims: Shims) -> None:
        shim = await self.started(shims, "import sys\nfor line in sys.stdin: print(line.strip())")
        for path in (f"/proc/{shim.status.pid}/fd/0", *self.sockets_of(shim.status.shim_pid)):
            with pytest.raises(OSError, match="No such device"):
                os.close(os.open(path, os.O_WRONLY))
        async with shim.controller() as worker:
            await worker.write("allow\n")
            await worker.close_stdin()
        assert output(await collect(records(shim.directory))) == [b"allow"]

    @staticmethod
    def sockets_of(pid: int) -> list[str]:
        """Those that we can see: where we are not root, none of a shim."""
        if not os.access(f"/proc/{pid}/fd", os.R_OK):
            return []
        return [str(each) for each in Path(f"/proc/{pid}/fd").iterdir() if "socket:" in str(each.readlink())]

    async def test_much_is_held_back_and_ends_with_the_end_of_the_file(self, shims: Shims) -> None:
        code = "import sys, time; time.sleep(0.3); print(len(sys.stdin.buffer.read()))"
        data = [Input(str(number), "x" * 1_000_000) for number in range(8)]
        shim = await self.started(shims, code, input=data, close_stdin=True)
        assert output(await collect(records(shim.directory))) == [b"8000000"]

    async def test_an_agent_may_close_it_or_write_to_it(self, shims: Shims) -> None:
        code = """
import os, signal, time
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
try: os.write(0, b"to the shim?")
except OSError as error: print(type(error).__name__)
os.close(0)
print("closed")
time.sleep(600)
"""
        shim = await self.started(shims, code)
        await collect(records(shim.directory), until_line=b"closed")
        async with shim.controller() as worker:
            await worker.write("nobody reads this\n")
            await until(lambda: " eof 0 " in (shim.directory / "journal").read_text())
            with pytest.raises(StdinClosed):
                await worker.write("nor this\n")
        assert output(await collect(records(shim.directory), until_line=b"closed"))[0] == b"BrokenPipeError"

    async def test_claude_code_has_one(self, claude: ClaudeKit) -> None:
        """An approved command of its Bash tool cannot say yes to the next question."""
        answer = "for fd in /proc/$PPID/fd/0 /proc/self/fd/0; do echo yes 2>&1 > $fd && echo written; done; echo tried"
        async with claude.run(tool("Bash", command=answer), say("done"), permissions={"mode": "full"}) as stage:
            outcome = await stage.play()
            assert (outcome.status, outcome.text) == ("succeeded", "done")
            (result,) = stage.said("tool_result")
            assert "tried" in result.text
            assert "No such device" in result.text


class TestWorkspace:
    async def test_a_directory_that_became_a_symlink_is_not_entered(self, every_shim: Shims) -> None:
        """The race's outcome: between the look and the start the path has come to lead out of the root."""
        root, outside = every_shim.root / "root", every_shim.root / "outside"
        (root / "inner" / "work").mkdir(parents=True)
        (outside / "work").mkdir(parents=True)
        directory = every_shim.directory()
        spec = Spec(["touch", "was-here"], root / "inner" / "work", dict(os.environ), cwd_resolved=True)
        for swapped in ("inner", "inner/work"):
            (root / swapped).rename(root / "away")
            (root / swapped).symlink_to(outside / Path(swapped).relative_to("inner"))
            with pytest.raises(Moved, match=str(spec.cwd)):
                await start(directory, spec, python=every_shim.python, processes=every_shim.processes)
            (root / swapped).unlink()
            (root / "away").rename(root / swapped)
            assert not list(every_shim.root.rglob("was-here"))
        await start(directory, spec, python=every_shim.python, processes=every_shim.processes)
        await collect(records(directory))
        assert (root / "inner" / "work" / "was-here").exists()


class TestEnvironment:
    async def test_no_secret_of_the_worker_is_in_a_shims_environment(
        self, shims: Shims, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CANARY", "c4n4ry-of-the-worker")
        shim = await shims.start(SLEEP, env={"PATH": os.environ["PATH"], "OWN": "c4n4ry-of-the-agent"})
        async with ForkServer() as forks:
            status = await start(shims.directory(), Spec(SLEEP, "/", {"PATH": os.environ["PATH"]}), forks=forks)
        for pid in (shim.status.shim_pid, status.shim_pid):
            assert b"c4n4ry" not in environment(pid)
        assert b"c4n4ry-of-the-agent" in environment(shim.status.pid)
        assert b"c4n4ry-of-the-worker" not in environment(shim.status.pid)

    async def test_a_path_of_any_bytes_works_without_a_locale(self, shims: Shims) -> None:
        work = os.fsencode(shims.root) + b"/w\xff\xc3\xb6rk"
        Path(os.fsdecode(work)).mkdir()
        directory = shims.root / "st\udcffäte"
        shims.directory("st\udcffäte")
        spec = Spec(["touch", "here"], os.fsdecode(work), dict(os.environ), cwd_resolved=True)
        await start(directory, spec)
        await collect(records(directory))
        assert [each.name for each in Path(os.fsdecode(work)).iterdir()] == ["here"]


PRY = """
import glob, json, os, sys
shim, opened, denied = os.getppid(), [], 0
for path in glob.glob(f"/proc/{os.getpid()}/fd/0") + [f"/proc/{shim}/{name}" for name in ("environ", "mem", "fd")]:
    try:
        os.close(os.open(path, os.O_WRONLY if path.endswith("/0") else os.O_RDONLY))
        if path.endswith("/fd"): os.listdir(path)
        opened.append(path)
    except OSError:
        denied += 1
for number in range(64):
    try:
        os.close(os.open(f"/proc/{shim}/fd/{number}", os.O_WRONLY))
        opened.append(number)
    except OSError:
        pass
with open(f"/proc/{shim}/cmdline") as file: assert "steersman-shim" in file.read()
with open("/proc/self/environ") as file: own = "OWN=1" in file.read()
print(json.dumps([opened, denied, own]), flush=True)
"""


@pytest.fixture
def nobodys(tmp_path: Path) -> Iterator[Path]:
    """A directory of a user without privileges, with a shim that this user can run."""
    if os.getuid() != 0 or not Path("/usr/bin/python3").exists() or not shutil.which("setpriv"):
        pytest.skip("needs root, setpriv and a Python of the system to become another user with")
    directory = Path(tempfile.mkdtemp(dir="/tmp"))
    shutil.copy(launching.PROGRAM / "shim.py", directory)
    for path in (directory, directory / "shim.py"):
        os.chown(path, 65534, 65534)
    yield directory
    while directory.exists():
        with contextlib.suppress(FileNotFoundError):  # a shim that is ending clears away, too
            shutil.rmtree(directory)


class TestDescriptors:
    async def test_nothing_of_a_shim_can_be_opened_by_a_path(self, nobodys: Path) -> None:
        """By the same user without privileges: neither its memory nor its ends of the agent's pipes, nor the stdin."""
        run = nobodys / "run"
        spec = {
            "protocol": 1,
            "argv": ["/usr/bin/python3", "-I", "-c", PRY],
            "cwd": str(nobodys),
            "env": {"OWN": "1"},
            "stdin": "socket",
            "lease_s": 2,
        }
        as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        command = [*as_nobody, "/usr/bin/python3", "-I", "-S", str(nobodys / "shim.py"), "run", str(run)]
        ran = subprocess.run(command, input=json.dumps(spec), capture_output=True, text=True, check=True)
        shim = json.loads(ran.stdout)["status"]["shim_pid"]
        await until(lambda: "[[" in (run / "journal").read_text())
        os.kill(shim, 15)
        await until(lambda: not is_alive(run))
        found = next(line for line in (run / "journal").read_text().splitlines() if line.startswith("[["))
        opened, denied, own = json.loads(found)
        assert opened == []
        assert denied == 4
        assert own, "the agent itself is as open as any process"
