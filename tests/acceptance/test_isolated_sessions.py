"""A session of the agent goes on wherever a run works: in the workspace, in a copy of it, in the next copy."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from activities.agents.claude.sessions import ClaudeSessions
from steersman.client import Steersman
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.run import RunResult
from steersman.errors import RunCancelled
from tests.acceptance.site import Site, phase
from tests.acceptance.test_changes import made
from tests.acceptance.test_resume import handle_of, written_down
from tests.acceptance.test_session_locks import locked, session_of
from tests.scripted_model import Hold, Say, Script, ScriptedModel, Tool, answer, hold, say, tool
from tests.support.processes import until

pytestmark = pytest.mark.acceptance

FULL: dict[str, Any] = {"permissions": {"mode": "full"}}
LARGE_CALL = Tool("Bash", {"command": "python3 -c \"print('y' * 300000)\""})
LARGE = answer(LARGE_CALL)
"""Its result is a file of the session's own."""
UNKNOWN = "0b2c9e54-3c35-4d2f-9e3d-2f6f7f0f7c11"


@pytest.fixture
def repository(shared: Site) -> Path:
    return made(shared.workspace())


def isolated(site: Site, script: Script, path: Path, **fields: Any) -> dict[str, Any]:
    request = site.claude(script, workspace=path, **{**FULL, **fields})
    return {**request, "workspace": {**request["workspace"], "isolation": "copy"}}


def conversation(site: Site, directory: Path | str, session: str) -> Path:
    files = ClaudeSessions().files(session, Path(directory))
    assert files
    return site.root / "claude" / files.conversation


def inner(site: Site, directory: Path | str, session: str) -> list[str]:
    folder = conversation(site, directory, session).with_suffix("")
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())


async def copied(steersman: Steersman, run: str) -> str:
    await phase(steersman, run, "running")
    carried = (await steersman.state(run)).carried
    assert carried
    return carried.directory


async def held(site: Site, steersman: Steersman, model: ScriptedModel, path: Path, word: str) -> str:
    """A session that was held in the workspace itself, and in which this was said."""
    script = model.script(f"held-{word.replace(' ', '-')}", LARGE, say(word))
    result = await steersman.run(site.claude(script, workspace=path, **FULL))
    assert result.session_id
    return result.session_id


