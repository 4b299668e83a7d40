"""Threads of Codex's sub-agents, which are files of their own: carried with the thread that began them, and back.

Which one is whose is said by both of them, and either may lie. See test_sessions_by_id.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from activities.agents.codex.sessions import SpawnedThreads
from activities.workspaces.carry import session_names
from activities.workspaces.carry.session_names import MAX_SUBAGENTS
from tests.shim.conftest import oldest_python
from tests.support.files import below
from tests.workspaces.session_carrying import SESSION, CodexCarrying, rollout, thread

pytestmark = pytest.mark.integration
NEW = "01a215b2-e0e6-77a1-a141-a1b05fe358af"
CHILD = "01a21fc7-1f3f-70d1-8de2-5d37a2038409"
OTHER = "01a21fcc-63e6-7b93-beb3-03c6eeea559c"
VICTIM = "01a21fcc-6736-74a3-a291-c015825314c1"
MORE = b'{"type":"response_item"}\n'


def spawned(session: str, parent: str, more: bytes = b"") -> bytes:
    """The beginning of a sub-agent's thread, as Codex writes it."""
    return thread(session, more=f'"parent_thread_id":"{parent}",') + more


def calls(*children: str) -> bytes:
    """What a thread has of sub-agents that it has begun: one the item of a call, the next the call's result."""
    lines = []
    for number, each in enumerate(children):
        item = f'{{"type":"CollabAgentToolCall","tool":"spawn_agent","receiver_thread_ids":["{each}"]}}'
        result = json.dumps({"output": json.dumps({"agent_id": each, "nickname": "Hobbes"}, separators=(",", ":"))})
        lines.append(result if number % 2 else f'{{"type":"event_msg","payload":{{"item":{item}}}}}')
    return "".join(f"{line}\n" for line in lines).encode()


def nth(number: int) -> str:
    return f"01a21fcc-0000-7000-8000-{number:012}"


def held(home: Path) -> dict[str, bytes]:
    """What is in a home, by the ids of threads."""
    return {path.stem[-36:]: path.read_bytes() for path in below(home) if path.suffix == ".jsonl"}


@pytest.fixture
async def work(tmp_path: Path) -> AsyncIterator[CodexCarrying]:
    """A thread with one of a sub-agent's."""
    made = CodexCarrying(tmp_path)
    made.hold(made.ours(), thread(SESSION) + calls(CHILD))
    made.hold(rollout(made.here, CHILD), spawned(CHILD, SESSION))
    yield made
    await made.close()


@pytest.fixture
async def fresh(tmp_path: Path) -> AsyncIterator[CodexCarrying]:
    """A run that was given no session, and whose agent is at work."""
    made = CodexCarrying(tmp_path, session=None)
    await made.out()
    made.started()
    await made.lock(NEW)
    yield made
    await made.close()


async def test_they_go_along_and_come_back(work: CodexCarrying) -> None:
    await work.out()
    work.started()
    assert held(work.there) == held(work.here)
    work.hold(rollout(work.there, CHILD), spawned(CHILD, SESSION) + calls(VICTIM) + MORE)
    work.hold(rollout(work.there, VICTIM), spawned(VICTIM, CHILD))
    work.hold(work.theirs(), thread(SESSION) + calls(CHILD, OTHER))
    work.hold(rollout(work.there, OTHER), spawned(OTHER, SESSION))
    there = held(work.there)
    await work.back(keep=True)
    assert held(work.here) == there
    told = await work.back()
    assert (told.sessions, told.session_error) == ({}, None)
    assert held(work.here) == there
    assert held(work.there) == {}
    assert not list(below(work.there / "sessions" / "2026" / "11" / "26")), "no mark stays there"


async def test_the_oldest_python_of_a_place(tmp_path: Path) -> None:
    if (python := oldest_python()) is None:
        pytest.skip("no Python 3.9 on this machine")
    work = CodexCarrying(tmp_path, python=python)
    work.hold(work.ours(), thread(SESSION) + calls(CHILD))
    work.hold(rollout(work.here, CHILD), spawned(CHILD, SESSION))
    await work.out()
    work.started()
    work.hold(work.theirs(), thread(SESSION) + calls(CHILD, OTHER))
    work.hold(rollout(work.there, OTHER), spawned(OTHER, SESSION))
    assert (await work.back()).session_error is None
    assert (set(held(work.here)), held(work.there)) == ({SESSION, CHILD, OTHER}, {})
    await work.close()


