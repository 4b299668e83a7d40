"""The Python client against a real server, the real workflow, and a machine whose agent is played by the test."""

import asyncio
import re
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import SearchAttributePair, TypedSearchAttributes

from steersman._client.host_calls import call_host
from steersman._client.search_attributes import RUN_PHASE
from steersman.client import Steersman
from steersman.contracts.activities import EventPage, ReadEvents, RunKey
from steersman.contracts.errors import AgentCrashed, InvalidRequest
from steersman.contracts.events import AgentEvent, CancelledEvent
from steersman.contracts.names import READ_EVENTS, RUN_WORKFLOW
from steersman.errors import (
    AlreadyDecided,
    AlreadyRunning,
    HostUnreachable,
    MessageRefused,
    RunCancelled,
    RunNotFound,
    RunNotRunning,
    RunTerminated,
    ServerRefused,
    ServerUnreachable,
)
from tests.cli.steer import Steer
from tests.client.fake_host import KILLED, FakeHost, init, said, succeeded
from tests.support.processes import until
from tests.support.temporal import Namespace, connect

pytestmark = pytest.mark.integration


def ask(workspace: str, /, **fields: Any) -> dict[str, Any]:
    return {"agent": "claude", "prompt": "Fix it\nplease", "workspace": {"path": workspace}} | fields


async def types(steersman: Steersman, run: str, after: int = 0) -> list[tuple[int, str]]:
    return [(event.seq, event.type) async for event in steersman.attach(run, after=after)]


async def until_running(steersman: Steersman, run: str) -> None:
    async def running() -> bool:
        return (await steersman.state(run)).phase == "running"

    await until(running)


async def test_a_run_that_says_odd_things_of_itself_hides_no_other(
    steersman: Steersman, client_namespace: Namespace, workspace: str
) -> None:
    """Any client writes the memo and search attributes of what it starts."""
    run, odd = await steersman.start(ask(workspace)), f"odd-{uuid.uuid4()}"
    await steersman.temporal.start_workflow(
        RUN_WORKFLOW,
        ask(workspace),
        id=odd,
        task_queue="nobody's",
        memo={"agent": ["claude"], "workspace": {"path": workspace}, "labels": {"number": 1, "team": "blue"}},
        search_attributes=TypedSearchAttributes([SearchAttributePair(RUN_PHASE, "resting")]),
    )

    async def listed() -> bool:
        return {run, odd} <= {each.id for each in await steersman.list(limit=100)}

    await until(listed)
    (found,) = [each for each in await steersman.list(limit=100) if each.id == odd]
    assert (found.agent, found.workspace, found.phase, found.labels) == (None, None, None, {"team": "blue"})
    answer = await Steer(client_namespace.address, Path(workspace), client_namespace.name)("list")
    assert (answer.code, odd in answer.out) == (0, True), answer.err


async def test_a_run_from_start_to_result(steersman: Steersman, fake_host: FakeHost, workspace: str) -> None:
    run = await steersman.start(ask(workspace, labels={"team": "blue"}))
    assert re.fullmatch(r"[a-z]+(-[a-z]+){0,2}-[2-9b-z]{6}", run)
    fake_host.show(run, init(), *(said(f"line {n}") for n in range(8)))
    fake_host.finish(run, succeeded("all fixed"))
    result = await steersman.result(run)
    assert (result.status, result.text, result.turns) == ("succeeded", "all fixed", 2)
    assert await types(steersman, run) == [(1, "init"), *((n, "message") for n in range(2, 10)), (10, "done")]
    description = await steersman.temporal.get_workflow_handle(run).describe()
    assert await description.static_summary() == "claude: Fix it"
    assert (await description.memo())["labels"] == {"team": "blue"}
    # What it is was written with its start; each change afterwards is one more that is billed.
    kinds = [event.event_type async for event in steersman.temporal.get_workflow_handle(run).fetch_history_events()]
    assert EventType.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED not in kinds
    first_task = kinds[: kinds.index(EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED)]
    # That one is of the workflow's patch.
    assert first_task.count(EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES) == 1


