"""Workers of one host know one another by files: who lives, who leads what; whatever lies there."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from activities.store.ownership import Ownership
from activities.takeover import registry as module
from activities.takeover.peers import Peer
from activities.takeover.registry import Registry
from steersman.contracts.activities import RunKey
from tests.support.processes import until

OWNER = Ownership(cluster="c", namespace="n")
KEY = RunKey(run="r-1", execution="e-1")
ENDED = RunKey(run="r-2", execution="e-2")
OTHER_WORKER = """
import sys, time
from pathlib import Path
from activities.takeover.registry import Registry
from activities.store.ownership import Ownership
from steersman.contracts.activities import RunKey
registry = Registry.open(Path(sys.argv[1]), Ownership("c", sys.argv[2]), "other", "steersman@here:other")
with registry.leading(RunKey(run="r-1", execution="e-1")):
    print("here", flush=True)
    while True:
        registry.pulse()
        time.sleep(0.05)
"""


@pytest.fixture
def mine(tmp_path: Path) -> Registry:
    return Registry.open(tmp_path, OWNER, "me", "steersman@here:me")


@contextmanager
def other(state: Path, namespace: str = "n") -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", OTHER_WORKER, str(state), namespace]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(module.__file__).parents[2]) as process:
        assert process.stdout
        assert process.stdout.readline() == "here\n"
        try:
            yield process
        finally:
            process.kill()


def only(registry: Registry) -> Peer:
    (peer,) = registry.peers()
    return peer


async def test_a_killed_worker_is_dead_at_once_and_says_what_it_led(mine: Registry, tmp_path: Path) -> None:
    with other(tmp_path):
        assert only(mine).state == "alive"
        assert mine.holder(KEY) == "steersman@here:other"
    assert only(mine).state == "dead"
    assert only(mine).runs() == [KEY]
    assert mine.holder(KEY) is None


def test_without_descriptors_no_worker_is_taken_for_dead_and_no_entry_is_lost(mine: Registry, tmp_path: Path) -> None:
    """Nothing is raised either: who looks after the other workers must not end."""
    with other(tmp_path):
        peer = only(mine)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            seen, runs = mine.peers(), peer.runs()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert (seen, runs) == ([], [])
        assert mine.peers() == [peer]
        assert peer.runs() == [KEY]


async def test_one_that_is_stopped_is_noticed_and_alive_again_when_it_goes_on(mine: Registry, tmp_path: Path) -> None:
    with other(tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        await until(lambda: only(mine).state == "stopped")
        assert mine.holder(KEY) is None
        process.send_signal(signal.SIGCONT)
        await until(lambda: only(mine).state == "alive")


def test_a_run_that_ended_here_leaves_nothing_and_one_that_waits_for_another_worker_stays(
    mine: Registry, tmp_path: Path
) -> None:
    with mine.leading(KEY):
        assert mine.holder(KEY) == "steersman@here:me"
    assert mine.holder(KEY) is None
    with pytest.raises(ValueError, match="fenced"), mine.leading(KEY):
        raise ValueError("fenced")
    mine.leave()
    with mine.leading(ENDED):
        pass
    with pytest.raises(ValueError, match="let go"), mine.leading(KEY):
        raise ValueError("let go")
    mine.close()
    later = Registry.open(tmp_path, OWNER, "later", "steersman@here:later")
    peer = only(later)
    assert (peer.state, peer.runs()) == ("ended", [KEY])

    peer.remove()
    assert only(later).runs() == [KEY]
    peer.forget(KEY)
    peer.remove()
    assert later.peers() == []


def test_a_run_that_a_worker_had_a_moment_ago_is_named_should_it_fall_now(
    mine: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Registry.open(tmp_path, OWNER, "other", "steersman@here:other")
    with other.leading(KEY):
        pass
    assert only(mine).runs() == [KEY]
    assert mine.holder(KEY) is None
    (tmp_path / "workers" / "other" / "lock").unlink()
    other.pulse()  # enters itself anew
    assert only(mine).runs() == [KEY]
    with other.leading(KEY):
        assert only(mine).runs() == [KEY]
    monkeypatch.setattr(module, "LEFT_S", 0.0)
    other.pulse()
    assert only(mine).runs() == []


def test_only_one_sees_to_fallen_workers(mine: Registry, tmp_path: Path) -> None:
    other = Registry.open(tmp_path, OWNER, "other", "steersman@here:other")
    with mine.claim() as first, other.claim() as second:
        assert (first, second) == (True, False)
    with other.claim() as again:
        assert again


def test_another_namespaces_workers_are_not_seen(mine: Registry, tmp_path: Path) -> None:
    with other(tmp_path, "another"):
        pass
    assert mine.peers() == []


def test_whatever_an_agent_puts_there_is_passed_over(mine: Registry, tmp_path: Path) -> None:
    workers = tmp_path / "workers"
    (workers / "file").write_text("x")
    (workers / "empty").mkdir()
    (workers / "link").symlink_to("/")
    for name, text in (("broken", "{"), ("deep", "[" * 100_000), ("wrong", '{"identity": 1}')):
        (workers / name).mkdir()
        (workers / name / "worker.json").write_text(text)
    (workers / "pipe").mkdir()
    os.mkfifo(workers / "pipe" / "worker.json")
    gone = Registry.open(tmp_path, OWNER, "gone", "steersman@here:gone")
    (workers / "gone" / "runs" / "forged").write_text(KEY.model_dump_json())
    (workers / "gone" / "runs" / "broken").write_bytes(b"\xff")
    os.mkfifo(workers / "gone" / "runs" / "pipe")
    peer = only(mine)
    assert (peer.state, peer.runs()) == ("alive", [])
    gone.close()


def test_a_worker_whose_files_are_taken_away_enters_itself_anew(mine: Registry, tmp_path: Path) -> None:
    other = Registry.open(tmp_path, OWNER, "other", "steersman@here:other")
    with mine.leading(KEY):
        (tmp_path / "workers" / "me" / "lock").unlink()
        mine.pulse()
        assert only(other).state == "alive"
        assert other.holder(KEY) == "steersman@here:me"
        for file in sorted(tmp_path.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        mine.pulse()
        assert (tmp_path / "workers" / "me").exists()
        tmp_path.rename(tmp_path.with_name("gone"))
        mine.pulse()  # the state directory is not this module's to make
        assert not tmp_path.exists()


def test_where_nobody_can_lock_the_pulse_alone_tells(mine: Registry, tmp_path: Path) -> None:
    Registry.open(tmp_path, OWNER, "other", "steersman@here:other").close()
    other = Registry.open(tmp_path, OWNER, "other", "steersman@here:other")
    file = tmp_path / "workers" / "other" / "worker.json"
    facts = json.loads(file.read_text())
    assert facts["locks"]
    file.write_text(json.dumps({**facts, "locks": False}))
    (tmp_path / "workers" / "other" / "lock").unlink()  # no matter who holds it
    assert only(mine).state == "alive"
    other.close()
