"""Loops from Python against a real server, with a loop and a machine that the test plays."""

import asyncio
import re
import uuid
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest

from steersman._client import host_workers, loop_follower
from steersman._client.checkpoint_selection import selected
from steersman._client.server_checks import Check, check_server
from steersman.client import Steersman
from steersman.contracts.errors import InvalidRequest, LoopFailed
from steersman.contracts.loop import parse_loop_request
from steersman.contracts.loop_messages import Cleanup
from steersman.contracts.loop_state import Checkpoint, LoopResult, LoopState
from steersman.errors import (
    AlreadyRunning,
    HostUnreachable,
    MessageRefused,
    RunCancelled,
    RunNotFound,
    RunNotRunning,
    RunTerminated,
)
from steersman.loop_items import LoopItem, RunBegun
from tests.client.fake_host import init, now, said, succeeded
from tests.client.fake_loop import FakeLoopHost, checkpoint
from tests.support.temporal import Namespace

pytestmark = pytest.mark.integration


def ask(workspace: str, /, **fields: Any) -> dict[str, Any]:
    run = {"agent": "claude", "workspace": {"path": workspace}} | fields.pop("run", {})
    return {"run": run, "plan": {"path": "PLAN.md"}, "done": {"items": {"kind": "checkboxes"}}} | fields


class Watcher:
    """Follows a loop beside the test."""

    def __init__(self, steersman: Steersman, loop: str) -> None:
        self.items: list[LoopItem] = []
        self.wake = asyncio.Event()
        self._changed = asyncio.Event()
        self.task = asyncio.create_task(self._follow(steersman, loop))

    async def _follow(self, steersman: Steersman, loop: str) -> None:
        async with aclosing(steersman.loops.follow(loop, wake=self.wake)) as items:
            async for item in items:
                self.items.append(item)
                self._changed.set()

    @property
    def told(self) -> list[str]:
        """In short."""
        names = []
        for item in self.items:
            if isinstance(item, LoopState):
                names.append(f"{item.status} {item.iteration}")
            elif isinstance(item, RunBegun):
                names.append(f"begin {item.run.partition('-')[2]} of {item.iteration}{' verify' * item.verifies}")
            else:
                names.append(f"{item.event.seq} {item.event.type}")
        return names

    async def until(self, what: str) -> None:
        async with asyncio.timeout(20):
            while what not in self.told and not self.task.done():
                self._changed.clear()
                await self._changed.wait()


async def test_a_loop_from_start_to_result(steersman: Steersman, loop_host: FakeLoopHost, workspace: str) -> None:
    loop = await steersman.loops.start(ask(workspace, run={"labels": {"team": "blue"}}))
    assert re.fullmatch(r"[a-z]+(-[a-z]+){0,2}-[2-9b-z]{6}", loop)
    await loop_host.end_loop(loop, stop_reason="done", iterations=3, cost_usd=0.5)
    result = await steersman.loops.result(loop)
    assert isinstance(result, LoopResult)
    assert (result.status, result.stop_reason, result.iterations) == ("completed", "done", 3)
    description = await steersman.temporal.get_workflow_handle(loop).describe()
    assert await description.static_summary() == "loop of claude: PLAN.md"
    memo = await description.memo()
    assert (memo["agent"], memo["workspace"], memo["plan"]) == ("claude", workspace, "PLAN.md")
    assert memo["labels"] == {"team": "blue"}
    assert (await steersman.loops.state(loop)).status == "completed"


async def test_a_request_as_a_model_is_the_same(steersman: Steersman, loop_host: FakeLoopHost, workspace: str) -> None:
    loop = await steersman.loops.start(parse_loop_request(ask(workspace, mode="batch")), loop_id="loop-of-a-model")
    assert (await steersman.loops.state(loop)).mode == "batch"
    with pytest.raises(AlreadyRunning, match="loop loop-of-a-model is already running"):
        await steersman.loops.start(ask(workspace), loop_id=loop)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"done": {}}, "done"),
        ({"plan": " "}, "plan"),
        ({"run": {"prompt": "x"}}, "run: prompt"),
        ({"colour": "red"}, "colour"),
        ({"run": {"env": {"API_KEY": "sk-1"}}}, "API_KEY"),
    ],
)
async def test_a_bad_request_never_leaves_the_client(
    steersman: Steersman, workspace: str, fields: dict[str, Any], named: str
) -> None:
    loop = f"bad-{uuid.uuid4()}"
    with pytest.raises(InvalidRequest, match=named) as raised:
        await steersman.loops.start(ask(workspace, **fields), loop_id=loop)
    assert "sk-1" not in str(raised.value)
    with pytest.raises(InvalidRequest, match="loop_id"):
        await steersman.loops.start(ask(workspace), loop_id="x" * 181)
    with pytest.raises(RunNotFound, match=f"no loop {loop}"):
        await steersman.loops.state(loop)


