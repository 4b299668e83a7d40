"""A machine reached by OpenSSH: what is ssh's own, held to a real server on loopback."""

import asyncio
import os
import random
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest

from activities.ports.runtime import Channel, Launch, Record, Unreachable
from activities.runtimes.exec_access import ExecAccess
from activities.runtimes.machine import ChildMachine, ProcessStream
from activities.runtimes.shim_runtime import UNREACHABLE_S
from activities.runtimes.ssh import SOCKETS, SshMachine
from activities.runtimes.ssh_address import SshAddress
from activities.shim.client import MachineUnreachable, MachineUnusable
from steersman.contracts.errors import AgentFailed
from tests.runtimes.stage import ECHO, QUICK, Place, records
from tests.shim.conftest import pythons
from tests.support.disks import may_mount, small_disk
from tests.support.networks import Network
from tests.support.processes import command_lines, lives, until
from tests.support.sshd import Proxy, Sshd, forced, make_key, missing

pytestmark = [
    pytest.mark.integration,
    pytest.mark.linux,
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]

Connect = Callable[..., SshMachine]


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    (home := tmp_path / "home").mkdir()
    server = Sshd(tmp_path / "sshd", home)
    yield server
    server.close()


@pytest.fixture
async def connect(sshd: Sshd) -> AsyncIterator[Connect]:
    """Makes a machine of the server; what is given is the address's."""
    made: list[SshMachine] = []

    def machine(host: str = "place", env: dict[str, str] | None = None, **fields: object) -> SshMachine:
        address = SshAddress(host, **{"config": sshd.config, **fields})  # type: ignore[arg-type]
        made.append(SshMachine(address, {"PATH": os.environ["PATH"], "HOME": str(sshd.home), **(env or {})}))
        return made[-1]

    yield machine
    for each in made:
        await each.aclose()


