"""Starting: the agent gets what it was promised, nobody else sees its secrets, and every refusal says why."""

import asyncio
import fcntl
import json
import os
import signal
import stat
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from activities.shim.client import (
    AgentNotExecutable,
    AgentNotFound,
    AlreadyRunning,
    AlreadyUsed,
    ForkServer,
    Input,
    InvalidSpec,
    NoDirectory,
    Spec,
    StartFailed,
    StartRefused,
    Tombstoned,
    entomb,
    is_alive,
    launching,
    records,
    start,
)
from tests.shim.agents import SLEEP, collect, lives, output, python, until
from tests.shim.conftest import Running, Shims
from tests.support.processes import environment

pytestmark = [pytest.mark.integration, pytest.mark.linux]


async def test_the_status_names_the_agent_for_all_time(every_shim: Shims) -> None:
    shim = await every_shim.start(SLEEP)
    status = shim.status
    assert (status.state, status.program, status.epoch, status.exit, status.stdin_open) == (
        "running",
        "sleep",
        None,
        None,
        True,
    )
    assert lives(status.pid)
    assert lives(status.shim_pid)
    assert status.host == os.uname().nodename
    assert abs(status.started_at.timestamp() - time.time()) < 30
    stored = json.loads((shim.directory / "state.json").read_text())
    assert (stored["pid"], stored["start_time"], stored["boot_id"]) == (
        status.pid,
        status.start_time,
        status.boot_id,
    )
    if every_shim.processes is None:
        fields = Path(f"/proc/{status.pid}/stat").read_text().rpartition(")")[2].split()
        assert int(fields[19]) == status.start_time
        assert status.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


async def test_neither_process_is_a_child_of_the_starter(shims: Shims) -> None:
    shim = await shims.start(SLEEP)

    def parent(pid: int) -> int:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    assert parent(shim.status.pid) == shim.status.shim_pid
    assert parent(shim.status.shim_pid) != os.getpid()
    assert os.getsid(shim.status.shim_pid) != os.getsid(0)
    assert os.getsid(shim.status.pid) == shim.status.pid


async def test_nobody_else_can_read_the_state_and_no_secret_is_in_it(shims: Shims) -> None:
    secret = "sk-very-secret"
    shim = await shims.start(
        ["sh", "-c", "sleep 600", "an-argument"], env={"API_KEY": secret, "PATH": os.environ["PATH"]}
    )
    async with shim.controller():
        pass
    assert stat.S_IMODE(shim.directory.stat().st_mode) == 0o700
    files = {path.name: path for path in shim.directory.iterdir()}
    assert set(files) == {"journal", "lock", "shim.log", "shim.sock", "state.json"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files.values()} == {0o600}
    for path in files.values():
        if path.name != "shim.sock":
            assert secret not in path.read_text()
            assert "an-argument" not in path.read_text()
    command_line = Path(f"/proc/{shim.status.shim_pid}/cmdline").read_text()
    assert secret not in command_line
    assert secret.encode() not in environment(shim.status.shim_pid)


