"""Sessions that an agent's own programs write out and take in: opencode's. See test_sessions."""

import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from activities.agents.opencode.agent import OpencodeAgent
from activities.agents.opencode.archives import OpencodeArchives
from activities.returned_sessions import AgentEnvironments
from activities.run_archives import RunArchives
from activities.run_sessions import RunSessions
from activities.runtimes.machine import ChildMachine
from activities.runtimes.shim_runtime import ShimRuntime
from activities.store.held_sessions import held_in
from activities.store.kept_copies import CopyLocation, KeptCopies
from activities.store.ownership import Ownership
from activities.store.runs import RunStore
from activities.store.session_locks import SessionLocks
from activities.workspaces.carry import archives as carry_archives
from activities.workspaces.carry.archives import MAX_ARCHIVE, ArchivePlace
from activities.workspaces.carry.copies import WorkspaceCopy
from steersman.contracts.activities import CarriedBack, RunKey
from steersman.contracts.errors import InvalidRequest, WorkspaceError
from steersman.contracts.request import parse_request
from steersman.contracts.run import Finalize
from tests.support.parameters import but_first
from tests.support.processes import lives
from tests.support.programs import program
from tests.workspaces import opencode_stand_in

pytestmark = pytest.mark.integration
SESSION = "ses_de976728effeU7MvxrFmzGZLRB"
NEW = "ses_de95d68a8ffeu9Mc7eH1B25c0Y"
VICTIM = "ses_de973babdffeHTDYyhB0Wi4PEq"


def message(session: str, number: int, text: str, **info: Any) -> dict[str, Any]:
    """One message, with one part; its id is that of its number and session."""
    mark = f"{session[-10:]}{number:04}"
    ident = f"msg_{0x216898DDC000 + number:012x}{mark}"
    role = {"role": "assistant" if number % 2 else "user"}
    time = {"created": 1_700_000_000_000 + number, "completed": 1_700_000_000_000 + number}
    part = {"type": "text", "text": text, "id": f"prt_{0x216898DDC000 + number:012x}{mark}"}
    return {
        "info": {"id": ident, "sessionID": session, "time": time, **role, **info},
        "parts": [{**part, "sessionID": session, "messageID": ident}],
    }


def archive(session: str, *texts: str, **info: Any) -> dict[str, Any]:
    """A session with these messages."""
    held: dict[str, Any] = {"slug": "crisp-moon", "projectID": "p", "directory": "/elsewhere", "version": "1.18.33"}
    times = {"title": "a title", "time": {"created": 1, "updated": 2}}
    messages = [message(session, number, text) for number, text in enumerate(texts)]
    return {"info": {"id": session, **held, **times, **info}, "messages": messages}


