"""Threads against a real server, the real workflow, and a machine whose agent is played by the test."""

import asyncio
import uuid
from functools import partial
from typing import Any

import pytest
from temporalio import activity, workflow

from steersman._client.owned_run import LEFT
from steersman._client.run_calls import RunCalls
from steersman._client.thread_calls import ThreadCalls
from steersman.client import Steersman
from steersman.contracts import names
from steersman.contracts.activities import StopInput
from steersman.contracts.errors import AgentCrashed, AgentFailed, InvalidRequest
from steersman.contracts.request import Limits, RunRequest
from steersman.contracts.run import RunResult, StopReport
from steersman.errors import CannotFork, RunInterrupted, RunNotFound, RunTerminated, ThreadBusy
from steersman.threads import AbortSignal, Thread
from tests.client.fake_host import FakeHost, init, said, succeeded
from tests.support.processes import until
from tests.support.temporal import Namespace, new_namespace

pytestmark = pytest.mark.integration


class Played:
    """The agent of a thread's runs, one after another."""

    def __init__(self, host: FakeHost, thread: Thread) -> None:
        self._host, self.thread = host, thread

    def will(self, outcome: Any, *events: Any) -> None:
        """Forget the run before; the next one shows these events and ends so. None: it works on until it is stopped."""
        self._host.fake_runs.pop(self.thread.id, None)
        self._host.show(self.thread.id, *events)
        if outcome is not None:
            self._host.finish(self.thread.id, outcome)

    async def asked(self) -> RunRequest:
        """The request of the run at work, or of the last one."""
        fake = self._host.fake_run(self.thread.id)
        await asyncio.wait_for(fake.started.wait(), 20)
        return RunRequest.model_validate(fake.request)


@pytest.fixture
def played(steersman: Steersman, fake_host: FakeHost, workspace: str) -> Played:
    return Played(fake_host, steersman.thread(agent="claude", workspace=workspace))


async def test_each_run_resumes_the_session_where_it_is(played: Played) -> None:
    thread = played.thread
    assert thread.id.startswith("thread-")
    played.will(succeeded("one"), init(), said("one"))
    assert (await thread.run("first")).text == "one"
    first = await played.asked()
    assert (first.session, first.workspace.host) == (None, None)
    played.will(succeeded("two"), init(), said("two"))
    events = [event async for event in thread.run_streamed("second")]
    assert [(event.seq, event.type) for event in events] == [(1, "init"), (2, "message"), (3, "done")]
    second = await played.asked()
    assert (second.prompt, second.session, second.fork_session) == ("second", "s-1", False)
    assert second.workspace.host == "fake-host"


async def test_a_log_that_is_lost_while_it_is_read_ends_all_the_same(played: Played, fake_host: FakeHost) -> None:
    played.will(AgentFailed("out of credit"), init(), *(said(str(number)) for number in range(60)))
    with pytest.raises(AgentFailed):
        await played.thread.run("go")
    events = played.thread.attach()
    read = [await anext(events)]
    del fake_host.fake_runs[played.thread.id]
    read += [event async for event in events]
    assert [event.seq for event in read] == list(range(1, len(read) + 1))
    assert (len(read) < 60, read[-1].type) == (True, "failed")


async def test_any_client_goes_on_by_the_id_with_the_same_fields(
    played: Played, steersman: Steersman, client_namespace: Namespace, workspace: str
) -> None:
    thread = steersman.thread(
        agent="claude",
        workspace=workspace,
        model="m-1",
        limits=Limits(turns=7),
        labels={"team": "blue"},
        thread_id=f"ticket-{played.thread.id}",
    )
    played.thread = thread
    played.will(succeeded())
    await thread.run("first", output_schema={"type": "object"})
    played.will(succeeded())
    elsewhere = await Steersman(await client_namespace.connect()).resume_thread(thread.id, limits={"turns": 3})
    await elsewhere.run("second")
    asked = await played.asked()
    assert (asked.model, asked.limits.turns, asked.labels) == ("m-1", 3, {"team": "blue"})
    assert (asked.session, asked.output_schema) == ("s-1", None)
    played.will(succeeded())
    await (await steersman.resume_thread(thread.id)).run("third")
    assert (await played.asked()).limits.turns == 3
    with pytest.raises(InvalidRequest, match='is one of agent "claude"'):
        await steersman.thread(agent="codex", workspace=workspace, thread_id=thread.id).run("what")