async def test_a_directory_that_others_could_read_is_closed_to_them(shims: Shims) -> None:
    directory = shims.directory()
    directory.mkdir(mode=0o755)
    await shims.start(SLEEP, directory=directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


async def test_the_agent_gets_a_clean_process(every_shim: Shims) -> None:
    code = """
import json, os, signal
umask = os.umask(0)
signals = [n for n in range(1, signal.NSIG) if signal.getsignal(n) is signal.SIG_IGN]
fds = sorted(int(fd) for fd in os.listdir("/proc/self/fd"))
print(json.dumps([dict(os.environ), os.getcwd(), umask, signals, len(fds), sorted(signal.pthread_sigmask(0, []))]))
"""
    expected = os.umask(0o027)
    try:
        shim = await every_shim.start(python(code), env={"A": "b", "LC_ALL": "C.UTF-8", "Ü": "ß"})
    finally:
        os.umask(expected)
    found = await collect(records(shim.directory))
    env, cwd, umask, ignored, fds, mask = json.loads(output(found)[0])
    mark = json.loads((shim.directory / "state.json").read_text())["mark"]
    assert env == {"A": "b", "LC_ALL": "C.UTF-8", "Ü": "ß", "STEERSMAN_MARK": mark}
    assert (cwd, umask, mask) == (str(every_shim.root), 0o027, [])
    assert set(ignored) <= {13, 25}  # Python itself ignores SIGPIPE and SIGXFSZ
    assert fds == 4  # stdin, stdout, stderr and the listing's own


async def test_the_agent_ignores_no_signal_that_its_starter_ignores(shims: Shims) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        shim = await shims.start(["grep", "SigIgn", "/proc/self/status"])
    finally:
        signal.signal(signal.SIGHUP, before)
    (line,) = output(await collect(records(shim.directory)))
    ours = ~(0b11 << 31)  # 32 and 33 are the C library's: nobody can set them, though a starter may pass them on
    assert int(line.split()[1], 16) & ours == 0


async def test_the_first_input_is_there_before_anybody_connects(every_shim: Shims) -> None:
    writes = [Input("first", "one\n"), Input("second", b"\xff\x00two\n")]
    shim = await every_shim.start(["cat"], input=writes, close_stdin=True)
    found = await collect(records(shim.directory))
    assert [(record.stream, record.id, record.data) for record in found if record.stream in {"in", "eof"}] == [
        ("in", "first", b"one\n"),
        ("in", "second", b"\xff\x00two\n"),
        ("eof", "", b""),
    ]
    assert output(found) == [b"one", b"\xff\x00two"]
    assert json.loads(found[-1].data)["code"] == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"argv": ["no-such-program-anywhere"]}, AgentNotFound, "no-such-program-anywhere"),
        ({"argv": ["/etc/passwd/x"]}, AgentNotFound, "/etc/passwd/x"),
        ({"argv": ["/etc/passwd"]}, AgentNotExecutable, "/etc/passwd"),
        ({"argv": ["/"]}, AgentNotExecutable, "/"),
        ({"cwd": "/no/such/directory"}, NoDirectory, "/no/such/directory"),
        ({"cwd": "relative"}, InvalidSpec, "cwd"),
        ({"argv": []}, InvalidSpec, "argv"),
        ({"argv": ["a\0b"]}, InvalidSpec, "argv"),
        ({"env": {"A=B": "c"}}, InvalidSpec, "env"),
        ({"env": {"A": 1}}, InvalidSpec, "env"),
        ({"input": [Input("two words", "")]}, InvalidSpec, "id"),
        ({"input": [Input("a", ""), Input("a", "")]}, InvalidSpec, "twice"),
        ({"lease": timedelta(seconds=-1)}, InvalidSpec, "lease_s"),
        ({"kill_after": timedelta(days=2)}, InvalidSpec, "kill_after_s"),
        ({"argv": ["true", "x" * 3_000_000]}, StartFailed, "true"),
    ],
)
async def test_a_refusal_says_why_and_leaves_the_directory_usable(
    shims: Shims, change: dict[str, object], error: type[StartRefused], words: str
) -> None:
    directory = shims.directory()
    given: dict[str, object] = {"argv": ["true"], "cwd": "/", "env": {"PATH": os.environ["PATH"]}, **change}
    with pytest.raises(error, match=words):
        await start(directory, Spec(**given))  # type: ignore[arg-type]
    assert not is_alive(directory)
    await shims.start(["true"], directory=directory)


async def test_an_interpreter_that_is_not_there_is_a_refusal(shims: Shims) -> None:
    with pytest.raises(StartFailed, match="no-such-python"):
        await start(shims.directory(), Spec(["true"], "/", {}), python="/no-such-python")


async def test_a_program_that_is_no_shim_is_a_refusal(shims: Shims) -> None:
    with pytest.raises(StartFailed, match="said nothing"):
        await start(shims.directory(), Spec(["true"], "/", {}), python="true")


async def test_a_directory_is_used_once(shims: Shims) -> None:
    shim = await shims.start(SLEEP)
    with pytest.raises(AlreadyRunning):
        await shims.start(SLEEP, directory=shim.directory)
    assert not entomb(shim.directory)
    await shim.kill_shim()
    with pytest.raises(AlreadyUsed):
        await shims.start(SLEEP, directory=shim.directory)
    assert entomb(shim.directory)
    with pytest.raises(Tombstoned):
        await shims.start(SLEEP, directory=shim.directory)


async def test_of_many_starts_at_once_one_wins(shims: Shims) -> None:
    directory = shims.directory()
    results = await asyncio.gather(*(shims.start(SLEEP, directory=directory) for _ in range(4)), return_exceptions=True)
    assert len([result for result in results if isinstance(result, Running)]) == 1
    assert len([result for result in results if isinstance(result, AlreadyRunning)]) == 3


async def test_a_cancelled_start_is_carried_through(shims: Shims) -> None:
    directory = shims.directory()
    starting = asyncio.create_task(shims.start(SLEEP, directory=directory))
    await until((directory / "lock").exists)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert is_alive(directory)


async def test_a_long_path_works(every_shim: Shims) -> None:
    directory = every_shim.directory("/".join(["a-directory-with-a-long-name"] * 8))
    assert len(str(directory)) > 200
    shim = await every_shim.start(["cat"], directory=directory)
    async with shim.controller() as connection:
        await connection.write("hello\n")
        await connection.close_stdin()
    assert output(await collect(records(directory))) == [b"hello"]


