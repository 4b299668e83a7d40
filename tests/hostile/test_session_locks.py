"""Whatever lies in a lock's place: a session is refused by the name of what is in the way, or it is free."""

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from activities.runtimes.shim_runtime import ShimRuntime
from activities.store.eventlog import EventLog
from activities.store.ownership import Ownership
from activities.store.run_directory import RunDirectory
from activities.store.runs import RunStore
from activities.store.session_locks import SessionLocked, SessionLocks
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.events import CancelledEvent
from tests.hostile.test_event_log import NOW

MINE, OTHERS = Ownership("cluster", "default"), Ownership("cluster", "other")
SESSION = "0f3c1b6e-5a4d-4c3b-9a2e-1d0c9b8a7f6e"


class Host:
    """One owner's view of a state directory."""

    def __init__(self, state: Path, owner: Ownership = MINE) -> None:
        self.store = RunStore(state, owner)
        self.locks = SessionLocks(self.store, ShimRuntime(self.store, "host"))
        self.file = state / "sessions" / f"claude@{SESSION}.json"

    def run(self, name: str) -> RunDirectory:
        return self.store.create(RunKey(run=name, execution="e"))

    async def take(self, run: str) -> RunDirectory:
        directory = self.run(run)
        await self.locks.take("claude", SESSION, directory)
        return directory

    @property
    def holder(self) -> str:
        return str(json.loads(self.file.read_text())["run"])


def end(directory: RunDirectory) -> None:
    log = EventLog(directory.events)
    log.end(CancelledEvent(time=NOW))
    log.close()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


async def test_open_runs_keep_it_and_closed_ones_do_not(host: Host) -> None:
    first = await host.take("first")
    await host.take("first")
    with pytest.raises(SessionLocked, match=f"run first is at work on {SESSION}") as refused:
        await host.take("second")
    assert refused.value.holder == first
    end(first)
    await host.take("second")
    assert host.holder == "second"


async def test_a_run_that_begins_anew_has_only_what_it_takes_again(host: Host) -> None:
    end(await host.take("first"))
    host.store.set_aside(host.run("first"))
    host.run("first")
    await host.take("second")
    with pytest.raises(SessionLocked, match="run second"):
        await host.take("first")


def directory(path: Path) -> None:
    path.mkdir()


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def text(content: bytes) -> Callable[[Path], None]:
    def put(path: Path) -> None:
        path.write_bytes(content)

    return put


@pytest.mark.parametrize(
    "forge",
    [
        directory,
        fifo,
        link,
        *map(text, (b"", b"{", b"[]", b"null", b"\xff", b"[" * 5000, b'{"run": 1}', b"x" * 3_000_000)),
    ],
)
async def test_what_names_no_run_is_named_and_swept(host: Host, forge: Callable[[Path], None]) -> None:
    host.file.parent.mkdir()
    forge(host.file)
    with pytest.raises(InvalidRequest) as refused:
        await host.take("first")
    assert str(host.file) in refused.value.message

    host.locks.sweep()

    if forge is directory:
        assert host.file.is_dir()
    else:
        await host.take("first")


@pytest.mark.parametrize("owner", [MINE, OTHERS, Ownership("x" * 9000, "\0")])
@pytest.mark.parametrize("run", ["gone", "../../..", "second\0", "\ud800", "x" * 9000])
async def test_a_run_that_is_not_there_keeps_nothing(host: Host, owner: Ownership, run: str) -> None:
    host.file.parent.mkdir()
    key = {"run": run, "execution": "e", "beginning": ""}
    host.file.write_text(json.dumps({"cluster": owner.cluster, "namespace": owner.namespace, **key}))
    await host.take("first")
    assert host.holder == "first"


async def test_a_run_of_no_sayable_name_refuses_in_words_that_can_be_said(host: Host) -> None:
    forged = host.run("\ud800")
    await host.locks.take("claude", SESSION, forged)
    with pytest.raises(SessionLocked) as refused:
        await host.take("first")
    assert refused.value.message.encode()


async def test_a_run_named_under_another_owner_keeps_nothing(tmp_path: Path, host: Host) -> None:
    """A file that says that another namespace has what is this one's."""
    other = host.run("other")
    facts = {"cluster": "cluster", "namespace": "other", "run": "other", "execution": "e", "beginning": other.beginning}
    host.file.parent.mkdir()
    host.file.write_text(json.dumps(facts))
    await host.take("first")


async def test_another_owners_run_keeps_it_unnamed(tmp_path: Path, host: Host) -> None:
    taken = await Host(tmp_path, OTHERS).take("theirs")
    with pytest.raises(SessionLocked, match="another Temporal namespace") as refused:
        await host.take("first")
    assert refused.value.holder is None
    assert "theirs" not in refused.value.message
    host.locks.sweep()
    assert host.holder == "theirs"
    end(taken)
    host.locks.sweep()
    assert list(host.file.parent.iterdir()) == []


@pytest.mark.exhaustive
async def test_somebody_who_keeps_the_place_locked_is_named(host: Host) -> None:
    host.file.parent.mkdir()
    descriptor = os.open(host.file.parent, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(InvalidRequest, match=r"keeps .*sessions locked"):
        await host.take("first")
    host.locks.sweep()
    os.close(descriptor)
    await host.take("first")


@pytest.mark.parametrize("forge", [text(b""), link, fifo])
async def test_the_place_itself_is_something_else(host: Host, forge: Callable[[Path], None]) -> None:
    forge(host.file.parent)
    with pytest.raises(InvalidRequest, match="sessions"):
        await host.take("first")
    host.locks.sweep()


@pytest.mark.parametrize("session", ["", "../x", "a/b", "x" * 201, "a\0b", ".hidden"])
async def test_no_session_leads_elsewhere(host: Host, session: str) -> None:
    with pytest.raises(InvalidRequest, match="no id of a session"):
        await host.locks.take("claude", session, host.run("first"))
