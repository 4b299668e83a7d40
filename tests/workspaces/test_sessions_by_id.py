"""Sessions that an agent keeps by ids of its own, in files with the time in their names: Codex's. See test_sessions."""

import asyncio
import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from activities.agents.codex.sessions import CodexSessions, ThreadHeader
from activities.store.held_sessions import held_in
from steersman.contracts.errors import InvalidRequest, WorkspaceError
from steersman.contracts.request import parse_request
from tests.shim.conftest import oldest_python
from tests.support.files import below
from tests.support.parameters import but_first
from tests.workspaces.session_carrying import SESSION, CodexCarrying, rollout, thread

pytestmark = pytest.mark.integration
NEW = "01a215b2-e0e6-77a1-a141-a1b05fe358af"
OTHER = "01a215b2-e0e6-77a1-a141-a1b05fe358bb"
MORE = b'{"type":"response_item"}\n'
FIRST = thread(SESSION)
HERE = str(rollout(Path(), SESSION))


@pytest.fixture
async def work(tmp_path: Path) -> AsyncIterator[CodexCarrying]:
    made = CodexCarrying(tmp_path)
    yield made
    await made.close()


@pytest.fixture
async def fresh(tmp_path: Path) -> AsyncIterator[CodexCarrying]:
    """A run that was given no session, and whose agent is at work."""
    made = CodexCarrying(tmp_path, session=None)
    await made.out()
    made.started()
    yield made
    await made.close()


@pytest.fixture
async def out(work: CodexCarrying) -> CodexCarrying:
    """A session that was carried out."""
    work.hold(work.ours(), FIRST)
    await work.out()
    work.started()
    return work


def kept(work: CodexCarrying, session: str) -> str:
    return CodexSessions().kept(work.run.agent_key, session)


def files(home: Path) -> dict[str, bytes]:
    return {str(path.relative_to(home)): path.read_bytes() for path in below(home) if path.is_file()}


async def test_it_goes_out_grows_and_comes_back(out: CodexCarrying) -> None:
    mark = f"{HERE}.{out.run.id}.made"
    assert files(out.there) == {HERE: FIRST, mark: b""}
    assert out.theirs().stat().st_mode & 0o777 == 0o600
    out.hold(out.theirs(), FIRST + MORE)
    told = await out.back()
    assert (told.sessions, told.session_error) == ({}, None)
    assert files(out.here) == {str(out.ours().relative_to(out.here)): FIRST + MORE}
    assert files(out.there) == {}
    assert await out.back() == told, "twice is once"


async def test_the_oldest_python_of_a_place(tmp_path: Path) -> None:
    if (python := oldest_python()) is None:
        pytest.skip("no Python 3.9 on this machine")
    work = CodexCarrying(tmp_path, python=python)
    work.hold(work.ours(), FIRST)
    await work.out()
    work.started()
    work.hold(work.theirs(), FIRST + MORE)
    assert (await work.back()).session_error is None
    assert (work.ours().read_bytes(), files(work.there)) == (FIRST + MORE, {})
    await work.close()


async def test_a_session_that_the_run_began_keeps_its_id(fresh: CodexCarrying) -> None:
    begun = thread(NEW, cwd=str(fresh.copy))
    fresh.hold(rollout(fresh.there, NEW, "2031-01-02T03-04-05"), begun)
    fresh.hold(rollout(fresh.there, OTHER), thread(OTHER))  # of which the agent has told nobody
    await fresh.lock(NEW)
    await fresh.back(keep=True)
    fresh.hold(rollout(fresh.there, NEW, "2031-01-02T03-04-05"), begun + MORE)
    told = await fresh.back()
    assert (told.sessions, told.session_error) == ({}, None)
    assert files(fresh.here) == {
        str(rollout(fresh.here, NEW, "2031-01-02T03-04-05").relative_to(fresh.here)): begun + MORE
    }
    assert held_in(fresh.store.state, "codex", NEW) == fresh.workspace
    assert list(files(fresh.there)) == [str(rollout(fresh.there, OTHER).relative_to(fresh.there))]


