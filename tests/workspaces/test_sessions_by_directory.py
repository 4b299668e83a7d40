"""Sessions that an agent keeps in directories that it has named itself, and whose every line may say whose they are:
those of Gemini CLI. See test_sessions.
"""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from activities.agents.gemini.sessions import GeminiSessions, Records
from activities.store.held_sessions import held_in
from activities.workspaces.carry.sessions import MAX_LINES
from steersman.contracts.errors import InvalidRequest
from tests.shim.conftest import oldest_python
from tests.support.files import below
from tests.support.parameters import but_first
from tests.workspaces.session_carrying import SESSION, GeminiCarrying, begun_chat, chat, said_chat

pytestmark = pytest.mark.integration
NEW = "01a215b2-e0e6-47a1-a141-a1b05fe358af"
VICTIM = "01a215b2-e0e6-47a1-a141-a1b05fe358bb"
FIRST = begun_chat(SESSION) + said_chat(SESSION)
MORE = said_chat(SESSION, "more")
EMPTY = begun_chat(SESSION)
"""What a process leaves beside a conversation with which it goes on."""


@pytest.fixture
async def work(tmp_path: Path) -> AsyncIterator[GeminiCarrying]:
    made = GeminiCarrying(tmp_path)
    mark(made.here, "work", made.workspace)
    yield made
    await made.close()


@pytest.fixture
async def out(work: GeminiCarrying) -> GeminiCarrying:
    """A session that was carried out."""
    work.hold(work.ours(), FIRST)
    await work.out()
    work.started()
    return work


@pytest.fixture
async def fresh(tmp_path: Path) -> AsyncIterator[GeminiCarrying]:
    """A run that was given no session, and whose agent is at work."""
    made = GeminiCarrying(tmp_path, session=None)
    mark(made.here, "work", made.workspace)
    await made.out()
    made.started()
    mark(made.there, "copy", made.copy)
    yield made
    await made.close()


def mark(home: Path, name: str, directory: Path, root: str = "tmp") -> None:
    """As Gemini CLI does where it names a directory."""
    place = home / ".gemini" / root / name
    place.mkdir(parents=True, exist_ok=True)
    (place / ".project_root").write_text(str(directory))


def record(home: Path, **names: Path) -> None:
    """The names that Gemini CLI remembers."""
    home.joinpath(".gemini").mkdir(exist_ok=True)
    projects = {str(directory): name for name, directory in names.items()}
    (home / ".gemini" / "projects.json").write_text(json.dumps({"projects": projects}))


def kept(work: GeminiCarrying, session: str) -> str:
    return GeminiSessions().kept(work.run.agent_key, session)


def files(home: Path) -> dict[str, bytes]:
    return {str(path.relative_to(home)): path.read_bytes() for path in below(home) if path.is_file()}


def chats(home: Path) -> dict[str, bytes]:
    """The conversations below a home, by their files' names."""
    return {path.name: path.read_bytes() for path in below(home) if path.is_file() and path.parent.name == "chats"}


async def test_it_goes_out_grows_and_comes_back(out: GeminiCarrying) -> None:
    """Also with what each process leaves beside it, and the agent's own record of the copy."""
    await _goes_out_grows_and_comes_back(out)


async def test_the_oldest_python_of_a_place(tmp_path: Path) -> None:
    if (python := oldest_python()) is None:
        pytest.skip("no Python 3.9 on this machine")
    work = GeminiCarrying(tmp_path, python=python)
    mark(work.here, "work", work.workspace)
    work.hold(work.ours(), FIRST)
    await work.out()
    work.started()
    await _goes_out_grows_and_comes_back(work)
    await work.close()