async def test_a_namespace_that_no_worker_has_prepared_takes_runs(client: Client, workspace: str) -> None:
    name = f"bare-{uuid.uuid4()}"
    asked = RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=Duration(seconds=86400))
    await client.workflow_service.register_namespace(asked)
    bare = Steersman(await connect(client.service_client.config.target_host, name))
    run = await bare.start(ask(workspace))
    description = await bare.temporal.get_workflow_handle(run).describe()
    assert (description.status, list(description.typed_search_attributes)) == (WorkflowExecutionStatus.RUNNING, [])
    await bare.temporal.get_workflow_handle(run).terminate()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("Find out why the tests fail, and mend it", "find-tests-fail"),
        ("Fix `src/a.py`; the key is sk-ant-123abc", "fix-key"),
        ("please\nTell nobody", ""),
        ("\u65e5\u672c", ""),
    ],
)
async def test_an_id_has_words_of_what_is_asked(
    steersman: Steersman, fake_host: FakeHost, workspace: str, prompt: str, words: str
) -> None:
    ids = {await steersman.start(ask(workspace, prompt=prompt)) for _ in range(3)}
    assert len(ids) == 3
    if words:
        assert {each[:-7] for each in ids} == {words}
    else:
        assert [uuid.UUID(each.removeprefix("run-")).version for each in ids] == [7, 7, 7]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"prompt": " "}, "prompt"),
        ({"workspace": {"path": "src"}}, "workspace.path"),
        ({"colour": "red"}, "colour"),
        ({"env": {"API_KEY": "sk-1"}}, "API_KEY"),
    ],
)
async def test_a_bad_request_never_leaves_the_client(
    steersman: Steersman, workspace: str, fields: dict[str, Any], named: str
) -> None:
    run = f"bad-{uuid.uuid4()}"
    with pytest.raises(InvalidRequest, match=named) as raised:
        await steersman.start(ask(workspace, **fields), run_id=run)
    assert "sk-1" not in str(raised.value)
    with pytest.raises(RunNotFound):
        await steersman.state(run)


async def test_a_second_run_of_the_same_id_is_refused(
    steersman: Steersman, fake_host: FakeHost, workspace: str
) -> None:
    run = await steersman.start(ask(workspace))
    with pytest.raises(AlreadyRunning, match=run):
        await steersman.start(ask(workspace), run_id=run)


async def test_a_failure_is_typed_and_carries_the_result(
    steersman: Steersman, fake_host: FakeHost, workspace: str
) -> None:
    run = await steersman.start(ask(workspace))
    fake_host.finish(
        run,
        succeeded(
            "half",
        ).model_copy(
            update={"status": "failed", "error": "AgentCrashed", "message": "exit 3", "facts": {"exit_code": 3}}
        ),
    )
    with pytest.raises(AgentCrashed, match="exit 3") as raised:
        await steersman.result(run)
    assert raised.value.facts == {"exit_code": 3}
    assert raised.value.result is not None
    assert raised.value.result.text == "half"
    assert (await types(steersman, run))[-1] == (1, "failed")


async def test_stop_says_what_it_found(steersman: Steersman, fake_host: FakeHost, workspace: str) -> None:
    run = await steersman.start(ask(workspace))
    await until_running(steersman, run)
    waiting = asyncio.create_task(types(steersman, run))
    report = await steersman.stop(run)
    assert (report.outcome, report.how, report.processes, report.phase) == ("stopped", "terminated", 3, "running")
    assert (await waiting)[-1] == (1, "cancelled")
    assert (await steersman.stop(run)).outcome == "already_finished"
    assert (await steersman.stop("run-unknown")).outcome == "not_found"
    with pytest.raises(RunCancelled) as raised:
        await steersman.result(run)
    assert raised.value.stop_report is not None
    assert raised.value.stop_report.took_ms == 42