@pytest.mark.parametrize(
    "before", but_first("sessions/2025/01/01/{}", "archived_sessions/{}", "sessions/2025/01/01/{}.zst")
)
async def test_an_id_that_was_here_before_is_not_the_agents_to_choose(fresh: CodexCarrying, before: str) -> None:
    """A place that has learned a session of the user's, and goes on with it as if it were the run's."""
    mine = fresh.here / before.format(rollout(fresh.here, NEW, "2025-01-01T00-00-00").name)
    fresh.hold(mine, thread(NEW))
    fresh.hold(rollout(fresh.there, NEW), thread(NEW) + MORE)
    await fresh.lock(NEW)
    name = kept(fresh, NEW)
    assert (await fresh.back()).sessions == {NEW: name}
    assert mine.read_bytes() == thread(NEW)
    as_kept = rollout(fresh.here, name).read_bytes()
    assert as_kept == thread(NEW).replace(NEW.encode(), name.encode(), 2) + MORE
    assert json.loads(as_kept.split(b"\n")[0])["payload"]["id"] == name


@pytest.mark.parametrize("ours", but_first(FIRST + b"mine", FIRST[:-1], FIRST + MORE + MORE))
async def test_neither_side_is_lost(out: CodexCarrying, ours: bytes) -> None:
    out.ours().write_bytes(ours)
    out.hold(out.theirs(), FIRST + MORE)
    told = await out.back()
    assert told.session_error is None
    if ours.startswith(FIRST + MORE) or (FIRST + MORE).startswith(ours):
        assert (told.sessions, out.ours().read_bytes()) == ({}, max(ours, FIRST + MORE, key=len))
        return
    assert told.sessions == {SESSION: out.kept}
    assert out.ours().read_bytes() == ours
    assert rollout(out.here, out.kept).read_bytes() == FIRST.replace(SESSION.encode(), out.kept.encode(), 2) + MORE
    assert await out.back() == told


@pytest.mark.exhaustive
async def test_a_session_that_was_deleted_meanwhile_comes_back(out: CodexCarrying) -> None:
    out.ours().unlink()
    out.hold(out.theirs(), FIRST + MORE)
    assert (await out.back()).sessions == {}
    assert out.ours().read_bytes() == FIRST + MORE


@pytest.mark.parametrize("cut", but_first(FIRST[:40], b""))
async def test_what_the_place_has_cut_away_is_not_lost(out: CodexCarrying, cut: bytes) -> None:
    out.theirs().write_bytes(cut)
    told = await out.back()
    assert (told.sessions, told.session_error) == ({}, None)
    assert out.ours().read_bytes() == FIRST


# ---- one home under two names


async def test_where_the_place_has_the_leaders_home_nothing_is_carried_and_nothing_removed(tmp_path: Path) -> None:
    """As with homes on NFS: found out by a file that is there and here, and is gone then."""
    work = CodexCarrying(tmp_path)
    work.there.symlink_to(work.here)
    for is_here in (True, False):
        work.is_here = is_here
        work.hold(work.ours(), FIRST)
        await work.out()
        work.started() if is_here else None
        work.hold(rollout(work.here, NEW), thread(NEW, cwd=str(work.copy)))
        work.hold(rollout(work.here, OTHER), thread(OTHER, cwd="/elsewhere"))
        for each in (NEW, OTHER):
            await work.lock(each)
        before = files(work.here)
        told = await work.back()
        assert (told.sessions, told.session_error) == ({}, None)
        assert files(work.here) == before
        assert held_in(work.store.state, "codex", NEW) == work.workspace
        assert held_in(work.store.state, "codex", OTHER) is None, "it was not held in the copy"
        (work.run.path / "sessions-back.json").unlink()
    await work.close()


async def test_a_session_that_the_place_had_before_stays_there(work: CodexCarrying) -> None:
    """Of whoever works on that machine by hand, with files that were copied."""
    work.hold(work.ours(), FIRST)
    work.hold(work.theirs(), FIRST)
    await work.out()
    await work.out()  # once more, by another worker
    work.started()
    await work.lock(SESSION)
    work.hold(work.theirs(), FIRST + MORE)
    for _ in range(2):
        assert (await work.back()).session_error is None
        (work.run.path / "sessions-back.json").unlink()
    assert files(work.here) == files(work.there) == {HERE: FIRST + MORE}


