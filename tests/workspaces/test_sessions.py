"""An agent's sessions go to the place of a run and come back: none is lost, and nothing that comes is trusted."""

import asyncio
import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from activities.workspaces.carry import session_program
from activities.workspaces.carry.sessions import SessionsFailed
from steersman.contracts.errors import InvalidRequest, WorkspaceError
from tests.shim.conftest import oldest_python
from tests.support.files import below
from tests.workspaces.forks import Forks
from tests.workspaces.session_carrying import FIRST, MORE, SESSION, SessionCarrying

pytestmark = pytest.mark.integration
OTHER = "11111111-3c35-4d2f-9e3d-2f6f7f0f7c11"


@pytest.fixture
async def work(tmp_path: Path) -> AsyncIterator[SessionCarrying]:
    made = SessionCarrying(tmp_path)
    yield made
    await made.close()


@pytest.fixture
async def out(work: SessionCarrying) -> SessionCarrying:
    """A session that was carried out."""
    work.hold(work.ours(), one=b"1")
    await work.out()
    work.started()
    return work


def inner(conversation: Path, name: str) -> Path:
    return conversation.with_suffix("") / "subagents" / f"agent-{name}.jsonl"


def place(work: SessionCarrying, script: str) -> str:
    """An interpreter of the place that is this shell script. `$PYTHON "$@"` is what it should do."""
    program = work.store.state.parent / "there" / "python"
    program.write_text(f"#!/bin/sh\nPYTHON={shlex.quote(sys.executable)}\n{script}\n")
    program.chmod(0o755)
    return str(program)


def with_place(work: SessionCarrying, script: str) -> SessionCarrying:
    return SessionCarrying(work.store.state.parent, python=place(work, script))


async def test_it_goes_out_grows_and_comes_back(out: SessionCarrying) -> None:
    await _goes_out_grows_and_comes_back(out)


async def test_the_oldest_python_of_a_place(tmp_path: Path) -> None:
    if (python := oldest_python()) is None:
        pytest.skip("no Python 3.9 on this machine")
    work = SessionCarrying(tmp_path, python=python)
    work.hold(work.ours(), one=b"1")
    await work.out()
    work.started()
    await _goes_out_grows_and_comes_back(work)
    await work.close()


async def _goes_out_grows_and_comes_back(out: SessionCarrying) -> None:
    assert out.theirs().read_bytes() == FIRST
    assert inner(out.theirs(), "one").read_bytes() == b"1"
    modes = {path.stat().st_mode & 0o777 for path in below(out.there / "projects") if path.is_file()}
    assert modes == {0o600}
    out.hold(out.theirs(), FIRST + MORE, one=b"12", two=b"2")
    told = await out.back()
    assert (told.sessions, told.session_error) == ({}, None)
    assert out.ours().read_bytes() == FIRST + MORE
    assert (inner(out.ours(), "one").read_bytes(), inner(out.ours(), "two").read_bytes()) == (b"12", b"2")
    assert inner(out.ours(), "two").stat().st_mode & 0o777 == 0o600
    assert not list((out.there / "projects").iterdir())
    assert await out.back() == told, "twice is once"


async def test_a_session_that_the_run_began(tmp_path: Path) -> None:
    work = SessionCarrying(tmp_path, session=None)
    await work.out()
    work.started()
    work.hold(work.theirs(work.begun), one=b"1")
    work.hold(work.theirs(OTHER))  # the agent has begun a further one by itself
    work.hold(work.theirs(SESSION))  # of which it has told nobody
    await work.lock(OTHER)
    work.hold(work.ours(OTHER), FIRST[:-1])  # a session of this workspace, whose id the place has learned
    assert work.agent.sessions
    kept = work.agent.sessions.kept(work.run.agent_key, OTHER)
    assert (await work.back()).sessions == {OTHER: kept}
    assert work.ours(work.begun).read_bytes() == work.ours(kept).read_bytes() == FIRST
    assert work.ours(OTHER).read_bytes() == FIRST[:-1]
    assert work.ours().exists() is False
    assert [each.name for each in work.theirs().parent.iterdir()] == [f"{SESSION}.jsonl"]
    await work.close()


async def test_nothing_was_held(tmp_path: Path) -> None:
    """The agent died before it had a conversation."""
    work = SessionCarrying(tmp_path, session=None)
    await work.out()
    assert (await work.back()).session_error is None
    assert not list(work.here.iterdir())
    await work.close()


