"""A session of the real Codex goes on wherever a run works: in the workspace, in a copy, on another machine."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from steersman.client import Steersman
from steersman.contracts.errors import InvalidRequest
from steersman.errors import RunCancelled
from tests.acceptance.own_cluster import OwnCluster
from tests.acceptance.site import Site, gone
from tests.acceptance.test_changes import made
from tests.acceptance.test_isolated_sessions import UNKNOWN
from tests.acceptance.test_pod_backups import backed_up
from tests.acceptance.test_session_locks import logged_end, session_of
from tests.acceptance.test_ssh import THERE
from tests.acceptance.two_homes import TwoHomes, at_work
from tests.scripted_model import Hold, Request, Say, Script, ScriptedModel, Step, Tool, answer, hold, say, tool
from tests.support.files import below
from tests.support.kubernetes import Settings, background_server
from tests.support.kubernetes import missing as no_cluster
from tests.support.processes import until
from tests.support.programs import program
from tests.support.sshd import missing as no_sshd
from tests.support.temporal import new_namespace

pytestmark = pytest.mark.acceptance
PROMPT = "have somebody look"
NO_MODEL = "http://127.0.0.1:1/v1"


class Codexes(TwoHomes):
    """A worker that has Codex, and another machine that has it, too."""

    def __init__(self, site: Site) -> None:
        super().__init__(site, "codex", OPENAI_API_KEY="sk-test", OPENAI_BASE_URL=NO_MODEL)

    def request(self, script: Script, workspace: Path, **fields: Any) -> dict[str, Any]:
        return requested(script, workspace, **fields)

    def isolated(self, script: Script, workspace: Path, **fields: Any) -> dict[str, Any]:
        return self.request(script, workspace, **fields) | {
            "workspace": {"path": str(workspace), "isolation": "copy"},
        }


def requested(script: Script, workspace: Path, **fields: Any) -> dict[str, Any]:
    """A request for Codex with that script as its model."""
    key = {"OPENAI_API_KEY": {"from_env": "OPENAI_API_KEY"}, "OPENAI_BASE_URL": f"{script.url}/v1"}
    return {
        "agent": "codex",
        "prompt": "go",
        "model": "mock-model",
        "workspace": {"path": str(workspace)},
        "permissions": {"mode": "full"},
        "env": key,
        **fields,
    }


def held(home: Path) -> list[str]:
    """The names of the threads' files in this home."""
    return sorted(each.name for each in below(home / ".codex" / "sessions") if each.is_file())


@pytest.fixture(scope="module")
def codexes(tmp_path_factory: pytest.TempPathFactory, dev_server: str) -> Iterator[Codexes]:
    """With a worker at work."""
    if reason := no_sshd():
        pytest.skip(reason)
    site = Site(tmp_path_factory.mktemp("codexes"), asyncio.run(new_namespace(dev_server)))
    with at_work(Codexes(site)) as found:
        yield found


@pytest.fixture
async def steersman(codexes: Codexes) -> Steersman:
    return await codexes.site.steersman()


@pytest.fixture
def repository(codexes: Codexes) -> Path:
    return made(codexes.site.workspace())


def delegated(request: Request) -> Step:
    """A turn that begins a sub-agent and waits for it; the answers of both."""
    if not request.saw(PROMPT):
        return say("the secret word")
    began = [text for text in request.texts if '"agent_id"' in text]
    if not began:
        return tool("spawn_agent", message="look around")
    if not request.saw("the secret word"):
        return tool("wait_agent", targets=[json.loads(began[0])["agent_id"]], timeout_ms=20_000)
    return say("it has looked")


def again(thread: str, number: int) -> Callable[[Request], Step]:
    """A turn that goes on with a sub-agent."""

    def answered(request: Request) -> Step:
        if not request.saw(PROMPT):
            return say(f"another word {number}")
        done = sum(f"on-{number}" in str(item.get("call_id")) for item in request.body["input"]) // 2
        calls = (
            Tool("resume_agent", {"id": thread}, f"on-{number}-0"),
            Tool("send_input", {"target": thread, "message": f"look again {number}"}, f"on-{number}-1"),
            Tool("wait_agent", {"targets": [thread], "timeout_ms": 20_000}, f"on-{number}-2"),
        )
        return answer(calls[done]) if done < len(calls) else say("it has looked again")

    return answered