async def said(machine: SshMachine, *argv: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
    """Exit code, stdout and stderr of a program."""
    async with asyncio.timeout(60):
        stream = await machine.exec(*argv, stdin=stdin)
        output = await stream.stdout.read()
        return await stream.wait(), output, stream.said()


def masters(sshd: Sshd) -> list[int]:
    """The clients that hold a connection for others."""
    config = str(sshd.config)
    return [pid for pid, line in command_lines().items() if config in line and "ControlMaster=yes" in line]


async def test_a_program_is_run_there_with_its_bytes_and_its_exit_code(connect: Connect) -> None:
    machine = connect()
    data = bytes(range(256)) * 5000
    assert await said(machine, "cat", stdin=data) == (0, data, "")
    for code in (1, 77, 127, 254, 255):
        found = await said(machine, "sh", "-c", f"echo out; echo err >&2; exit {code}")
        assert found == (code, b"out\n", "err")
    assert (await said(machine, "sh", "-c", "kill -9 $$"))[0] == 128 + 9


@pytest.mark.parametrize(
    "word", ["", " ", "a b", "'", '"', "\\", "\\n", "$HOME", "`id`", "!x", "*", "a\nb\n", "\n", "é", "~"]
)
async def test_each_argument_arrives_as_it_is(connect: Connect, word: str) -> None:
    argv = ("printf", "%s|", "x", word, f"{word}'{word}", "-c")
    assert (await said(connect(), *argv))[1] == "|".join((*argv[2:], "")).encode()


async def test_a_program_that_is_not_there_is_its_own_exit_code(connect: Connect) -> None:
    code, _, words = await said(connect(), "no-such-program", "x")
    assert code == 127
    assert "no-such-program" in words
    with pytest.raises(ValueError, match="null"):
        await connect().exec("a\0b")
    with pytest.raises(ValueError, match="surrogates"):
        await connect().exec("\ud800")


SHELLS = {
    "noisy": forced("echo motd; echo motd >&2; printf 'no newline at the end'; exec /bin/sh -c \"$2\""),
    "bash": "bash -l",
    "dash": "dash",
    "csh": "csh",
    "tcsh": "tcsh",
    "fish": "fish",
    "zsh": "zsh",
}


@pytest.mark.parametrize("shell", SHELLS)
async def test_the_login_shell_may_be_any(tmp_path: Path, shell: str) -> None:
    if shell != "noisy" and shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    (home := tmp_path / "home").mkdir()
    for name in (".bashrc", ".profile", ".cshrc", ".tcshrc", ".zshenv"):
        (home / name).write_text("echo 'welcome to this machine'\n")
    program = SHELLS[shell] if shell == "noisy" else f"{shutil.which(shell)}{SHELLS[shell].removeprefix(shell)}"
    server = Sshd(tmp_path / "sshd", home, login_shell=program)
    machine = SshMachine(SshAddress("place", config=server.config))
    try:
        assert await said(machine, "printf", "%s,", "a b", "$c'\n!", stdin=b"") == (0, b"a b,$c'\n!,", "")
        assert await said(machine, "sh", "-c", "cat; echo err >&2; exit 255", stdin=b"x\n") == (255, b"x\n", "err")
    finally:
        await machine.aclose()
        server.close()


async def test_many_programs_at_once_outnumber_the_sessions_of_a_connection(connect: Connect, sshd: Sshd) -> None:
    machine = connect()
    streams = await asyncio.gather(*(machine.exec("cat") for _ in range(25)))
    assert len(masters(sshd)) == 3
    for number, stream in enumerate(streams):
        stream.stdin.write(b"%d\n" % number)
        assert await asyncio.wait_for(stream.stdout.readline(), 60) == b"%d\n" % number
        stream.stdin.close()
        assert await stream.wait() == 0


async def test_a_server_with_fewer_sessions_is_reached_by_connections_of_their_own(tmp_path: Path) -> None:
    (home := tmp_path / "home").mkdir()
    server = Sshd(tmp_path / "sshd", home, settings=("MaxSessions 2",))
    machine = SshMachine(SshAddress("place", config=server.config))
    try:
        streams = await asyncio.gather(*(machine.exec("sh", "-c", "cat; exit 255") for _ in range(5)))
        for stream in streams:
            stream.stdin.close()
            assert (await stream.wait(), stream.said()) == (255, "")
    finally:
        await machine.aclose()
        server.close()


# Who may not in, and why.


async def fails(machine: SshMachine) -> MachineUnreachable:
    with pytest.raises(MachineUnreachable) as raised:
        await asyncio.wait_for(machine.exec("true", stdin=b""), 30)
    return raised.value


async def test_a_host_key_that_is_not_known_is_refused(connect: Connect, sshd: Sshd) -> None:
    sshd.known_hosts.write_text("")
    error = await fails(connect())
    assert isinstance(error, MachineUnusable)
    assert "host key is not known" in str(error)
    assert not sshd.known_hosts.read_text()


async def test_a_host_key_that_has_changed_is_refused(connect: Connect, sshd: Sshd, tmp_path: Path) -> None:
    sshd.trust(make_key(tmp_path / "other"))
    error = await fails(connect())
    assert isinstance(error, MachineUnusable)
    assert "not the one in known_hosts" in str(error)


async def test_a_key_that_is_not_let_in_is_named(connect: Connect, sshd: Sshd, tmp_path: Path) -> None:
    sshd.allow(make_key(tmp_path / "other"))
    error = await fails(connect())
    assert isinstance(error, MachineUnusable)
    assert "authorized_keys" in str(error)
    machine = connect(identity=tmp_path / "other", config=sshd.config)
    assert (await said(machine, "true"))[0] == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"options": ("HostName=no.such.host.invalid",)}, "no host has this name"),
        ({"options": ("Ciphers=aes128-cbc",)}, "algorithm"),
        ({"options": ("NoSuchOption=1",)}, "config"),
        ({"options": ("User=nobody-of-this-name",)}, "authorized_keys"),
        ({"config": Path("/no/such/config")}, "config"),
        ({"env": {"PATH": "/nowhere"}}, "install openssh-client"),
    ],
)
async def test_what_a_person_has_to_mend_is_named(connect: Connect, fields: dict[str, object], words: str) -> None:
    error = await fails(connect(**fields))
    assert isinstance(error, MachineUnusable), error
    assert words in str(error)