async def test_a_copy_stays_where_processes_may_be_at_work(out: SessionCarrying) -> None:
    out.hold(out.theirs(), FIRST + MORE)
    await out.back(keep=True)
    assert out.theirs().read_bytes() == FIRST + MORE
    out.hold(out.theirs(), FIRST + MORE + MORE)
    await out.back()
    assert out.ours().read_bytes() == FIRST + MORE + MORE
    assert not out.theirs().exists()


@pytest.mark.parametrize("ours", [FIRST + b"mine", FIRST[:-1], b"", FIRST[1:], b"y" + FIRST[1:] + MORE])
async def test_neither_side_is_lost(out: SessionCarrying, ours: bytes) -> None:
    out.ours().write_bytes(ours)
    out.hold(out.theirs(), FIRST + MORE, one=b"12")
    told = await out.back()
    if (FIRST + MORE).startswith(ours):
        assert (told.sessions, out.ours().read_bytes()) == ({}, FIRST + MORE)
        return
    assert told.sessions == {SESSION: out.kept}
    assert out.ours().read_bytes() == ours
    assert out.ours(out.kept).read_bytes() == FIRST + MORE
    assert inner(out.ours(out.kept), "one").read_bytes() == b"12"
    assert inner(out.ours(), "one").read_bytes() == b"1"


async def test_what_the_place_has_cut_away_is_not_lost(out: SessionCarrying) -> None:
    out.theirs().write_bytes(b"")
    assert (await out.back()).sessions == {}
    assert out.ours().read_bytes() == FIRST


async def test_an_inner_conversation_differs(out: SessionCarrying) -> None:
    out.hold(out.theirs(), FIRST + MORE, one=b"another")
    assert (await out.back()).sessions == {SESSION: out.kept}
    assert (out.ours().read_bytes(), inner(out.ours(), "one").read_bytes()) == (FIRST, b"1")
    assert inner(out.ours(out.kept), "one").read_bytes() == b"another"


async def test_neither_id_is_free(out: SessionCarrying) -> None:
    out.hold(out.ours(), b"mine")
    out.hold(out.ours(out.kept), b"mine, too")
    out.hold(out.theirs(), FIRST + MORE)
    told = await out.back()
    assert "is another one" in (told.session_error or "")
    assert (out.ours().read_bytes(), out.theirs().read_bytes()) == (b"mine", FIRST + MORE)
    out.ours(out.kept).unlink()
    told = await out.back()
    assert (told.sessions, told.session_error) == ({SESSION: out.kept}, None)


async def test_it_is_not_here(work: SessionCarrying) -> None:
    with pytest.raises(InvalidRequest, match=f"no conversation {SESSION} was held in this workspace"):
        await work.out()


async def test_another_one_is_there_already(work: SessionCarrying) -> None:
    work.hold(work.ours())
    work.hold(work.theirs(), b"another")
    with pytest.raises(WorkspaceError, match=r"cannot be brought to the copy: .* is another one"):
        await work.out()
    assert work.theirs().read_bytes() == b"another"


async def test_out_again_leaves_what_the_agent_has_said(out: SessionCarrying) -> None:
    """A worker that was frozen wakes, and does once more what another has done meanwhile."""
    out.hold(out.theirs(), FIRST + MORE, one=b"12")
    await out.out()
    assert (out.theirs().read_bytes(), inner(out.theirs(), "one").read_bytes()) == (FIRST + MORE, b"12")


# ---- what a place may have made of it


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def linked_directory(path: Path) -> None:
    aside = path.parent.with_name("aside")
    path.parent.rename(aside)
    path.parent.symlink_to(aside)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def huge(path: Path) -> None:
    os.truncate(path, session_program.MAX_BYTES + 1)


def many(path: Path) -> None:
    for number in range(session_program.MAX_FILES):
        (path.with_suffix("") / f"f{number}").touch()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (link, "symbolic links"),
        (linked_directory, "is a link"),
        (pipe, "is no file"),
        (directory, "is no file"),
        (huge, "GiB"),
        (many, "10,000 files"),
    ],
)
async def test_a_spoilt_session_stays_where_it_is(
    out: SessionCarrying, spoil: Callable[[Path], None], words: str
) -> None:
    spoil(out.theirs())
    told = await out.back()
    assert words in (told.session_error or "")
    assert out.ours().read_bytes() == FIRST
    assert os.path.lexists(out.theirs())