async def test_a_run_that_ends_late_takes_no_session_from_another(work: CodexCarrying, tmp_path: Path) -> None:
    """A run was terminated, and its copy waits for a sweep; the next run goes on with its session there, and a third
    one with what that was forked from.
    """
    forked = thread(SESSION, forked_from=OTHER)
    work.hold(work.ours(), forked)
    work.hold(work.ours(OTHER), thread(OTHER))
    await work.out()
    work.started()
    await work.back(keep=True)
    others = [CodexCarrying(tmp_path, run="second"), CodexCarrying(tmp_path, run="third", session=OTHER)]
    for each in others:
        await each.out()
        each.started()
    await work.back()
    assert work.theirs().read_bytes() == forked
    for each, session, text in ((others[1], OTHER, thread(OTHER)), (others[0], SESSION, forked)):
        each.hold(each.theirs(session), text + MORE)
        assert (await each.back()).session_error is None
        assert each.ours(session).read_bytes() == text + MORE
        await each.close()
    assert files(work.there) == {}


async def test_a_program_that_is_killed_while_it_removes(out: CodexCarrying) -> None:
    """Its mark is gone the next time, too."""
    await out.back(keep=True)
    out.theirs().unlink()
    assert [each.endswith(".made") for each in files(out.there)] == [True]
    await out.back()
    assert files(out.there) == {}


async def test_another_one_is_there_already(work: CodexCarrying) -> None:
    work.hold(work.ours(), FIRST)
    theirs = rollout(work.there, SESSION, "2020-01-01T00-00-00")
    work.hold(theirs, b"another")
    with pytest.raises(WorkspaceError, match=r"cannot be brought to the copy: .* is another one"):
        await work.out()
    await work.back()
    assert files(work.there) == {str(theirs.relative_to(work.there)): b"another"}


# ---- forks


async def test_what_it_was_forked_from_goes_with_it(work: CodexCarrying) -> None:
    work.hold(work.ours(), thread(SESSION, forked_from=OTHER))
    work.hold(work.ours(OTHER), thread(OTHER, forked_from=NEW))
    work.hold(work.ours(NEW), thread(NEW, forked_from=SESSION))  # which is a circle
    before = files(work.here)
    await work.out()
    assert {name: text for name, text in files(work.there).items() if name.endswith(".jsonl")} == before
    work.started()
    forked = "01a215b2-e0e6-77a1-a141-a1b05fe358cc"
    work.hold(work.theirs(forked), thread(forked, forked_from=SESSION))
    await work.lock(forked)
    assert (await work.back()).session_error is None
    assert files(work.here) == {
        **before,
        str(work.ours(forked).relative_to(work.here)): thread(forked, forked_from=SESSION),
    }
    assert files(work.there) == {}


async def test_a_place_names_a_session_that_it_was_not_given(fresh: CodexCarrying) -> None:
    """Else that one would go along to whichever machine the run's session goes to next."""
    fresh.hold(fresh.ours(OTHER), thread(OTHER))
    fresh.hold(fresh.theirs(NEW), thread(NEW, forked_from=OTHER))
    await fresh.lock(NEW)
    told = await fresh.back()
    assert f"it begins with {OTHER}, which the run did not have" in (told.session_error or "")
    assert files(fresh.here) == {str(fresh.ours(OTHER).relative_to(fresh.here)): thread(OTHER)}
    assert fresh.theirs(NEW).exists()


# ---- what a place may have made of it


@pytest.mark.parametrize(
    "first",
    but_first(
        thread(OTHER),
        thread(NEW).replace(b"session_meta", b"event_msg", 1),
        thread(NEW, more=f'"id":"{OTHER}",'),
        thread(NEW, more=f'"id":"{OTHER}","id":"{NEW}",'),
        thread(NEW, forked_from="../../x"),
        b"[" * 100_000 + b"\n",
        b"\xff\n" + thread(NEW),
        b"x" * (5 * 1024 * 1024) + b"\n",
    ),
)
async def test_a_thread_that_says_that_it_is_another_one(fresh: CodexCarrying, first: bytes) -> None:
    """Codex's index would lead from the other one's id to this file."""
    fresh.hold(fresh.theirs(NEW), first + MORE)
    await fresh.lock(NEW)
    assert (await fresh.back()).session_error
    assert files(fresh.here) == {}
    assert fresh.theirs(NEW).exists()


def twice(path: Path) -> None:
    shutil.copy(path, path.with_name(path.name.replace("T02", "T03")))


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def linked_sessions(path: Path) -> None:
    aside = path.parents[3].with_name("aside")
    path.parents[3].rename(aside)
    path.parents[3].symlink_to(aside)


