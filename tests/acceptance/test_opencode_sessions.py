"""A session of the real opencode goes on wherever a run works: in the workspace, in a copy, on another machine."""

import asyncio
import json
import os
import sqlite3
from asyncio.subprocess import DEVNULL
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from steersman.client import Steersman
from steersman.contracts.errors import InvalidRequest
from tests.acceptance.own_cluster import OwnCluster, settings
from tests.acceptance.site import Site
from tests.acceptance.test_agents_elsewhere import wrappers
from tests.acceptance.test_changes import made
from tests.acceptance.test_pod_backups import times
from tests.acceptance.test_session_locks import logged_end, session_of
from tests.acceptance.test_ssh import THERE
from tests.acceptance.two_homes import TwoHomes, at_work
from tests.scripted_model import Hold, Say, Script, ScriptedModel, answer, hold, say, tool
from tests.support.files import below
from tests.support.kubernetes import background_server
from tests.support.kubernetes import missing as no_cluster
from tests.support.processes import until
from tests.support.programs import program
from tests.support.sshd import missing as no_sshd
from tests.support.temporal import new_namespace

# The program takes seconds to start, and each run of these starts it five times: what is carried, and how, is tried in
# tests/workspaces/test_session_archives.py each time.
pytestmark = [pytest.mark.acceptance, pytest.mark.exhaustive, pytest.mark.timeout(600)]
UNKNOWN = "ses_000000000000aaaaaaaaaaaaaa"
NOTHING = Script("", (), repeat=False, keep=None)


class Opencodes(TwoHomes):
    """A worker that has opencode, and another machine that has it, too."""

    def __init__(self, site: Site) -> None:
        super().__init__(site, "opencode", **offline(NOTHING, site.root / "none"))

    def request(self, script: Script, workspace: Path, **fields: Any) -> dict[str, Any]:
        return requested(script, workspace, self.site.root / "none", **fields)


def requested(script: Script, workspace: Path, none: Path, **fields: Any) -> dict[str, Any]:
    """A request for opencode with that script as its model."""
    return {
        "agent": "opencode",
        "prompt": "go",
        "workspace": {"path": str(workspace)},
        "permissions": {"mode": "full"},
        "env": offline(script, none),
        **fields,
    }


def offline(script: Script, none: Path) -> dict[str, str]:
    """What opencode has for the model, and what keeps it from asking for anything else; its home is not that."""
    given = script.opencode_env(none)
    return {name: value for name, value in given.items() if name != "HOME" and not name.startswith("XDG_")}


def conversation(home: Path, session: str) -> list[str]:
    """All texts of a session in this home, and what became of them."""
    (database,) = (home / ".local" / "share" / "opencode").glob("opencode*.db")
    with closing(sqlite3.connect(database)) as connection:
        query = (
            "select part.data from part join message on message.id = part.message_id "
            "where message.session_id = ? and part.session_id = message.session_id order by message.id, part.id"
        )
        parts = [json.loads(data) for (data,) in connection.execute(query, (session,))]
    return [part["text"] for part in parts if part["type"] == "text"]


def held_in(home: Path, session: str) -> str | None:
    """The directory of the session in this home; None where it has none."""
    for database in (home / ".local" / "share" / "opencode").glob("opencode*.db"):
        # It may be being made.
        with closing(sqlite3.connect(database)) as connection, suppress(sqlite3.OperationalError):
            found = connection.execute("select directory from session where id = ?", (session,)).fetchone()
            return found[0] if found else None
    return None


def children(home: Path, session: str) -> list[str]:
    """The sessions of its sub-agents in this home."""
    (database,) = (home / ".local" / "share" / "opencode").glob("opencode*.db")
    with closing(sqlite3.connect(database)) as connection:
        return [found for (found,) in connection.execute("select id from session where parent_id = ?", (session,))]


def databases(home: Path) -> list[str]:
    """The names of the files of databases in this home."""
    return sorted(each.name for each in below(home) if ".db" in each.name)


@pytest.fixture(scope="module")
def opencodes(tmp_path_factory: pytest.TempPathFactory, dev_server: str) -> Iterator[Opencodes]:
    """With a worker at work."""
    if reason := no_sshd():
        pytest.skip(reason)
    site = Site(tmp_path_factory.mktemp("opencodes"), asyncio.run(new_namespace(dev_server)))
    with at_work(Opencodes(site)) as found:
        yield found


