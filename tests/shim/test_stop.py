"""Stopping: whatever the agent has started and however it resists, it is gone, and the report says what it took."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from activities.shim.client import (
    AgentRunning,
    AlreadyRunning,
    StopReport,
    Tombstoned,
    connect,
    entomb,
    is_alive,
    kill_marked,
    records,
)
from tests.shim.agents import DEAF, FAMILY, SLEEP, collect, family, lives, output, pid_in, python, until
from tests.shim.conftest import Shims

pytestmark = [pytest.mark.integration, pytest.mark.linux]
NOW = timedelta(0)


async def test_an_agent_that_ends_with_its_input_needs_no_signal(every_shim: Shims) -> None:
    shim = await every_shim.start(["cat"])
    report = await shim.stopped(terminate_after=10, kill_after=10)
    assert isinstance(report, StopReport)
    assert (report.outcome, report.how, report.processes, report.left) == ("stopped", "exited", 1, ())
    assert report.took_ms < 9000
    last = (await collect(records(shim.directory)))[-1]
    assert (last.stream, json.loads(last.data)["code"], json.loads(last.data)["reason"]) == ("exit", 0, "stopped")


async def test_sigterm_is_sent_at_once_where_no_grace_is_asked_for(every_shim: Shims) -> None:
    shim = await every_shim.start(SLEEP)
    async with shim.observer() as connection:
        report = await connection.stop(terminate_after=NOW, kill_after=timedelta(seconds=10))
    assert (report.outcome, report.how, report.processes) == ("stopped", "terminated", 1)
    assert report.took_ms < 9000
    assert not lives(shim.status.pid)


async def test_an_agent_that_ignores_sigterm_is_killed(every_shim: Shims) -> None:
    shim = await every_shim.start(python(DEAF))
    await collect(records(shim.directory), until_line=b"ready")
    report = await shim.stopped(terminate_after=0.05, kill_after=0.2)
    assert isinstance(report, StopReport)
    assert (report.outcome, report.how, report.left) == ("stopped", "killed", ())
    assert report.took_ms >= 200
    ending = json.loads((await collect(records(shim.directory)))[-1].data)
    assert (ending["code"], ending["signal"], ending["stop"]["how"]) == (None, signal.SIGKILL, "killed")


async def test_nothing_of_a_family_that_ignores_sigterm_is_left(shims: Shims) -> None:
    shim = await shims.start([*python(FAMILY), str(shims.root)])
    pids = await family(shims.root)
    assert len({os.getsid(pid) for pid in pids}) == 3
    report = await shim.stopped(terminate_after=0.05, kill_after=0.2)
    assert isinstance(report, StopReport)
    assert (report.outcome, report.how, report.processes) == ("stopped", "killed", 3)
    assert not any(lives(pid) for pid in pids)


async def test_without_ctypes_an_orphan_is_found_by_its_mark(shims: Shims) -> None:
    wrapper = shims.root / "python-without-ctypes"
    wrapper.write_text(
        f"#!{sys.executable}\nimport os, sys\nwords = [{sys.executable!r}, *sys.argv[1:]]\n"
        "words[4] = \"import sys; sys.modules['ctypes'] = None; \" + words[4]\nos.execv(words[0], words)\n"
    )
    wrapper.chmod(0o700)
    shims.python = str(wrapper)
    shim = await shims.start([*python(FAMILY), str(shims.root)])
    assert "no subreaper" in (shim.directory / "shim.log").read_text()
    pids = await family(shims.root)
    report = await shim.stopped(terminate_after=0.05, kill_after=0.2)
    assert isinstance(report, StopReport)
    assert (report.outcome, report.processes) == ("stopped", 3)
    assert not any(lives(pid) for pid in pids)


async def test_with_ps_an_orphan_is_found_by_its_mark(shims: Shims) -> None:
    shims.processes = "ps"
    shim = await shims.start([*python(FAMILY), str(shims.root)])
    pids = await family(shims.root)
    report = await shim.stopped(terminate_after=0.05, kill_after=0.2)
    assert isinstance(report, StopReport)
    assert (report.outcome, report.processes) == ("stopped", 3)
    assert not any(lives(pid) for pid in pids)


async def test_what_the_agent_starts_while_it_is_stopped_gets_sigterm_too(shims: Shims) -> None:
    code = """
import os, signal, time
def on_term(*_):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, lambda *_: (print("newcomer terminated"), os._exit(0)))
        os.setsid()
        print("newcomer")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        while True: time.sleep(600)
    os.wait()
    os._exit(0)