async def test_what_is_no_file_of_a_session_is_left_out(out: SessionCarrying) -> None:
    folder = out.theirs().with_suffix("")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "out").symlink_to("/etc")
    os.mkfifo(folder / "pipe")
    (folder / "a\nb").write_text("x")
    deep = folder.joinpath(*"abcdefghij")
    deep.mkdir(parents=True)
    (deep / "file").write_text("x")
    assert (await out.back()).session_error is None
    assert [path.name for path in below(out.ours().with_suffix("")) if path.is_file()] == ["agent-one.jsonl"]
    assert not out.theirs().parent.exists()


def frame(**fields: object) -> str:
    return json.dumps({"session": 0, "path": "", "size": 1, **fields}) + "\n"


@pytest.mark.parametrize(
    "said",
    [
        "",
        "no JSON\n",
        "[]\n",
        '{"error": "no \\u001b[31m"}\n',
        frame() + "x",
        frame(size=2) + "x",
        frame(path="../../escaped") + "x" + frame() + 'x{"end": true}\n',
        frame(path="/tmp/escaped") + "x" + frame() + 'x{"end": true}\n',
        frame(path="a/../../../escaped") + "x" + frame() + 'x{"end": true}\n',
        frame(path="a//b") + "x" + frame() + 'x{"end": true}\n',
        frame(path="a\\u0000b") + "x" + frame() + 'x{"end": true}\n',
        frame(path="/".join("a" * 9)) + "x" + frame() + 'x{"end": true}\n',
        frame(session=2) + 'x{"end": true}\n',
        frame(session=-1) + 'x{"end": true}\n',
        frame(session=True) + 'x{"end": true}\n',
        frame(size=-1) + 'x{"end": true}\n',
        frame(size=1 << 60) + "x",
        frame(size="1") + "x",
        frame() + "x" + frame() + 'y{"end": true}\n',
        frame(path="a") + 'x{"end": true}\n',
        frame(path="a") + "x" + frame(path="a") + "x" + frame() + 'x{"end": true}\n',
        "x" * 2_000_000,
    ],
)
async def test_a_place_that_lies(out: SessionCarrying, said: str) -> None:
    answer = out.store.state.parent / "answer"
    answer.write_text(said)
    before = {path: path.read_bytes() for path in below(out.here) if path.is_file()}
    lying = with_place(out, f"cat {answer}")
    told = await asyncio.wait_for(lying.back(), 20)
    assert told.session_error
    assert "\x1b" not in told.session_error
    assert {path: path.read_bytes() for path in below(out.here) if path.is_file()} == before
    assert not list(below(out.run.path / "tmp*"))
    assert out.theirs().exists()
    await lying.close()
    assert (await out.back()).session_error is None


async def test_a_place_that_talks_on_for_ever(out: SessionCarrying) -> None:
    lying = with_place(out, f"while :; do printf '%s' {shlex.quote(frame(path='a'))}x; done")
    assert (await asyncio.wait_for(lying.back(), 60)).session_error
    await lying.close()


@pytest.mark.parametrize("said", [True, False])
async def test_a_session_cannot_be_had_where_there_is_no_program(out: SessionCarrying, *, said: bool) -> None:
    lying = with_place(out, "echo broken >&2; exit 3" if said else "exit 3")
    assert (await lying.back()).session_error == (
        "broken" if said else "the program that keeps sessions ended with exit code 3"
    )
    await lying.close()
    missing = SessionCarrying(out.store.state.parent, python="/nowhere/python3")
    assert "/nowhere/python3" in ((await missing.back()).session_error or "")
    await missing.close()


# ---- killed


CUTS = (0, 1, 60, 150, 1_000_000, 2_999_999, 3_000_050)


@pytest.mark.parametrize("bytes_", CUTS)
async def test_the_way_out_is_cut(work: SessionCarrying, bytes_: int) -> None:
    work.hold(work.ours(), one=b"1")
    cut = with_place(work, f'head -c {bytes_} | $PYTHON "$@"')
    with pytest.raises(WorkspaceError):
        await cut.out()
    await cut.close()
    assert FIRST.startswith(work.theirs().read_bytes() if work.theirs().exists() else b"")
    await work.out()
    assert (work.theirs().read_bytes(), inner(work.theirs(), "one").read_bytes()) == (FIRST, b"1")