async def test_a_port_where_nobody_listens_may_pass(connect: Connect, sshd: Sshd) -> None:
    sshd.stop()
    machine = connect()
    error = await fails(machine)
    assert not isinstance(error, MachineUnusable)
    assert "Connection refused" in str(error)
    sshd.start()
    await until(lambda: _answers(machine))


async def _answers(machine: SshMachine) -> bool:
    try:
        return (await said(machine, "true"))[0] == 0
    except MachineUnreachable:
        return False


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("shell", "words"),
    [
        (forced("echo This account is currently not available.; exit 1"), "may not run programs"),
        (forced("echo git only; exit 0"), "command forced on this key.*git only"),
        (forced("exit 127"), "/bin/sh missing"),
        (forced("yes"), "without end"),
    ],
)
async def test_a_login_shell_that_runs_nothing_is_named(tmp_path: Path, shell: str, words: str) -> None:
    (home := tmp_path / "home").mkdir()
    server = Sshd(tmp_path / "sshd", home, login_shell=shell)
    machine = SshMachine(SshAddress("place", config=server.config))
    try:
        error = await fails(machine)
        assert isinstance(error, MachineUnusable)
        assert re.search(words, str(error))
    finally:
        await machine.aclose()
        server.close()


async def test_nothing_is_asked_of_a_person(connect: Connect, sshd: Sshd, tmp_path: Path) -> None:
    """A key with a passphrase, and a program that would ask for it."""
    asked = tmp_path / "asked"
    askpass = tmp_path / "askpass"
    askpass.write_text(f"#!/bin/sh\ntouch {asked}\n")
    askpass.chmod(0o700)
    os.system(f"ssh-keygen -q -p -N passphrase -f {shlex.quote(str(sshd.directory / 'user_key'))} >/dev/null")
    env = {"SSH_ASKPASS": str(askpass), "SSH_ASKPASS_REQUIRE": "force", "DISPLAY": ":0"}
    assert isinstance(await fails(connect(env=env)), MachineUnusable)
    assert not asked.exists()


@pytest.mark.parametrize(
    "host", ["", "-oProxyCommand=touch x", "a b", "a\nb", "a;b", "`a`", "$(a)", "a'b", "a/b", "u@h"]
)
def test_a_hostile_host_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="host"):
        SshAddress(host)


@pytest.mark.parametrize("user", ["", "-l", "a b", "a\0", "a;b", "`a`", "$(a)", "a'b", "a\\"])
def test_a_hostile_user_is_refused(user: str) -> None:
    with pytest.raises(ValueError, match="user"):
        SshAddress("place", user=user)


@pytest.mark.parametrize("fields", [{"port": 0}, {"port": 65536}, {"options": ("-oX=y",)}, {"options": ("A=b\nC=d",)}])
def test_a_hostile_port_or_option_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"port|option"):
        SshAddress("place", **fields)  # type: ignore[arg-type]


def test_no_option_of_an_address_turns_a_question_on() -> None:
    command = SshAddress("place", options=("BatchMode=no", "StrictHostKeyChecking=no")).command()
    assert command.index("BatchMode=yes") < command.index("BatchMode=no")  # ssh takes the first
    assert command.index("StrictHostKeyChecking=yes") < command.index("StrictHostKeyChecking=no")
    assert command[-2:] == ["--", "place"]


@pytest.mark.parametrize("version", [None, "3.8"])
async def test_a_machine_without_a_python_that_will_do_is_named(connect: Connect, version: str | None) -> None:
    python = next(iter(pythons(version)), None) if version else "no-such-python"
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    with pytest.raises(MachineUnusable, match=r"a shim takes .*3\.9 or newer"):
        await ExecAccess(connect(), python).ask("home")


