"""Sessions of opencode's sub-agents go along with the session whose they are, and come back. See test_session_archives.

Which one is whose is said by both of them, and either may lie.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from activities.run_archives import MAX_ALONG
from activities.workspaces.carry import archives
from activities.workspaces.carry.session_program import MAX_SESSIONS
from steersman.contracts.run import Finalize
from tests.workspaces.test_session_archives import NEW, SESSION, VICTIM, ArchiveCarrying, archive, message

pytestmark = pytest.mark.integration
CHILD = "ses_de0417327ffeCFxaUAkMf3I772"
OTHER = "ses_de0415269ffeSax65s7eSxvB9c"


def task(session: str, number: int, child: str, **more: Any) -> dict[str, Any]:
    """A message in which the agent has called a sub-agent, whose session is this one."""
    made = message(session, number, f"called {number}")
    (part,) = made["parts"]
    result = f'<task id="{child}" state="completed">\n<task_result>\nI looked\n</task_result>\n</task>'
    state = {"status": "completed", "output": result, "metadata": {"parentSessionId": session, "sessionId": child}}
    part |= {"type": "tool", "tool": "task", "state": {**state, **more}}
    return made


def calling(session: str, *children: str, first: int = 0) -> dict[str, Any]:
    """A session whose messages call these sub-agents, one each."""
    tasks = [task(session, first + number, child) for number, child in enumerate(children)]
    return {**archive(session), "messages": tasks}


def nth(number: int) -> str:
    return f"ses_de0417327ffeCFxaUA{number:08}"


@pytest.fixture
async def work(tmp_path: Path) -> AsyncIterator[ArchiveCarrying]:
    """A session with one of a sub-agent's."""
    made = ArchiveCarrying(tmp_path)
    made.hold(calling(SESSION, CHILD))
    made.hold(archive(CHILD, "look", "I looked", parentID=SESSION))
    yield made
    await made.close()


@pytest.fixture
async def fresh(tmp_path: Path) -> AsyncIterator[ArchiveCarrying]:
    """A run that was given no session."""
    made = ArchiveCarrying(tmp_path, session=None)
    await made.out()
    await made.lock(NEW)
    yield made
    await made.close()


def held_by(work: ArchiveCarrying, session: str, *, there: bool = False) -> Any:
    found = work.held(session, there=there)
    return found["info"].get("parentID") if found else None


async def back(work: ArchiveCarrying) -> Finalize:
    told = await work.back()
    (work.run.path / "sessions-back.json").unlink()
    return told


async def test_they_go_along_and_come_back(work: ArchiveCarrying) -> None:
    await work.out()
    assert work.texts(CHILD, there=True) == ["look", "I looked"]
    assert held_by(work, CHILD, there=True) == SESSION
    work.hold({**archive(CHILD), "messages": [message(CHILD, 2, "look again")]}, there=True)
    work.hold(calling(SESSION, CHILD, OTHER, first=1), there=True)
    rules = [{"permission": "task", "pattern": "*", "action": "deny"}, {"permission": "*", "action": "allow"}]
    work.hold(archive(OTHER, "another", parentID=SESSION, permission=rules), there=True)
    told = await work.back()
    assert (told.sessions, told.session_error) == ({}, None)
    assert work.texts(CHILD) == ["look", "I looked", "look again"]
    assert (work.texts(OTHER), held_by(work, OTHER)) == (["another"], SESSION)
    found = work.held(OTHER)
    assert found
    assert found["info"]["permission"] == rules[:1], "what it must not do, and nothing that it may"
    assert work.leftovers() == []


async def test_what_the_run_has_not_gone_on_with_is_not_asked_for(work: ArchiveCarrying) -> None:
    await work.out()
    work.hold({**archive(CHILD), "messages": [message(CHILD, 2, "look again")]}, there=True)
    assert (await work.back()).session_error is None
    assert work.texts(CHILD) == ["look", "I looked"]


async def test_one_that_ended_with_an_error_is_named_there(fresh: ArchiveCarrying) -> None:
    failed = task(NEW, 0, CHILD, metadata={}, error=f"Subagent failed (task_id: {CHILD}): it was too much")
    told = message(NEW, 1, f'<task id="{OTHER}" state="completed">', role="user")
    told["parts"][0]["synthetic"] = True
    fresh.hold({**archive(NEW), "messages": [failed, told]}, there=True)
    for each in (CHILD, OTHER):
        fresh.hold(archive(each, "look", parentID=NEW), there=True)
    await fresh.back()
    assert (fresh.texts(CHILD), fresh.texts(OTHER)) == (["look"], ["look"])


async def test_those_of_their_own_go_with_them(work: ArchiveCarrying) -> None:
    """And a session that says that it is its own sub-agent's, or one's of those, harms nobody."""
    work.hold(calling(CHILD, OTHER, SESSION, CHILD, first=2))
    work.hold({**archive(OTHER, "deeper", parentID=CHILD)})
    await work.out()
    assert work.texts(OTHER, there=True) == ["deeper"]
    work.hold(calling(SESSION, CHILD, first=1), there=True)
    work.hold(calling(OTHER, SESSION, OTHER, CHILD, first=1), there=True)
    assert (await work.back()).session_error is None
    assert (held_by(work, SESSION), held_by(work, CHILD), held_by(work, OTHER)) == (None, SESSION, CHILD)


async def test_one_that_is_not_its_sub_agents_does_not_go_along(work: ArchiveCarrying) -> None:
    """A machine that the session was at before may have named it."""
    work.hold(archive(VICTIM, "mine"))
    work.hold(archive(OTHER, "another's", parentID=VICTIM))
    work.hold(calling(SESSION, VICTIM, OTHER, first=1))
    await work.out()
    assert (work.texts(VICTIM, there=True), work.texts(OTHER, there=True)) == (None, None)