class ArchiveCarrying:
    """A run on another machine, with sessions in databases on both. `here`, `there`: the homes."""

    def __init__(self, root: Path, session: str | None = SESSION) -> None:
        self.workspace, self.copy = root / "work", root / "there" / "copy"
        self.here, self.there = ({"HOME": str(root / each), "PATH": self._path(root)} for each in ("here", "there"))
        for each in (self.workspace, self.copy, Path(self.here["HOME"])):
            each.mkdir(parents=True, exist_ok=True)
        owner = Ownership("cluster", "default")
        self.store = RunStore(root / "state", owner)
        self.runtime = ShimRuntime(self.store, "host")
        self.scratch = root / "tmp"
        self.scratch.mkdir()
        variables = {"PATH": os.environ["PATH"], "TMPDIR": str(self.scratch)}
        self.machines = [ChildMachine(root / each, variables) for each in ("here", "there")]
        self.run = self.store.create(RunKey(run="run", execution="e"))
        kept, agents = KeptCopies(root / "state", owner), {"opencode": OpencodeAgent({})}
        archives = RunArchives(agents, self.machines[0], kept, self._copy_at, self.store, self.runtime)
        self.sessions = RunSessions(agents, kept, self._copy_at, self.store, self.runtime, archives)
        self.request: dict[str, Any] = {
            "agent": "opencode",
            "prompt": "x",
            "workspace": {"path": str(self.workspace)},
            "runtime": {"kind": "ssh", "address": "place"},
            **({"session": session} if session else {}),
        }

    def _path(self, root: Path) -> str:
        program = root / "bin" / "opencode"
        program.parent.mkdir(exist_ok=True)
        leaves = ': >"${TMPDIR:?}/library" || exit 9'
        program.write_text(f'#!/bin/sh\n{leaves}\nexec {sys.executable} -I -S {opencode_stand_in.__file__} "$@"\n')
        program.chmod(0o755)
        return f"{program.parent}:{os.environ['PATH']}"

    async def _copy_at(self, where: CopyLocation) -> WorkspaceCopy:
        return WorkspaceCopy(self.machines[1], str(self.copy), sys.executable, is_here=False)

    @property
    def _alone(self) -> dict[str, str]:
        return {**self.there, **OpencodeArchives().database(self.copy)}

    def hold(self, held: dict[str, Any], *, there: bool = False) -> None:
        """A session is held, or gone on with."""
        with opencode_stand_in.opened(self._alone if there else self.here) as connection:
            opencode_stand_in.take_in(connection, held, str(self.copy if there else self.workspace))

    def held(self, session: str = SESSION, *, there: bool = False) -> dict[str, Any] | None:
        with opencode_stand_in.opened(self._alone if there else self.here) as connection:
            return opencode_stand_in.written_out(connection, session)

    def texts(self, session: str = SESSION, *, there: bool = False) -> list[str] | None:
        """What was said in a session; None where it is not there."""
        if (found := self.held(session, there=there)) is None:
            return None
        return [part["text"] for each in found["messages"] for part in each["parts"]]

    def leftovers(self) -> list[str]:
        """Files of databases at the place."""
        return sorted(path.name for path in Path(self.there["HOME"]).rglob("*.db*"))

    async def out(self, backup: Path | None = None) -> None:
        request = parse_request(self.request)
        environments = AgentEnvironments(request, self.here, self.there)
        await self.sessions.out(self.run, environments, self.workspace, str(self.copy), backup)

    async def lock(self, session: str) -> None:
        """The agent has said that it has this session."""
        await SessionLocks(self.store, self.runtime).take("opencode", session, self.run)

    async def back(self, *, keep: bool = False) -> Finalize:
        await self.sessions.back(self.run, keep=keep)
        return (await self.sessions.told(self.run, CarriedBack(finalize=Finalize(status="none")))).finalize

    def kept(self, session: str = SESSION) -> str:
        return OpencodeArchives().kept(self.run.agent_key, session)

    async def close(self) -> None:
        for each in self.machines:
            await each.aclose()


@pytest.fixture
async def out(tmp_path: Path) -> AsyncIterator[ArchiveCarrying]:
    """A session that was carried out."""
    made = ArchiveCarrying(tmp_path)
    made.hold(archive(SESSION, "one", "two"))
    await made.out()
    yield made
    await made.close()


@pytest.fixture
async def fresh(tmp_path: Path) -> AsyncIterator[ArchiveCarrying]:
    """A run that was given no session, and whose agent is at work."""
    made = ArchiveCarrying(tmp_path, session=None)
    await made.out()
    yield made
    await made.close()


async def test_it_goes_out_grows_and_comes_back(out: ArchiveCarrying) -> None:
    assert out.texts(there=True) == ["one", "two"]
    out.hold(archive(SESSION, "one", "two", "three", "four"), there=True)
    told = await out.back()
    assert (told.sessions, told.session_error) == ({}, None)
    assert out.texts() == ["one", "two", "three", "four"]
    found = out.held()
    assert found
    assert found["info"]["directory"] == str(out.workspace)
    assert out.leftovers() == []
    assert await out.back() == told, "twice is once"
    await out.out()
    out.hold({**archive(SESSION), "messages": [message(SESSION, 4, "five")]}, there=True)
    (out.run.path / "sessions-back.json").unlink()
    assert (await out.back()).session_error is None
    assert out.texts() == ["one", "two", "three", "four", "five"]


async def test_a_session_that_the_run_began_is_the_workspaces(fresh: ArchiveCarrying) -> None:
    fresh.hold(archive(NEW, "one", "two"), there=True)
    fresh.hold(archive(VICTIM, "of which the agent has told nobody"), there=True)
    await fresh.lock(NEW)
    await fresh.back(keep=True)
    assert fresh.texts(NEW) == ["one", "two"]
    fresh.hold(archive(NEW, "one", "two", "three"), there=True)
    told = await fresh.back()
    assert (told.sessions, told.session_error) == ({}, None)
    assert fresh.texts(NEW) == ["one", "two", "three"]
    assert held_in(fresh.store.state, "opencode", NEW) == fresh.workspace
    assert fresh.texts(VICTIM) is None