@pytest.mark.exhaustive
async def test_a_thread_goes_on_after_each_kind_of_end(played: Played, steersman: Steersman) -> None:
    thread = played.thread
    played.will(AgentCrashed("exit 3"))
    with pytest.raises(AgentCrashed):
        await thread.run("crashes before it has a session")
    played.will(succeeded())
    await thread.run("begins one")
    assert (await played.asked()).session is None
    for number in range(2):  # of a run that ended before its agent had spoken, the session before it counts
        played.will(None)
        running = asyncio.create_task(thread.run(f"terminated {number}"))
        assert (await played.asked()).session == "s-1"
        await steersman.temporal.get_workflow_handle(thread.id).terminate(reason="away")
        with pytest.raises(RunTerminated, match="away"):
            await running
    played.will(succeeded("last"))
    assert (await thread.run("last")).text == "last"
    assert (await played.asked()).session == "s-1"


def all_but_one_done(runs: list[asyncio.Task[RunResult]]) -> bool:
    return sum(each.done() for each in runs) == len(runs) - 1


async def test_one_of_many_clients_has_the_thread(
    played: Played, fake_host: FakeHost, client_namespace: Namespace, workspace: str
) -> None:
    clients = [Steersman(await client_namespace.connect()) for _ in range(4)]
    threads = [each.thread(agent="claude", workspace=workspace, thread_id=played.thread.id) for each in clients]
    for _ in range(2):  # the first runs of a thread, and later ones
        played.will(None, init())
        runs = [asyncio.create_task(each.run(f"from {n}")) for n, each in enumerate(threads * 2)]
        asked = await played.asked()
        await until(partial(all_but_one_done, runs))
        refused = [each.exception() for each in runs if each.done()]
        executions = {each.execution for each in refused if isinstance(each, ThreadBusy)}
        assert len(refused) == len(runs) - 1
        assert len(executions) == 1
        fake_host.finish(played.thread.id, succeeded("mine"))
        (winner,) = [each for each in runs if not each.done()]
        assert (await winner).text == "mine"
        assert runs.index(winner) == int(asked.prompt.removeprefix("from "))


async def test_the_interrupted_run_has_its_own_end_while_the_next_is_at_work(
    played: Played, fake_host: FakeHost
) -> None:
    thread = played.thread
    played.will(None, init())
    first = asyncio.create_task(thread.run("first"))
    await played.asked()
    second = asyncio.create_task(thread.run("second", on_running="interrupt"))
    with pytest.raises(RunInterrupted, match="next run") as raised:
        await asyncio.wait_for(first, 20)
    assert raised.value.stop_report is not None
    assert not second.done()
    played.will(succeeded("second"))
    await thread.interrupt("that is all")
    with pytest.raises(RunInterrupted, match="that is all"):
        await second


@pytest.mark.exhaustive
async def test_a_run_that_is_being_stopped_is_waited_for_unless_a_signal_says_otherwise(
    steersman: Steersman, client_namespace: Namespace, workspace: str
) -> None:
    stopping = asyncio.Event()

    class Slow(FakeHost):
        @activity.defn(name=names.STOP_AGENT)
        async def stop_agent(self, asked: StopInput) -> StopReport:
            await stopping.wait()
            return StopReport(outcome="stopped", phase=asked.phase)

    async with Slow(await client_namespace.connect(), "slow-host").at_work() as host:
        played = Played(host, steersman.thread(agent="claude", workspace=workspace))
        first = asyncio.create_task(played.thread.run("first"))
        await played.asked()
        signal = AbortSignal()
        second = asyncio.create_task(played.thread.run("second", on_running="interrupt", signal=signal))
        await until_stopping(steersman, played.thread.id)
        signal.abort("no hurry")
        with pytest.raises(RunInterrupted, match="no hurry"):
            await asyncio.wait_for(second, 5)
        assert not first.done()
        third = asyncio.create_task(played.thread.run("third"))
        await asyncio.wait({third}, timeout=0.5)  # a refusal would be there by then
        assert not third.done()
        played.will(succeeded("third"))
        stopping.set()
        with pytest.raises(RunInterrupted, match="next run"):
            await first
        assert (await third).text == "third"