# The shared connection.


async def test_a_master_that_was_killed_is_replaced(connect: Connect, sshd: Sshd) -> None:
    machine = connect()
    stream = await machine.exec("cat")
    (master,) = masters(sshd)
    os.kill(master, signal.SIGKILL)
    with pytest.raises(MachineUnreachable):
        await asyncio.wait_for(stream.wait(), 30)

    async def is_replaced() -> bool:  # what is run before its end was noticed connects on its own
        assert (await said(machine, "true"))[0] == 0
        return len(masters(sshd)) == 1 and masters(sshd) != [master]

    await until(is_replaced)


@pytest.mark.exhaustive
async def test_a_master_that_is_frozen_is_noticed_and_replaced(connect: Connect, sshd: Sshd) -> None:
    machine = connect()
    stream = await machine.exec("cat")
    (master,) = masters(sshd)
    os.kill(master, signal.SIGSTOP)
    with pytest.raises(MachineUnreachable):
        await asyncio.wait_for(stream.wait(), 60)
    assert (await said(machine, "true"))[0] == 0
    assert not lives(master)


async def test_nothing_of_it_is_left_when_it_is_let_go(connect: Connect, sshd: Sshd) -> None:
    machine = connect()
    await machine.exec("sleep", "600")
    sockets = [
        line[line.index("-S") + 1] for line in (text.split("\0") for text in command_lines().values()) if "-S" in line
    ]
    await machine.aclose()
    config = str(sshd.config)
    await until(lambda: not [line for line in command_lines().values() if config in line and "-S" in line])
    assert not any(Path(each).parent.exists() for each in sockets if "steersman-" in each)


USES = """
import asyncio, os, signal
from pathlib import Path
from activities.runtimes.ssh import SshMachine
from activities.runtimes.ssh_address import SshAddress
async def main():
    machine = SshMachine(SshAddress("place", config=Path({config!r})))
    await machine.exec("cat")
    {end}
asyncio.run(main())
"""


async def test_what_a_process_that_is_killed_has_of_a_connection_goes(sshd: Sshd) -> None:
    """The connection with it, and its socket when the next one makes one."""
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:

        async def use(end: str) -> int:
            code = USES.format(config=str(sshd.config), end=end)
            env = {**os.environ, "TMPDIR": scratch}
            return await (await asyncio.create_subprocess_exec(sys.executable, "-c", code, env=env)).wait()

        assert await use("os.kill(os.getpid(), signal.SIGKILL)") == -signal.SIGKILL
        config = str(sshd.config)
        await until(lambda: not [line for line in command_lines().values() if config in line and "-S" in line])
        assert [each.name.startswith(SOCKETS) for each in Path(scratch).iterdir()] == [True]
        assert await use("await machine.aclose()") == 0
        assert not list(Path(scratch).iterdir())


async def test_the_users_own_master_is_taken_where_one_answers(connect: Connect, sshd: Sshd, tmp_path: Path) -> None:
    path = tmp_path / "own"
    with sshd.config.open("a") as config:
        config.write(f"  ControlMaster auto\n  ControlPath {path}\n")
    master = await asyncio.create_subprocess_exec(
        "ssh", "-F", str(sshd.config), "-o", "BatchMode=yes", "-N", "place", stdin=asyncio.subprocess.DEVNULL
    )
    await until(path.exists)
    sshd.allow(make_key(tmp_path / "other"))  # nobody else is let in from now on
    machine = connect()
    assert (await said(machine, "echo", "x"))[1] == b"x\n"
    assert not masters(sshd)
    master.kill()
    await master.wait()
    sshd.allow(sshd.directory / "user_key.pub")
    await until(lambda: _answers(machine))


