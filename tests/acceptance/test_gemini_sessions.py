"""A session of the real Gemini CLI goes on wherever a run works: in the workspace, in a copy, on another machine."""

import asyncio
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steersman.client import Steersman
from steersman.contracts.errors import InvalidRequest
from steersman.errors import RunCancelled
from tests.acceptance.own_cluster import OwnCluster, settings
from tests.acceptance.site import Site, gone
from tests.acceptance.test_agents_elsewhere import wrappers
from tests.acceptance.test_changes import made
from tests.acceptance.test_isolated_sessions import UNKNOWN
from tests.acceptance.test_pod_backups import backed_up
from tests.acceptance.test_session_locks import logged_end, session_of
from tests.acceptance.test_ssh import THERE
from tests.acceptance.two_homes import TwoHomes, at_work
from tests.scripted_model import Hold, Request, Say, Script, ScriptedModel, Step, answer, hold, say, tool
from tests.support.files import below
from tests.support.kubernetes import background_server
from tests.support.kubernetes import missing as no_cluster
from tests.support.processes import until
from tests.support.sshd import missing as no_sshd
from tests.support.temporal import new_namespace

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]
PROMPT = "have somebody look"
NO_MODEL = "http://127.0.0.1:1"
SETTINGS = {"general": {"enableAutoUpdate": False}, "privacy": {"usageStatisticsEnabled": False}}


class Geminis(TwoHomes):
    """A worker that has Gemini CLI, and another machine that has it, too."""

    def __init__(self, site: Site) -> None:
        super().__init__(site, "gemini", GEMINI_API_KEY="dummy", GOOGLE_GEMINI_BASE_URL=NO_MODEL)
        for home in (self.here, self.there):
            (home / ".gemini").mkdir()
            (home / ".gemini" / "settings.json").write_text(json.dumps(SETTINGS))

    def request(self, script: Script, workspace: Path, **fields: Any) -> dict[str, Any]:
        return requested(script, workspace, **fields)

    def isolated(self, script: Script, workspace: Path, **fields: Any) -> dict[str, Any]:
        """The same, in a copy on this machine."""
        copy = {"path": str(workspace), "isolation": "copy"}
        return self.request(script, workspace, **fields) | {"workspace": copy}


def requested(script: Script, workspace: Path, **fields: Any) -> dict[str, Any]:
    """A request for Gemini CLI with that script as its model."""
    return {
        "agent": "gemini",
        "prompt": "go",
        "model": "gemini-2.5-flash",
        "workspace": {"path": str(workspace)},
        "permissions": {"mode": "full"},
        "env": {"GEMINI_API_KEY": {"from_env": "GEMINI_API_KEY"}, "GOOGLE_GEMINI_BASE_URL": script.url},
        **fields,
    }


def held(home: Path) -> list[str]:
    """The names of the files of conversations in this home in which something was said."""
    chats = [each for each in below(home / ".gemini" / "tmp") if each.suffix == ".jsonl"]
    return sorted(each.name for each in chats if '\n{"id":"' in each.read_text())


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """A directory below none that others can write to: Gemini CLI looks at that."""
    base = Path.home() / ".cache" / "steersman-tests"
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=base) as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def geminis(root: Path, dev_server: str) -> Iterator[Geminis]:
    """With a worker at work."""
    if reason := no_sshd():
        pytest.skip(reason)
    site = Site(root, asyncio.run(new_namespace(dev_server)))
    with at_work(Geminis(site)) as found:
        yield found


@pytest.fixture
async def steersman(geminis: Geminis) -> Steersman:
    return await geminis.site.steersman()


@pytest.fixture
def repository(geminis: Geminis) -> Path:
    return made(geminis.site.workspace())