async def until_stopping(steersman: Steersman, run: str) -> None:
    async def stopping() -> bool:
        return (await steersman.state(run)).phase == "stopping"

    await until(stopping)


@pytest.mark.exhaustive
async def test_a_run_that_is_awaited_ends_with_whoever_awaits_it(
    steersman: Steersman, fake_host: FakeHost, workspace: str
) -> None:
    request = {"agent": "claude", "prompt": "go", "workspace": {"path": workspace}}
    looked_on, awaited = f"looked-on-{uuid.uuid4()}", f"awaited-{uuid.uuid4()}"
    await steersman.start(request, run_id=looked_on)
    readers = [
        asyncio.create_task(anext(steersman.attach(looked_on))),
        asyncio.create_task(steersman.result(looked_on)),
        asyncio.create_task(steersman.run(request, run_id=awaited)),
    ]
    for run in (looked_on, awaited):
        await asyncio.wait_for(fake_host.fake_run(run).started.wait(), 20)
    for reader in readers:
        reader.cancel()
    await asyncio.wait(readers)
    assert all(reader.cancelled() for reader in readers)
    state = await steersman.state(awaited)
    assert (state.closed_as, state.stop_report and state.stop_report.reason) == ("cancelled", LEFT)
    assert (await steersman.state(looked_on)).phase == "running"
    await steersman.stop(looked_on)


async def test_a_task_that_is_cancelled_while_its_run_starts_leaves_none(
    steersman: Steersman, fake_host: FakeHost, workspace: str
) -> None:
    """At each moment of the start, the request to the server among them."""
    for number in range(12):
        thread = steersman.thread(agent="claude", workspace=workspace)
        running = asyncio.create_task(thread.run("go"))
        for _ in range(number):
            await asyncio.sleep(0.001)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await steersman.stop(thread.id)).outcome in ("not_found", "already_finished")


@pytest.mark.exhaustive
async def test_a_loop_that_is_only_left_stops_the_run_in_the_end(played: Played, steersman: Steersman) -> None:
    played.will(None, init())
    async for _event in played.thread.run_streamed("go"):
        break

    async def cancelled() -> bool:
        return (await steersman.state(played.thread.id)).closed_as == "cancelled"

    await until(cancelled)


@pytest.mark.exhaustive
async def test_any_reason_can_be_given(played: Played) -> None:
    for reason in ("y" * 5_000_000, "half a pair: \ud800", "several\nlines\0"):
        played.will(None, init())
        running = asyncio.create_task(played.thread.run("go"))
        await played.asked()
        await played.thread.interrupt(reason)
        with pytest.raises(RunInterrupted) as raised:
            await running
        assert raised.value.reason == reason[:1000].replace("\ud800", "?")


async def test_a_thread_that_the_server_has_forgotten_begins_no_new_session_unasked(
    played: Played, steersman: Steersman, dev_server: str, workspace: str
) -> None:
    """Another namespace stands for a server whose retention is over: deleting takes a server half a minute."""
    client = await (await new_namespace(dev_server)).connect()
    template = RunRequest.model_validate({"agent": "claude", "prompt": "-", "workspace": {"path": workspace}})
    thread = Thread(ThreadCalls(client, RunCalls(client)), played.thread.id, template, None)
    for ask in (Steersman(client).resume_thread(thread.id), thread.run("second"), thread.fork()):
        with pytest.raises(RunNotFound, match=thread.id):
            await ask
    assert (await thread.interrupt()).outcome == "not_found"

    kept = steersman.thread(agent="claude", workspace=workspace, thread_id=thread.id, session="s-7", fork_session=True)
    played.will(succeeded())
    await kept.run("second")
    asked = await played.asked()
    assert (asked.session, asked.fork_session) == ("s-7", True)


async def test_a_fork_begins_with_a_copy_of_the_session(played: Played, steersman: Steersman) -> None:
    thread = played.thread
    with pytest.raises(CannotFork, match="no session yet"):
        await thread.fork()
    played.will(succeeded())
    await thread.run("first")
    fork = played.thread = await thread.fork()
    assert fork.id != thread.id
    with pytest.raises(RunNotFound):  # until its first run it is nothing but this object
        await steersman.resume_thread(fork.id)
    played.will(succeeded())
    await fork.run("in the copy")
    asked = await played.asked()
    assert (asked.session, asked.fork_session, asked.workspace.host) == ("s-1", True, "fake-host")
    played.will(succeeded())
    await fork.run("further")
    assert (await played.asked()).fork_session is False