@pytest.mark.parametrize(("invalid", "kind"), [(False, LoopFailed), (True, InvalidRequest)])
async def test_a_failure_is_typed_and_carries_the_result(
    steersman: Steersman,
    loop_host: FakeLoopHost,
    workspace: str,
    invalid: bool,  # noqa: FBT001 - pytest fills it in
    kind: type[Exception],
) -> None:
    loop = await steersman.loops.start(ask(workspace))
    ending = {"status": "failed", "stop_reason": "failures", "error": "3 failed", "iterations": 7}
    await loop_host.end_loop(loop, invalid=invalid, **ending)
    with pytest.raises(kind, match="3 failed") as raised:
        await steersman.loops.result(loop)
    result: Any = getattr(raised.value, "result", None)
    assert isinstance(result, LoopResult)
    assert (result.stop_reason, result.iterations) == ("failures", 7)


async def test_every_verb_says_what_the_wire_says(
    steersman: Steersman, loop_host: FakeLoopHost, workspace: str
) -> None:
    loops = steersman.loops
    loop = await loops.start(ask(workspace))
    assert (await loops.pause(loop, now=True, reason="lunch")).status == "paused"
    assert (await loops.resume(loop, "go left", mode="batch")).status == "running"
    await loops.pause(loop, now=True)
    await loops.resume(loop, session="fresh")
    assert (await loops.feedback(loop, "faster", id="f-1")).id == "f-1"
    await loops.remove_feedback(loop, "f-1")
    assert (await loops.revise(loop, {"path": "NEW.md"}, "do {plan}")).plan_version == 2
    assert (await loops.restart(loop)).rescue == 9
    await loops.restart(loop, 3, files=False)
    await loops.skip_wait(loop)
    await loops.set_limits(loop, iterations=7, cost_usd=0)
    assert (await loops.rollback(loop, 2)).checkpoint == 2
    assert await loop_host.calls(loop) == [
        ("pause", {"now": True, "reason": "lunch"}),
        ("resume", {"mode": "batch", "text": "go left"}),
        ("pause", {"now": True}),
        ("resume", {"session": "fresh"}),
        ("feedback", {"text": "faster", "id": "f-1"}),
        ("remove_feedback", {"id": "f-1"}),
        ("revise", {"plan": {"path": "NEW.md"}, "prompt": "do {plan}"}),
        ("restart", {"from": "plan", "files": True}),
        ("restart", {"from": "iteration", "number": 3}),
        ("skip_wait", None),
        ("set_limits", {"iterations": 7}),
        ("rollback", {"checkpoint": 2}),
    ]
    await loops.exit(loop, reason="enough")
    assert (await loops.result(loop)).stop_reason == "exit"
    with pytest.raises(RunNotRunning, match=f"loop {loop}"):
        await loops.pause(loop)


async def test_what_the_loop_or_the_contract_refuses(
    steersman: Steersman, loop_host: FakeLoopHost, workspace: str
) -> None:
    loops = steersman.loops
    loop = await loops.start(ask(workspace))
    with pytest.raises(InvalidRequest, match="plan or prompt"):
        await loops.revise(loop)
    with pytest.raises(InvalidRequest, match="iterations"):
        await loops.set_limits(loop, iterations=0)
    with pytest.raises(InvalidRequest, match="speed"):
        await loops.set_limits(loop, speed=1)
    assert await loop_host.calls(loop) == []
    with pytest.raises(MessageRefused, match="not paused"):
        await loops.resume(loop)
    with pytest.raises(RunNotFound, match="no loop loop-none"):
        await loops.pause("loop-none")