async def test_following_goes_on_from_a_number(steersman: Steersman, fake_host: FakeHost, workspace: str) -> None:
    run = await steersman.start(ask(workspace))
    fake_host.show(run, init(), said("one"))
    got: list[AgentEvent] = []
    async with aclosing(steersman.attach(run)) as events:
        async for event in events:
            got.append(event)
            if event.seq == 2:
                break
    fake_host.show(run, said("two"), said("three"))
    follower = asyncio.create_task(types(steersman, run, after=2))
    fake_host.finish(run, succeeded())
    assert await follower == [(3, "message"), (4, "message"), (5, "done")]
    assert await types(steersman, run, after=5) == []
    assert [event.seq for event in await steersman.events(run, 1, limit=2)] == [2, 3]
    assert [event.seq for event in await steersman.events(run)] == [1, 2, 3, 4, 5]


async def test_failures_in_the_middle_lose_and_repeat_nothing(
    steersman: Steersman, fake_host: FakeHost, workspace: str
) -> None:
    run = await steersman.start(ask(workspace))
    follower = asyncio.create_task(types(steersman, run))
    for burst in range(4):
        fake_host.failing_reads = 2
        fake_host.show(run, *(said(f"{burst}.{n}") for n in range(5)))
        while fake_host.failing_reads:
            await asyncio.sleep(0.01)
    fake_host.finish(run, succeeded())
    assert await follower == [*((n, "message") for n in range(1, 21)), (21, "done")]


@pytest.mark.parametrize(
    ("next_end", "off"),
    [(None, None), (6, 0), (6, -1), (6, 100), (5, 1), (3, -100), (1, 0), (0, 1), (-1, -1), (7, None), (100, 100)],
)
async def test_each_event_comes_once_whatever_a_host_says_of_its_pages(
    steersman: Steersman, fake_host: FakeHost, workspace: str, next_end: int | None, off: int | None
) -> None:
    fake_host.next_end = next_end
    fake_host.last = lambda number: None if off is None else number + off
    run = await steersman.start(ask(workspace))
    fake_host.show(run, *(said(f"{number}") for number in range(20)))
    following = types(steersman, run)
    follower = asyncio.create_task(following)
    await until_running(steersman, run)
    fake_host.show(run, *(said(f"{number}") for number in range(20, 30)))
    fake_host.finish(run, succeeded())
    everything = [*((number, "message") for number in range(1, 31)), (31, "done")]
    assert await follower == everything
    assert await types(steersman, run) == everything
    assert await types(steersman, run, after=17) == everything[17:]


async def test_an_answer_that_is_no_page_of_events_is_refused(
    steersman: Steersman, fake_host: FakeHost, workspace: str
) -> None:
    fake_host.failing_reads = 1
    nothing = ReadEvents(key=RunKey(run="r", execution="e"))
    with pytest.raises(ServerRefused, match=f"host {fake_host.host} answers in a way that this version does not"):
        await call_host(steersman.temporal, fake_host.host, READ_EVENTS, nothing, EventPage)


async def test_a_call_goes_on_with_the_next_worker_of_a_deploy(
    steersman: Steersman, fake_host: FakeHost, workspace: str
) -> None:
    nothing = ReadEvents(key=RunKey(run="r", execution="e"))
    fake_host.stopped_reads = 3
    page = await call_host(steersman.temporal, fake_host.host, READ_EVENTS, nothing, EventPage)
    assert not page.known
    assert fake_host.reads == 4
    fake_host.stopped_reads = 100
    with pytest.raises(HostUnreachable, match=f"the worker on host {fake_host.host} was told to end in the middle"):
        await call_host(steersman.temporal, fake_host.host, READ_EVENTS, nothing, EventPage)
    assert fake_host.reads == 10


async def test_a_call_does_not_wait_for_a_worker_that_was_killed_over_it(
    steersman: Steersman, fake_host: FakeHost, workspace: str
) -> None:
    nothing = ReadEvents(key=RunKey(run="r", execution="e"))
    fake_host.is_frozen = True
    async with asyncio.timeout(30):
        with pytest.raises(HostUnreachable, match=f"the worker on host {fake_host.host} went away in the middle"):
            await call_host(steersman.temporal, fake_host.host, READ_EVENTS, nothing, EventPage, takes_s=120)
    assert fake_host.reads == 1


