"""What a request says of an overlap is what happens: the holder is ended, told or taken back; else it is refused."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from steersman.client import Steersman
from steersman.contracts.errors import InvalidRequest, WorkspaceError
from steersman.errors import RunCancelled
from tests.acceptance.loops import ended, process_loop, project, reaches, tick
from tests.acceptance.programs import OBEDIENT, python
from tests.acceptance.site import Site, phase
from tests.acceptance.test_changes import git
from tests.acceptance.test_workspace_holds import at_work, running
from tests.acceptance.test_workspace_loops import GATE
from tests.acceptance.test_workspace_queue import note, order, queued
from tests.scripted_model import ScriptedModel, hold, say
from tests.support.processes import marked, until

WRITES = "import pathlib; pathlib.Path('mine').write_text('theirs'); pathlib.Path('new').write_text('new');"


def overlapping(answer: str, request: dict[str, Any]) -> dict[str, Any]:
    return {**request, "workspace": {**request["workspace"], "on_overlap": answer}}


@pytest.fixture
def repository(shared: Site) -> Path:
    path = shared.workspace()
    git(path, "init", "-q")
    (path / "mine").write_text("mine")
    git(path, "add", ".")
    git(path, "commit", "-qm", "first")
    return path


@pytest.mark.exhaustive
async def test_interrupt_ends_the_holder_with_its_turn_and_goes_before_those_who_wait(
    shared: Site, steersman: Steersman, model: ScriptedModel
) -> None:
    script = model.script("ended", hold("thinking"))
    workspace = shared.workspace()
    holder = await running(steersman, shared.claude(script, workspace=workspace))
    await script.wait_held()
    waits = await queued(steersman, note(shared, workspace, "waits"))

    urgent = await steersman.start(overlapping("interrupt", note(shared, workspace, "urgent")))

    assert (await asyncio.wait_for(steersman.result(urgent), 20)).status == "succeeded"
    before = await steersman.result(holder)
    assert (before.status, before.stop_reason) == ("succeeded", "interrupted")
    (message,) = (await steersman.state(holder)).messages
    assert urgent in (message.reason or "")
    assert (await steersman.result(waits)).status == "succeeded"
    assert order(workspace) == ["begin urgent", "end urgent", "begin waits", "end waits"]


async def test_interrupt_cancels_what_cannot_be_interrupted_and_names_itself(
    shared: Site, steersman: Steersman, mark: str
) -> None:
    workspace = shared.workspace()
    holder = await running(steersman, at_work(shared, workspace, mark=mark))

    other = await steersman.start(overlapping("interrupt", shared.process("true", workspace=workspace)))
    assert (await asyncio.wait_for(steersman.result(other), 20)).status == "succeeded"

    assert not marked(mark)
    with pytest.raises(RunCancelled, match=other):
        await steersman.result(holder)


@pytest.mark.exhaustive
async def test_of_two_interrupts_the_later_one_has_it_in_the_end(shared: Site, steersman: Steersman) -> None:
    workspace = shared.workspace()
    runs = [await running(steersman, overlapping("interrupt", at_work(shared, workspace))) for _ in range(3)]
    for run in runs[:-1]:
        with pytest.raises(RunCancelled):
            await steersman.result(run)
    assert (await steersman.state(runs[-1])).phase == "running"
    await steersman.stop(runs[-1])


@pytest.mark.exhaustive
async def test_interrupt_ends_a_loop(shared: Site, steersman: Steersman) -> None:
    workspace = project(shared)
    (workspace / "ignored").mkdir()
    loop = await steersman.loops.start(process_loop(shared, GATE, workspace))
    await reaches(steersman, loop, lambda now: now.run)

    other = await steersman.start(overlapping("interrupt", shared.process("true", workspace=workspace)))
    assert (await asyncio.wait_for(steersman.result(other), 30)).status == "succeeded"

    result = await ended(steersman, loop)
    assert result.status == "exited"
    assert other in (result.reason or "")


@pytest.mark.exhaustive
async def test_steer_gives_the_prompt_to_the_holder_and_says_so(
    shared: Site, steersman: Steersman, model: ScriptedModel
) -> None:
    script = model.script("steered", hold("thinking"), say("heard"))
    workspace = shared.workspace()
    holder = await running(steersman, shared.claude(script, workspace=workspace))
    await script.wait_held()
    told = overlapping("steer", shared.claude(script, prompt="mind the tests", workspace=workspace))

    result = await asyncio.wait_for(steersman.run(told), 20)

    assert (result.status, result.stop_reason, result.attempts) == ("succeeded", "steered", 0)
    assert f"given to run {holder}" in result.text
    assert result.facts["steered"] == holder
    (message,) = (await steersman.state(holder)).messages
    assert message.text == "mind the tests"
    await script.release()
    assert (await steersman.result(holder)).text == "heard"
    alone = overlapping("steer", shared.process("cat", workspace=workspace, prompt="run me"))
    assert "run me" in (await steersman.run(alone)).text


async def test_steer_is_refused_by_name_where_the_holder_cannot_take_it(shared: Site, steersman: Steersman) -> None:
    workspace = shared.workspace()
    holder = await running(steersman, at_work(shared, workspace))
    told = overlapping("steer", shared.process("cat", workspace=workspace, prompt="go faster"))
    with pytest.raises(InvalidRequest, match=f'steer: run {holder} .*agent "process" cannot steer'):
        await steersman.run(told)
    with pytest.raises(InvalidRequest, match="prompt is required"):
        await steersman.run(overlapping("steer", shared.process("true", workspace=workspace)))
    await steersman.stop(holder)


@pytest.mark.exhaustive
async def test_steer_towards_several_holders_is_refused(shared: Site, steersman: Steersman) -> None:
    workspace = shared.workspace()
    for name in "ab":
        (workspace / name).mkdir()
    holders = [await running(steersman, at_work(shared, workspace / name)) for name in "ab"]
    with pytest.raises(InvalidRequest, match=f"run {holders[0]} has .*run {holders[1]}"):
        await steersman.run(overlapping("steer", shared.process("cat", workspace=workspace, prompt="go")))
    for run in holders:
        await steersman.stop(run)


@pytest.mark.exhaustive
async def test_steer_gives_feedback_to_a_loop(shared: Site, steersman: Steersman) -> None:
    workspace = project(shared)
    (workspace / "ignored").mkdir()
    loop = await steersman.loops.start(process_loop(shared, GATE + tick("one", "two"), workspace))
    await reaches(steersman, loop, lambda now: now.run)
    told = overlapping("steer", shared.process("cat", workspace=workspace, prompt="use the lexer"))

    result = await asyncio.wait_for(steersman.run(told), 20)

    assert (result.stop_reason, result.facts["steered"]) == ("steered", loop)
    assert [each.text for each in (await steersman.loops.state(loop)).feedback] == ["use the lexer"]
    (workspace / "ignored/gate").touch()
    await ended(steersman, loop)


@pytest.mark.exhaustive
async def test_rollback_stops_the_holder_and_takes_back_what_it_changed(
    shared: Site, steersman: Steersman, repository: Path
) -> None:
    writes = shared.process(*python(WRITES + OBEDIENT), workspace=repository)
    holder = await running(steersman, writes)
    await until((repository / "new").exists)
    look = shared.process("sh", "-c", "cat mine; ls", workspace=repository)

    result = await asyncio.wait_for(steersman.run(overlapping("rollback", look)), 40)

    assert result.text.split() == ["minemine"]
    with pytest.raises(RunCancelled):
        await steersman.result(holder)


async def test_a_rollback_in_whose_way_something_is_fails_by_name_and_loses_nothing(
    shared: Site, steersman: Steersman, repository: Path
) -> None:
    (repository / ".gitignore").write_text("*.log\n")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "ignore")
    instead = "import os, pathlib; os.unlink('mine'); os.mkdir('mine'); pathlib.Path('mine/x.log').write_text('kept');"
    program = instead + "pathlib.Path('new').write_text('new');" + OBEDIENT
    holder = await running(steersman, shared.process(*python(program), workspace=repository))
    await until((repository / "new").exists)

    with pytest.raises(WorkspaceError, match=f"rollback: run {holder} was stopped.* mine were left") as raised:
        await steersman.run(overlapping("rollback", shared.process("touch", "began", workspace=repository)))

    assert not (repository / "began").exists()
    assert not (repository / "new").exists()
    assert (repository / "mine/x.log").read_text() == "kept"
    ref = raised.value.message.rpartition(" ")[2]
    assert git(repository, "show", f"{ref}:new") == "new"
    assert (await steersman.run(shared.process("true", workspace=repository))).status == "succeeded"


async def test_rollback_is_refused_before_anything_is_done_where_nothing_was_kept(
    shared: Site, steersman: Steersman
) -> None:
    workspace = shared.workspace()
    holder = await running(steersman, at_work(shared, workspace))
    with pytest.raises(InvalidRequest, match=f"rollback: run {holder} .*nothing was kept"):
        await steersman.run(overlapping("rollback", shared.process("true", workspace=workspace)))
    assert (await steersman.state(holder)).phase == "running"
    await steersman.stop(holder)


async def test_rollback_leaves_a_loop_to_its_own_checkpoints(shared: Site, steersman: Steersman) -> None:
    workspace = project(shared)
    (workspace / "ignored").mkdir()
    loop = await steersman.loops.start(process_loop(shared, GATE + tick("one", "two"), workspace))
    await reaches(steersman, loop, lambda now: now.run)
    with pytest.raises(InvalidRequest, match=f"rollback: loop {loop} .*steer loop rollback"):
        await steersman.run(overlapping("rollback", shared.process("true", workspace=workspace)))
    (workspace / "ignored/gate").touch()
    assert (await ended(steersman, loop)).status == "completed"


@pytest.mark.exhaustive
async def test_a_worker_killed_in_the_midst_of_an_interrupt_loses_nothing(site: Site) -> None:
    first = site.worker()
    await first.ready()
    steersman = await site.steersman()
    workspace = site.workspace()
    holder = await running(steersman, at_work(site, workspace))
    other = await steersman.start(overlapping("interrupt", note(site, workspace, "other")))
    first.kill()
    await site.worker().ready()

    assert (await asyncio.wait_for(steersman.result(other), 40)).status == "succeeded"
    assert order(workspace) == ["begin other", "end other"]
    with pytest.raises(RunCancelled):
        await steersman.result(holder)
    await phase(steersman, other, "closed")


@pytest.mark.exhaustive
async def test_a_worker_killed_in_the_midst_of_a_rollback_takes_all_of_it_back(site: Site) -> None:
    first = site.worker()
    await first.ready()
    steersman = await site.steersman()
    path = site.workspace()
    git(path, "init", "-q")
    (path / "mine").write_text("mine")
    git(path, "add", ".")
    git(path, "commit", "-qm", "first")
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    holder = await running(steersman, site.process(*python(WRITES + stubborn + OBEDIENT), workspace=path))
    await until((path / "new").exists)
    look = site.process("sh", "-c", "cat mine; ls", workspace=path)
    other = await steersman.start(overlapping("rollback", look))
    await until(lambda: any(f'"run": "{holder}"' in text.partition("takes_back")[2] for text in holds(site)))

    first.kill()
    await site.worker().ready()

    assert (await asyncio.wait_for(steersman.result(other), 60)).text.split() == ["minemine"]
    with pytest.raises(RunCancelled):
        await steersman.result(holder)


def holds(site: Site) -> list[str]:
    """The files of all holds."""
    return [each.read_text() for each in (site.state / "holds").glob("*.json")]


@pytest.mark.exhaustive
async def test_a_rollback_that_is_cancelled_leaves_the_workspace_free(shared: Site, steersman: Steersman) -> None:
    path = shared.workspace()
    git(path, "init", "-q")
    git(path, "commit", "-qm", "first", "--allow-empty")
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    request = shared.process(*python(stubborn + OBEDIENT), workspace=path, stop={"kill_after_s": 4})
    holder = await running(steersman, request)
    other = await steersman.start(overlapping("rollback", shared.process("true", workspace=path)))
    await phase(steersman, holder, "stopping")

    await steersman.stop(other)

    with pytest.raises(RunCancelled):
        await steersman.result(other)
    with pytest.raises(RunCancelled):
        await steersman.result(holder)
    assert (await steersman.run(shared.process("true", workspace=path))).status == "succeeded"