async def test_a_run_is_no_loop_and_a_loop_no_run(
    steersman: Steersman, loop_host: FakeLoopHost, workspace: str
) -> None:
    loop = await steersman.loops.start(ask(workspace))
    run = await loop_host.begin_run(loop)
    with pytest.raises(RunNotFound, match="is no loop, but a run"):
        await steersman.loops.state(run)
    with pytest.raises(RunNotFound, match="is no run, but a loop: see `steer loop`"):
        await steersman.state(loop)
    assert (await steersman.stop(loop)).outcome == "not_found"
    assert (await steersman.loops.stop(run)).outcome == "not_found"
    assert (await steersman.state(run)).phase != "closed"


async def test_following_over_runs(steersman: Steersman, loop_host: FakeLoopHost, workspace: str) -> None:
    loop = await steersman.loops.start(ask(workspace), loop_id=f"follow-{uuid.uuid4().hex[:8]}")
    name = loop.partition("-")[2]
    first = await loop_host.begin_run(loop, 1)
    loop_host.show(first, init(), said("one"))
    watcher = Watcher(steersman, loop)
    await watcher.until("2 message")
    loop_host.finish(first, succeeded())
    await watcher.until("3 done")
    # These begin and end between two looks.
    made = [checkpoint(1, run=first), checkpoint(2, run=f"{loop}-2", verification="failed")]
    for run in (f"{loop}-2", f"{loop}-2-verify"):
        loop_host.show(run, said(f"in {run}"))
        loop_host.finish(run, succeeded())
        await steersman.run({"agent": "claude", "prompt": "x", "workspace": {"path": "/w"}}, run_id=run)
    await loop_host.set_state(loop, status="paused", iteration=2, run=None, checkpoints=made)
    await watcher.until("paused 2")
    await loop_host.end_loop(loop)
    await asyncio.wait_for(watcher.task, 20)
    assert watcher.told == [
        "running 1",
        f"begin {name}-1 of 1",
        *("1 init", "2 message", "3 done"),
        f"begin {name}-2 of 2",
        *("1 message", "2 done"),
        f"begin {name}-2-verify of 2 verify",
        *("1 message", "2 done"),
        "paused 2",
        "completed 2",
    ]
    again = Watcher(steersman, loop)
    await asyncio.wait_for(again.task, 20)
    assert again.told == ["completed 2"]


@pytest.mark.exhaustive
async def test_following_catches_up_with_more_runs_than_a_state_shows(
    steersman: Steersman, loop_host: FakeLoopHost, workspace: str
) -> None:
    loop = await steersman.loops.start(ask(workspace))
    await loop_host.set_state(loop, checkpoints=[checkpoint(0)])
    watcher = Watcher(steersman, loop)
    await watcher.until("running 0")
    made = [checkpoint(number, run=f"{loop}-{number}") for number in range(1, 6)]
    for each in made:
        loop_host.finish(each["run"], succeeded())
        await steersman.run({"agent": "claude", "prompt": "x", "workspace": {"path": "/w"}}, run_id=each["run"])
    await loop_host.set_state(loop, iteration=5, checkpoints=made[-1:], archive=made)
    await watcher.until("running 5")
    begun = [item.iteration for item in watcher.items if isinstance(item, RunBegun)]
    assert begun == [1, 2, 3, 4, 5]
    await loop_host.end_loop(loop)
    await asyncio.wait_for(watcher.task, 20)


async def test_following_goes_on_in_the_next_execution(
    steersman: Steersman, loop_host: FakeLoopHost, workspace: str
) -> None:
    loop = await steersman.loops.start(ask(workspace))
    watcher = Watcher(steersman, loop)
    await watcher.until("running 0")
    await loop_host.set_state(loop, iteration=5, again=True)
    await watcher.until("running 5")
    await steersman.loops.feedback(loop, "still there?")
    listed: list[str] = []
    while not listed:
        listed = [each.id for each in await steersman.loops.list(f'WorkflowId="{loop}"')]
    await loop_host.end_loop(loop)
    await asyncio.wait_for(watcher.task, 20)
    assert watcher.told[-1] == "completed 5"
    assert (await steersman.loops.result(loop)).iterations == 5