async def test_a_machine_behind_another_is_reached_as_the_users_config_says(connect: Connect, sshd: Sshd) -> None:
    with sshd.config.open("a") as config:
        config.write("Host inner\n  ProxyJump place\nHost inner\n")
        config.write(sshd.config.read_text().partition("\n")[2].partition("Host inner")[0])
    machine = connect("inner")
    assert (await said(machine, "sh", "-c", "echo $SSH_CONNECTION"))[0] == 0
    assert len(sshd.sessions()) >= 2
    sshd.known_hosts.write_text("")  # of either of them
    assert isinstance(await fails(connect("inner")), MachineUnusable)


@pytest.mark.exhaustive
async def test_a_network_that_is_cut_is_noticed(connect: Connect, sshd: Sshd) -> None:
    machine = connect(options=("ServerAliveInterval=1", "ServerAliveCountMax=2"))
    stream = await machine.exec("cat")
    sshd.freeze()
    try:
        with pytest.raises(MachineUnreachable):
            await asyncio.wait_for(stream.wait(), 12)  # three looks of ours would take 15 s
    finally:
        sshd.thaw()
    await until(lambda: _answers(machine))


# A run at a place that is reached by ssh.

COUNT = "import sys\nfor number in range({}): print('line', number, 'x' * {}, flush=True)\nsys.stdin.read()"


class Behind(Place):
    """One run, at a place that is reached by way of a proxy."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "ssh")
        self.server = cast("Sshd", self.sshd)

    def _address(self, sshd: Sshd) -> SshAddress:
        self.proxy = Proxy("127.0.0.1", sshd.port)
        return SshAddress("place", port=self.proxy.port, config=sshd.config)

    async def aclose(self) -> None:
        self.proxy.cuts = []
        self.proxy.go_on()
        await super().aclose()
        await self.proxy.aclose()


@pytest.fixture
async def behind(tmp_path: Path) -> AsyncIterator[Behind]:
    place = Behind(tmp_path)
    await place.proxy.start()
    yield place
    await place.aclose()


Keep = Callable[[Place], Place]


@pytest.fixture
async def keep() -> AsyncIterator[Keep]:
    """Ends what a test has made, also where it fails."""
    kept: list[Place] = []

    def keep(place: Place) -> Place:
        kept.append(place)
        return place

    yield keep
    for place in kept:
        await place.aclose()


async def echoes(channel: Channel, numbers: range) -> None:
    """Write a line for each number, each once whatever becomes of the way."""
    for number in numbers:
        async with asyncio.timeout(60):
            await channel.write(f"w{number}", f"{number}\n")


def heard(found: Sequence[Record]) -> list[bytes]:
    return [record.data for record in found if record.stream == "out"]


@pytest.mark.exhaustive
async def test_a_server_that_is_restarted_under_a_living_agent_loses_and_doubles_nothing(behind: Behind) -> None:
    channel = await behind.open(behind.launch(ECHO))
    reading = asyncio.create_task(records(channel))
    for begin in range(0, 40, 10):
        writing = asyncio.create_task(echoes(channel, range(begin, begin + 10)))
        await asyncio.sleep(0.1)  # in the middle of it
        behind.server.stop()
        behind.server.start()
        await writing
    await channel.write("close", None)
    assert heard(await reading) == [b"heard %d" % number for number in range(40)]


@pytest.mark.exhaustive
async def test_a_connection_that_is_cut_at_any_byte_loses_and_doubles_nothing(behind: Behind) -> None:
    behind.proxy.cuts = [random.randrange(1, 400_000) for _ in range(6)]
    cuts = list(behind.proxy.cuts)
    channel = await opened(behind, behind.launch(COUNT.format(100, 20_000)))
    reading = asyncio.create_task(records(channel))
    await echoes(channel, range(20))
    await until(lambda: not behind.proxy.cuts or reading.done(), 60)
    behind.proxy.cuts = []
    await channel.write("close", None)
    out = heard(await reading)
    assert [line.split()[1] for line in out] == [b"%d" % number for number in range(100)], cuts
    journal = (behind.directory.attempt(1) / "journal").read_bytes()
    assert journal == (await behind.shim_directory() / "journal").read_bytes(), cuts


async def opened(place: Place, launch: Launch) -> Channel:
    """As the activity's retries do it."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await place.open(launch)
            except Unreachable:
                await asyncio.sleep(0.2)