async def test_it_begins_in_a_copy_and_goes_on_there_and_in_the_next_copy(
    geminis: Geminis, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    script = model.script("copy", say("the first word"))
    first = await steersman.run(geminis.isolated(script, repository))
    assert first.session_id
    assert first.finalize
    assert (first.finalize.sessions, first.finalize.session_error) == ({}, None)
    (name,) = held(geminis.here)
    assert name.endswith(f"-{first.session_id[:8]}.jsonl")
    for number, request in enumerate((geminis.request, geminis.isolated)):
        script = model.script(f"on-{number}", say(f"the next word {number}"))
        there = {"runtime": THERE} if number == 0 else {}
        result = await steersman.run(request(script, repository, session=first.session_id, **there))
        assert (result.text, result.session_id) == (f"the next word {number}", first.session_id)
        assert result.finalize
        assert (result.finalize.sessions, result.finalize.session_error) == ({}, None)
        assert script.requests[-1].saw("the first word")
        assert held(geminis.here) == [name]
    assert script.requests[-1].saw("the next word 0")
    assert not list((geminis.there / ".gemini" / "tmp").iterdir()), "nothing of it stays there"


@pytest.mark.exhaustive
async def test_it_begins_there_and_goes_on_here_and_there_again(
    geminis: Geminis, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    script = model.script("there", say("the first word"))
    session = (await steersman.run(geminis.request(script, repository, runtime=THERE))).session_id
    for number, fields in enumerate(({}, {"runtime": THERE})):
        script = model.script(f"on-{number}", say(f"the next word {number}"))
        result = await steersman.run(geminis.request(script, repository, session=session, **fields))
        assert (result.text, result.session_id) == (f"the next word {number}", session)
        assert script.requests[-1].saw("the first word")
    assert script.requests[-1].saw("the next word 0")


def delegated(request: Request) -> Step:
    """A turn that has a sub-agent look, and what that answers."""
    if not request.saw(PROMPT):
        report = {"SummaryOfFindings": "the secret word", "ExplorationTrace": [], "RelevantLocations": []}
        return tool("complete_task", report=report)
    if not request.saw("the secret word"):
        return tool("invoke_agent", agent_name="codebase_investigator", prompt="look around")
    return say("it has looked")


@pytest.mark.exhaustive
async def test_a_sub_agents_answer_is_all_that_there_is_of_it(
    geminis: Geminis, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    """So its conversation, a file of its own, is not carried: no call goes on with one."""
    script = model.script("there", delegated)
    first = await steersman.run(geminis.request(script, repository, runtime=THERE, prompt=PROMPT))
    assert first.text == "it has looked"
    (call,) = (
        each
        for tools in script.requests[0].body["tools"]
        for each in tools["functionDeclarations"]
        if each["name"] == "invoke_agent"
    )
    assert set(call["parametersJsonSchema"]["properties"]) == {"agent_name", "prompt", "wait_for_previous"}
    script = model.script("on", say("the next word"))
    await steersman.run(geminis.request(script, repository, session=first.session_id))
    assert script.requests[-1].saw("the secret word")


@pytest.mark.exhaustive
async def test_somebody_goes_on_with_it_here(
    geminis: Geminis, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    script = model.script("here", say("the first word"))
    session = (await steersman.run(geminis.request(script, repository))).session_id
    assert session
    script = model.script("there", answer(Hold(), Say("said there")))
    run = await steersman.start(geminis.request(script, repository, session=session, runtime=THERE))
    await script.wait_held()
    found = [each for each in below(geminis.here / ".gemini" / "tmp") if each.name in held(geminis.here)]
    (mine,) = (each for each in found if session[:8] in each.name)
    with mine.open("a") as file:
        file.write('{"id":"a person","timestamp":"2026-11-26T06:09:02.131Z","type":"info","content":"was here"}\n')
    said = mine.read_bytes()
    await script.release()
    result = await steersman.result(run)
    assert result.finalize
    assert result.finalize.sessions == {session: result.session_id}
    assert mine.read_bytes() == said
    for each, words in ((result.session_id, True), (session, False)):
        script = model.script(f"after-{words}", say("after"))
        after = await steersman.run(geminis.request(script, repository, session=each, runtime=THERE))
        assert after.session_id == each
        assert script.requests[-1].saw("the first word")
        assert script.requests[-1].saw("said there") == words


async def test_a_session_that_is_not_here_is_refused(
    geminis: Geminis, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    script = model.script("none")
    for request in (geminis.request(script, repository, runtime=THERE), geminis.isolated(script, repository)):
        with pytest.raises(InvalidRequest, match=f"no conversation {UNKNOWN} was held in this workspace"):
            await steersman.run({**request, "session": UNKNOWN})
    assert not script.requests


@pytest.mark.exhaustive
async def test_a_cancelled_run_leaves_its_session(
    geminis: Geminis, steersman: Steersman, model: ScriptedModel, repository: Path, mark: str
) -> None:
    script = model.script("killed", tool("run_shell_command", command=f"echo {mark}"), hold("thinking"))
    run = await steersman.start(geminis.request(script, repository, runtime=THERE))
    await script.wait_held()
    session = await session_of(steersman, run)
    await steersman.stop(run)
    with pytest.raises(RunCancelled):
        await steersman.result(run)
    script = model.script("after", say("after"))
    await steersman.run(geminis.isolated(script, repository, session=session))
    assert script.requests[-1].saw(mark)


@pytest.mark.exhaustive
async def test_a_terminated_run_leaves_its_session(
    geminis: Geminis, steersman: Steersman, model: ScriptedModel, repository: Path, mark: str
) -> None:
    script = model.script("terminated", tool("run_shell_command", command=f"echo {mark}"), hold("thinking"))
    run = await steersman.start(geminis.request(script, repository, runtime=THERE))
    await script.wait_held()
    session = await session_of(steersman, run)
    assert session
    await geminis.site.temporal("workflow", "terminate", "--workflow-id", run, "--reason", "away with it")
    await until(lambda: any(session[:8] in name for name in held(geminis.here)), 20)
    await logged_end(steersman, run)
    script = model.script("after", say("after"))
    assert (await steersman.run(geminis.request(script, repository, session=session, runtime=THERE))).text == "after"
    assert script.requests[-1].saw(mark)


@pytest.mark.exhaustive
async def test_its_pod_is_lost(site: Site, model: ScriptedModel, mark: str) -> None:
    """The next pod has the session as the last backup has it, and in the end it is here."""
    if reason := no_cluster():
        pytest.skip(reason)
    (site.root / "cluster").mkdir()
    with background_server(site.root / "cluster", settings()) as cluster:
        pods = OwnCluster(site, cluster)
        cluster.server.settings.programs |= wrappers(site.root / "bin")
        allowed = ("--allow-env", "GEMINI_API_KEY", "--allow-env", "GOOGLE_GEMINI_BASE_URL")
        key = {"GEMINI_API_KEY": "dummy", "GOOGLE_GEMINI_BASE_URL": NO_MODEL}
        try:
            await site.worker(*pods.flags, *allowed, KUBECONFIG=str(pods.config), **key).ready()
            steersman, repository = await site.steersman(), made(site.workspace())
            steps = (tool("run_shell_command", command=f"echo {mark} | tee step"), hold("thinking"), say("finished"))
            script = model.script("lost", *steps)
            run = await steersman.start(requested(script, repository, runtime=pods.runtime(backup_s=1)))
            await script.wait_held()
            await backed_up(pods)
            pods.lose()
            result = await asyncio.wait_for(steersman.result(run), 200)
            assert (result.status, result.text, result.attempts) == ("succeeded", "finished", 2)
            assert script.requests[-1].saw(mark)
            assert result.finalize
            assert (result.finalize.sessions, result.finalize.session_error) == ({}, None)
            script = model.script("after", say("after"))
            after = requested(script, repository, session=result.session_id, runtime=pods.runtime())
            assert (await steersman.run(after)).session_id == result.session_id
            assert script.requests[-1].saw(mark)
        finally:
            site.end()
        await gone(mark)