async def _goes_out_grows_and_comes_back(out: GeminiCarrying) -> None:
    root = out.there / ".gemini" / "tmp" / "copy" / ".project_root"
    assert files(out.there) == {
        str(out.theirs().relative_to(out.there)): FIRST,
        str(root.relative_to(out.there)): str(out.copy).encode(),
    }
    assert out.theirs().stat().st_mode & 0o777 == 0o600
    out.hold(out.theirs(), FIRST + MORE)
    out.hold(chat(out.there, "copy", SESSION, "2026-11-27T00-00"), EMPTY + EMPTY)
    out.hold(chat(out.there, "copy", NEW, "2026-11-27T00-00"), begun_chat(NEW))
    mark(out.there, "copy", out.copy, "history")
    record(out.there, copy=out.copy)
    told = await out.back()
    assert (told.sessions, told.session_error) == ({}, None)
    assert chats(out.here) == {out.ours().name: FIRST + MORE}
    assert list(files(out.there)) == [".gemini/projects.json"], "nothing else stays there"
    assert await out.back() == told, "twice is once"


async def test_a_session_that_the_run_began_is_the_workspaces(fresh: GeminiCarrying) -> None:
    begun = begun_chat(NEW) + said_chat(NEW)
    fresh.hold(chat(fresh.there, "copy", NEW), begun)
    fresh.hold(chat(fresh.there, "copy", NEW, "2026-11-26T02-33"), begun_chat(NEW))
    other = chat(fresh.there, "copy", VICTIM, "2026-11-26T02-40")
    fresh.hold(other, begun_chat(VICTIM) + said_chat(VICTIM))  # of which the agent has told nobody
    await fresh.lock(NEW)
    await fresh.back(keep=True)
    fresh.hold(chat(fresh.there, "copy", NEW), begun + said_chat(NEW, "more"))
    told = await fresh.back()
    assert (told.sessions, told.session_error) == ({}, None)
    assert chats(fresh.here) == {chat(fresh.here, "work", NEW).name: begun + said_chat(NEW, "more")}
    assert held_in(fresh.store.state, "gemini", NEW) == fresh.workspace
    assert chats(fresh.there) == {other.name: other.read_bytes()}


async def test_a_workspace_in_which_gemini_was_never_used_gets_a_name_that_no_other_has(
    fresh: GeminiCarrying, tmp_path: Path
) -> None:
    """Names of others are marked as theirs, or in the record alone."""
    mark(fresh.here, "work", tmp_path / "other")
    mark(fresh.here, "work-1", tmp_path / "third", "history")
    record(fresh.here, **{"work-2": tmp_path / "fourth"})
    fresh.hold(chat(fresh.there, "copy", NEW), begun_chat(NEW) + said_chat(NEW))
    await fresh.lock(NEW)
    assert (await fresh.back()).session_error is None
    place = chat(fresh.here, "work-3", NEW)
    assert place.exists()
    assert place.parent.with_name(".project_root").read_text() == str(fresh.workspace)


async def test_the_record_goes_before_marks_unless_the_mark_is_anothers(work: GeminiCarrying, tmp_path: Path) -> None:
    record(work.here, older=work.workspace)
    mark(work.here, "older", work.workspace)
    work.hold(chat(work.here, "older", SESSION), FIRST)
    await work.out()
    assert work.theirs().read_bytes() == FIRST
    mark(work.here, "older", tmp_path / "other")
    with pytest.raises(InvalidRequest, match=f"no conversation {SESSION} was held in this workspace"):
        await work.out()


async def test_a_session_of_another_workspace_is_refused(work: GeminiCarrying, tmp_path: Path) -> None:
    mark(work.here, "other", tmp_path / "other")
    work.hold(chat(work.here, "other", SESSION), FIRST)
    with pytest.raises(InvalidRequest, match=f"no conversation {SESSION} was held in this workspace"):
        await work.out()
    work.hold(work.ours(), EMPTY)
    with pytest.raises(InvalidRequest, match=f"no conversation {SESSION} was held in this workspace"):
        await work.out()
    assert not work.there.exists()


async def test_a_link_in_the_place_of_all_sessions_is_named(work: GeminiCarrying) -> None:
    """As somebody has it who keeps them on another disk: no link is followed, and nobody is told that there is none."""
    work.hold(work.ours(), FIRST)
    place = work.here / ".gemini" / "tmp"
    place.rename(work.here / "elsewhere")
    place.symlink_to(work.here / "elsewhere")
    with pytest.raises(InvalidRequest, match=r"tmp below .* is a link"):
        await work.out()