async def test_a_run_that_never_had_a_host_has_one_event(
    steersman: Steersman, fake_host: FakeHost, workspace: str
) -> None:
    fake_host.refuse = "workspace.path: /nowhere does not exist"
    run = await steersman.start(ask(workspace))
    with pytest.raises(InvalidRequest, match="does not exist"):
        await steersman.result(run)
    events = [event async for event in steersman.attach(run)]
    assert [(event.seq, event.type) for event in events] == [(1, "failed")]
    assert await types(steersman, run, after=1) == []
    assert [event.type for event in await steersman.events(run)] == ["failed"]


async def test_a_terminated_run_ends_for_its_followers_too(
    steersman: Steersman, fake_host: FakeHost, workspace: str
) -> None:
    run = await steersman.start(ask(workspace))
    fake_host.show(run, init(), said("one"))
    await until_running(steersman, run)
    follower = asyncio.create_task(types(steersman, run))
    await steersman.temporal.get_workflow_handle(run).terminate(reason="enough")
    assert await follower == [(1, "init"), (2, "message"), (3, "cancelled")]
    with pytest.raises(RunTerminated, match="enough") as raised:
        await steersman.result(run)
    assert (raised.value.stop_report, raised.value.code) == (KILLED, "interrupted")
    assert (await types(steersman, run, after=2)) == [(3, "cancelled")]
    state = await steersman.state(run)
    assert (state.phase, state.closed_as, state.stop_report) == ("closed", "terminated", KILLED)
    assert (await steersman.stop(run)).outcome == "already_finished"


async def test_a_reason_is_kept(steersman: Steersman, fake_host: FakeHost, workspace: str) -> None:
    run = await steersman.start(ask(workspace))
    await until_running(steersman, run)
    stopped = await steersman.stop(run, reason="too dear")
    with pytest.raises(RunCancelled, match=f"run {run} was cancelled: too dear") as raised:
        await steersman.result(run)
    assert raised.value.stop_report is not None
    assert stopped.reason == raised.value.reason == raised.value.stop_report.reason == "too dear"
    (event,) = await steersman.events(run)
    assert isinstance(event, CancelledEvent)
    assert (event.reason, event.terminated) == ("too dear", False)


async def test_a_failure_after_an_end_says_that_a_person_had_ended_the_run(
    steersman: Steersman, fake_host: FakeHost, workspace: str
) -> None:
    run = await steersman.start(ask(workspace))
    await until_running(steersman, run)
    ending = asyncio.create_task(steersman.interrupt(run, reason="lunch", end=True))
    while not fake_host.fake_run(run).messages:
        await asyncio.sleep(0.01)
    fake_host.finish(run, AgentCrashed("exit 3"))
    with pytest.raises(AgentCrashed) as raised:
        await steersman.result(run)
    assert raised.value.code == "interrupted"
    assert raised.value.result is not None
    assert raised.value.result.code == "interrupted"
    await ending


@pytest.mark.exhaustive
async def test_messages_reach_the_agent_once(steersman: Steersman, fake_host: FakeHost, workspace: str) -> None:
    run = await steersman.start(ask(workspace))
    await until_running(steersman, run)
    receipt = await steersman.steer(run, "left, please")
    assert (receipt.state, receipt.how) == ("acknowledged", "mid_turn")
    for _ in range(2):
        assert (await steersman.interrupt(run, "stop that", id="m-7")).id == "m-7"
    assert [(each.kind, each.text) for each in fake_host.fake_run(run).messages] == [
        ("steer", "left, please"),
        ("interrupt", "stop that"),
    ]
    with pytest.raises(InvalidRequest, match="text"):
        await steersman.steer(run, "\0")
    with pytest.raises(InvalidRequest, match="text"):
        await steersman.steer(run, " ")
    fake_host.finish(run, succeeded())
    await steersman.result(run)
    with pytest.raises(RunNotRunning):
        await steersman.steer(run, "too late")
    with pytest.raises(RunNotFound):
        await steersman.steer("run-unknown", "hello")


async def test_an_agent_that_cannot_be_steered_says_so(
    steersman: Steersman, fake_host: FakeHost, workspace: str
) -> None:
    run = await steersman.start({"agent": "process", "command": ["cat"], "workspace": {"path": workspace}})
    await until_running(steersman, run)
    with pytest.raises(MessageRefused, match="cannot steer") as raised:
        await steersman.steer(run, "left")
    assert raised.value.reason