async def test_what_is_not_whole_waits_while_processes_may_be_at_work(fresh: ArchiveCarrying) -> None:
    """A message that is there is never changed: half of one would be all that there ever was of it."""
    cut = archive(NEW, "one")
    half = message(NEW, 1, "tw", time={"created": 1_700_000_000_001})
    fresh.hold({**cut, "messages": [*cut["messages"], half]}, there=True)
    await fresh.lock(NEW)
    await fresh.back(keep=True)
    assert fresh.texts(NEW) == ["one"]
    await fresh.back()
    assert fresh.texts(NEW) == ["one", "tw"], "what was cut off for good is there"


async def test_neither_side_is_lost(out: ArchiveCarrying) -> None:
    out.hold({**archive(SESSION), "messages": [message(SESSION, 2, "a person was here")]})
    out.hold({**archive(SESSION), "messages": [message(SESSION, 3, "said there")]}, there=True)
    told = await out.back()
    assert (told.sessions, told.session_error) == ({SESSION: out.kept()}, None)
    assert out.texts() == ["one", "two", "a person was here"]
    assert out.texts(out.kept()) == ["one", "two", "said there"]
    (out.run.path / "sessions-back.json").unlink()
    out.hold(archive(SESSION, "one", "two"), there=True)
    assert (await out.back()).session_error is None
    assert out.texts() == ["one", "two", "a person was here"]


async def test_what_the_place_has_removed_is_not_lost(out: ArchiveCarrying) -> None:
    out.hold({**archive(SESSION), "messages": [message(SESSION, 2, "three")]})
    told = await out.back()
    assert (told.sessions, told.session_error) == ({}, None)
    assert out.texts() == ["one", "two", "three"]


async def test_an_id_that_was_here_before_is_not_the_agents_to_choose(fresh: ArchiveCarrying) -> None:
    fresh.hold(archive(VICTIM, "mine"))
    fresh.hold(archive(VICTIM, "mine", "lies"), there=True)
    await fresh.lock(VICTIM)
    assert (await fresh.back()).sessions == {VICTIM: fresh.kept(VICTIM)}
    assert fresh.texts(VICTIM) == ["mine"]
    assert fresh.texts(fresh.kept(VICTIM)) == ["mine", "lies"]


def _lies() -> dict[str, dict[str, Any]]:
    """What a place answers that wants to write into another session, of which it knows all ids."""
    lie, victim = archive(NEW, "one"), message(VICTIM, 0, "written into another")
    one, its = lie["messages"][0], {**victim["info"], "sessionID": NEW}
    part = {**victim["parts"][0], "id": "prt_216898ddc0ffAAAAAAAAAAAAAA", "sessionID": NEW}
    messages = {
        "message": [victim],
        "part": [{**one, "parts": [part]}],
        "same id": [{"info": its, "parts": [{**part, "messageID": its["id"]}]}],
        "twice": [one, one],
        "no ids": [{"info": {"id": "../../x", "sessionID": NEW}, "parts": []}],
        "no parts": [{"info": one["info"], "parts": [7]}],
    }
    found = {kind: {**lie, "messages": each} for kind, each in messages.items()}
    return {"session": archive(VICTIM, "mine", "lies"), **found}


@pytest.mark.parametrize("kind", [kind for kind in _lies() if kind != "same id"])
def test_what_is_another_sessions_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=r"it (has|does not say)"):
        OpencodeArchives().archive(json.dumps(_lies()[kind]).encode(), NEW)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"info":[]}', b"\xff", b"[" * 200_000, b"[1," * 2_000_001])
def test_what_is_no_archive_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - what is wrong with it differs
        OpencodeArchives().archive(data, NEW)


@pytest.mark.parametrize("kind", but_first("same id", *(kind for kind in _lies() if kind != "same id")))
async def test_a_place_writes_into_no_other_session(fresh: ArchiveCarrying, kind: str) -> None:
    fresh.hold(archive(VICTIM, "mine"))
    before = fresh.held(VICTIM)
    said = fresh.workspace.parent / "said.json"
    said.write_text(json.dumps(_lies()[kind]))
    program = Path(fresh.there["PATH"].partition(":")[0], "opencode")
    works = program.read_text()
    program.write_text(works.replace("exec ", f'case "$OPENCODE_DB" in ?*) exec cat {said};; esac\nexec ', 1))
    await fresh.lock(NEW)
    told = await fresh.back()
    assert fresh.held(VICTIM) == before
    assert (told.session_error is None) == (kind == "same id")
    assert fresh.texts(NEW) == (["written into another"] if kind == "same id" else None)