async def test_neither_side_is_lost(out: GeminiCarrying) -> None:
    """Each record of the run's has the id under which it is kept."""
    mine = FIRST + said_chat(SESSION, "a person was here")
    out.hold(out.ours(), mine)
    out.hold(out.theirs(), FIRST + MORE)
    told = await out.back()
    assert (told.sessions, told.session_error) == ({SESSION: out.kept}, None)
    run = (FIRST + MORE).replace(SESSION.encode(), out.kept.encode())
    name = f"session-2000-01-01T00-00-{out.kept[:8]}.jsonl"
    assert chats(out.here) == {out.ours().name: mine, name: run}
    assert await out.back() == told


async def test_what_is_cut_off_in_a_line_is_no_part_of_it(out: GeminiCarrying) -> None:
    """A process that is killed leaves such a line, with which anything else could begin."""
    out.hold(out.theirs(), FIRST + MORE + begun_chat(VICTIM)[:100])
    assert (await out.back()).session_error is None
    assert out.ours().read_bytes() == FIRST + MORE


def _says(text: str) -> bytes:
    return f"{text}\n".encode()


LIES: dict[str, bytes] = {
    "a record": _says(f'{{"$set":{{"sessionId":"{VICTIM}"}}}}'),
    "a header": begun_chat(VICTIM),
    "an escape": _says(f'{{"$set":{{"session\\u0049d":"{VICTIM}"}}}}'),
    "an escaped value": _says(f'{{"$set":{{"sessionId":"\\u0030{VICTIM[1:]}"}}}}'),
    "twice": _says(f'{{"sessionId":"{SESSION}","sessionId":"{VICTIM}","projectHash":"x"}}'),
    "no id": _says('{"$set":{"sessionId":null}}'),
    "a line within a line": _says(f'{{"id":"1","x":"\u2028{{"$set":{{"sessionId":"{VICTIM}"}}}}'),
    "another line within a line": _says(f'x\r{{"sessionId":"{VICTIM}","projectHash":"x"}}\rx'),
    "deep": _says(f'{{"x":{"[" * 100_000}{"]" * 100_000},"$set":{{"sessionId":"{VICTIM}"}}}}'),
    "a long number": _says(f'{{"x":{"1" * 10_000},"$set":{{"sessionId":"{VICTIM}"}}}}'),
    "no text": b'{"x":"\xff","$set":{"sessionId":"' + VICTIM.encode() + b'"}}\n',
}


@pytest.mark.parametrize("lie", LIES)
def test_a_record_that_says_another_id_is_refused(lie: str) -> None:
    with pytest.raises(ValueError, match="it says"):
        [Records().renamed(line, SESSION, SESSION, is_first=False) for line in LIES[lie].splitlines(keepends=True)]


def test_the_first_record_says_whose_it_is() -> None:
    with pytest.raises(ValueError, match="does not say that it is of session"):
        Records().renamed(MORE, SESSION, SESSION, is_first=True)


@pytest.mark.parametrize("lie", but_first(*LIES))
async def test_a_place_writes_into_no_other_session(out: GeminiCarrying, lie: str) -> None:
    """For Gemini CLI the last id that a file says is the session's, and the newest file that of a session."""
    victim = chat(out.here, "work", VICTIM, "2026-11-26T02-35")
    out.hold(victim, begun_chat(VICTIM) + said_chat(VICTIM))
    before = chats(out.here)
    out.hold(out.theirs(), FIRST + MORE + LIES[lie] + MORE)
    told = await out.back()
    assert told.session_error
    assert "it says" in told.session_error
    assert chats(out.here) == before
    assert out.theirs().exists(), "it stays where it is"