@pytest.mark.exhaustive
async def test_output_that_is_cut_is_never_taken_for_whole(behind: Behind) -> None:
    machine = SshMachine(SshAddress("place", port=behind.proxy.port, config=behind.server.config))
    whole = 0
    for cut in (random.randrange(5_000, 700_000) for _ in range(12)):
        behind.proxy.cuts = [cut]
        behind.proxy.cut_all()
        try:
            stream = await machine.exec("head", "-c", "400000", "/dev/zero", stdin=b"")
            read = len(await stream.stdout.read())
            assert (await stream.wait(), read) == (0, 400_000)
            whole += 1
        except MachineUnreachable:
            await asyncio.sleep(0.3)
    assert whole < 12
    await machine.aclose()


@pytest.mark.exhaustive
async def test_a_way_that_is_slow_is_not_taken_for_a_dead_one(behind: Behind) -> None:
    """Whatever else is to be sent waits behind what fills it."""
    behind.proxy.upward = 150_000
    machine = SshMachine(SshAddress("place", port=behind.proxy.port, config=behind.server.config))
    stream = await machine.exec("wc", "-c", stdin=b"x" * 3_000_000)
    begun = time.monotonic()
    async with asyncio.timeout(60):
        assert await stream.stdout.read() == b"3000000\n"
        assert await stream.wait() == 0
    assert time.monotonic() - begun > 15
    await machine.aclose()


@pytest.mark.exhaustive
async def test_a_way_that_stands_still_is_noticed_and_lost_nothing(behind: Behind) -> None:
    channel = await behind.open(behind.launch(ECHO))
    reading = asyncio.create_task(records(channel))
    await echoes(channel, range(5))
    behind.proxy.stand_still()
    writing = asyncio.create_task(echoes(channel, range(5, 10)))
    begun = time.monotonic()
    assert (await behind.worker().stop(behind.key, QUICK, "cancelled")).outcome == "unverified"
    assert time.monotonic() - begun < UNREACHABLE_S + 20
    behind.proxy.go_on()
    behind.proxy.cut_all()
    await writing
    await channel.write("close", None)
    assert heard(await reading) == [b"heard %d" % number for number in range(10)]


async def test_a_run_behind_a_noisy_login_shell(tmp_path: Path, keep: Keep) -> None:
    class Noisy(Place):
        def _sshd(self, directory: Path) -> Sshd:
            return Sshd(directory / "sshd", self.home, login_shell=SHELLS["noisy"])

    place = keep(Noisy(tmp_path, "ssh"))
    channel = await place.open(place.launch(ECHO))
    await echoes(channel, range(3))
    assert (await place.runtime.stop(place.key, QUICK, "cancelled")).outcome == "stopped"
    assert heard(await records(channel)) == [b"heard 0", b"heard 1", b"heard 2"]


@pytest.mark.exhaustive
async def test_many_runs_on_one_machine_have_more_sessions_than_a_connection(tmp_path: Path, keep: Keep) -> None:
    place = keep(Place(tmp_path, "ssh"))
    channels = await asyncio.gather(
        *(place.runtime.open(place.key, 1 + number, 1, place.launch(ECHO)) for number in range(8))
    )
    await asyncio.gather(*(echoes(channel, range(5)) for channel in channels))
    await asyncio.gather(*(channel.write("close", None) for channel in channels))
    for found in await asyncio.gather(*map(records, channels)):
        assert heard(found) == [b"heard %d" % number for number in range(5)]
    place.channels += channels