async def test_what_would_act_by_itself_stays_there(fresh: ArchiveCarrying) -> None:
    """Rules of permission, and files that the model's service would be made to fetch."""
    rules = [{"permission": "*", "pattern": "*", "action": "allow"}]
    held = archive(NEW, "one", permission=rules, share={"url": "https://example.org"}, parentID=VICTIM)
    fetched = {**held["messages"][0]["parts"][0], "type": "file", "url": "http://169.254.169.254/"}
    image = {**fetched, "url": "data:image/png;base64,AA==", "text": "an image", "id": "prt_216898ddc001BBBBBBBBBBBBBB"}
    held["messages"][0]["parts"] += [{**fetched, "id": "prt_216898ddc001AAAAAAAAAAAAAA"}, image]
    fresh.hold(held, there=True)
    await fresh.lock(NEW)
    assert (await fresh.back()).session_error is None
    found = fresh.held(NEW)
    assert found
    assert not {"permission", "share", "parentID"} & set(found["info"])
    assert fresh.texts(NEW) == ["one", "an image"]


async def test_a_session_that_is_not_here_is_refused(tmp_path: Path) -> None:
    work = ArchiveCarrying(tmp_path)
    with pytest.raises(InvalidRequest, match=f"no conversation {SESSION} is kept by opencode on this host"):
        await work.out()
    work.request["session"] = "--help"[2:]
    with pytest.raises(InvalidRequest, match="no conversation help is kept by opencode on this host"):
        await work.out()
    assert work.leftovers() == []
    await work.close()


async def test_a_machine_whose_clock_is_behind_is_told_of(tmp_path: Path) -> None:
    """Opencode puts messages in order by time: what is said there would come before what it is about."""
    work = ArchiveCarrying(tmp_path)
    held = archive(SESSION, "one")
    held["messages"][0]["info"]["time"]["created"] = 32_503_680_000_000
    work.hold(held)
    with pytest.raises(WorkspaceError, match=r"the clock there is \d+ s behind the session's newest message"):
        await work.out()
    await work.close()


@pytest.mark.parametrize("said", but_first("0 10\nabc", "", "words\n", "0 99999999999\n", "x" * 2_000_000))
async def test_a_place_that_answers_nonsense(out: ArchiveCarrying, said: str) -> None:
    there = Path(out.there["HOME"], "sh")
    (there.parent / "answer").write_text(said)
    there.write_text(f"#!/bin/sh\ncat {there.parent / 'answer'}\n")
    there.chmod(0o755)
    out.machines[1] = ChildMachine(there.parent, {"PATH": f"{there.parent}:{os.environ['PATH']}"})
    assert (await out.back()).session_error
    assert out.texts() == ["one", "two"]


async def test_a_program_that_fails_says_why(out: ArchiveCarrying) -> None:
    Path(out.there["PATH"].partition(":")[0], "opencode").write_text("#!/bin/sh\necho the disk is full >&2\nexit 3\n")
    told = await out.back()
    assert told.session_error == "opencode could not write it out: the disk is full (exit code 3)"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
async def test_that_there_is_no_room_for_it_is_said(tmp_path: Path) -> None:
    """Out there, where the program cannot say it, and here, where it is taken in."""
    work = ArchiveCarrying(tmp_path)
    work.hold(archive(SESSION, "x" * 100_000))
    with small_disk(work.scratch):
        with pytest.raises(WorkspaceError, match=r"opencode could not write it out: .*No space left on device"):
            await work.out()
        assert list(work.scratch.iterdir()) == []
    await work.out()
    with small_disk(work.scratch):
        told = await work.back()
        assert "No space left on device" in str(told.session_error)
        assert list(work.scratch.iterdir()) == []
    await work.close()


@contextmanager
def small_disk(place: Path) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", place], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True)


async def test_a_place_without_the_program_is_left_to_who_starts_it(tmp_path: Path) -> None:
    """So that the run fails as one of an agent that is not installed, or goes on with the next agent."""
    work = ArchiveCarrying(tmp_path)
    work.hold(archive(SESSION, "one"))
    work.there = {**work.there, "PATH": os.environ["PATH"]}
    await work.out()
    told = await work.back()
    assert (told.sessions, told.session_error) == ({}, None)
    assert work.texts() == ["one"]
    await work.close()


async def test_a_place_that_is_lost_is_begun_with_what_was_backed_up(out: ArchiveCarrying, tmp_path: Path) -> None:
    out.hold({**archive(SESSION), "messages": [message(SESSION, 2, "three")]}, there=True)
    await out.sessions.back_up(out.run, tmp_path / "backup")
    for name in out.leftovers():
        next(Path(out.there["HOME"]).rglob(name)).unlink()
    await out.out(tmp_path / "backup")
    assert out.texts(there=True) == ["one", "two", "three"]
    await out.sessions.back_from(out.run, tmp_path / "backup")
    assert out.texts() == ["one", "two", "three"]