async def test_a_place_that_says_it_has_another_session_of_the_workspace(fresh: GeminiCarrying) -> None:
    mine = begun_chat(VICTIM) + said_chat(VICTIM)
    fresh.hold(chat(fresh.here, "work", VICTIM), mine)
    fresh.hold(chat(fresh.there, "copy", VICTIM), mine + said_chat(VICTIM, "lies"))
    await fresh.lock(VICTIM)
    assert (await fresh.back()).sessions == {VICTIM: kept(fresh, VICTIM)}
    assert chat(fresh.here, "work", VICTIM).read_bytes() == mine


def text(line: str, **fields: object) -> str:
    return json.dumps({"id": line, **fields})


@pytest.mark.parametrize(
    "line",
    [
        text("1", content=[{"text": f'"sessionId":"{VICTIM}"'}]),
        text("2", toolCalls=[{"args": {"sessionId": VICTIM}}]),
        text("3", content=[{"text": "\\u0049 \\\\"}]),
        '{"id":"4","content":"\u2028 of sessionId \u2028"}',
        '{"id":"5","content":"sessionId',
        "sessionId",
        "",
    ],
)
def test_what_a_conversation_is_about_is_no_matter(line: str) -> None:
    data = _says(line)
    assert Records().renamed(data, SESSION, NEW, is_first=False) == data


@pytest.mark.parametrize("hostile", but_first("several", "link", "directory", "mark"))
async def test_what_the_agent_put_in_the_way_there_loses_nothing(out: GeminiCarrying, hostile: str) -> None:
    elsewhere = out.there.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_bytes(FIRST + MORE)
    place, project = out.theirs(), out.theirs().parents[1]
    if hostile == "several":
        out.hold(chat(out.there, "copy", SESSION, "2026-11-27T00-00"), FIRST + MORE)
    elif hostile == "link":
        place.unlink()
        place.symlink_to(elsewhere / "file")
    elif hostile == "directory":
        place.parent.rename(project / "away")
        place.parent.symlink_to(elsewhere)
    else:
        (project / ".project_root").write_text(str(elsewhere))
    told = await out.back()
    assert (told.session_error is not None) == (hostile == "several")
    assert chats(out.here) == {out.ours().name: FIRST}
    assert (elsewhere / "file").read_bytes() == FIRST + MORE


async def test_a_conversation_that_is_too_long_to_be_looked_at_stays_there(out: GeminiCarrying) -> None:
    out.hold(out.theirs(), FIRST + MORE)
    with out.theirs().open("r+b") as file:
        file.truncate(MAX_LINES + 1)
    told = await out.back()
    assert "has more than 128 MiB" in (told.session_error or "")
    assert out.ours().read_bytes() == FIRST


@pytest.mark.exhaustive
async def test_a_conversation_of_many_lines(out: GeminiCarrying) -> None:
    many = FIRST + 100_000 * (MORE + _says(text("9", content=[{"text": "x" * 200}])))
    out.hold(out.theirs(), many)
    assert (await out.back()).session_error is None
    assert out.ours().read_bytes() == many


@pytest.mark.parametrize("has", but_first(EMPTY, FIRST[:60], FIRST))
async def test_a_writer_that_was_killed_is_gone_on_from(out: GeminiCarrying, has: bytes) -> None:
    """On both ways: what is there is no conversation yet, perhaps."""
    out.theirs().write_bytes(has)
    await out.out()
    assert out.theirs().read_bytes() == FIRST
    out.hold(out.theirs(), FIRST + MORE)
    out.ours().unlink()
    begun = chat(out.here, "work", SESSION, "2000-01-01T00-00")
    begun.write_bytes(has)
    assert (await out.back()).session_error is None
    assert chats(out.here) == {begun.name: FIRST + MORE}


NAMES: dict[str, Callable[[Path], Path]] = {
    "my-app-2": lambda root: root / "My App_2",
    "a-b": lambda root: root / "--A..b--",
    "project": lambda root: root / "日本",
}


@pytest.mark.parametrize("name", NAMES)
async def test_it_is_named_as_gemini_does(fresh: GeminiCarrying, name: str, tmp_path: Path) -> None:
    directory = NAMES[name](tmp_path)
    found = GeminiSessions().files(SESSION, directory)
    assert found
    assert found.chosen
    assert found.chosen.name == name