@pytest.mark.exhaustive
@pytest.mark.parametrize("bytes_", CUTS)
async def test_the_way_back_is_cut(out: SessionCarrying, bytes_: int) -> None:
    out.hold(out.theirs(), FIRST + MORE, one=b"12", two=b"2")
    cut = with_place(out, f'$PYTHON "$@" | head -c {bytes_}')
    told = await cut.back()
    await cut.close()
    assert told.session_error
    assert out.ours().read_bytes() == FIRST
    assert out.theirs().exists()
    assert (await out.back()).session_error is None
    assert (out.ours().read_bytes(), inner(out.ours(), "two").read_bytes()) == (FIRST + MORE, b"2")


STEPS = ("open", "os.mkdir", "os.remove", "os.rename", "subprocess.Popen", "os.truncate")


async def carry(root: str, what: str, at: int) -> None:
    """A worker's part, in a process of its own: killed at its `at`th step."""
    work, armed, seen = SessionCarrying(Path(root)), True, 0

    def kill(event: str, arguments: object) -> None:
        nonlocal seen
        if event in STEPS and armed:
            seen += 1
            if seen == at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill)
    if what == "out":
        await work.out()
    else:
        await work.back()
    armed = False
    await work.close()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Forks]:
    made = Forks(__name__, tmp_path / "errors")
    yield made
    made.close()


def killed(workers: Forks, work: SessionCarrying, what: str, at: int) -> bool:
    """Whether a worker that does this was killed at its `at`th step: a file or directory made, opened or removed."""
    code = workers.call("carry", str(work.store.state.parent), what, at)
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.parametrize("diverged", [True, False])
async def test_a_worker_is_killed_at_each_step(workers: Forks, tmp_path: Path, *, diverged: bool) -> None:
    at = 0
    while True:
        at += 3
        root = tmp_path / str(at)
        root.mkdir()
        work = SessionCarrying(root)
        work.hold(work.ours(), one=b"1")
        first = killed(workers, work, "out", at)
        await work.out()
        assert (work.theirs().read_bytes(), inner(work.theirs(), "one").read_bytes()) == (FIRST, b"1")
        work.started()
        work.hold(work.theirs(), FIRST + MORE, one=b"12", two=b"2")
        mine = FIRST + b"mine" if diverged else FIRST
        work.ours().write_bytes(mine)
        second = killed(workers, work, "back", at)
        told = await work.back()
        assert told.sessions == ({SESSION: work.kept} if diverged else {})
        there = work.ours(work.kept) if diverged else work.ours()
        assert there.read_bytes() == FIRST + MORE
        assert (inner(there, "one").read_bytes(), inner(there, "two").read_bytes()) == (b"12", b"2")
        assert work.ours().read_bytes() == (mine if diverged else FIRST + MORE)
        assert not work.theirs().exists()
        await work.close()
        if not first and not second:
            break
    assert at > 10


async def test_a_backup_is_what_a_place_gets_that_has_lost_it(out: SessionCarrying, tmp_path: Path) -> None:
    """Also of a session that grows, and in whose last line the agent is just writing."""
    whole = FIRST + MORE + b'{"long": "' + b"x" * 3_000_000 + b'"}\n'
    out.hold(out.theirs(), whole + b'{"type": "user", "half', one=b"1", two=b"2")
    out.hold(out.theirs(out.begun), MORE)
    await out.sessions.back_up(out.run, tmp_path / "backup")
    before = list(below(out.here))
    shutil.rmtree(out.there)
    await out.out(backup=tmp_path / "backup")
    assert out.theirs().read_bytes() == whole
    assert [inner(out.theirs(), name).read_bytes() for name in ("one", "two")] == [b"1", b"2"]
    assert out.theirs(out.begun).read_bytes() == MORE
    assert list(below(out.here)) == before


async def test_a_session_that_no_backup_has_comes_from_here(out: SessionCarrying, tmp_path: Path) -> None:
    shutil.rmtree(out.there)
    await out.sessions.back_up(out.run, tmp_path / "backup")
    await out.out(backup=tmp_path / "backup")
    assert out.theirs().read_bytes() == FIRST


async def test_a_backup_of_a_place_that_lies_is_refused_and_leads_nowhere_else(
    out: SessionCarrying, tmp_path: Path
) -> None:
    for path in ("../../escaped", "/etc/passwd", "a/../../b"):
        said = json.dumps({"session": 0, "path": path, "size": 1})
        liar = with_place(out, f"echo '{said}'; printf x")
        with pytest.raises(SessionsFailed):
            await liar.sessions.back_up(out.run, tmp_path / "backup")
        await liar.close()
    assert not (tmp_path / "backup").exists()
    assert not list(tmp_path.rglob("escaped"))