@pytest.mark.parametrize(
    ("spoil", "words"),
    but_first((twice, "has several files"), (link, "symbolic links"), (linked_sessions, None)),
)
async def test_a_spoilt_session_stays_where_it_is(
    out: CodexCarrying, spoil: Callable[[Path], None], words: str | None
) -> None:
    out.hold(out.theirs(), FIRST + MORE)
    spoil(out.theirs())
    told = await out.back()
    if words:
        assert words in (told.session_error or "")
    assert files(out.here) == {str(out.ours().relative_to(out.here)): FIRST}
    assert os.path.lexists(out.theirs())


@pytest.mark.exhaustive
async def test_a_linked_day_is_passed_over(fresh: CodexCarrying, tmp_path: Path) -> None:
    fresh.hold(rollout(tmp_path / "elsewhere", NEW), thread(NEW) + b"elsewhere")
    year = fresh.there / "sessions" / "2027"
    year.parent.mkdir(parents=True)
    year.symlink_to(rollout(tmp_path / "elsewhere", NEW).parents[2])
    (fresh.there / "sessions" / "2028").touch()
    fresh.hold(fresh.theirs(NEW), thread(NEW))
    await fresh.lock(NEW)
    assert (await fresh.back()).session_error is None
    assert list(files(fresh.here).values()) == [thread(NEW)]


def said(**fields: object) -> str:
    size = len(FIRST) + 1
    return json.dumps({"session": 0, "path": "", "size": size, "at": HERE, **fields}) + "\n" + FIRST.decode() + "x"


@pytest.mark.parametrize(
    "fields",
    but_first(
        {"at": "../" + HERE},
        {"at": None},
        {"at": 1},
        {"at": "sessions/x"},
        {"at": "/" + HERE},
        {"at": HERE + "\n"},
        {"at": HERE.replace("2026", "٢٠٢٦")},
        {"at": HERE.replace("2026/11", "2026/../11")},
        {"at": HERE.replace(SESSION, OTHER)},
        {"path": "a"},
    ),
)
async def test_a_place_that_lies_about_names(out: CodexCarrying, fields: dict[str, object]) -> None:
    answer = out.store.state.parent / "answer"
    answer.write_text(said(**fields) + '{"end": true}\n')
    look = '{"ok": true, "shared": false}'
    lying = _with_place(out, f'case "$*" in *send*) cat {answer};; *) echo {shlex.quote(look)};; esac')
    assert (await asyncio.wait_for(lying.back(), 20)).session_error
    assert files(out.here) == {HERE: FIRST}
    await lying.close()
    assert (await out.back()).session_error is None


@pytest.mark.parametrize("look", but_first("", "[]", "{}", '{"shared": true}', '{"error": "no"}'))
async def test_a_place_that_does_not_say_what_it_has(work: CodexCarrying, look: str) -> None:
    work.hold(work.ours(), FIRST)
    lying = _with_place(work, f"echo {shlex.quote(look)}")
    with pytest.raises(WorkspaceError, match="cannot be brought to the copy"):
        await lying.out()
    assert files(work.here) == {HERE: FIRST}, "nor is anything left of the look"
    await lying.close()


def _with_place(work: CodexCarrying, script: str) -> CodexCarrying:
    program = work.store.state.parent / "there" / "python"
    program.write_text(f"#!/bin/sh\nPYTHON={shlex.quote(sys.executable)}\n{script}\n")
    program.chmod(0o755)
    return CodexCarrying(work.store.state.parent, python=str(program))


# ---- cut off, refused, backed up


@pytest.mark.parametrize("bytes_", but_first(100, 0, 400))
async def test_a_worker_is_killed_while_it_is_written(fresh: CodexCarrying, bytes_: int) -> None:
    """What it has begun under the agent's own id, the next one continues."""
    fresh.hold(fresh.theirs(NEW), thread(NEW) + MORE * 100)
    await fresh.lock(NEW)
    (fresh.run.path / "sessions-begun").mkdir()
    (fresh.run.path / "sessions-begun" / NEW).touch()
    fresh.hold(fresh.ours(NEW), (thread(NEW) + MORE * 100)[:bytes_])
    told = await fresh.back()
    assert (told.sessions, told.session_error) == ({}, None)
    assert fresh.ours(NEW).read_bytes() == thread(NEW) + MORE * 100