signal.signal(signal.SIGTERM, on_term)
print("ready")
while True: time.sleep(600)
"""
    shim = await shims.start(python(code))
    await collect(records(shim.directory), until_line=b"ready")
    report = await shim.stopped(kill_after=10)
    assert isinstance(report, StopReport)
    assert (report.outcome, report.how, report.processes) == ("stopped", "terminated", 2)
    said = output(await collect(records(shim.directory)))
    assert said == [b"ready", b"newcomer", b"newcomer terminated"]


async def test_a_frozen_agent_can_end_by_sigterm(shims: Shims) -> None:
    code = "import os, signal; print('ready'); os.kill(os.getpid(), signal.SIGSTOP)"
    shim = await shims.start(python(code))
    await collect(records(shim.directory), until_line=b"ready")
    stat = Path(f"/proc/{shim.status.pid}/stat")
    await until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
    report = await shim.stopped(kill_after=10)
    assert isinstance(report, StopReport)
    assert report.how == "terminated"


async def test_a_flood_of_output_does_not_delay_a_stop(shims: Shims) -> None:
    code = "import signal, sys\nsignal.signal(15, signal.SIG_IGN)\nwhile True: sys.stdout.write('y\\n' * 4096)"
    shim = await shims.start(python(code))
    journal = shim.directory / "journal"
    await until(lambda: journal.stat().st_size > 1_000_000)
    report = await shim.stopped(terminate_after=0.05, kill_after=0.2)
    assert isinstance(report, StopReport)
    assert (report.outcome, report.how) == ("stopped", "killed")
    found = await collect(records(shim.directory))
    assert [record.seq for record in found] == list(range(1, len(found) + 1))
    assert found[-1].stream == "exit"


async def test_an_end_is_not_held_up_by_a_grandchild_that_holds_the_pipes(shims: Shims) -> None:
    code = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    open({str(shims.root / "holder.pid")!r}, "w").write(str(os.getpid()))
    print("holding")
    while True: time.sleep(600)
while not os.path.exists({str(shims.root / "holder.pid")!r}): time.sleep(0.001)
time.sleep(0.05)
print("bye")
"""
    shim = await shims.start(python(code))
    found = await asyncio.wait_for(collect(records(shim.directory)), 30)
    assert sorted(output(found)) == [b"bye", b"holding"]
    ending = json.loads(found[-1].data)
    assert (ending["code"], ending["reason"], ending["leftovers"]) == (0, "exited", 1)
    assert ending["stop"]["outcome"] == "stopped"
    assert not lives(pid_in(shims.root / "holder.pid"))


async def test_leftovers_that_ignore_sigterm_are_killed(every_shim: Shims) -> None:
    code = FAMILY.replace('settle("agent")', "") + (
        "while not all(os.path.exists(os.path.join(here, n + '.pid')) for n in ('own_session', 'double_forked')):\n"
        "    time.sleep(0.001)\n"
    )
    shim = await every_shim.start([*python(code), str(every_shim.root)])
    found = await asyncio.wait_for(collect(records(shim.directory)), 30)
    ending = json.loads(found[-1].data)
    assert (ending["leftovers"], ending["stop"]["how"], ending["stop"]["outcome"]) == (2, "killed", "stopped")
    assert not any(lives(pid_in(every_shim.root / f"{name}.pid")) for name in ("own_session", "double_forked"))


async def test_a_fork_bomb_is_ended(shims: Shims) -> None:
    code = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready")
end = time.monotonic() + 20
while time.monotonic() < end:
    children = 0
    for _ in range(4):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(0.02)
                if os.fork() == 0:
                    time.sleep(20)
            os._exit(0)
        children += 1
    for _ in range(children):
        os.wait()
"""
    shim = await shims.start(python(code))
    await collect(records(shim.directory), until_line=b"ready")
    mark = json.loads((shim.directory / "state.json").read_text())["mark"].encode()
    await until(lambda: len(marked(mark)) > 20)
    report = await shim.stopped(terminate_after=0.05, kill_after=0.2)
    assert isinstance(report, StopReport)
    assert report.outcome == "stopped"
    assert marked(mark) == []


def marked(mark: bytes) -> list[int]:
    """The living processes that carry a shim's mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (path / "environ").read_bytes() and lives(int(path.name)):
                found.append(int(path.name))
    return found


async def test_a_second_stop_joins_the_first_and_can_hurry_it(shims: Shims) -> None:
    shim = await shims.start(python(DEAF))
    await collect(records(shim.directory), until_line=b"ready")
    async with shim.controller() as first, shim.observer() as second:
        slow = asyncio.create_task(first.stop(kill_after=timedelta(seconds=60)))
        while (await second.status()).state != "stopping":
            await asyncio.sleep(0)
        quick = await second.stop(terminate_after=NOW, kill_after=NOW)
        assert await slow == quick
        assert (quick.outcome, quick.how) == ("stopped", "killed")


async def test_stopping_after_the_end_says_so(shims: Shims) -> None:
    shim = await shims.start(["true"])
    await collect(records(shim.directory))
    async with shim.observer() as connection:
        for _ in range(2):
            report = await connection.stop()
            assert (report.outcome, report.processes, report.took_ms) == ("already_finished", 0, 0)