async def test_a_directory_is_where_the_system_says_it_is(every_shim: Shims) -> None:
    """Not where it seems to be by its name: ".." of a link is above what the link leads to."""
    root = every_shim.directory("root")
    (root / "deep" / "er").mkdir(parents=True)
    (root / "link").symlink_to(Path("deep") / "er")
    directory = root / "link" / ".." / "place"
    shim = await every_shim.start(["cat"], directory=directory)
    assert (root / "deep" / "place" / "journal").exists()
    async with shim.controller() as connection:
        await connection.write("hello\n")
        await connection.close_stdin()
    assert output(await collect(records(directory))) == [b"hello"]


async def test_a_shim_is_small(shims: Shims) -> None:
    shim = await shims.start(SLEEP)
    async with shim.controller() as connection:
        await connection.status()
    lines = Path(f"/proc/{shim.status.shim_pid}/status").read_text().splitlines()
    resident = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    assert resident <= 14 * 1024


async def test_a_fork_server_starts_what_it_is_told_and_leaves_with_its_owner(shims: Shims) -> None:
    async with ForkServer() as forks:
        await until(fork_servers)  # just after exec a process has no words
        (server,) = fork_servers()
        directory = shims.directory()
        spec = Spec(["sh", "-c", "pwd"], shims.root, dict(os.environ))
        await start(directory, spec, forks=forks)
        assert output(await collect(records(directory))) == [str(shims.root).encode()]
        with pytest.raises(AgentNotFound):
            await start(shims.directory(), Spec(["no-such-program"], shims.root, dict(os.environ)), forks=forks)
        with pytest.raises(AlreadyRunning):
            await start(directory, spec, forks=forks)
        await until(lambda: not children_of(server))
        assert fork_servers() == [server]
    assert not fork_servers()


async def test_many_starts_at_once_are_told_apart(shims: Shims) -> None:
    async with ForkServer() as forks:
        spec = [Spec(["echo", str(number)], shims.root, dict(os.environ)) for number in range(30)]
        directories = [shims.directory() for _ in spec]
        await asyncio.gather(*(start(*each, forks=forks) for each in zip(directories, spec, strict=True)))
        said = [output(await collect(records(directory))) for directory in directories]
    assert said == [[str(number).encode()] for number in range(30)]


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_fork_server_that_is_gone_or_stopped_holds_up_no_start(
    shims: Shims, sent: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "FORKED_S", 0.5)
    async with ForkServer() as forks:
        await until(fork_servers)  # just after exec a process has no words
        (server,) = fork_servers()
        os.kill(server, sent)
        spec = Spec(["echo", "there"], shims.root, dict(os.environ))
        for _ in range(2):
            directory = shims.directory()
            await start(directory, spec, forks=forks)
            assert output(await collect(records(directory))) == [b"there"]
            await until(lambda: fork_servers() not in ([], [server]))
    assert not fork_servers()


async def test_a_fork_server_that_is_killed_among_many_starts_loses_none(shims: Shims) -> None:
    async with ForkServer() as forks:
        await until(fork_servers)  # just after exec a process has no words
        (server,) = fork_servers()
        spec = Spec(["echo", "there"], shims.root, dict(os.environ))
        directories = [shims.directory() for _ in range(30)]
        starting = [asyncio.create_task(start(directory, spec, forks=forks)) for directory in directories]
        while not children_of(server):
            await asyncio.sleep(0.001)
        os.kill(server, signal.SIGKILL)
        await asyncio.gather(*starting)
        said = [output(await collect(records(directory))) for directory in directories]
        await start(shims.directory(), spec, forks=forks)
        await until(fork_servers)
    assert said == [[b"there"]] * 30


async def test_a_launcher_whose_start_is_given_up_is_killed(shims: Shims) -> None:
    directory = shims.directory()
    Path(directory).mkdir(mode=0o700, exist_ok=True)
    wire = json.dumps(Spec(SLEEP, shims.root, dict(os.environ)).to_wire()).encode()
    async with ForkServer() as forks:
        await until(fork_servers)  # just after exec a process has no words
        (server,) = fork_servers()
        with (Path(directory) / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # a launcher tries for it for a while: time enough to stop it
            launch = await stopped_launch(forks, server, str(directory), wire)
        launch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await launch
        await until(lambda: not children_of(server))


async def stopped_launch(forks: ForkServer, server: int, directory: str, wire: bytes) -> "asyncio.Task[Any]":
    """A launch whose launcher was stopped before it could answer."""
    while True:
        launch = asyncio.create_task(forks.launch(directory, wire))
        while not children_of(server) and not launch.done():
            await asyncio.sleep(0.001)
        for launcher in children_of(server):
            os.kill(launcher, signal.SIGSTOP)
        if children_of(server) and not launch.done():
            return launch
        await launch


def fork_servers() -> list[int]:
    """Those of this process."""
    return [pid for pid in children_of(os.getpid()) if b"serve" in words_of(pid)]


def words_of(pid: int) -> list[bytes]:
    """A process's command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def children_of(parent: int) -> list[int]:
    """Those that have not been waited for."""
    try:
        return [int(each) for each in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    except OSError:
        return []