async def test_those_of_a_thread_that_the_run_began_come_back(fresh: CodexCarrying) -> None:
    fresh.hold(rollout(fresh.there, NEW), thread(NEW) + calls(CHILD))
    fresh.hold(rollout(fresh.there, CHILD), spawned(CHILD, NEW))
    there = held(fresh.there)
    told = await fresh.back()
    assert (told.sessions, told.session_error) == ({}, None)
    assert (held(fresh.here), held(fresh.there)) == (there, {})


async def test_one_that_is_not_its_sub_agents_does_not_go_along(work: CodexCarrying) -> None:
    """A machine that the thread was at before may have named it."""
    work.hold(work.ours(), thread(SESSION) + calls(CHILD, VICTIM, OTHER, SESSION))
    work.hold(rollout(work.here, VICTIM), thread(VICTIM))
    work.hold(rollout(work.here, OTHER), spawned(OTHER, VICTIM))
    await work.out()
    assert set(held(work.there)) == {SESSION, CHILD}


async def test_those_that_say_that_they_are_each_others_do_no_harm(work: CodexCarrying) -> None:
    work.hold(work.ours(), spawned(SESSION, CHILD) + calls(CHILD, SESSION))
    work.hold(rollout(work.here, CHILD), spawned(CHILD, SESSION) + calls(SESSION, CHILD, OTHER))
    work.hold(rollout(work.here, OTHER), spawned(OTHER, CHILD) + calls(CHILD))
    here = held(work.here)
    await work.out()
    work.started()
    assert held(work.there) == here
    assert (await work.back()).session_error is None
    assert held(work.here) == here


@pytest.mark.parametrize("parent", [NEW, VICTIM, OTHER])
async def test_a_place_writes_into_none_that_is_here(fresh: CodexCarrying, parent: str) -> None:
    """And of what it has itself, what is none of the run's stays there."""
    fresh.hold(rollout(fresh.here, VICTIM), thread(VICTIM))
    fresh.hold(rollout(fresh.there, NEW), thread(NEW) + calls(VICTIM))
    lie = spawned(VICTIM, parent, MORE)
    fresh.hold(rollout(fresh.there, VICTIM), lie)
    told = await fresh.back()
    kept = fresh.agent.sessions.kept(fresh.run.agent_key, VICTIM) if fresh.agent.sessions else ""
    found = held(fresh.here)
    assert found.pop(VICTIM) == thread(VICTIM)
    assert found.pop(NEW) == thread(NEW) + calls(VICTIM)
    if parent == NEW:
        assert told.sessions == {VICTIM: kept}
        assert found.pop(kept).startswith(spawned(kept, NEW).splitlines()[0])
    else:
        assert told.sessions == {}
        assert held(fresh.there) == {VICTIM: lie}
    assert not found


async def test_one_is_of_the_thread_that_is_kept_under_another_id(work: CodexCarrying) -> None:
    """Else it would go along with neither."""
    await work.out()
    work.started()
    mine = thread(SESSION) + calls(CHILD) + b"mine\n"
    work.ours().write_bytes(mine)
    work.hold(work.theirs(), thread(SESSION) + calls(CHILD, OTHER))
    work.hold(rollout(work.there, OTHER), spawned(OTHER, SESSION))
    told = await work.back()
    assert (told.sessions, told.session_error) == ({SESSION: work.kept}, None)
    assert work.ours().read_bytes() == mine
    line = held(work.here)[OTHER].splitlines()[0]
    assert SpawnedThreads().parent(line, OTHER) == work.kept


async def test_where_somebody_has_gone_on_with_one_both_are_kept(work: CodexCarrying) -> None:
    await work.out()
    work.started()
    work.hold(rollout(work.here, CHILD), spawned(CHILD, SESSION, b"mine\n"))
    work.hold(rollout(work.there, CHILD), spawned(CHILD, SESSION, MORE))
    assert work.agent.sessions
    kept = work.agent.sessions.kept(work.run.agent_key, CHILD)
    assert (await work.back()).sessions == {CHILD: kept}
    assert held(work.here)[CHILD] == spawned(CHILD, SESSION, b"mine\n")
    assert held(work.here)[kept].endswith(MORE)


