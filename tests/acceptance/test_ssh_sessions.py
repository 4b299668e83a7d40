"""A session of the agent goes on wherever a run works: here, on another machine, and here again."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from activities.agents.claude.sessions import ClaudeSessions
from steersman.client import Steersman
from steersman.contracts.errors import InvalidRequest
from steersman.errors import RunCancelled
from tests.acceptance.site import gone
from tests.acceptance.test_changes import made
from tests.acceptance.test_isolated_sessions import FULL, UNKNOWN, conversation, held, inner, isolated
from tests.acceptance.test_resume import handle_of, written_down
from tests.acceptance.test_session_locks import session_of
from tests.acceptance.test_ssh import Elsewhere, elsewhere, repository, steersman, there
from tests.scripted_model import Hold, Say, ScriptedModel, Tool, answer, hold, say, tool
from tests.support.processes import until

__all__ = ["elsewhere", "repository", "steersman", "there"]

pytestmark = pytest.mark.acceptance

LARGE = Tool("Bash", {"command": "python3 -c \"print('y' * 300000)\""})


def conversation_there(place: Elsewhere, directory: str, session: str) -> Path:
    files = ClaudeSessions().files(session, Path(directory))
    assert files
    return place.home / ".claude" / files.conversation


def held_there(place: Elsewhere) -> list[Path]:
    return list((place.home / ".claude" / "projects").glob("*"))


@pytest.mark.exhaustive
async def test_there_and_back_and_there_again(
    there: Elsewhere, steersman: Steersman, repository: Path, model: ScriptedModel
) -> None:
    session = await held(there.site, steersman, model, repository, "the first word")
    before = conversation(there.site, repository, session).read_bytes()
    script = model.script("there", answer(Hold(), LARGE), say("the second word"))
    run = await steersman.start(there.claude(script, workspace=repository, session=session, **FULL))
    await script.wait_held()
    carried = (await steersman.state(run)).carried
    assert carried
    at_work = conversation_there(there, carried.directory, session)
    assert at_work.read_bytes().startswith(before)
    assert at_work.stat().st_mode & 0o777 == 0o600
    await script.release()
    result = await steersman.result(run)
    assert (result.text, result.session_id) == ("the second word", session)
    assert script.requests[-1].saw("the first word")
    assert conversation(there.site, repository, session).read_bytes().startswith(before)
    assert len(inner(there.site, repository, session)) == 2
    assert held_there(there) == []

    script = model.script("here", say("the third word"), say("forked"))
    await steersman.run(there.site.claude(script, workspace=repository, session=session, **FULL))
    assert script.requests[-1].saw("the second word")
    request = there.claude(script, workspace=repository, session=session, fork_session=True, **FULL)
    forked = await steersman.run(request)
    assert script.requests[-1].saw("the third word")
    assert forked.session_id
    assert forked.session_id != session
    assert held_there(there) == []
    script = model.script("isolated", say("the end"))
    await steersman.run(isolated(there.site, script, repository, session=forked.session_id))
    assert script.requests[-1].saw("forked")


@pytest.mark.exhaustive
async def test_claude_is_killed_and_then_cancelled_there(
    there: Elsewhere, steersman: Steersman, repository: Path, model: ScriptedModel, mark: str
) -> None:
    script = model.script("killed", tool("Bash", command=f"echo {mark}"), hold("thinking"), answer(Hold(), Say("x")))
    run = await steersman.start(there.claude(script, workspace=repository, mark=mark, **FULL))
    await script.wait_held()
    await until(lambda: written_down(there.site, '"tool_result"', mark))
    os.kill((await handle_of(steersman, run)).pid, signal.SIGKILL)
    await handle_of(steersman, run, 2)
    await script.wait_requests(3)
    session = await session_of(steersman, run)
    await steersman.stop(run)
    with pytest.raises(RunCancelled):
        await steersman.result(run)
    assert held_there(there) == []
    script = model.script("after", say("after"))
    await steersman.run(there.site.claude(script, workspace=repository, session=session, **FULL))
    assert script.requests[-1].saw(mark)


@pytest.mark.exhaustive
async def test_somebody_goes_on_with_it_here(
    there: Elsewhere, steersman: Steersman, repository: Path, model: ScriptedModel
) -> None:
    session = await held(there.site, steersman, model, repository, "the first word")
    script = model.script("there", answer(Hold(), Say("said there")))
    run = await steersman.start(there.claude(script, workspace=repository, session=session, **FULL))
    await script.wait_held()
    with conversation(there.site, repository, session).open("a") as file:
        file.write('{"type":"summary","summary":"a person was here","leafUuid":"x"}\n')
    await script.release()
    result = await steersman.result(run)
    assert result.finalize
    assert result.finalize.sessions == {session: result.session_id}
    script = model.script("after", say("after"))
    request = there.claude(script, workspace=repository, session=result.session_id, **FULL)
    assert (await steersman.run(request)).session_id == result.session_id
    assert script.requests[-1].saw("said there")


async def test_what_was_not_held_here_is_refused(
    there: Elsewhere, steersman: Steersman, repository: Path, model: ScriptedModel
) -> None:
    request: dict[str, Any] = there.claude(model.script("none"), workspace=repository, session=UNKNOWN, **FULL)
    with pytest.raises(InvalidRequest, match=f"session: no conversation {UNKNOWN} was held in this workspace"):
        await steersman.run(request)
    assert there.kept == []


@pytest.mark.exhaustive
async def test_a_machine_that_is_lost_brings_the_session_once_it_is_back(
    elsewhere: Elsewhere, model: ScriptedModel, mark: str
) -> None:
    await elsewhere.site.worker(*elsewhere.flags).ready()
    steersman = await elsewhere.site.steersman()
    repository = made(elsewhere.site.workspace())
    session = await held(elsewhere.site, steersman, model, repository, "the first word")
    script = model.script("lost", tool("Bash", command=f"echo {mark}"), hold("thinking"))
    request = elsewhere.claude(script, workspace=repository, session=session, mark=mark, **FULL)
    run = await steersman.start(request)
    await script.wait_held()
    await until(lambda: written_down(elsewhere.site, '"tool_result"', mark))
    elsewhere.sshd.stop()
    assert (await asyncio.wait_for(steersman.stop(run), 120)).outcome == "unverified"
    with pytest.raises(RunCancelled):
        await steersman.result(run)
    place = conversation(elsewhere.site, repository, session)
    assert mark not in place.read_text()
    elsewhere.sshd.start()
    await elsewhere.site.worker(*elsewhere.flags).ready()  # which sweeps
    await gone(mark, 60)
    await until(lambda: mark in place.read_text(), 30)
    await until(lambda: held_there(elsewhere) == [])