@pytest.mark.exhaustive
async def test_from_the_workspace_into_a_copy_and_back_and_into_the_next(
    shared: Site, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    session = await held(shared, steersman, model, repository, "the first word")
    place = conversation(shared, repository, session)
    before = place.read_bytes()

    script = model.script("copy", answer(Hold(), LARGE_CALL), say("the second word"))
    run = await steersman.start(isolated(shared, script, repository, session=session))
    await script.wait_held()
    copy = await copied(steersman, run)
    assert script.requests[-1].saw("the first word")
    assert conversation(shared, copy, session).read_bytes().startswith(before)
    assert conversation(shared, copy, session).stat().st_mode & 0o777 == 0o600
    assert place.read_bytes() == before, "it is the copy's alone meanwhile"
    await script.release()
    result = await steersman.result(run)
    assert (result.text, result.session_id) == ("the second word", session)
    assert result.finalize
    assert (result.finalize.sessions, result.finalize.session_error) == ({}, None)
    assert place.read_bytes().startswith(before)
    assert (place.stat().st_mode & 0o777, len(inner(shared, repository, session))) == (0o600, 2)
    assert not conversation(shared, copy, session).parent.exists(), "nothing of it stays with the copy"

    script = model.script("workspace", say("the third word"))
    result = await steersman.run(shared.claude(script, workspace=repository, session=session, **FULL))
    assert script.requests[-1].saw("the second word")
    script = model.script("another-copy", say("the fourth word"))
    result = await steersman.run(isolated(shared, script, repository, session=session))
    assert script.requests[-1].saw("the second word")
    assert script.requests[-1].saw("the third word")
    assert (result.text, result.session_id) == ("the fourth word", session)


@pytest.mark.exhaustive
async def test_a_session_that_began_in_a_copy(
    shared: Site, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    script = model.script("begun", LARGE, say("the first word"))
    result = await steersman.run(isolated(shared, script, repository))
    assert result.session_id
    assert len(inner(shared, repository, result.session_id)) == 1
    for request in (shared.claude, isolated):
        script = model.script(f"on-{request.__name__}", say("more"))
        if request is isolated:
            asked = isolated(shared, script, repository, session=result.session_id)
        else:
            asked = shared.claude(script, workspace=repository, session=result.session_id, **FULL)
        assert (await steersman.run(asked)).session_id == result.session_id
        assert script.requests[-1].saw("the first word")


@pytest.mark.exhaustive
async def test_a_session_is_forked_in_a_copy(
    shared: Site, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    session = await held(shared, steersman, model, repository, "the first word")
    before = conversation(shared, repository, session).read_bytes()
    script = model.script("fork", say("forked"))
    result = await steersman.run(isolated(shared, script, repository, session=session, fork_session=True))
    assert script.requests[-1].saw("the first word")
    assert result.session_id
    assert result.session_id != session
    assert conversation(shared, repository, session).read_bytes() == before
    assert not list((shared.root / "claude" / "projects").glob(f"*copy*/{session}.jsonl"))
    script = model.script("after", say("after"))
    await steersman.run(shared.claude(script, workspace=repository, session=result.session_id, **FULL))
    assert script.requests[-1].saw("forked")


async def test_claude_is_killed_in_a_copy(
    shared: Site, steersman: Steersman, model: ScriptedModel, repository: Path, mark: str
) -> None:
    session = await held(shared, steersman, model, repository, "the first word")
    script = model.script("killed", tool("Bash", command=f"echo {mark}"), hold("thinking"), say("finished"))
    run = await steersman.start(isolated(shared, script, repository, session=session, mark=mark))
    await script.wait_held()
    await until(lambda: written_down(shared, '"tool_result"', mark))
    first = await handle_of(steersman, run)
    os.kill(first.pid, signal.SIGKILL)
    result = await steersman.result(run)
    assert (result.text, result.attempts, result.session_id) == ("finished", 2, session)
    assert script.requests[-1].saw("the first word")
    assert script.requests[-1].saw(mark)
    assert mark in conversation(shared, repository, session).read_text()


@pytest.mark.exhaustive
async def test_a_cancelled_run_leaves_its_session(
    shared: Site, steersman: Steersman, model: ScriptedModel, repository: Path, mark: str
) -> None:
    script = model.script("cancelled", tool("Bash", command=f"echo {mark}"), hold("thinking"))
    run = await steersman.start(isolated(shared, script, repository, mark=mark))
    await script.wait_held()
    await until(lambda: written_down(shared, '"tool_result"', mark))
    session = await session_of(steersman, run)
    await steersman.stop(run)
    with pytest.raises(RunCancelled):
        await steersman.result(run)
    script = model.script("after", say("after"))
    await steersman.run(shared.claude(script, workspace=repository, session=session, **FULL))
    assert script.requests[-1].saw(mark)


async def diverged(
    site: Site, steersman: Steersman, model: ScriptedModel, path: Path, meanwhile: Callable[[str], Awaitable[None]]
) -> tuple[str, RunResult]:
    """A session, and the result of a run that went on with it in a copy while something else did so here."""
    session = await held(site, steersman, model, path, "the first word")
    script = model.script("copy", answer(Hold(), Say("said in the copy")))
    run = await steersman.start(isolated(site, script, path, session=session))
    await script.wait_held()
    await meanwhile(session)
    await script.release()
    return session, await steersman.result(run)


@pytest.mark.exhaustive
async def test_somebody_goes_on_with_the_session_meanwhile(
    shared: Site, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    async def goes_on(session: str) -> None:
        with conversation(shared, repository, session).open("a") as file:
            file.write('{"type":"summary","summary":"a person was here","leafUuid":"x"}\n')

    session, result = await diverged(shared, steersman, model, repository, goes_on)
    assert result.finalize
    kept = result.finalize.sessions[session]
    assert (result.session_id, result.finalize.session_error) == (kept, None)
    assert kept != session
    assert conversation(shared, repository, session).read_text().endswith('"leafUuid":"x"}\n')
    assert "said in the copy" not in conversation(shared, repository, session).read_text()
    assert len(inner(shared, repository, kept)) == 1
    script = model.script("after", say("after"))
    after = await steersman.run(shared.claude(script, workspace=repository, session=kept, **FULL))
    assert after.session_id == kept
    assert script.requests[-1].saw("the first word")
    assert script.requests[-1].saw("said in the copy")


@pytest.mark.exhaustive
async def test_a_session_that_was_deleted_meanwhile_comes_back(
    shared: Site, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    async def deletes(session: str) -> None:
        conversation(shared, repository, session).unlink()

    session, result = await diverged(shared, steersman, model, repository, deletes)
    assert result.session_id == session
    assert "said in the copy" in conversation(shared, repository, session).read_text()


@pytest.mark.exhaustive
async def test_a_session_that_claude_began_unasked(
    shared: Site, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    script = model.script("cleared", answer(Hold(), Say("the first word")))
    run = await steersman.start(isolated(shared, script, repository))
    await script.wait_held()
    first = await session_of(steersman, run)
    await steersman.steer(run, "/clear")
    await script.release()
    result = await steersman.result(run)
    assert result.finalize
    assert list(result.finalize.sessions.values()) == [result.session_id]
    for session, words in ((first, True), (result.session_id, False)):
        script = model.script(f"after-{session}", say("after"))
        after = await steersman.run(shared.claude(script, workspace=repository, session=session, **FULL))
        assert after.session_id == session
        assert script.requests[-1].saw("the first word") == words


@pytest.mark.exhaustive
async def test_two_runs_in_copies_cannot_have_one_session(
    shared: Site, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    script = model.script("busy", hold("thinking"))
    first = await steersman.start(isolated(shared, script, repository))
    session = await session_of(steersman, first)
    await locked(shared, session)
    with pytest.raises(InvalidRequest, match=f"no conversation {session} was held in this workspace"):
        await steersman.run(isolated(shared, script, repository, session=session))
    await script.release()
    await steersman.result(first)
    held_again = model.script("busy-again", hold("thinking"))
    second = await steersman.start(isolated(shared, held_again, repository, session=session))
    await held_again.wait_held()
    third = isolated(shared, script, repository, session=session)
    with pytest.raises(InvalidRequest, match=second):
        await steersman.run(third)
    with pytest.raises(InvalidRequest, match=second):
        await steersman.run(shared.claude(script, workspace=repository, session=session, **FULL))
    script = model.script("fork-of-it", say("forked"))
    assert (await steersman.run(isolated(shared, script, repository, session=session, fork_session=True))).text
    await held_again.release()
    assert (await steersman.result(second)).session_id == session


@pytest.mark.exhaustive
@pytest.mark.parametrize("elsewhere", [True, False])
async def test_a_session_that_is_not_here_is_refused(
    shared: Site, steersman: Steersman, model: ScriptedModel, repository: Path, *, elsewhere: bool
) -> None:
    script = model.script("none")
    session = await held(shared, steersman, model, made(shared.workspace()), "elsewhere") if elsewhere else UNKNOWN
    run = await steersman.start(isolated(shared, script, repository, session=session))
    with pytest.raises(InvalidRequest, match=f"session: no conversation {session} was held in this workspace"):
        await steersman.result(run)
    assert (await steersman.state(run)).carried is None, "nothing was copied for it"
    assert not script.requests


@pytest.mark.exhaustive
async def test_where_less_than_everything_is_allowed(site: Site, model: ScriptedModel) -> None:
    """Such a worker takes a session of its own workspace alone, also one that was held in a copy of it."""
    await site.worker("--max-permission", "accept_edits").ready()
    steersman = await site.steersman()
    path, other = made(site.workspace()), made(site.workspace())
    script = model.script("begun", say("the first word"))
    session = (await steersman.run(isolated(site, script, path, permissions={"mode": "read_only"}))).session_id
    assert session
    script = model.script("on", say("more"), say("and more"))
    reads: dict[str, Any] = {"session": session, "permissions": {"mode": "read_only"}}
    await steersman.run(site.claude(script, workspace=path, **reads))
    await steersman.run(isolated(site, script, path, **reads))
    assert script.requests[-1].saw("the first word")
    with pytest.raises(InvalidRequest, match="was held in this workspace"):
        await steersman.run(site.claude(script, workspace=other, **reads))
    with pytest.raises(InvalidRequest, match="was held in this workspace"):
        await steersman.run(isolated(site, script, other, **reads))


@pytest.mark.exhaustive
async def test_a_terminated_run_leaves_its_session(
    shared: Site, steersman: Steersman, model: ScriptedModel, repository: Path, mark: str
) -> None:
    script = model.script("terminated", tool("Bash", command=f"echo {mark}"), hold("thinking"))
    run = await steersman.start(isolated(shared, script, repository, mark=mark))
    await script.wait_held()
    await until(lambda: written_down(shared, '"tool_result"', mark))
    session = await session_of(steersman, run)
    await shared.temporal("workflow", "terminate", "--workflow-id", run, "--reason", "away with it")
    place = conversation(shared, repository, session)
    await until(lambda: place.exists() and mark in place.read_text(), 20)


@pytest.mark.exhaustive
async def test_a_link_in_the_way_loses_nothing(
    shared: Site, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    """The agent has put a link where its conversation is to come: it is left where it is, and the run says so."""
    elsewhere = shared.root / f"elsewhere-{repository.name}"
    script = model.script("hostile", answer(Hold(), Say("said in the copy")))
    run = await steersman.start(isolated(shared, script, repository))
    await script.wait_held()
    session = await session_of(steersman, run)
    copy = await copied(steersman, run)
    place = conversation(shared, repository, session)
    place.parent.symlink_to(elsewhere)
    elsewhere.mkdir()
    await script.release()
    result = await steersman.result(run)
    assert result.finalize
    assert (result.status, result.finalize.status) == ("succeeded", "none")
    assert "is a link" in (result.finalize.session_error or "")
    assert not list(elsewhere.iterdir())
    assert "said in the copy" in conversation(shared, copy, session).read_text()


@pytest.mark.exhaustive
@pytest.mark.parametrize("when", ["running", "carrying_back"])
async def test_a_worker_is_killed(site: Site, model: ScriptedModel, when: str, tmp_path: Path) -> None:
    """Its git is slow, so that it is killed beside it, with the sessions back or not."""
    slow = tmp_path / "bin"
    slow.mkdir()
    (slow / "git").write_text(f'#!/bin/sh\n[ -e {tmp_path}/slow ] && sleep 0.3\nexec /usr/bin/git "$@"\n')
    (slow / "git").chmod(0o755)
    environment = {"PATH": f"{slow}:{os.environ['PATH']}"}
    worker = site.worker(**environment)
    await worker.ready()
    steersman = await site.steersman()
    path = made(site.workspace())
    session = await held(site, steersman, model, path, "the first word")
    script = model.script("copy", answer(Hold(), Say("said in the copy")))
    run = await steersman.start(isolated(site, script, path, session=session))
    await script.wait_held()
    if when == "carrying_back":
        (tmp_path / "slow").touch()
        await script.release()
        await phase(steersman, run, when)
        await asyncio.sleep(0.5)  # somewhere in the middle
    worker.kill()
    (tmp_path / "slow").unlink(missing_ok=True)
    await site.worker(**environment).ready()
    if when == "running":
        await script.release()
    result = await asyncio.wait_for(steersman.result(run), 60)
    assert (result.status, result.session_id) == ("succeeded", session)
    assert result.finalize
    assert (result.finalize.sessions, result.finalize.session_error) == ({}, None)
    assert conversation(site, path, session).read_text().count('"said in the copy"') >= 1
    assert not list((site.root / "claude" / "projects").glob("*copy*"))
    script = model.script("after", say("after"))
    await steersman.run(site.claude(script, workspace=path, session=session, **FULL))
    assert script.requests[-1].saw("said in the copy")
