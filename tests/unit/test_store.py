"""Where runs are kept: private, one directory each, whatever a run is called."""

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from activities.store.ownership import Ownership
from activities.store.runs import RunStore
from steersman.contracts.activities import RunKey

MINE = Ownership("cluster", "default")
KEY = RunKey(run="r", execution="e")

HOSTILE = [
    "../x",
    "..",
    ".",
    "a/../../b",
    "/etc/passwd",
    "x" * 1000,
    "ü" * 300,
    "run\nid",
    "run\0id",
    " ",
    "~",
    "-rf",
    "%2e%2e",
    "日本語",
    "\ud800",
    "a\\b",
    "CON",
    "a~" + "0" * 24,
]


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "state", MINE)


@pytest.mark.parametrize("name", HOSTILE)
def test_no_id_leads_out_of_the_runs(store: RunStore, tmp_path: Path, name: str) -> None:
    for key in (RunKey(run=name, execution="e"), RunKey(run="r", execution=name)):
        directory = store.create(key)
        relative = directory.path.resolve().relative_to((tmp_path / "state" / "runs").resolve())
        assert len(relative.parts) == 2
        assert [each.key for each in store.mine() if each.path == directory.path] == [key]


def test_different_ids_have_different_directories(store: RunStore) -> None:
    paths = {store.directory(RunKey(run=name, execution="e")).path for name in [*HOSTILE, "x" * 999, "ü" * 299]}
    assert len(paths) == len(HOSTILE) + 2
    assert len({str(path).lower() for path in paths}) == len(paths)


def test_ids_that_differ_in_case_alone_do_not_meet_where_names_ignore_case(store: RunStore) -> None:
    same = [store.directory(RunKey(run="run-A" + "b" * 200 + end, execution="e")).path for end in "cC"]
    assert same[0] != same[1]


def test_a_readable_id_stays_readable(store: RunStore) -> None:
    assert store.directory(RunKey(run="run-01a_b:c", execution="0190-ab")).path.parent.name == "run-01a_b:c"


def test_only_the_workers_user_can_look(store: RunStore) -> None:
    directory = store.create(RunKey(run="r", execution="e"))
    for path in (directory.path, directory.path.parent, directory.path.parent.parent):
        assert path.stat().st_mode & 0o777 == 0o700
    assert (directory.path / "run.json").stat().st_mode & 0o777 == 0o600


def test_creating_twice_keeps_the_first(store: RunStore) -> None:
    key = RunKey(run="r", execution="e")
    (store.create(key).path / "events.jsonl").write_text("kept")
    assert (store.create(key).path / "events.jsonl").read_text() == "kept"


def test_a_sweep_sees_its_own_namespaces_runs_only(store: RunStore, tmp_path: Path) -> None:
    mine = store.create(RunKey(run="a", execution="e"))
    for owner in (Ownership("cluster", "other"), Ownership("other", "default")):
        RunStore(tmp_path / "state", owner).create(RunKey(run=f"{owner.cluster}-{owner.namespace}", execution="e"))
    assert [each.key for each in store.mine()] == [mine.key]


@pytest.mark.parametrize("facts", ["", "{", "[]", "{}", '{"cluster":"cluster","namespace":"default"}', "null"])
def test_what_is_half_written_is_nobodys(store: RunStore, facts: str) -> None:
    broken = store.create(RunKey(run="broken", execution="e"))
    (broken.path / "run.json").write_text(facts)
    whole = store.create(RunKey(run="whole", execution="e"))
    assert [each.key.run for each in store.mine()] == [whole.key.run]


def test_attempts_count_from_their_journals(store: RunStore) -> None:
    directory = store.create(RunKey(run="r", execution="e"))
    assert (directory.attempts(), directory.all_attempts()) == (0, [])
    for number, journal in ((1, True), (2, True), (10, True), (11, False)):
        directory.attempt(number).mkdir(parents=True)
        if journal:
            (directory.attempt(number) / "journal").touch()
    (directory.path / "attempts" / "notes").mkdir()
    assert directory.attempts() == 10
    assert [path.name for path in directory.all_attempts()] == ["1", "2", "10", "11"]


