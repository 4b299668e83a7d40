"""A worker that takes over a run with a long journal starts from a snapshot, and comes to what a full reading does."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from activities.ports.runtime import Fenced
from activities.shim.client import is_alive
from activities.store.snapshots import INTERVAL
from tests.agents.kits import ProcessKit
from tests.agents.stage import Stage, deliver, message
from tests.support.processes import until

pytestmark = [pytest.mark.integration, pytest.mark.linux]

LINES = 3 * INTERVAL // 2000
TALKING = f"""
import os, sys, time
for number in range({LINES}):
    print("%06d" % number, "x" * 2000)
print("this is an error", file=sys.stderr, flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
print("the end")
sys.exit(int(open("go").read() or 0))
"""


async def led(stage: Stage) -> None:
    """A first worker has read all that there is, and is gone."""
    stage.start()
    log = stage.directory.events
    await until(lambda: log.exists() and f'"{LINES - 1:06d} x'.encode() in log.read_bytes()[-100_000:], 30)
    await until(stage.directory.snapshot(1).exists, 20)
    await stage.detach()


def spoil_the_beginning(stage: Stage) -> None:
    """Who read the journal from there would not get far."""
    with (stage.directory.attempt(1) / "journal").open("r+b") as file:
        file.write(b"?" * 100_000)


def go(stage: Stage, code: str = "") -> None:
    Path(stage.request.workspace.path, "go").write_text(code)


async def shim_killed(stage: Stage) -> None:
    state = json.loads((stage.directory.attempt(1) / "state.json").read_text())
    os.kill(state["shim_pid"], signal.SIGKILL)
    await until(lambda: not is_alive(stage.directory.attempt(1)))


def told(stage: Stage) -> list[str]:
    events = stage.events
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    return [event.text.split(" ")[0] for event in events if event.type == "message"]


async def test_only_what_follows_the_snapshot_is_read(process: ProcessKit) -> None:
    async with process.run(TALKING) as stage:
        await led(stage)
        spoil_the_beginning(stage)
        go(stage)
        outcome = await stage.play()
        assert told(stage) == [*(f"{number:06d}" for number in range(LINES)), "the"]
    assert (outcome.status, outcome.attempts) == ("succeeded", 1)
    assert outcome.text.endswith(f"{LINES - 1:06d} {'x' * 2000}\nthe end")


async def test_a_failure_is_told_alike_with_and_without_a_snapshot(process: ProcessKit) -> None:
    async with process.run(TALKING) as stage:
        await led(stage)
        go(stage, "3")
        first = await stage.play()
        again = await stage.play()
        stage.directory.snapshot(1).unlink()
        anew = await stage.play()
    known = {"last_event"}
    assert first.facts["stderr"] == ["this is an error"]
    assert first.model_dump(exclude=known) == again.model_dump(exclude=known) == anew.model_dump(exclude=known)


async def test_a_lost_shim_is_told_alike(process: ProcessKit) -> None:
    async with process.run(TALKING) as stage:
        await led(stage)
        await shim_killed(stage)
        outcomes = [await stage.play(), await stage.play()]
        spoil_the_beginning(stage)
        outcomes.append(await stage.play())
    assert {each.message for each in outcomes} == {outcomes[0].message}
    assert "its end was not seen" in (outcomes[0].message or "")
    assert outcomes[0].facts["stderr"] == ["this is an error"]


async def test_what_is_said_reaches_an_agent_that_was_silent_since_the_snapshot(process: ProcessKit) -> None:
    """Nothing follows in the journal that would say that the present has been reached."""
    line = f"print('y' * {INTERVAL})"
    waiting = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)"
    async with process.run(f"{line}\n{waiting}") as stage:
        stage.start()
        await until(stage.directory.snapshot(1).exists, 20)
        await stage.detach()
        session, task = stage.start()
        (settled,) = (await deliver(session, message("steer", "hello"))).messages
        assert settled.state == "rejected"
        go(stage)
        assert (await task).status == "succeeded"


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def of_another_version(path: Path) -> None:
    head, state = path.read_bytes().split(b"\n", 1)
    path.write_bytes(json.dumps({**json.loads(head), "version": 99}).encode() + b"\n" + state)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def huge(path: Path) -> None:
    os.truncate(path, 10**9)


def beyond_the_journal(path: Path) -> None:
    forge(path, record=10**9)


def at_a_wrong_byte(path: Path) -> None:
    head = json.loads(path.read_bytes().split(b"\n", 1)[0])
    forge(path, entry=[head["entry"][0], head["entry"][1] - 7])


def forge(path: Path, **fields: Any) -> None:
    head, state = path.read_bytes().split(b"\n", 1)
    path.write_bytes(json.dumps({**json.loads(head), **fields}).encode() + b"\n" + state)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "spoil",
    [torn, of_another_version, empty, a_pipe, huge, beyond_the_journal, at_a_wrong_byte],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("alive", [True, False], ids=["alive", "lost"])
async def test_a_snapshot_that_cannot_be_used_costs_time_alone(
    process: ProcessKit, spoil: Callable[[Path], None], *, alive: bool
) -> None:
    async with process.run(TALKING) as stage:
        await led(stage)
        if not alive:
            await shim_killed(stage)
        spoil(stage.directory.snapshot(1))
        go(stage)
        outcome = await stage.play()
        assert told(stage) == [*(f"{number:06d}" for number in range(LINES)), *(["the"] if alive else [])]
    assert outcome.status == ("succeeded" if alive else "failed")


@pytest.mark.exhaustive
async def test_a_log_that_is_behind_the_snapshot_gets_what_it_lacks(process: ProcessKit) -> None:
    """As after a crash of the machine, which may lose what was written last in each file."""
    async with process.run(TALKING) as stage:
        await led(stage)
        with stage.directory.events.open("r+b") as log:
            log.truncate(stage.directory.events.stat().st_size // 3)
        go(stage)
        assert (await stage.play()).status == "succeeded"
        assert told(stage) == [*(f"{number:06d}" for number in range(LINES)), "the"]


async def test_a_worker_that_is_fenced_leaves_the_snapshot_to_the_newer_one(process: ProcessKit) -> None:
    async with process.run(TALKING) as stage:
        _, older = stage.start()
        await until(stage.directory.snapshot(1).exists, 20)
        _, newer = stage.start()
        with pytest.raises(Fenced):
            async with asyncio.timeout(20):
                await older
        assert stage.directory.snapshot(1).exists()
        go(stage)
        assert (await newer).status == "succeeded"