async def test_an_agent_that_cannot_fork_says_so(steersman: Steersman, fake_host: FakeHost, workspace: str) -> None:
    played = Played(fake_host, steersman.thread(agent="gemini", workspace=workspace))
    played.will(succeeded())
    await played.thread.run("first")
    with pytest.raises(CannotFork, match='"gemini"'):
        await played.thread.fork()


async def test_any_run_is_a_thread(played: Played, steersman: Steersman, workspace: str) -> None:
    run = f"by-hand-{uuid.uuid4()}"
    played.thread = thread = steersman.thread(agent="claude", workspace=workspace, thread_id=run)
    played.will(succeeded())
    await steersman.run({"agent": "claude", "prompt": "go", "workspace": {"path": workspace}}, run_id=run)
    played.will(succeeded("more"))
    assert (await (await steersman.resume_thread(run)).run("go on")).text == "more"
    assert (await played.asked()).session == "s-1"
    assert thread.id == run


@workflow.defn(name="AsALoop", sandboxed=False)
class AsALoop:
    """Has a run of its own."""

    @workflow.run
    async def run(self, request: dict[str, Any], run: str) -> None:
        await workflow.execute_child_workflow(names.RUN_WORKFLOW, request, id=run)


async def test_the_run_of_a_loop_is_no_thread(
    steersman: Steersman, client_namespace: Namespace, workspace: str
) -> None:
    host = FakeHost(await client_namespace.connect(), "host-of-a-loop")
    host.workflows = [*host.workflows, AsALoop]
    loop, run = f"loop-{uuid.uuid4()}", f"run-{uuid.uuid4()}"
    async with host.at_work():
        request = {"agent": "claude", "prompt": "go", "workspace": {"path": workspace}}
        options: dict[str, Any] = {"id": loop, "task_queue": names.TASK_QUEUE}
        parent = await steersman.temporal.start_workflow("AsALoop", args=[request, run], **options)
        await asyncio.wait_for(host.fake_run(run).started.wait(), 20)
        with pytest.raises(InvalidRequest, match=f"{run} is that of {loop}"):
            await steersman.resume_thread(run)
        with pytest.raises(RunNotFound, match="no thread, but a workflow of type AsALoop"):
            await steersman.resume_thread(loop)
        host.finish(run, succeeded())
        await parent.result()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"agent": "process", "command": ["true"]}, "cannot resume"),
        ({"workspace": "src"}, "workspace.path"),
        ({"workspace": {"path": "/src", "colour": "red"}}, "colour"),
        ({"thread_id": "../etc"}, "run_id"),
        ({"session": "a b"}, "session"),
        ({"fork_session": True}, "fork_session"),
        ({"colour": "red"}, "colour"),
        ({"labels": {"a": object()}}, "JSON"),
        ({"prompt": "x"}, "prompt: is each run's own"),
        ({"output_schema": None}, "output_schema: is each run's own"),
        ({"attachments": ()}, "attachments: is each run's own"),
        ({"env": {"API_KEY": "sk-1"}}, "API_KEY"),
    ],
)
async def test_what_can_be_no_thread_is_refused_at_once(
    steersman: Steersman, workspace: str, fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidRequest, match=named):
        steersman.thread(**{"agent": "claude", "workspace": workspace, **fields})
    if "own" in named:
        with pytest.raises(InvalidRequest, match=named):
            steersman.thread(agent="claude", workspace=workspace).with_options(**fields)
        with pytest.raises(InvalidRequest, match=named):
            await steersman.resume_thread("any", **fields)


async def test_a_wrong_run_is_refused_before_anything_is_asked(steersman: Steersman, workspace: str) -> None:
    thread = steersman.thread(agent="claude", workspace=workspace)
    wrong: Any = "later"
    for run in (thread.run(" "), thread.run("go", on_running=wrong), anext(thread.run_streamed("\0"))):
        with pytest.raises(InvalidRequest):
            await run
    assert (await steersman.stop(thread.id)).outcome == "not_found"