STEPS = ("open", "os.mkdir", "os.remove", "os.rename", "subprocess.Popen")


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.parametrize("diverged", [True, False])
async def test_a_worker_is_killed_at_each_step(tmp_path: Path, *, diverged: bool) -> None:
    at = 0
    while True:
        at += 3
        root = tmp_path / str(at)
        root.mkdir()
        work = CodexCarrying(root)
        work.hold(work.ours(), FIRST)
        first = _killed(root, "out", at)
        await work.out()
        work.started()
        await work.lock(NEW)
        work.hold(work.theirs(), FIRST + MORE)
        work.hold(work.theirs(NEW), thread(NEW))
        mine = FIRST + b"mine" if diverged else FIRST
        work.ours().write_bytes(mine)
        second = _killed(root, "back", at)
        told = await work.back()
        assert (told.sessions, told.session_error) == ({SESSION: work.kept} if diverged else {}, None)
        assert work.ours(NEW).read_bytes() == thread(NEW)
        if diverged:
            renamed = FIRST.replace(SESSION.encode(), work.kept.encode(), 2)
            assert (work.ours().read_bytes(), work.ours(work.kept).read_bytes()) == (mine, renamed + MORE)
        else:
            assert work.ours().read_bytes() == FIRST + MORE
        assert files(work.there) == {}
        await work.close()
        if not first and not second:
            break
    assert at > 10


def _killed(root: Path, what: str, at: int) -> bool:
    """Whether a worker that does this was killed at its `at`th step: a file or directory made, opened or removed."""
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(_carry(root, what, at))
        finally:
            os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


async def _carry(root: Path, what: str, at: int) -> None:
    work, armed, seen = CodexCarrying(root), True, 0

    def kill(event: str, arguments: object) -> None:
        nonlocal seen
        if event in STEPS and armed:
            seen += 1
            if seen == at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill)
    await (work.out() if what == "out" else work.back())
    armed = False
    await work.close()


async def test_a_backup_is_what_a_place_gets_that_has_lost_it(out: CodexCarrying, tmp_path: Path) -> None:
    out.hold(out.theirs(), FIRST + MORE + b'{"half')
    out.hold(out.theirs(NEW), thread(NEW, forked_from=SESSION))
    await out.lock(NEW)
    await out.sessions.back_up(out.run, tmp_path / "backup")
    shutil.rmtree(out.there)
    await out.out(backup=tmp_path / "backup")
    assert out.theirs().read_bytes() == FIRST + MORE
    assert out.theirs(NEW).read_bytes() == thread(NEW, forked_from=SESSION)
    shutil.rmtree(out.there)
    await out.sessions.back_from(out.run, tmp_path / "backup")
    assert out.ours().read_bytes() == FIRST + MORE
    assert out.ours(NEW).read_bytes() == thread(NEW, forked_from=SESSION)


def test_which_sessions_a_request_may_name(work: CodexCarrying) -> None:
    """For another machine it has to be here; on this one it is Codex that finds it, or does not."""
    environment = {"CODEX_HOME": str(work.here)}
    ssh = {"kind": "ssh", "address": "machine"}
    workspace = {"path": str(work.workspace)}
    elsewhere = parse_request(
        {"agent": "codex", "prompt": "x", "session": SESSION, "runtime": ssh, "workspace": workspace}
    )
    work.sessions.check(work.request, work.workspace, environment)
    with pytest.raises(InvalidRequest, match=f"no conversation {SESSION} is kept by codex on this host"):
        work.sessions.check(elsewhere, work.workspace, environment)
    archived = work.here / "archived_sessions" / work.ours().name
    work.hold(archived, FIRST)
    with pytest.raises(InvalidRequest, match=f"codex has put {SESSION} away, at {archived}"):
        work.sessions.check(elsewhere, work.workspace, environment)
    work.hold(work.ours(), FIRST)
    work.sessions.check(elsewhere, work.workspace, environment)
    twice(work.ours())
    with pytest.raises(InvalidRequest, match=f"{SESSION} cannot be read: one session has several files"):
        work.sessions.check(elsewhere, work.workspace, environment)


def test_the_header_of_a_thread() -> None:
    line = thread(SESSION, forked_from=OTHER, more='"text":"\\"' + SESSION + '\\"",').split(b"\n")[0] + b"\n"
    assert ThreadHeader().source(line, SESSION) == OTHER
    renamed = ThreadHeader().renamed(line, SESSION, NEW)
    assert len(renamed) == len(line)
    assert json.loads(renamed)["payload"] == {**json.loads(line)["payload"], "id": NEW, "session_id": NEW}, (
        "what a text says of an id stays"
    )