def test_a_removal_that_was_killed_is_known_to_the_next_one(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = store.create(RunKey(run="r", execution="e"))
    for name in ("attempts", "conflicts"):
        (directory.path / name).mkdir()
    directory.events.touch()

    def killed(path: Path, *, ignore_errors: bool = False) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            store.remove(directory)
    assert [each.key.run for each in store.mine()] == ["r"]
    assert directory.events.exists()
    store.remove(directory)
    assert not directory.path.exists()


def test_removing_one_execution_keeps_another(store: RunStore) -> None:
    first, second = (store.create(RunKey(run="r", execution=each)) for each in ("e1", "e2"))
    (first.path / "events.jsonl").write_text("x" * 5000)
    assert store.remove(first) >= 5000
    assert [each.key for each in store.mine()] == [second.key]
    store.remove(second)
    assert not second.path.parent.exists()


def test_looking_while_another_worker_removes(store: RunStore) -> None:
    kept = store.create(RunKey(run="kept", execution="e"))
    done = threading.Event()

    def come_and_go() -> None:
        while not done.is_set():
            for number in range(20):
                store.remove(store.create(RunKey(run=f"r{number}", execution="e")))

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        for _ in range(300):
            assert kept.key in [each.key for each in store.mine()]
    finally:
        done.set()
        other.join()


def test_several_may_make_what_is_gone_again(store: RunStore) -> None:
    """As a stop and the worker that leads the run do, in one process."""
    key = RunKey(run="run", execution="e")
    with ThreadPoolExecutor(8) as threads:
        for _ in range(30):
            (store.create(key).path / "run.json").unlink()
            together = threading.Barrier(8)

            def create(together: threading.Barrier = together) -> str:
                together.wait()
                return store.create(key).beginning

            made = [threads.submit(create) for _ in range(8)]
            assert {each.result() for each in made} == {store.directory(key).beginning}


def test_removing_does_not_follow_links(store: RunStore, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    directory = store.create(RunKey(run="r", execution="e"))
    (directory.path / "link").symlink_to(precious)
    store.remove(directory)
    assert (precious / "file").read_text() == "kept"


def test_each_beginning_of_a_run_has_a_key_of_its_own_for_the_agent(store: RunStore) -> None:
    directory = store.create(KEY)
    first = directory.agent_key
    assert store.create(KEY).agent_key == first  # another worker, the same beginning
    assert (first.run, first != KEY) == (KEY.run, True)

    store.set_aside(directory)

    assert store.create(KEY).agent_key not in (first, KEY)


@pytest.mark.parametrize("said", [None, "", 7, "../../x", "0" * 15, "0" * 17, "G" * 16, ["0" * 16]])
def test_a_run_of_before_there_were_beginnings_keeps_its_key(store: RunStore, said: object) -> None:
    directory = store.create(KEY)
    facts = json.loads((directory.path / "run.json").read_text())
    del facts["beginning"]
    (directory.path / "run.json").write_text(json.dumps(facts | ({} if said is None else {"beginning": said})))

    assert directory.agent_key == KEY


def test_what_a_full_disk_leaves_of_a_run_that_never_began_goes(store: RunStore) -> None:
    key = RunKey(run="run", execution="e")
    path = store.directory(key).path
    path.mkdir(parents=True)
    for name in ("events.jsonl", "events.epoch", "run.json.0123"):
        (path / name).touch()
    store.discard_unbegun(key)
    assert not path.parent.exists()
    store.discard_unbegun(key)


@pytest.mark.parametrize("name", ["run.json", "events.jsonl"])
def test_what_is_written_of_a_run_stays(store: RunStore, name: str) -> None:
    key = RunKey(run="run", execution="e")
    path = store.directory(key).path
    path.mkdir(parents=True)
    (path / name).write_text("something")
    store.discard_unbegun(key)
    assert (path / name).read_text() == "something"
