"""A session of the real Hermes goes on wherever a run works: in the workspace, in a copy, on another machine."""

import asyncio
import os
import sqlite3
import tempfile
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
from tests.support.programs import installed, program
from tests.support.sshd import missing as no_sshd
from tests.support.temporal import new_namespace

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]
UNKNOWN = "20261125_020841_eb28f5"


class Hermeses(TwoHomes):
    """A worker that has Hermes, and another machine that has it, too."""

    def __init__(self, site: Site) -> None:
        super().__init__(site, "hermes")
        wrappers(self.there / ".local" / "bin")  # its first line says who runs it

    def request(self, script: Script, workspace: Path, **fields: Any) -> dict[str, Any]:
        """A request for Hermes with that script as its model."""
        for home in (self.here, self.there):
            script.hermes_env(home)
        asked = {"agent": "hermes", "prompt": "go", "permissions": {"mode": "full"}}
        return {**asked, "workspace": {"path": str(workspace)}, **fields}


def conversation(home: Path, session: str) -> list[str]:
    """All texts of a session in this home."""
    query = "select content from messages where session_id = ? and active = 1 order by id"
    return [text for (text,) in rows(home, query, session) if text]


def held_in(home: Path, session: str) -> str | None:
    """The directory of the session in this home; None where it has none."""
    with suppress(sqlite3.OperationalError):  # its database is being made
        for (directory,) in rows(home, "select cwd from sessions where id = ?", session):
            return str(directory)
    return None


def rows(home: Path, query: str, *values: str) -> list[tuple[Any, ...]]:
    """What Hermes's database in this home says."""
    database = home / ".hermes" / "state.db"
    if not database.exists():
        return []
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(query, values).fetchall()


def left(homes: Hermeses) -> list[str]:
    """What runs have left of their sessions on the other machine."""
    alone = [each.name for each in below(homes.there) if each.name.startswith("steersman-")]
    return [*alone, *(id for (id,) in rows(homes.there, "select id from sessions"))]


@pytest.fixture(scope="module")
def hermeses(tmp_path_factory: pytest.TempPathFactory, dev_server: str) -> Iterator[Hermeses]:
    """With a worker at work."""
    if installed("hermes") is None:
        pytest.skip("hermes is not installed: make agents")
    if reason := no_sshd():
        pytest.skip(reason)
    site = Site(tmp_path_factory.mktemp("hermeses"), asyncio.run(new_namespace(dev_server)))
    with at_work(Hermeses(site)) as found:
        yield found


@pytest.fixture
async def steersman(hermeses: Hermeses) -> Steersman:
    return await hermeses.site.steersman()


@pytest.fixture
def repository(hermeses: Hermeses) -> Path:
    return made(hermeses.site.workspace())