async def test_a_change_is_told_at_once_where_somebody_is_in_a_hurry(
    steersman: Steersman, loop_host: FakeLoopHost, workspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("FIRST_POLL_S", "POLL_S"):
        monkeypatch.setattr(loop_follower, pause, 60.0)  # else it looks once a second
    loop = await steersman.loops.start(ask(workspace))
    watcher = Watcher(steersman, loop)
    await watcher.until("running 0")
    await loop_host.set_state(loop, iteration=1)
    began = asyncio.get_running_loop().time()
    watcher.wake.set()
    await watcher.until("running 1")
    assert asyncio.get_running_loop().time() - began < 40
    await loop_host.end_loop(loop)
    await asyncio.wait_for(watcher.task, 20)


async def test_stop_says_what_it_found_of_the_run_at_work(
    steersman: Steersman, loop_host: FakeLoopHost, workspace: str
) -> None:
    loop = await steersman.loops.start(ask(workspace))
    run = await loop_host.begin_run(loop)
    watcher = Watcher(steersman, loop)
    await watcher.until("running 1")
    await loop_host.fake_run(run).started.wait()  # a queued run would be withdrawn without a stop
    await steersman.stop(run)  # a loop that is cancelled does this with its run
    report = await steersman.loops.stop(loop, reason="enough")
    assert (report.run, report.outcome, report.processes) == (loop, "stopped", 3)
    await asyncio.wait_for(watcher.task, 20)
    assert watcher.told[-2:] == ["1 cancelled", "cancelled 1"]
    assert (await steersman.loops.stop(loop)).outcome == "already_finished"
    assert (await steersman.loops.stop("loop-none")).outcome == "not_found"
    with pytest.raises(RunCancelled, match=f"loop {loop} was cancelled"):
        await steersman.loops.result(loop)


async def test_stopping_a_paused_loop_finds_nothing(
    steersman: Steersman, loop_host: FakeLoopHost, workspace: str
) -> None:
    loop = await steersman.loops.start(ask(workspace))
    await steersman.loops.pause(loop)
    report = await steersman.loops.stop(loop)
    assert (report.outcome, report.processes) == ("stopped", 0)


async def test_a_terminated_loop_ends_for_its_followers_too(
    steersman: Steersman, loop_host: FakeLoopHost, workspace: str
) -> None:
    loop = await steersman.loops.start(ask(workspace))
    watcher = Watcher(steersman, loop)
    await watcher.until("running 0")
    await steersman.temporal.get_workflow_handle(loop).terminate(reason="enough")
    await asyncio.wait_for(watcher.task, 20)
    with pytest.raises(RunTerminated, match="enough"):
        await steersman.loops.result(loop)
    state = await steersman.loops.state(loop)
    assert (state.status, state.reason, state.last_error) == (
        "cancelled",
        "enough",
        f"loop {loop} was terminated: enough",
    )


@pytest.mark.exhaustive
async def test_checkpoints(steersman: Steersman, loop_host: FakeLoopHost, workspace: str) -> None:
    loops = steersman.loops
    loop = await loops.start(ask(workspace))
    made = [checkpoint(number) for number in range(5)]
    await loop_host.set_state(loop, checkpoints=made)
    assert [each.number for each in await loops.checkpoints(loop)] == [0, 1, 2, 3, 4]
    diff = await loops.diff(loop, 1)
    assert (diff.truncated, diff.stat) == (True, " a | 2 +-")
    asked = loop_host.diffs[0]
    assert (asked.loop, asked.workspace, asked.older, asked.newer) == (loop, workspace, 1, None)
    with pytest.raises(InvalidRequest, match="exactly one"):
        await loops.clean(loop, oldest=1, all=True)
    assert (await loops.clean(loop, oldest=1)).kept == 4
    assert loop_host.dropped == []
    await loop_host.end_loop(loop)
    await loops.result(loop)
    receipt = await loops.clean(loop, numbers=(2, 3))
    assert (receipt.deleted, receipt.kept) == ((2, 3), 1)
    assert [each.number for each in await loops.checkpoints(loop)] == [1, 2, 3, 4]  # what it was when it closed
    assert [each.number for each in await loops.deletable(loop)] == [1]
    assert (loop_host.dropped[0].workspace, loop_host.dropped[0].numbers) == (workspace, (2, 3))


@pytest.mark.exhaustive
async def test_a_host_that_is_gone_is_named(steersman: Steersman, loop_host: FakeLoopHost, workspace: str) -> None:
    loop = await steersman.loops.start(ask(workspace))
    await loop_host.set_state(loop, host="elsewhere")
    with pytest.raises(HostUnreachable, match="elsewhere"):
        await steersman.loops.diff(loop, 1)


async def test_an_answer_that_waits_for_a_host_without_a_worker_is_not_waited_for(
    steersman: Steersman, loop_host: FakeLoopHost, workspace: str
) -> None:
    """Workers of other hosts decide for the loop meanwhile, and say of it that it is there."""
    loop = await steersman.loops.start(ask(workspace))
    await loop_host.set_state(loop, host="elsewhere", stuck=True)
    async with asyncio.timeout(30):
        with pytest.raises(HostUnreachable, match="no worker of host elsewhere answers: the loop goes on, with what"):
            await steersman.loops.rollback(loop, 1)
    assert [name for name, _ in await loop_host.calls(loop)] == ["rollback"]
    await loop_host.set_state(loop, stuck=False)


@pytest.mark.parametrize(
    ("update", "said", "given_up"),
    [
        ("clean", {"all": True}, "waits two minutes for one, and keeps its checkpoints then"),
        ("revise", {"plan": {"path": "NEW.md"}}, "waits a minute for one to look at the plan, and keeps its own then"),
    ],
)
async def test_what_a_loop_gives_up_by_itself_is_not_said_to_be_carried_out_later(
    steersman: Steersman,
    loop_host: FakeLoopHost,
    workspace: str,
    monkeypatch: pytest.MonkeyPatch,
    update: str,
    said: dict[str, Any],
    given_up: str,
) -> None:
    monkeypatch.setattr(host_workers, "WORKER_CHECK_S", 0.2)
    loop = await steersman.loops.start(ask(workspace))
    await loop_host.set_state(loop, host="elsewhere", stuck=True)
    async with asyncio.timeout(30):
        with pytest.raises(HostUnreachable, match=f"no worker of host elsewhere answers: the loop {given_up}"):
            await getattr(steersman.loops, update)(loop, **said)
    await loop_host.set_state(loop, stuck=False)


async def test_an_answer_of_a_host_that_has_a_worker_is_waited_for(
    steersman: Steersman, loop_host: FakeLoopHost, workspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_workers, "WORKER_CHECK_S", 0.2)
    loop = await steersman.loops.start(ask(workspace))
    await loop_host.set_state(loop, stuck=True)
    answer = asyncio.create_task(steersman.loops.rollback(loop, 1))
    await asyncio.sleep(10 * host_workers.WORKER_CHECK_S)
    await loop_host.set_state(loop, stuck=False)
    assert (await answer).status == "paused"


async def test_a_fork_whose_host_has_no_worker_is_not_started(
    steersman: Steersman, loop_host: FakeLoopHost, workspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_workers, "WORKER_CHECK_S", 0.2)
    loop, fork = await steersman.loops.start(ask(workspace)), f"fork-{uuid.uuid4().hex}"
    await loop_host.set_state(loop, host="elsewhere")
    await loop_host.end_loop(loop)
    with pytest.raises(HostUnreachable, match="no worker of host elsewhere answers: it has the files of checkpoint 4"):
        await steersman.loops.fork(loop, 4, loop_id=fork)
    with pytest.raises(RunNotFound):
        await steersman.loops.state(fork)
    looks = [False, False, True]

    async def served_by_then(*_: object) -> bool:
        return looks.pop(0)

    monkeypatch.setattr(host_workers, "is_served", served_by_then)  # a worker that was being started anew
    assert await steersman.loops.fork(loop, 4, loop_id=fork) == fork


async def test_the_doctor_names_loops_whose_host_has_no_worker(
    steersman: Steersman, loop_host: FakeLoopHost, client_namespace: Namespace, workspace: str
) -> None:
    gone, server = f"gone-{uuid.uuid4().hex}", client_namespace

    async def looked() -> Check:
        checks = await check_server(None, server.address, server.name)
        return next(each for each in checks if each.check == "loops")

    loop = await steersman.loops.start(ask(workspace))
    await loop_host.set_state(loop, host=gone)
    async with asyncio.timeout(30):
        while loop not in (found := await looked()).detail:  # lists lag
            await asyncio.sleep(0.2)
    assert not found.ok
    assert gone in found.detail
    assert found.hint
    await loop_host.set_state(loop, host=loop_host.host)
    assert loop not in (await looked()).detail


async def test_a_fork_asks_what_the_other_asked(steersman: Steersman, loop_host: FakeLoopHost, workspace: str) -> None:
    run = {"session": "s-1", "env": {"A": "1"}, "model": "m"}
    loop = await steersman.loops.start(ask(workspace, run=run, limits={"iterations": 5, "tokens": 100}))
    revised = {"number": 2, "hash": "h", "since": now().isoformat(), "path": "NEW.md", "prompt": "do {plan}"}
    await loop_host.set_state(loop, again=True, plan=revised, limits={"iterations": 8})
    elsewhere = {"workspace": {"path": f"{workspace}-fork"}}
    changes = {"mode": "checkpoint", "limits": {"cost_usd": 2}, "run": {"env": {"B": "2"}, **elsewhere}}
    fork = await steersman.loops.fork(loop, 4, changes)
    request = await steersman.loops._calls.request(fork)  # noqa: SLF001 - what a fork of the fork would ask
    assert request == {
        "run": {"agent": "claude", **elsewhere, "env": {"A": "1", "B": "2"}, "model": "m"},
        "plan": {"path": "NEW.md"},
        "prompt": "do {plan}",
        "done": {"items": {"kind": "checkboxes"}},
        "mode": "checkpoint",
        "limits": {"iterations": 8, "cost_usd": 2.0},
        "from_checkpoint": {"loop": loop, "number": 4},
    }
    with pytest.raises(RunNotFound):
        await steersman.loops.fork("loop-none", 1)
    with pytest.raises(InvalidRequest, match="checkpoint 51"):
        await steersman.loops.fork(loop, 51)
    with pytest.raises(InvalidRequest, match="mode"):
        await steersman.loops.fork(loop, 1, {"mode": "wild", "run": elsewhere})
    with pytest.raises(InvalidRequest, match=f"loop {loop} is open and has {workspace} until it ends"):
        await steersman.loops.fork(loop, 4)
    queued = {"run": {"workspace": {"on_overlap": "queue"}}, "plan": {"path": "MINE.md"}}
    given = await steersman.loops.fork(loop, 4, queued)
    assert (await steersman.loops._calls.request(given))["plan"] == {"path": "MINE.md"}  # noqa: SLF001 - as above
    with pytest.raises(RunNotFound, match="is no loop"):
        await steersman.loops.fork(await loop_host.begin_run(loop), 1)


async def test_the_list_shows_what_loops_where(steersman: Steersman, loop_host: FakeLoopHost, workspace: str) -> None:
    loop = await steersman.loops.start(ask(workspace))
    found: list[Any] = []
    async with asyncio.timeout(20):
        while not found:
            found = [each for each in await steersman.loops.list() if each.id == loop]
    assert (found[0].agent, found[0].workspace, found[0].plan) == ("claude", workspace, "PLAN.md")
    assert loop not in [each.id for each in await steersman.list()]


def test_which_checkpoints_a_cleanup_means() -> None:
    old, new = now() - timedelta(days=8), now()
    made = [Checkpoint.model_validate(checkpoint(n, time=old if n < 3 else new)) for n in range(5)]
    for said_, numbers in (
        ({"oldest": 2}, (0, 1)),
        ({"older_than_s": 7 * 86400}, (0, 1, 2)),
        ({"numbers": (4, 0, 77)}, (0, 4)),
        ({"all": True}, (0, 1, 2, 3, 4)),
    ):
        assert selected(made, Cleanup.model_validate(said_), new) == numbers
