"""Webhooks of real runs, told by a real worker over real connections on loopback."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ActivityError, ApplicationError

from steersman.client import Steersman
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.run import RunState
from tests.acceptance.programs import OBEDIENT, python
from tests.acceptance.site import Site
from tests.acceptance.test_approvals import ASK, approval
from tests.acceptance.test_reset import reset
from tests.scripted_model import ScriptedModel, hold, say, tool
from tests.support.processes import until

SECRET = "whsec_" + base64.b64encode(b"a secret of tests").decode()


@dataclass
class Receiver:
    """Answers what it is told to; without a word, 200."""

    url: str = ""
    answers: list[tuple[int, str]] = field(default_factory=list)
    got: list[tuple[Mapping[str, str], bytes]] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        self.got.append((dict(request.headers), await request.read()))
        status, text = self.answers.pop(0) if self.answers else (200, "")
        if status == 302:
            return web.Response(status=302, headers={"location": f"{self.url}/elsewhere"})
        return web.Response(status=status, text=text)

    @property
    def told(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.got]

    @property
    def kinds(self) -> list[str]:
        return [each.get("type", "slack") for each in self.told]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    found = Receiver()
    application = web.Application()
    application.router.add_post("/{any:.*}", found.take)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hooks"
    yield found
    await runner.cleanup()


async def at_work(site: Site, *flags: str, **env: str) -> Steersman:
    await site.worker(*flags, **env).ready()
    return await site.steersman()


async def test_an_answer_decides_and_the_end_is_told_with_a_signature(
    site: Site, model: ScriptedModel, receiver: Receiver
) -> None:
    flags = ("--allow-webhook", receiver.url, "--allow-env", "HOOK_SECRET")
    steersman = await at_work(site, *flags, HOOK_SECRET=SECRET)
    workspace = site.workspace()
    script = model.script("told", tool("Bash", command="touch made"), say("done"))
    webhook = {
        "url": f"{receiver.url}/a",
        "on": ["approval", "decision", "end"],
        "decides": True,
        "secret": {"from_env": "HOOK_SECRET"},
    }
    receiver.answers = [(503, "not yet"), (200, '{"decision": "allow"}')]
    run = await steersman.start(site.claude(script, workspace=workspace, permissions=ASK, notify=[webhook]))
    result = await steersman.result(run)
    assert (result.text, (workspace / "made").exists()) == ("done", True)
    await until(lambda: sorted(receiver.kinds) == ["approval", "approval", "decision", "end"])
    (first, again), last = receiver.got[:2], receiver.told[-1]
    assert (first[0]["webhook-id"], first[1]) == (again[0]["webhook-id"], again[1]), "another try is the same notice"
    assert first[0]["webhook-id"].startswith(f"{run}:notice-")
    asked = receiver.told[0]["approval"]
    assert (asked["tool"], asked["input"]["command"]) == ("Bash", "touch made")
    assert (last["result"]["status"], last["result"]["text"], last["run"]) == ("succeeded", "done", run)
    for headers, body in receiver.got:
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        digest = hmac.new(b"a secret of tests", signed, hashlib.sha256).digest()
        assert headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()
    assert SECRET not in json.dumps((await steersman.temporal.get_workflow_handle(run).fetch_history()).to_json_dict())


async def test_a_reset_run_asks_anew_and_hears_the_answer(site: Site, model: ScriptedModel, receiver: Receiver) -> None:
    """Whoever the first notice was answered to is gone."""
    steersman = await at_work(site, "--allow-webhook", receiver.url)
    script = model.script("told", tool("Bash", command="touch made"), say("done"))
    webhook = {"url": receiver.url, "on": ["approval"], "decides": True}
    receiver.answers = [(503, "not yet"), *[(200, '{"decision": "allow"}')] * 20]
    run = await steersman.start(site.claude(script, permissions=ASK, notify=[webhook]))
    asked = await approval(steersman, run)
    await until(lambda: receiver.got)
    await reset(site, run)
    assert (await asyncio.wait_for(steersman.result(run), 60)).text == "done"
    told = {headers["webhook-id"]: json.loads(body)["approval"]["id"] for headers, body in receiver.got}
    assert list(told.values()) == [asked.id] * 2


async def test_an_answer_decides_only_where_that_was_asked_for(
    site: Site, model: ScriptedModel, receiver: Receiver
) -> None:
    steersman = await at_work(site, "--allow-webhook", receiver.url)
    script = model.script("told", tool("Bash", command="touch made"), say("done"))
    receiver.answers = [(200, '{"decision": "allow"}')]
    run = await steersman.start(site.claude(script, permissions=ASK, notify=[{"url": receiver.url}]))
    asked = await approval(steersman, run)
    await until(lambda: receiver.kinds == ["approval"])
    assert [each.id for each in (await steersman.state(run)).approvals] == [asked.id]
    await steersman.decide(run, asked.id, "deny")
    assert (await steersman.result(run)).text == "done"
    await until(lambda: receiver.kinds == ["approval", "end"])


async def test_a_run_waits_for_no_receiver_and_the_next_worker_tells_it(site: Site, receiver: Receiver) -> None:
    steersman = await at_work(site, "--allow-webhook", receiver.url)
    receiver.answers = [(500, "")] * 3
    run = await steersman.start(site.process("true", notify=[{"url": receiver.url}]))
    assert (await asyncio.wait_for(steersman.result(run), 30)).status == "succeeded"
    await until(lambda: len(receiver.got) >= 2)
    (worker,) = site.workers
    worker.kill()
    await site.worker("--allow-webhook", receiver.url).ready()
    await until(lambda: len(receiver.got) >= 4)  # one more, where the worker died over an answer
    assert set(receiver.kinds) == {"end"}
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1
    await until(lambda: _closed(steersman, receiver.got[0][0]["webhook-id"]))
    assert [each.id for each in await steersman.list()] == [run], "notices are no runs"


async def _closed(steersman: Steersman, notice: str) -> bool:
    description = await steersman.temporal.get_workflow_handle(notice).describe()
    return description.status is not None and description.status.name == "COMPLETED"


async def test_most_of_a_budget_and_a_stop_are_told(site: Site, model: ScriptedModel, receiver: Receiver) -> None:
    steersman = await at_work(site, "--allow-webhook", receiver.url)
    script = model.script("spends", *(tool("Bash", command="true") for _ in range(4)), hold("thinks"))
    request = site.claude(
        script,
        permissions={"mode": "full"},
        limits={"turns": 5},
        notify=[{"url": receiver.url, "on": ["budget", "end"]}],
    )
    run = await steersman.start(request)
    await until(lambda: receiver.kinds == ["budget"])
    assert receiver.told[0]["budget"]["of"] == "turns"
    assert 4 <= receiver.told[0]["budget"]["spent"] <= 5
    await steersman.stop(run, reason="enough")
    await until(lambda: receiver.kinds == ["budget", "end"])
    assert receiver.told[1]["result"]["status"] == "cancelled"


async def test_the_operators_own_is_told_of_all_runs(site: Site, receiver: Receiver) -> None:
    own = {"STEERSMAN_WEBHOOK": f"{receiver.url}/T0/secret", "STEERSMAN_WEBHOOK_FORMAT": "slack"}
    steersman = await at_work(site, **own)
    run = await steersman.start(site.process("sh", "-c", "echo said; exit 3"))
    await until(lambda: len(receiver.got) == 1)
    assert f"{run} (process) failed" in receiver.told[0]["text"]
    (notice,) = [each async for each in steersman.temporal.list_workflows('WorkflowType = "RunNotice"')]
    history = await steersman.temporal.get_workflow_handle(notice.id).fetch_history()
    assert "secret" not in history.to_json()


async def test_the_operators_own_is_told_by_nobody_but_the_run_itself(site: Site, receiver: Receiver) -> None:
    """What its secret signs is believed: a person clicks on it."""
    own = {"STEERSMAN_WEBHOOK": receiver.url, "STEERSMAN_WEBHOOK_ON": "end", "STEERSMAN_WEBHOOK_SECRET": "signs"}
    steersman = await at_work(site, **own)
    run = await steersman.start(site.process("true"))
    state = await until(lambda: _claimed(steersman, run))
    await until(lambda: receiver.kinds == ["end"])
    for kind in ("end", "approval"):
        told = {**receiver.told[0], "type": kind, "run": run}
        forged = {"host": state.host, "notice": told, "expires_s": 30}
        with pytest.raises(WorkflowFailureError) as refused:
            await steersman.temporal.execute_workflow(
                "RunNotice", forged, id=f"{run}:notice-{kind}", task_queue="steersman"
            )
        failure = refused.value.cause
        assert isinstance(failure, ActivityError)
        assert isinstance(failure.cause, ApplicationError)
        assert failure.cause.type == "InvalidRequest"
    assert len(receiver.got) == 1


async def _claimed(steersman: Steersman, run: str) -> RunState | None:
    state = await steersman.state(run)
    return state if state.host else None


@pytest.mark.parametrize(
    ("webhook", "said"),
    [
        ({"url": "http://169.254.169.254/latest"}, "notify.0.url: http://169.254.169.254/latest is not allowed"),
        ({"url": {"from_env": "HOME"}}, "notify.0.url.from_env: HOME is not allowed"),
        ({"url": {"from_env": "NOT_THERE"}}, "notify.0.url: the worker's environment has no NOT_THERE"),
        ({"url": {"from_env": "OTHER_SECRET"}}, "notify.0.url: it has to begin with https:// or http://"),
        ({"url": "no url"}, "notify.0.url: it has to be ASCII without spaces"),
    ],
)
async def test_what_the_operator_does_not_allow_is_refused(
    site: Site, receiver: Receiver, webhook: dict[str, Any], said: str
) -> None:
    flags = ("--allow-webhook", receiver.url, "--allow-env", "NOT_THERE", "--allow-env", "OTHER_SECRET")
    steersman = await at_work(site, *flags, OTHER_SECRET="of-somebody-else")
    with pytest.raises(InvalidRequest, match=said) as raised:
        await steersman.result(await steersman.start(site.process("true", notify=[webhook])))
    assert "of-somebody-else" not in str(raised.value)
    assert receiver.got == []


async def test_a_name_that_leads_inside_and_a_redirect_are_no_way(site: Site, receiver: Receiver) -> None:
    """`localhost` is what somebody's DNS may say of any name."""
    inside = receiver.url.replace("127.0.0.1", "localhost")
    steersman = await at_work(site, "--allow-webhook", inside, "--allow-webhook", receiver.url)
    receiver.answers = [(302, "")]
    run = await steersman.start(site.process("true", notify=[{"url": inside}, {"url": receiver.url}]))
    assert (await steersman.result(run)).status == "succeeded"

    async def failed() -> list[str] | None:
        found = [each async for each in steersman.temporal.list_workflows('WorkflowType = "RunNotice"')]
        open_ones = [each for each in found if each.status and each.status.name != "FAILED"]
        return [each.id for each in found] if len(found) == 2 and not open_ones else None

    causes = []
    for each in await until(failed):
        history = (await steersman.temporal.get_workflow_handle(each).fetch_history()).to_json()
        causes.append("an address inside the network" in history)
    assert sorted(causes) == [False, True]
    assert len(receiver.got) == 1, "a redirect is not followed"


async def test_who_never_answers_holds_up_no_run(site: Site, mark: str) -> None:
    asking: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: asking.append(writer), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}/"
    steersman = await at_work(site, "--allow-webhook", url)
    run = await steersman.start(site.process(*python(OBEDIENT), mark=mark, notify=[{"url": url}]))
    await until(lambda: _is_running(steersman, run))
    await asyncio.wait_for(steersman.stop(run), 30)
    await until(lambda: bool(asking))
    silent.close()
    for writer in asking:
        writer.close()
        await writer.wait_closed()


async def _is_running(steersman: Steersman, run: str) -> bool:
    return (await steersman.state(run)).phase == "running"