async def test_it_begins_there_and_goes_on_here_and_there_again(
    hermeses: Hermeses, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    before = left(hermeses)
    step = answer(Say("a step"), tool("terminal", command="echo of the tool"))
    script = model.script("there", step, say("the first word"), say("the next word 0"), say("the next word 1"))
    first = await steersman.run(hermeses.request(script, repository, runtime=THERE))
    assert first.session_id
    assert first.finalize
    assert (first.finalize.sessions, first.finalize.session_error) == ({}, None)
    assert left(hermeses) == before, "nothing of it stays there"
    assert held_in(hermeses.here, first.session_id) == str(repository)
    copy = {"workspace": {"path": str(repository), "isolation": "copy"}}
    for number, fields in enumerate((copy, {"runtime": THERE})):
        request = hermeses.request(script, repository, session=first.session_id) | fields
        result = await steersman.run(request)
        assert (result.text, result.session_id) == (f"the next word {number}", first.session_id)
        assert result.finalize
        assert (result.finalize.sessions, result.finalize.session_error) == ({}, None)
        for said in ("of the tool", "the first word"):
            assert script.requests[-1].saw(said)
    assert script.requests[-1].saw("the next word 0")
    assert left(hermeses) == before
    assert conversation(hermeses.here, first.session_id)[-2:] == ["go", "the next word 1"]


async def test_a_session_that_is_not_here_is_refused(
    hermeses: Hermeses, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    script = model.script("none")
    with pytest.raises(InvalidRequest, match=f"no conversation {UNKNOWN} is kept by hermes on this host"):
        await steersman.run(hermeses.request(script, repository, session=UNKNOWN, runtime=THERE))
    assert not script.requests


@pytest.mark.exhaustive
async def test_somebody_goes_on_with_it_here(
    hermeses: Hermeses, steersman: Steersman, model: ScriptedModel, repository: Path
) -> None:
    script = model.script("here", say("the first word"), answer(Hold(), Say("said there")), say("after"))
    session = (await steersman.run(hermeses.request(script, repository))).session_id
    assert session
    run = await steersman.start(hermeses.request(script, repository, session=session, runtime=THERE))
    await script.wait_held()
    with closing(sqlite3.connect(hermeses.here / ".hermes" / "state.db")) as connection, connection:
        said = "insert into messages (session_id, role, content, timestamp) values (?, ?, ?, 0)"
        connection.executemany(said, [(session, "user", "a person"), (session, "assistant", "said here")])
    kept = conversation(hermeses.here, session)
    assert kept[-1] == "said here"
    await script.release()
    result = await steersman.result(run)
    assert result.finalize
    assert result.session_id
    assert result.finalize.sessions == {session: result.session_id}
    assert conversation(hermeses.here, session) == kept
    assert conversation(hermeses.here, result.session_id)[-1] == "said there"
    request = hermeses.request(script, repository, session=result.session_id, runtime=THERE)
    assert (await steersman.run(request)).session_id == result.session_id
    assert script.requests[-1].saw("the first word")
    assert script.requests[-1].saw("said there")
    assert not script.requests[-1].saw("said here")


@pytest.mark.exhaustive
async def test_a_terminated_run_leaves_its_session(
    hermeses: Hermeses, steersman: Steersman, model: ScriptedModel, repository: Path, mark: str
) -> None:
    script = model.script("terminated", tool("terminal", command=f"echo {mark}"), hold("thinking"), say("after"))
    run = await steersman.start(hermeses.request(script, repository, runtime=THERE))
    await script.wait_held()
    session = await session_of(steersman, run)
    assert session
    await hermeses.site.temporal("workflow", "terminate", "--workflow-id", run, "--reason", "away with it")
    await until(lambda: held_in(hermeses.here, session) == str(repository), 120)
    await logged_end(steersman, run)
    request = hermeses.request(script, repository, session=session, runtime=THERE)
    assert (await steersman.run(request)).text == "after"
    assert script.requests[-1].saw(mark)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that everybody comes to."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@pytest.mark.exhaustive
async def test_its_pod_is_lost(site: Site, model: ScriptedModel, mark: str, shared: Path) -> None:
    """The next pod has the session as the last backup has it, and in the end it is here."""
    if reason := no_cluster():
        pytest.skip(reason)
    (site.root / "cluster").mkdir()
    with background_server(site.root / "cluster", settings()) as cluster:
        pods = OwnCluster(site, cluster)
        cluster.server.settings.programs |= wrappers(site.root / "bin")
        cluster.server.settings.shared += (str(shared),)
        script = model.script("lost", tool("terminal", command=f"echo {mark}"), hold("thinking"), say("finished"))
        home = Path(script.hermes_env(shared)["HERMES_HOME"])
        for each in (shared, *shared.rglob("*")):
            each.chmod(0o777)  # whoever the agent's user is there
        path = f"{Path(program('hermes')).parent}{os.pathsep}{os.environ['PATH']}"
        try:
            flags = (*pods.flags, "--allow-env", "HERMES_HOME", "--trust", str(site.root))
            await site.worker(*flags, KUBECONFIG=str(pods.config), PATH=path, HERMES_HOME=str(home)).ready()
            steersman, repository = await site.steersman(), made(site.workspace())
            asked = {
                "agent": "hermes",
                "prompt": "go",
                "permissions": {"mode": "full"},
                "env": {"HERMES_HOME": str(home)},
            }
            workspace = {"path": str(repository)}
            run = await steersman.start({**asked, "workspace": workspace, "runtime": pods.runtime(backup_s=1)})
            await script.wait_held()
            now = datetime.now(UTC)
            await until(lambda: any(each > now for each in times(pods)), 120)
            pods.lose()
            result = await asyncio.wait_for(steersman.result(run), 200)
            assert (result.status, result.text, result.attempts) == ("succeeded", "finished", 2)
            assert script.requests[-1].saw(mark)
            assert result.finalize
            assert (result.finalize.sessions, result.finalize.session_error) == ({}, None)
            assert result.session_id
            assert held_in(shared, result.session_id) == str(repository)
        finally:
            site.end()