async def test_a_taking_in_that_was_killed_is_gone_on_with(out: ArchiveCarrying) -> None:
    """The message was there, its parts were not yet."""
    out.hold({**archive(SESSION), "messages": [message(SESSION, 2, "three")]}, there=True)
    await out.back(keep=True)
    with opencode_stand_in.opened(out.here) as connection:
        connection.execute("delete from part where data like '%three%'")
    (out.run.path / "sessions-back.json").unlink()
    assert (await out.back()).session_error is None
    assert out.texts() == ["one", "two", "three"]


async def test_no_session_is_left_in_the_directory_for_temporary_files(out: ArchiveCarrying) -> None:
    out.hold(archive(SESSION, "one", "two", "three"), there=True)
    assert (await out.back()).session_error is None
    assert list(out.scratch.iterdir()) == []


async def test_a_session_that_is_too_large_is_not_left_there_either(out: ArchiveCarrying) -> None:
    program = Path(out.there["PATH"].partition(":")[0], "opencode")
    program.write_text(f"#!/bin/sh\nhead -c {MAX_ARCHIVE + 1} /dev/zero\n")
    assert (await out.back()).session_error == "a session has more than 64 MiB"
    assert list(out.scratch.iterdir()) == []


async def test_a_program_that_hangs_is_ended(out: ArchiveCarrying, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carry_archives, "PATIENCE_S", carry_archives.CLEARING_S + 1)
    pid = out.scratch.parent / "pid"
    program = Path(out.there["PATH"].partition(":")[0], "opencode")
    program.write_text(f"#!/bin/sh\necho $$ >{pid}\nexec sleep 1000\n")
    error = (await out.back()).session_error
    assert error
    assert "opencode could not write it out: it was not through after 1 s" in error
    assert not lives(int(pid.read_text()))
    assert list(out.scratch.iterdir()) == []


async def test_what_a_killed_script_has_left_is_removed_a_day_later(out: ArchiveCarrying) -> None:
    now = time.time()
    for name, age_h in (("steersman-session-old", 49), ("steersman-session-new", 1), ("of-somebody", 49)):
        left = out.scratch / name
        left.mkdir()
        (left / "session").write_text("what was said")
        os.utime(left, (now - 3600 * age_h,) * 2)
    await out.back()
    assert sorted(path.name for path in out.scratch.iterdir()) == ["of-somebody", "steersman-session-new"]


async def test_a_fork_leaves_what_it_was_forked_from(tmp_path: Path) -> None:
    work = ArchiveCarrying(tmp_path)
    work.hold(archive(SESSION, "one"))
    work.request["fork_session"] = True
    await work.out()
    work.hold({**archive(SESSION), "messages": [message(SESSION, 1, "changed there")]}, there=True)
    work.hold(archive(NEW, "one", "forked"), there=True)
    await work.lock(NEW)
    assert (await work.back()).sessions == {}
    assert (work.texts(), work.texts(NEW)) == (["one"], ["one", "forked"])
    await work.close()


async def test_the_real_program_adds_what_is_new_and_changes_nothing(tmp_path: Path) -> None:
    """As the one that stands in for it here; and it writes out all of a session, which it does not do into a pipe."""
    path = f"{Path(program('opencode')).parent}{os.pathsep}{os.environ['PATH']}"
    archives, machine = OpencodeArchives(), ChildMachine(tmp_path, {"PATH": os.environ["PATH"]})
    place = ArchivePlace(machine, archives, archives.environment({"HOME": str(tmp_path / "home"), "PATH": path}))
    (tmp_path / "held").mkdir()
    model = {"providerID": "mock", "modelID": "mock-model"}
    for texts in (["one", "two"], ["changed", "two", "x" * 200_000]):
        said = [
            message(SESSION, number, text, role="user", agent="build", model=model) for number, text in enumerate(texts)
        ]
        await place.take_in(json.dumps({**archive(SESSION), "messages": said}).encode(), str(tmp_path / "held"))
    data = await place.written_out(SESSION)
    await machine.aclose()
    assert data
    assert len(archives.archive(data, SESSION).ids) == 3
    found = json.loads(data)
    assert found["info"]["directory"] == str(tmp_path / "held")
    assert [part["text"] for each in found["messages"] for part in each["parts"]] == ["one", "two", "x" * 200_000]