async def test_other_connections_are_served_while_a_stop_works(shims: Shims) -> None:
    shim = await shims.start(python(DEAF))
    await collect(records(shim.directory), until_line=b"ready")
    async with shim.controller() as stopping, shim.observer() as looking:
        stop = asyncio.create_task(stopping.stop(kill_after=timedelta(seconds=0.3)))
        while (await looking.status()).state == "running":
            await asyncio.sleep(0)
        assert not stop.done()
        assert (await stop).outcome == "stopped"


async def test_a_stop_during_the_start_finds_a_shim_or_prevents_it(shims: Shims) -> None:
    outcomes = set()
    for number in range(12):
        directory = shims.directory(f"race{number}")
        starting = asyncio.create_task(shims.start(SLEEP, directory=directory))
        await asyncio.sleep(number * 0.004)
        if entomb(directory):
            with pytest.raises(Tombstoned):
                await starting
            assert not is_alive(directory)
            outcomes.add("prevented")
        else:
            async with await connect(directory, epoch=None) as connection:
                report = await connection.stop(terminate_after=NOW, kill_after=NOW)
            assert report.outcome in {"stopped", "already_finished"}
            assert not lives((await starting).status.pid)
            outcomes.add("stopped")
    assert "prevented" in outcomes


async def test_without_a_controller_the_lease_ends_the_agent(every_shim: Shims) -> None:
    shim = await every_shim.start(SLEEP, lease=timedelta(seconds=0.3))
    found = await collect(records(shim.directory))
    ending = json.loads(found[-1].data)
    assert (ending["reason"], ending["stop"]["outcome"]) == ("lease", "stopped")
    await until(lambda: not is_alive(shim.directory))
    assert not lives(shim.status.pid)


async def test_a_controller_that_speaks_keeps_the_lease(shims: Shims) -> None:
    shim = await shims.start(SLEEP, lease=timedelta(seconds=3))
    async with shim.controller() as controller, shim.observer() as observer:
        began = time.monotonic()
        while time.monotonic() - began < 5:
            await controller.renew()
            await observer.status()
            await asyncio.sleep(0.02)
        assert (await observer.status()).state == "running"
        while (await observer.status()).state == "running":  # an observer's words do not count
            assert time.monotonic() - began < 60
            await asyncio.sleep(0.02)


@pytest.mark.exhaustive
async def test_sigterm_of_the_shim_stops_the_agent_and_the_shim(every_shim: Shims) -> None:
    shim = await every_shim.start(python(DEAF))
    await collect(records(shim.directory), until_line=b"ready")
    following = asyncio.create_task(collect(records(shim.directory)))
    os.kill(shim.status.shim_pid, signal.SIGHUP)
    os.kill(shim.status.shim_pid, signal.SIGINT)
    os.kill(shim.status.shim_pid, signal.SIGTERM)
    ending = json.loads((await following)[-1].data)
    assert (ending["reason"], ending["signal"], ending["stop"]["outcome"]) == ("terminated", signal.SIGKILL, "stopped")
    await until(lambda: not is_alive(shim.directory))
    assert not (shim.directory / "shim.sock").exists()


async def test_the_agent_dies_with_its_shim_and_the_rest_is_found(shims: Shims) -> None:
    shim = await shims.start([*python(FAMILY), str(shims.root)])
    agent, *others = await family(shims.root)
    with pytest.raises(AlreadyRunning):
        await kill_marked(shim.directory)
    await shim.kill_shim()
    await until(lambda: not lives(agent))
    assert all(lives(pid) for pid in others)
    clearance = await kill_marked(shim.directory)
    assert (clearance.processes, clearance.left) == (2, ())
    assert not any(lives(pid) for pid in others)
    assert (await kill_marked(shim.directory)).processes == 0


async def test_clearing_where_nothing_ever_started_finds_nothing(shims: Shims) -> None:
    directory = shims.directory()
    assert entomb(directory)
    assert (await kill_marked(directory)).processes == 0


async def test_release_is_for_the_end(shims: Shims) -> None:
    shim = await shims.start(SLEEP)
    async with shim.observer() as connection:
        with pytest.raises(AgentRunning):
            await connection.release()
        await connection.stop(terminate_after=NOW)
        await connection.release()
    await until(lambda: not is_alive(shim.directory))


async def test_zombies_do_not_pile_up(shims: Shims) -> None:
    code = """
import os, time
for _ in range(50):
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            os._exit(0)
        os._exit(0)
    os.wait()
print("done")
while True: time.sleep(600)
"""
    shim = await shims.start(python(code))
    await collect(records(shim.directory), until_line=b"done")

    def children() -> int:
        found = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                found += int(path.read_text().rpartition(")")[2].split()[1]) == shim.status.shim_pid
        return found

    await until(lambda: children() == 1)