async def test_a_sub_agent_is_gone_on_with_wherever_the_thread_is(
    codexes: Codexes, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    """Codex says that there is no such agent where the file of its thread is not there."""
    script = model.script("there", delegated)
    asked = {"prompt": PROMPT}
    first = await steersman.run(codexes.request(script, repository, runtime=THERE, **asked))
    assert first.text == "it has looked"
    assert first.session_id
    (agent,) = [json.loads(text)["agent_id"] for text in script.requests[-1].texts if '"agent_id"' in text]

    def files(home: Path) -> list[str]:
        return [name for name in held(home) if str(first.session_id) in name or agent in name]

    both = files(codexes.here)
    assert (len(both), files(codexes.there)) == (2, [])
    said = ["look around", "the secret word"]
    for number, fields in enumerate((dict[str, Any](), {"runtime": THERE}, {"runtime": THERE})):
        script = model.script(f"on-{number}", again(agent, number))
        request = codexes.request if fields else codexes.isolated
        result = await steersman.run(request(script, repository, session=first.session_id, **asked, **fields))
        assert result.text == "it has looked again"
        assert result.finalize
        assert (result.finalize.sessions, result.finalize.session_error) == ({}, None)
        (its,) = [each for each in script.requests if not each.saw(PROMPT)]
        said.append(f"look again {number}")
        assert [text for text in its.texts if not text.startswith("<")] == said
        said.append(f"another word {number}")
        assert (files(codexes.here), files(codexes.there)) == (both, [])


async def test_it_begins_there_and_goes_on_here_and_there_again(
    codexes: Codexes, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    before = held(codexes.here)
    script = model.script("there", say("the first word"))
    first = await steersman.run(codexes.request(script, repository, runtime=THERE))
    assert first.session_id
    assert first.finalize
    assert (first.finalize.sessions, first.finalize.session_error) == ({}, None)
    (name,) = set(held(codexes.here)) - set(before)
    assert name.endswith(f"-{first.session_id}.jsonl")
    assert held(codexes.there) == [], "nothing of it stays there"
    for number, fields in enumerate(({}, {"runtime": THERE})):
        script = model.script(f"on-{number}", say(f"the next word {number}"))
        result = await steersman.run(codexes.request(script, repository, session=first.session_id, **fields))
        assert (result.text, result.session_id) == (f"the next word {number}", first.session_id)
        assert script.requests[-1].saw("the first word")
    assert script.requests[-1].saw("the next word 0")
    assert held(codexes.there) == []


async def test_a_session_in_a_copy_is_that_of_the_workspace(
    codexes: Codexes, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    script = model.script("copy", say("the first word"))
    first = await steersman.run(codexes.isolated(script, repository))
    assert first.session_id
    assert any(first.session_id in name for name in held(codexes.here))
    for number, request in enumerate((codexes.request, codexes.isolated)):
        script = model.script(f"on-{number}", say("more"))
        result = await steersman.run(request(script, repository, session=first.session_id))
        assert result.session_id == first.session_id
        assert script.requests[-1].saw("the first word")


@pytest.mark.exhaustive
async def test_a_fork_takes_along_what_it_was_forked_from(
    codexes: Codexes, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    script = model.script("here", say("the first word"))
    session = (await steersman.run(codexes.request(script, repository))).session_id
    for number in range(2):  # a fork, and a fork of that
        script = model.script(f"fork-{number}", say(f"forked {number}"))
        request = codexes.request(script, repository, session=session, fork_session=True, runtime=THERE)
        result = await steersman.run(request)
        assert script.requests[-1].saw("the first word")
        assert result.session_id != session
        session = result.session_id
        assert held(codexes.there) == []
    script = model.script("after", say("after"))
    await steersman.run(codexes.request(script, repository, session=session, runtime=THERE))
    assert all(script.requests[-1].saw(words) for words in ("the first word", "forked 0", "forked 1"))
    assert held(codexes.there) == []


@pytest.mark.exhaustive
async def test_somebody_goes_on_with_it_here(
    codexes: Codexes, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    script = model.script("here", say("the first word"))
    session = (await steersman.run(codexes.request(script, repository))).session_id
    script = model.script("there", answer(Hold(), Say("said there")))
    run = await steersman.start(codexes.request(script, repository, session=session, runtime=THERE))
    await script.wait_held()
    (mine,) = (each for each in below(codexes.here / ".codex" / "sessions") if each.name.endswith(f"{session}.jsonl"))
    with mine.open("a") as file:
        file.write('{"timestamp":"2026-11-26T02:32:54.358Z","ordinal":99,"type":"a_person_was_here","payload":{}}\n')
    said = mine.read_bytes()
    await script.release()
    result = await steersman.result(run)
    assert result.finalize
    assert result.finalize.sessions == {session: result.session_id}
    assert mine.read_bytes() == said
    for each, words in ((result.session_id, True), (session, False)):
        script = model.script(f"after-{words}", say("after"))
        after = await steersman.run(codexes.request(script, repository, session=each, runtime=THERE))
        assert after.session_id == each
        assert script.requests[-1].saw("the first word")
        assert script.requests[-1].saw("said there") == words


async def test_a_session_that_is_not_here_is_refused(
    codexes: Codexes, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    script = model.script("none")
    for fields, words in (
        ({"runtime": THERE}, f"no conversation {UNKNOWN} is kept by codex on this host"),
        ({"workspace": {"path": str(repository), "isolation": "copy"}}, "no rollout found"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            await steersman.run({**codexes.request(script, repository, session=UNKNOWN), **fields})
    assert not script.requests


@pytest.mark.exhaustive
async def test_where_less_than_everything_is_allowed(site: Site, model: ScriptedModel) -> None:
    """Such a worker takes a session of its own workspace alone, also one that was held in a copy of it."""
    if reason := no_sshd():
        pytest.skip(reason)
    codexes = Codexes(site)
    try:
        await codexes.worker("--max-permission", "read_only")
        steersman = await site.steersman()
        path, other = made(site.workspace()), made(site.workspace())
        reads: dict[str, Any] = {"permissions": {"mode": "read_only"}}
        for number, fields in enumerate(({"workspace": {"path": str(path), "isolation": "copy"}}, {"runtime": THERE})):
            script = model.script(f"begun-{number}", say("the first word"))
            session = (await steersman.run({**codexes.request(script, path, **reads), **fields})).session_id
            script = model.script(f"on-{number}", say("more"))
            await steersman.run(codexes.request(script, path, session=session, **reads))
            assert script.requests[-1].saw("the first word")
            with pytest.raises(InvalidRequest, match="was held in this workspace"):
                await steersman.run(codexes.request(script, other, session=session, **reads))
    finally:
        codexes.end()


@pytest.mark.exhaustive
async def test_a_terminated_run_leaves_its_session(
    codexes: Codexes, steersman: Steersman, model: ScriptedModel, repository: Path, mark: str
) -> None:
    script = model.script("terminated", tool("exec_command", cmd=f"echo {mark}"), hold("thinking"))
    run = await steersman.start(codexes.request(script, repository, runtime=THERE))
    await script.wait_held()
    session = await session_of(steersman, run)
    await codexes.site.temporal("workflow", "terminate", "--workflow-id", run, "--reason", "away with it")
    await until(lambda: any(str(session) in name for name in held(codexes.here)), 20)
    await logged_end(steersman, run)
    for runtime in ({}, {"runtime": THERE}):  # what waits there for a sweep is in nobody's way
        script = model.script(f"after-{bool(runtime)}", say("after"))
        assert (await steersman.run(codexes.request(script, repository, session=session, **runtime))).text == "after"
        assert script.requests[-1].saw(mark)


@pytest.mark.exhaustive
async def test_a_machine_that_is_lost_brings_the_session_once_it_is_back(
    site: Site, model: ScriptedModel, mark: str
) -> None:
    if reason := no_sshd():
        pytest.skip(reason)
    codexes = Codexes(site)
    try:
        await codexes.worker()
        steersman = await site.steersman()
        repository = made(site.workspace())
        script = model.script("lost", tool("exec_command", cmd=f"echo {mark}"), hold("thinking"))
        request = codexes.request(script, repository, runtime=THERE)
        run = await steersman.start({**request, "env": {**request["env"], "RUN_MARK": mark}})
        await script.wait_held()
        session = await session_of(steersman, run)
        codexes.sshd.stop()
        assert (await asyncio.wait_for(steersman.stop(run), 120)).outcome == "unverified"
        with pytest.raises(RunCancelled):
            await steersman.result(run)
        assert held(codexes.here) == []
        codexes.sshd.start()
        await codexes.worker()  # which sweeps
        await gone(mark, 60)
        await until(lambda: any(str(session) in name for name in held(codexes.here)), 30)
        await until(lambda: held(codexes.there) == [])
    finally:
        codexes.end()


@pytest.mark.exhaustive
@pytest.mark.timeout(240)
async def test_its_pod_is_lost(site: Site, model: ScriptedModel, tmp_path: Path) -> None:
    """The next pod has the session as the last backup has it, and in the end it is here."""
    if reason := no_cluster():
        pytest.skip(reason)
    (site.root / "cluster").mkdir()
    with background_server(site.root / "cluster", Settings(programs={"codex": program("codex")})) as cluster:
        pods = OwnCluster(site, cluster)
        allowed = ("--allow-env", "OPENAI_API_KEY", "--allow-env", "OPENAI_BASE_URL")
        key = {"OPENAI_API_KEY": "sk-test"}
        try:
            await site.worker(*pods.flags, *allowed, KUBECONFIG=str(pods.config), **key).ready()
            steersman, repository = await site.steersman(), made(site.workspace())
            steps = (tool("exec_command", cmd="echo a first step | tee step"), hold("thinking"), say("finished"))
            script = model.script("lost", *steps)
            run = await steersman.start(requested(script, repository, runtime=pods.runtime(backup_s=1)))
            await script.wait_held()
            await backed_up(pods)
            pods.lose()
            result = await asyncio.wait_for(steersman.result(run), 120)
            assert (result.status, result.text, result.attempts) == ("succeeded", "finished", 2)
            assert script.requests[-1].saw("a first step")
            assert result.finalize
            assert (result.finalize.sessions, result.finalize.session_error) == ({}, None)
            script = model.script("after", say("after"))
            after = requested(script, repository, session=result.session_id, runtime=pods.runtime())
            assert (await steersman.run(after)).session_id == result.session_id
            assert script.requests[-1].saw("a first step")
        finally:
            site.end()