@pytest.mark.exhaustive
@pytest.mark.skipif(not may_mount(), reason="mounts file systems")
async def test_a_disk_that_is_full_there(tmp_path: Path, keep: Keep) -> None:
    place = keep(Place(tmp_path, "ssh"))
    with small_disk(place.home / ".local") as disk:
        disk.fill()
        with pytest.raises(AgentFailed, match="No space left"):
            await place.open(place.launch(ECHO))
        disk.free()
        channel = await place.open(place.launch(ECHO))
        await echoes(channel, range(3))
        disk.fill()
        writing = asyncio.create_task(channel.write("late", f"{'x' * 100_000}\n"))
        await asyncio.sleep(0.5)
        assert not writing.done(), "what cannot be written down is not delivered"
        disk.free()
        await asyncio.wait_for(writing, 30)
        await channel.write("close", None)
        assert heard(await records(channel)) == [b"heard 0", b"heard 1", b"heard 2", b"heard " + b"x" * 100_000]
        await place.runtime.release(place.key)


@pytest.fixture
def network() -> Iterator[Network]:
    if os.getuid() != 0 or shutil.which("ip") is None or shutil.which("ss") is None:
        pytest.skip("makes a network namespace: takes root, and ip and ss of iproute2")
    made = Network()
    yield made
    made.close()


@pytest.mark.exhaustive
async def test_a_network_that_is_down_for_half_a_minute(tmp_path: Path, network: Network, keep: Keep) -> None:
    class InNamespace(Place):
        def _sshd(self, directory: Path) -> Sshd:
            return Sshd(directory / "sshd", self.home, address=network.address, namespace=network.name)

    place = keep(InNamespace(tmp_path, "ssh"))
    slowly = "import sys, time\nfor n in range(400): print('line', n, flush=True); time.sleep(0.1)\nsys.stdin.read()"
    channel = await place.open(place.launch(slowly))

    async def read() -> list[Record]:
        return [record async for batch in channel.records() for record in batch]

    reading = asyncio.create_task(read())
    await asyncio.sleep(1)
    network.down()
    writing = asyncio.create_task(echoes(channel, range(1)))
    begun = time.monotonic()
    assert (await place.worker().stop(place.key, QUICK, "cancelled")).outcome == "unverified"
    assert time.monotonic() - begun < UNREACHABLE_S + 20
    await asyncio.sleep(max(0.0, 30 - (time.monotonic() - begun)))
    network.up()
    await writing
    await channel.write("close", None)
    out = heard(await asyncio.wait_for(reading, 60))
    assert [line.split()[1] for line in out] == [b"%d" % number for number in range(400)]


@pytest.mark.parametrize("kind", ["here", "ssh"])
async def test_a_program_that_is_let_go_of_in_the_midst_of_a_flood_leaves_nothing_here(
    connect: Connect, tmp_path: Path, kind: str
) -> None:
    machine = connect() if kind == "ssh" else ChildMachine(tmp_path, {"PATH": os.environ["PATH"]})
    for _ in range(2):
        before = asyncio.all_tasks()
        stream = await machine.exec("yes")
        reader = cast("ProcessStream", stream)._process.stdout  # noqa: SLF001
        assert reader
        await until(lambda reader=reader: reader._paused)  # type: ignore[misc]  # noqa: SLF001
        stream.kill()
        async with asyncio.timeout(60):
            await asyncio.wait({cast("ProcessStream", stream).watched})
    await until(lambda: asyncio.all_tasks() <= before)


async def test_a_key_is_the_file_that_is_named(sshd: Sshd, connect: Connect) -> None:
    """The client expands % in the names of keys."""
    config = [line for line in sshd.config.read_text().splitlines() if "IdentityFile" not in line]
    sshd.config.write_text("\n".join((*config, "")))
    key = Path(shutil.copy(sshd.directory / "user_key", sshd.directory / 'a "key" \\ %d'))
    assert (await said(connect(identity=key), "echo", "in"))[1] == b"in\n"
    with pytest.raises(MachineUnusable, match="it lets no key"):
        await connect(identity=sshd.directory / "key").exec("true")
