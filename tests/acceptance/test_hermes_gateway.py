"""Runs at a real gateway of Hermes that somebody else runs: said, interrupted, stopped, taken over, lost."""

import asyncio
import os
import secrets
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from activities.agents.hermes.kind import HERMES
from activities.agents.hermes.relay import KEY, URL, Unanswered
from activities.agents.hermes.relay import Gateway as Api
from steersman.client import Steersman
from steersman.contracts.errors import AgentFailed, AuthenticationFailed, InvalidRequest, RunTimedOut
from steersman.contracts.run import Handle
from tests.acceptance.site import Site, following, gone, heard, in_order
from tests.scripted_model import Script, ScriptedModel, Step, Tool, Usage, answer, fail, hold, say
from tests.support.processes import kill_marked, lives, marked, until
from tests.support.programs import installed
from tests.support.temporal import free_port
from tests.support.workers import WorkerProcess

NAP = Tool("terminal", {"command": "touch napping; sleep 600", "timeout": 600})


class Gateway:
    """Hermes's gateway, as somebody runs it: with a key, a directory and a home of its own."""

    def __init__(self, root: Path, script: Script) -> None:
        self.root, self.key, self.mark = root, secrets.token_hex(16), secrets.token_hex(8)
        self.workspace = root / "of-gateway"
        self.workspace.mkdir()
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._api = Api(self.url, self.key)
        self._environment = {
            "PATH": os.environ["PATH"],
            **script.hermes_env(root / "home-of-gateway"),
            "API_SERVER_ENABLED": "true",
            "API_SERVER_KEY": self.key,
            "API_SERVER_PORT": str(port),
            "TERMINAL_CWD": str(self.workspace),
            "HERMES_YOLO_MODE": "1",
            "GATEWAY_MARK": self.mark,
        }
        self._log = (root / "gateway.log").open("ab")

    async def start(self) -> None:
        self.process = subprocess.Popen(
            [str(installed("hermes")), "gateway", "run"],
            cwd=self.workspace,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        await until(self._answers)

    async def _answers(self) -> bool:
        assert self.process.poll() is None, (self.root / "gateway.log").read_text()
        try:
            status, _ = await asyncio.to_thread(self._api.ask, "GET", "/health")
        except Unanswered:
            return False
        return status == 200

    async def works_on(self, run: str) -> bool:
        """Whether one of its runs is there to be stopped."""
        status, _ = await asyncio.to_thread(self._api.ask, "POST", f"/v1/runs/{run}/stop")
        return status != 404

    def naps(self) -> bool:
        return any("sleep 600" in line for line in marked(self.mark).values())

    def kill(self) -> None:
        kill_marked(self.mark)
        self.process.wait()

    def freeze(self) -> None:
        for pid in marked(self.mark):
            os.kill(pid, signal.SIGSTOP)

    def end(self) -> None:
        self.kill()
        self._log.close()


class Stage:
    """A worker whose operator has named the gateway."""

    def __init__(self, site: Site, gateway: Gateway, script: Script, mark: str) -> None:
        self.site, self.gateway, self.script, self.mark = site, gateway, script, mark

    def make(self) -> WorkerProcess:
        own = {URL: self.gateway.url, KEY: self.gateway.key}
        return self.site.worker("--allow-env", "RUN_MARK", **own)

    def request(self, **fields: Any) -> dict[str, Any]:
        return {
            "agent": "hermes",
            "prompt": "go",
            "workspace": {"path": str(self.site.workspace())},
            "permissions": {"mode": "full"},
            "options": {"gateway": True},
            "env": {"RUN_MARK": self.mark},
            **fields,
        }

    async def begin(self, **fields: Any) -> tuple[Steersman, str]:
        await self.make().ready()
        steersman = await self.site.steersman()
        return steersman, await steersman.start(self.request(**fields))


@pytest.fixture
async def gateway_with(site: Site, model: ScriptedModel, mark: str) -> AsyncIterator[Any]:
    """A gateway whose model plays these steps."""
    if installed("hermes") is None:
        pytest.skip("hermes is not installed: make agents")
    made: list[Gateway] = []

    async def make(*steps: Step, repeat: bool = False) -> Stage:
        script = model.script("a", *steps, repeat=repeat)
        made.append(Gateway(site.root, script))
        await made[0].start()
        return Stage(site, made[0], script, mark)

    yield make
    for each in made:
        each.end()


async def session_of(steersman: Steersman, run: str) -> str:
    async def told() -> str | None:
        return (await steersman.state(run)).session_id

    return await until(told)


async def test_it_works_there_is_interrupted_and_goes_on(gateway_with: Any) -> None:
    stage = await gateway_with(
        answer(say("at work"), Tool("terminal", {"command": "pwd > where"}), usage=Usage(input=11, output=7)),
        hold("half"),
        lambda request: say("as you wish" if request.saw("rather that") else "deaf"),
    )
    steersman, run = await stage.begin()
    async with following(steersman, run) as events:
        await stage.script.wait_held()
        (worker,) = stage.site.workers
        worker.kill()
        await stage.make().ready()
        await heard(steersman, run, await steersman.interrupt(run, "rather that"))
        all_events = await events.end()
    result = await steersman.result(run)
    assert (result.status, result.text, result.attempts) == ("succeeded", "as you wish", 1)
    assert result.messages_delivered == 1
    assert in_order(all_events)
    assert all_events[0].type == "init"
    assert [each.name for each in all_events if each.type == "tool_use"] == ["terminal"]
    assert (stage.gateway.workspace / "where").read_text().strip() == str(stage.gateway.workspace)
    assert stage.script.requests[-1].saw("go")
    await gone(stage.mark)
    assert lives(stage.gateway.process.pid)


async def test_a_cancel_ends_its_tool_and_leaves_the_gateway(gateway_with: Any) -> None:
    stage = await gateway_with(answer(NAP), say("too late"))
    steersman, run = await stage.begin()
    await until(stage.gateway.naps)
    session = await session_of(steersman, run)
    report = await steersman.stop(run)
    assert (report.outcome, report.left) == ("stopped", ())
    assert not stage.gateway.naps()
    assert not await stage.gateway.works_on(session)
    assert lives(stage.gateway.process.pid)
    await gone(stage.mark)


async def test_a_gateway_that_does_not_answer_is_unverified(gateway_with: Any) -> None:
    stage = await gateway_with(answer(NAP), say("too late"))
    steersman, run = await stage.begin()
    await until(stage.gateway.naps)
    await session_of(steersman, run)
    stage.gateway.freeze()
    report = await steersman.stop(run)
    assert report.outcome == "unverified"
    await gone(stage.mark)


@pytest.mark.exhaustive
async def test_a_gateway_that_was_killed_fails_the_run_in_words(gateway_with: Any) -> None:
    stage = await gateway_with(answer(NAP), say("too late"))
    steersman, run = await stage.begin()
    await until(stage.gateway.naps)
    await session_of(steersman, run)
    stage.gateway.kill()
    await stage.gateway.start()
    with pytest.raises(AgentFailed, match="does not know the run any more"):
        await steersman.result(run)


@pytest.mark.exhaustive
async def test_its_program_is_killed_and_the_run_goes_on(gateway_with: Any) -> None:
    stage = await gateway_with(answer(Tool("terminal", {"command": "echo once >> made"})), hold("half"))
    steersman, run = await stage.begin()
    await stage.script.wait_held()
    session = await session_of(steersman, run)
    os.kill((await until(lambda: _handle(steersman, run))).pid, signal.SIGKILL)

    async with following(steersman, run) as events:
        await events.until(lambda event: event.attempt == 2)
    await stage.script.release()
    result = await steersman.result(run)
    assert (result.text, result.attempts, result.session_id) == ("half", 2, session)
    assert (stage.gateway.workspace / "made").read_text() == "once\n"


@pytest.mark.exhaustive
async def test_a_cancel_finds_what_a_killed_program_has_left(gateway_with: Any) -> None:
    """With its shim: nobody is told to stop what the gateway works on."""
    stage = await gateway_with(answer(NAP), say("too late"))
    steersman, run = await stage.begin()
    await until(stage.gateway.naps)
    await session_of(steersman, run)
    (worker,) = stage.site.workers
    worker.kill()
    kill_marked(stage.mark)
    stopping = asyncio.create_task(steersman.stop(run))
    await stage.make().ready()
    await stopping
    await until(lambda: not stage.gateway.naps())


@pytest.mark.exhaustive
async def test_a_limit_ends_what_works_there(gateway_with: Any) -> None:
    stage = await gateway_with(answer(NAP), say("too late"))
    steersman, run = await stage.begin(limits={"duration_s": 20})
    await until(stage.gateway.naps)
    with pytest.raises(RunTimedOut) as ended:
        await steersman.result(run)
    result = ended.value.result
    assert result is not None
    assert result.stop_report is not None
    assert result.stop_report.outcome == "stopped"
    assert not stage.gateway.naps()


@pytest.mark.exhaustive
async def test_what_it_says_of_a_model_that_refuses_is_told(gateway_with: Any) -> None:
    stage = await gateway_with(fail(401, "no such key"), repeat=True)
    steersman, run = await stage.begin()
    with pytest.raises(AuthenticationFailed):
        await steersman.result(run)


async def test_a_wrong_key_fails_at_once_and_no_key_is_told(gateway_with: Any) -> None:
    stage = await gateway_with()
    right, stage.gateway.key = stage.gateway.key, "wrong"
    steersman, run = await stage.begin()
    with pytest.raises(AuthenticationFailed) as failed:
        await steersman.result(run)
    assert right not in str(failed.value)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"session": "20261125_020841_eb28f5"}, "session"),
        ({"home": "isolated"}, "home"),
        ({"limits": {"tokens": 5}}, "limits.tokens"),
        ({"options": {"gateway": "http://10.0.0.1"}}, "options.gateway"),
    ],
)
async def test_what_a_gateway_cannot_do_is_refused(site: Site, fields: dict[str, Any], named: str) -> None:
    worker = site.worker("--agent", "hermes", **{URL: "http://127.0.0.1:9", KEY: "k"})
    await worker.ready()
    steersman = await site.steersman()
    request = {
        "agent": "hermes",
        "prompt": "go",
        "workspace": {"path": str(site.workspace())},
        "permissions": {"mode": "full"},
        "options": {"gateway": True},
        **fields,
    }
    with pytest.raises(InvalidRequest, match=named):
        await steersman.run(request)


async def _handle(steersman: Steersman, run: str) -> Handle | None:
    return (await steersman.state(run)).handle


def test_the_doctor_says_whether_it_answers() -> None:
    (found,) = HERMES.findings({URL: f"http://127.0.0.1:{free_port()}", KEY: "k"})[-1:]
    assert not found.ok
    assert found.check == "gateway of hermes"
    assert "no gateway answers at 127.0.0.1" in found.detail
    assert URL in found.hint