@pytest.fixture
async def steersman(opencodes: Opencodes) -> Steersman:
    return await opencodes.site.steersman()


@pytest.fixture
def repository(opencodes: Opencodes) -> Path:
    return made(opencodes.site.workspace())


async def test_it_begins_there_and_goes_on_here_and_there_again(
    opencodes: Opencodes, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    script = model.script("there", say("the first word"))
    first = await steersman.run(opencodes.request(script, repository, runtime=THERE))
    assert first.session_id
    assert first.finalize
    assert (first.finalize.sessions, first.finalize.session_error) == ({}, None)
    assert databases(opencodes.there) == [], "nothing of it stays there"
    assert held_in(opencodes.here, first.session_id) == str(repository)
    copy = {"workspace": {"path": str(repository), "isolation": "copy"}}
    for number, fields in enumerate((copy, {"runtime": THERE})):
        script = model.script(f"on-{number}", say(f"the next word {number}"))
        request = opencodes.request(script, repository, session=first.session_id) | fields
        result = await steersman.run(request)
        assert (result.text, result.session_id) == (f"the next word {number}", first.session_id)
        assert result.finalize
        assert (result.finalize.sessions, result.finalize.session_error) == ({}, None)
        assert script.requests[-1].saw("the first word")
    assert script.requests[-1].saw("the next word 0")
    assert databases(opencodes.there) == []
    assert conversation(opencodes.here, first.session_id) == [
        *("go", "the first word", "go", "the next word 0", "go", "the next word 1")
    ]


async def test_a_sub_agent_is_gone_on_with_here_and_there(
    opencodes: Opencodes, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    """Opencode begins a new one, without a word, where the session of the one that is asked for is not there."""
    called = {"description": "look", "subagent_type": "general"}
    script = model.script("there", tool("task", prompt="look", **called), say("the secret word"), say("it has looked"))
    session = (await steersman.run(opencodes.request(script, repository, runtime=THERE))).session_id
    assert session
    (child,) = children(opencodes.here, session)
    said = ["look", "the secret word"]
    assert conversation(opencodes.here, child) == said
    for number, fields in enumerate(({}, {"runtime": THERE}, {"runtime": THERE})):
        word = f"another word {number}"
        again = tool("task", prompt=f"look again {number}", task_id=child, **called)
        script = model.script(f"on-{number}", again, say(word), say("it has looked again"))
        result = await steersman.run(opencodes.request(script, repository, session=session, **fields))
        assert result.text == "it has looked again"
        assert [text for text in script.requests[1].texts if text] == [*said, f"look again {number}"]
        if fields:
            assert result.finalize
            assert (result.finalize.sessions, result.finalize.session_error) == ({}, None)
        said += [f"look again {number}", word]
        assert conversation(opencodes.here, child) == said
        assert children(opencodes.here, session) == [child]
    assert databases(opencodes.there) == []


async def test_that_of_a_fallback_comes_back_too(
    opencodes: Opencodes, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    """Codex is not installed there."""
    script = model.script("there", say("the first word"))
    request = opencodes.request(script, repository, runtime=THERE)
    first = await steersman.run({**request, "agent": "codex", "fallback": [{"agent": "opencode"}]})
    assert [each.agent for each in first.parts] == ["codex", "opencode"]
    assert first.session_id
    assert first.finalize
    assert (first.finalize.sessions, first.finalize.session_error) == ({}, None)
    assert databases(opencodes.there) == []
    assert held_in(opencodes.here, first.session_id) == str(repository)
    script = model.script("on", say("the next word"))
    result = await steersman.run(opencodes.request(script, repository, session=first.session_id, runtime=THERE))
    assert result.text == "the next word"
    assert script.requests[-1].saw("the first word")


async def test_somebody_goes_on_with_it_here(
    opencodes: Opencodes, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    script = model.script("here", say("the first word"))
    session = (await steersman.run(opencodes.request(script, repository))).session_id
    assert session
    there, here = model.script("there", answer(Hold(), Say("said there"))), model.script("meanwhile", say("said here"))
    run = await steersman.start(opencodes.request(there, repository, session=session, runtime=THERE))
    await there.wait_held()
    environment = {"PATH": os.environ["PATH"], "HOME": str(opencodes.here), **offline(here, opencodes.here)}
    command = (program("opencode"), "run", "--session", session, "a person")
    person = await asyncio.create_subprocess_exec(
        *command, env=environment, cwd=repository, stdin=DEVNULL, stdout=DEVNULL
    )
    assert await person.wait() == 0
    said = conversation(opencodes.here, session)
    assert said[-1] == "said here"
    await there.release()
    result = await steersman.result(run)
    assert result.finalize
    assert result.session_id
    assert result.finalize.sessions == {session: result.session_id}
    assert conversation(opencodes.here, session) == said
    assert conversation(opencodes.here, result.session_id)[-1] == "said there"
    script = model.script("after", say("after"))
    request = opencodes.request(script, repository, session=result.session_id, runtime=THERE)
    assert (await steersman.run(request)).session_id == result.session_id
    assert script.requests[-1].saw("the first word")
    assert script.requests[-1].saw("said there")
    assert not script.requests[-1].saw("said here")


async def test_a_session_that_is_not_here_is_refused(
    opencodes: Opencodes, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    script = model.script("none")
    with pytest.raises(InvalidRequest, match=f"no conversation {UNKNOWN} is kept by opencode on this host"):
        await steersman.run(opencodes.request(script, repository, session=UNKNOWN, runtime=THERE))
    assert not script.requests


async def test_what_the_workspace_brings_along_is_not_run_for_it(
    opencodes: Opencodes, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    """Opencode runs plugins of the directory in which it takes a session in: here that of whoever leads the run."""
    witness, plugins = opencodes.site.root / "witness", repository / ".opencode" / "plugin"
    script = model.script("there", answer(Hold(), Say("the first word")))
    run = await steersman.start(opencodes.request(script, repository, runtime=THERE))
    await script.wait_held()
    plugins.mkdir(parents=True)
    code = f'require("fs").writeFileSync("{witness}", "1"); export const X = async () => ({{}})\n'
    (plugins / "x.js").write_text(code)
    await script.release()
    session = (await steersman.result(run)).session_id
    assert session
    assert conversation(opencodes.here, session)[-1] == "the first word"
    assert not witness.exists()


async def test_a_terminated_run_leaves_its_session(
    opencodes: Opencodes, steersman: Steersman, model: ScriptedModel, repository: Path, mark: str
) -> None:
    script = model.script("terminated", tool("bash", command=f"echo {mark}", description="x"), hold("thinking"))
    run = await steersman.start(opencodes.request(script, repository, runtime=THERE))
    await script.wait_held()
    session = await session_of(steersman, run)
    assert session
    await opencodes.site.temporal("workflow", "terminate", "--workflow-id", run, "--reason", "away with it")
    await until(lambda: held_in(opencodes.here, session) == str(repository), 120)
    await logged_end(steersman, run)
    script = model.script("after", say("after"))
    request = opencodes.request(script, repository, session=session, runtime=THERE)
    assert (await steersman.run(request)).text == "after"
    assert script.requests[-1].saw(mark)


async def test_its_pod_is_lost(site: Site, model: ScriptedModel, mark: str) -> None:
    """The next pod has the session as the last backup has it, and in the end it is here."""
    if reason := no_cluster():
        pytest.skip(reason)
    (site.root / "cluster").mkdir()
    variables = offline(NOTHING, site.root / "none")
    with background_server(site.root / "cluster", settings()) as cluster:
        pods = OwnCluster(site, cluster)
        cluster.server.settings.programs |= wrappers(site.root / "bin")
        allowed = (part for name in variables for part in ("--allow-env", name))
        path = f"{Path(program('opencode')).parent}{os.pathsep}{os.environ['PATH']}"
        try:
            flags = (*pods.flags, *allowed, "--trust", str(site.root))  # else no further process is started there
            await site.worker(*flags, KUBECONFIG=str(pods.config), PATH=path, **variables).ready()
            steersman, repository = await site.steersman(), made(site.workspace())
            step = tool("bash", command=f"echo {mark} | tee step", description="x")
            script = model.script("lost", step, hold("thinking"), say("finished"))
            request = requested(script, repository, site.root / "none", runtime=pods.runtime(backup_s=1))
            run = await steersman.start(request)
            await script.wait_held()
            now = datetime.now(UTC)  # a backup takes opencode's time, and the next one waits the longer
            await until(lambda: any(each > now for each in times(pods)), 300)
            pods.lose()
            result = await asyncio.wait_for(steersman.result(run), 400)
            assert (result.status, result.text, result.attempts) == ("succeeded", "finished", 2)
            assert script.requests[-1].saw(mark)
            assert result.finalize
            assert (result.finalize.sessions, result.finalize.session_error) == ({}, None)
        finally:
            site.end()