async def test_what_a_place_had_before_stays_there(work: CodexCarrying) -> None:
    """Somebody has the thread there, too, with a sub-agent of which nobody knows here."""
    work.hold(work.theirs(), thread(SESSION) + calls(CHILD, OTHER))
    work.hold(rollout(work.there, OTHER), spawned(OTHER, SESSION))
    there = held(work.there)
    await work.out()
    work.started()
    assert (await work.back()).session_error is None
    assert held(work.there) == there
    assert set(held(work.here)) == {SESSION, CHILD, OTHER}


async def test_of_many_the_newest_go_along(work: CodexCarrying) -> None:
    children = [nth(number) for number in range(MAX_SUBAGENTS + 2)]
    work.hold(work.ours(), thread(SESSION) + calls(CHILD, *children))
    for each in children:
        work.hold(rollout(work.here, each), spawned(each, SESSION))
    await work.out()
    assert set(held(work.there)) == {SESSION, *children[2:]}


async def test_of_too_many_the_newest_come_back_and_it_is_told(fresh: CodexCarrying) -> None:
    children = [nth(number) for number in range(MAX_SUBAGENTS + 2)]
    fresh.hold(rollout(fresh.there, NEW), thread(NEW) + calls(*children))
    for each in children:
        fresh.hold(rollout(fresh.there, each), spawned(each, NEW))
    told = await fresh.back()
    assert told.session_error == session_names.too_many(NEW)
    assert set(held(fresh.here)) == {NEW, *children[2:]}
    assert set(held(fresh.there)) == {NEW, *children}, "all of it is there"


async def test_those_that_are_nowhere_any_more_are_not_in_the_way(work: CodexCarrying) -> None:
    """As of a thread that was elsewhere before they were carried."""
    lost = [nth(number) for number in range(MAX_SUBAGENTS + 2)]
    work.hold(work.ours(), thread(SESSION) + calls(CHILD, *lost))
    await work.out()
    work.started()
    work.hold(work.theirs(), thread(SESSION) + calls(CHILD, *lost, OTHER))
    work.hold(rollout(work.there, OTHER), spawned(OTHER, SESSION))
    assert (await work.back()).session_error is None
    assert set(held(work.here)) == {SESSION, CHILD, OTHER}
    assert held(work.there) == {}


async def test_of_large_ones_the_newest_go_along(work: CodexCarrying, monkeypatch: pytest.MonkeyPatch) -> None:
    work.hold(work.ours(), thread(SESSION) + calls(CHILD, OTHER))
    work.hold(rollout(work.here, OTHER), spawned(OTHER, SESSION, MORE * 1000))
    monkeypatch.setattr(session_names, "MAX_SUBAGENT_BYTES", len(MORE) * 1010 + 300)
    await work.out()
    assert set(held(work.there)) == {SESSION, OTHER}


async def test_a_backup_has_them(work: CodexCarrying, tmp_path: Path) -> None:
    await work.out()
    work.started()
    work.hold(work.theirs(), thread(SESSION) + calls(CHILD, OTHER))
    work.hold(rollout(work.there, CHILD), spawned(CHILD, SESSION, MORE))
    work.hold(rollout(work.there, OTHER), spawned(OTHER, SESSION))
    there = held(work.there)
    await work.sessions.back_up(work.run, tmp_path / "backup")
    for path in list(below(work.there)):
        if path.is_file():
            path.unlink()
    await work.out(tmp_path / "backup")
    assert held(work.there) == there
    await work.sessions.back_from(work.run, tmp_path / "backup")
    assert held(work.here) == there
    assert (await work.back()).session_error is None


@pytest.mark.parametrize(
    "line", [b"", b"{}", b"[" * 100_000, thread(OTHER), thread(CHILD, more=f'"parent_thread_id":"{SESSION}",' * 2)]
)
def test_a_first_line_that_is_none_of_its_own_is_nobodys(line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - what is wrong with it differs
        SpawnedThreads().parent(line.partition(b"\n")[0], CHILD)