async def test_the_first_decision_wins(steersman: Steersman, fake_host: FakeHost, workspace: str) -> None:
    run = await steersman.start(ask(workspace))
    await fake_host.ask(run, "a-1", "Bash", command="make")
    receipt = await steersman.decide(run, "a-1", "allow", remember=True)
    assert (receipt.tool, receipt.input) == ("Bash", {"command": "make"})
    with pytest.raises(AlreadyDecided, match="allow"):
        await steersman.decide(run, "a-1", "deny")


async def test_the_list_shows_what_runs_where(steersman: Steersman, fake_host: FakeHost, workspace: str) -> None:
    run = await steersman.start(ask(workspace))
    await until_running(steersman, run)

    async def listed() -> Any:
        while True:
            found = [each for each in await steersman.list('AgentName="claude"') if each.id == run]
            if found and found[0].phase == "running":
                return found[0]
            await asyncio.sleep(0.05)

    summary = await listed()
    assert (summary.agent, summary.workspace, summary.status) == ("claude", workspace, "running")
    with pytest.raises(ServerRefused, match="Colour"):
        await steersman.list('Colour="red"')


async def test_the_newest_is_what_began_last(steersman: Steersman, fake_host: FakeHost, tmp_path: Path) -> None:
    """Whatever is still open, and whatever ended last: the server itself lists by these."""
    begun: list[str] = []
    for number in range(4):
        (tmp_path / str(number)).mkdir()
        begun.insert(0, await steersman.start(ask(str(tmp_path / str(number))), run_id=f"newest-{number}"))
        await until_running(steersman, begun[0])
        if number in (1, 3):
            fake_host.finish(begun[0], succeeded())
            await steersman.result(begun[0])

    async def listed(limit: int = 100) -> list[str]:
        return [each.id for each in await steersman.list('WorkflowId STARTS_WITH "newest-"', limit=limit)]

    await until(lambda: _is(listed, begun))
    assert await listed(0) == []
    fake_host.finish("newest-0", succeeded())  # the oldest ends last
    await steersman.result("newest-0")
    await until(lambda: _is(lambda: steersman.list('WorkflowId="newest-0" AND ExecutionStatus="Running"'), []))
    for limit in range(1, 5):
        assert await listed(limit) == begun[:limit]


async def _is(read: Callable[[], Awaitable[Any]], value: Any) -> bool:
    return bool(await read() == value)


async def test_a_host_that_is_gone_is_named(steersman: Steersman) -> None:
    with pytest.raises(HostUnreachable, match="elsewhere"):
        await steersman.prune("elsewhere", 30)


async def test_no_server_is_said_at_once() -> None:
    with pytest.raises(ServerUnreachable, match=r"127\.0\.0\.1:1\b.*refused"):
        await Steersman.connect(address="127.0.0.1:1")


LEAVES = """
import asyncio, sys
from steersman import Steersman

async def main() -> None:
    steersman = await Steersman.connect(address=sys.argv[1], namespace=sys.argv[2])
    try:
        async with asyncio.timeout(0.3):
            await steersman.result(sys.argv[3])
    except TimeoutError:
        print("left")

asyncio.run(main())
"""


@pytest.mark.exhaustive
async def test_a_script_that_leaves_a_result_ends_well(
    steersman: Steersman, fake_host: FakeHost, client_namespace: Namespace, workspace: str
) -> None:
    """The SDK's threads are not caught in the interpreter's end."""
    run = await steersman.start({"agent": "claude", "prompt": "go", "workspace": {"path": workspace}})
    await asyncio.wait_for(fake_host.fake_run(run).started.wait(), 20)
    command = [sys.executable, "-c", LEAVES, client_namespace.address, client_namespace.name, run]
    for _ in range(4):
        scripts = [
            await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            for _ in range(4)
        ]
        said = [(await script.communicate())[0].decode() for script in scripts]
        assert ([script.returncode for script in scripts], said) == ([0] * 4, ["left\n"] * 4)
    await steersman.stop(run)