@pytest.mark.parametrize("parent", [NEW, VICTIM, None])
async def test_a_place_writes_into_none_that_is_here(fresh: ArchiveCarrying, parent: str | None) -> None:
    fresh.hold(archive(VICTIM, "mine"))
    before = fresh.held(VICTIM)
    fresh.hold(calling(NEW, VICTIM), there=True)
    fresh.hold(archive(VICTIM, "mine", "lies", parentID=parent), there=True)
    told = await fresh.back()
    assert fresh.held(VICTIM) == before
    kept = fresh.kept(VICTIM)
    assert told.sessions == ({VICTIM: kept} if parent == NEW else {})
    assert fresh.texts(kept) == (["mine", "lies"] if parent == NEW else None)


async def test_where_somebody_has_gone_on_with_one_both_are_kept(work: ArchiveCarrying) -> None:
    await work.out()
    work.hold({**archive(CHILD), "messages": [message(CHILD, 2, "a person was here")]})
    work.hold({**archive(CHILD), "messages": [message(CHILD, 3, "said there")]}, there=True)
    work.hold(calling(SESSION, CHILD, first=1), there=True)
    kept = work.kept(CHILD)
    for _ in range(2):  # twice is once
        assert (await back(work)).sessions == {CHILD: kept}
        work.hold(calling(SESSION, CHILD, CHILD), there=True)
        work.hold(archive(CHILD, "look", "I looked", parentID=SESSION), there=True)
        work.hold({**archive(CHILD), "messages": [message(CHILD, 3, "said there")]}, there=True)
    assert work.texts(CHILD) == ["look", "I looked", "a person was here"]
    assert (work.texts(kept), held_by(work, kept)) == (["look", "I looked", "said there"], SESSION)
    found = work.held()
    assert found
    states = [each["parts"][0]["state"] for each in found["messages"]]
    assert [each["metadata"]["sessionId"] for each in states] == [CHILD, kept]
    assert f'<task id="{kept}"' in states[1]["output"], "what the model reads names the one that has what was said"


async def test_of_many_the_newest_go_along(work: ArchiveCarrying) -> None:
    children = [nth(number) for number in range(MAX_ALONG + 2)]
    work.hold(calling(SESSION, *children, first=1))
    for each in children:
        work.hold(archive(each, "look", parentID=SESSION))
    await work.out()
    came = [each for each in (CHILD, *children) if work.texts(each, there=True)]
    assert came == children[2:]


async def test_of_too_many_the_newest_come_back_and_it_is_told(fresh: ArchiveCarrying) -> None:
    children = [nth(number) for number in range(MAX_SESSIONS + 1)]
    fresh.hold(calling(NEW, *children), there=True)
    for each in children[:3]:
        fresh.hold(archive(each, "look", parentID=NEW), there=True)
    told = await fresh.back()
    assert told.session_error == f"session {NEW} has more than {MAX_SESSIONS} of sub-agents: the newest are carried"
    assert [fresh.texts(each) for each in children[:3]] == [None, ["look"], ["look"]]
    texts = fresh.held(NEW)
    assert texts
    assert len(texts["messages"]) == len(children), "the session itself is here"
    assert fresh.leftovers(), "and what was left is there"


async def test_one_that_is_none_or_too_large_is_told_of(
    fresh: ArchiveCarrying, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh.hold(calling(NEW, CHILD), there=True)
    fresh.hold({**archive(CHILD, parentID=NEW), "messages": [message(CHILD, 0, "x" * 10_000)]}, there=True)
    monkeypatch.setattr(archives, "MAX_ARCHIVE", 9000)
    told = await back(fresh)
    assert told.session_error
    assert told.session_error.startswith(f"session {CHILD} of a sub-agent: a session has more than ")
    assert (fresh.texts(CHILD), fresh.texts(NEW)) == (None, ["called 0"])


async def test_a_backup_has_them(work: ArchiveCarrying, tmp_path: Path) -> None:
    await work.out()
    work.hold({**archive(CHILD), "messages": [message(CHILD, 2, "look again")]}, there=True)
    work.hold(calling(SESSION, CHILD, OTHER, first=1), there=True)
    work.hold(archive(OTHER, "another", parentID=SESSION), there=True)
    await work.sessions.back_up(work.run, tmp_path / "backup")
    for name in work.leftovers():
        next(Path(work.there["HOME"]).rglob(name)).unlink()
    await work.out(tmp_path / "backup")
    assert work.texts(CHILD, there=True) == ["look", "I looked", "look again"]
    assert work.texts(OTHER, there=True) == ["another"]
    await work.sessions.back_from(work.run, tmp_path / "backup")
    assert (work.texts(CHILD), work.texts(OTHER)) == (["look", "I looked", "look again"], ["another"])
    assert held_by(work, OTHER) == SESSION


async def test_a_fork_goes_on_with_those_of_what_it_was_forked_from(work: ArchiveCarrying) -> None:
    """As opencode has it on one machine: a fork names the same ones."""
    work.request["fork_session"] = True
    await work.out()
    work.hold(calling(NEW, CHILD, CHILD, OTHER), there=True)
    work.hold({**archive(CHILD), "messages": [message(CHILD, 2, "look again")]}, there=True)
    work.hold(archive(OTHER, "another", parentID=NEW), there=True)
    await work.lock(NEW)
    assert (await work.back()).sessions == {}
    assert work.texts(CHILD) == ["look", "I looked", "look again"]
    assert (held_by(work, CHILD), held_by(work, OTHER)) == (SESSION, NEW)
