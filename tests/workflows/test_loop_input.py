"""Bad input: refused at once with the field named, whichever way it comes, and harmless."""

import asyncio
import uuid
from typing import Any

import pytest
from temporalio.client import Client, WorkflowContinuedAsNewError, WorkflowQueryFailedError

from steersman.contracts.loop_activities import AdmitLoop
from steersman.contracts.names import LOOP_WORKFLOW
from tests.workflows.fake_loop_host import HELD, FakeLoopHost, Loop, refusal
from tests.workflows.loop_client import WAIT_S, ended, failed, never_retried, reaches, refused, state, tell

pytestmark = pytest.mark.integration

RUN = {"agent": "claude", "workspace": {"path": "/w"}}
GOOD: dict[str, Any] = {"run": RUN, "plan": "work", "done": {"verify": {"command": "true"}}}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"plan": 3}, 'plan: must be a text or {"path": PATH}'),
    ({"plan": " "}, "plan: must not be empty"),
    ({"plan": {"path": "../x"}}, "plan.path: must be a path inside the workspace, relative to it"),
    ({"done": {}}, "done: needs items or verify: an agent's word alone proves nothing"),
    ({"done": {"promise": "DONE"}}, "done: needs items or verify: an agent's word alone proves nothing"),
    ({"done": {"items": {"kind": "json"}}}, 'done.items: path is required for kind "json"'),
    ({"done": {"items": {"kind": "checkboxes"}}}, "done.items.path is required: the plan is a text, not a file"),
    ({"done": {"verify": {"command": 1}}}, "done.verify.command: must be a text or a list of texts"),
    ({"run": {**RUN, "prompt": "work"}}, "run: prompt must not be given here: it is the loop's prompt and plan"),
    (
        {"run": {**RUN, "agent": "Chat GPT"}},
        "run.agent: must be as the pattern",
    ),
    ({"run": {**RUN, "limits": {"idle_s": 3}}}, "run: limits: give duration_s and idle_s as the loop's"),
    ({"limits": {"iterations": 0}}, "limits.iterations: must be at least 1"),
    ({"limits": {"failures": 10**400}}, "limits.failures: must be at most 9223372036854775807"),
    ({"limits": {"cost_usd": -1}}, "limits.cost_usd: must be more than 0"),
    ({"mode": "manual"}, "mode: must be 'checkpoint', 'batch' or 'autonomous'"),
    ({"session": "new"}, "session: must be 'continue' or 'fresh'"),
    ({"iterations": 5}, "iterations: unknown field"),
    ({"from_checkpoint": {"loop": "x"}}, "from_checkpoint.number: is required"),
]


async def test_a_wrong_field_is_named(loop_fake: FakeLoopHost) -> None:
    for change, told in WRONG:
        loop = await loop_fake.start_raw({**GOOD, **change})
        kind, message, outcome = await failed(loop)
        assert kind == "InvalidRequest"
        assert message.startswith(f"LoopRequest: {told}")
        assert (outcome.status, outcome.error, outcome.iterations, loop_fake.surveys) == ("failed", message, 0, [])
        now = await state(loop)
        assert (now.status, now.last_error) == ("failed", message)


NO_REQUEST: list[tuple[tuple[Any, ...], str]] = [
    ((), "the input must be one JSON object, not 0 values"),
    ((GOOD, GOOD), "the input must be one JSON object, not 2 values"),
    (([GOOD],), "the input must be one JSON object, not a list"),
    ((None,), "the input must be one JSON object, not nothing"),
    (("work",), "the input must be one JSON object, not a string"),
]


async def test_what_is_no_request(loop_fake: FakeLoopHost) -> None:
    for inputs, told in NO_REQUEST:
        kind, message, _ = await failed(await loop_fake.start_raw(*inputs))
        assert (kind, message) == ("InvalidRequest", f"LoopRequest: {told}")


async def test_a_second_input_is_no_state_that_a_loop_has_carried(loop_fake: FakeLoopHost) -> None:
    """What a cron schedule or a retry policy begins again looks like a loop that has continued as new."""
    client, id, queue = loop_fake.client, f"loop-{uuid.uuid4()}", loop_fake.queue
    begun = await client.start_workflow(
        LOOP_WORKFLOW, args=[GOOD, {}], id=id, task_queue=queue, cron_schedule="@every 1s"
    )
    run_id = begun.first_execution_run_id
    try:
        for _ in range(2):
            loop = client.get_workflow_handle(id, run_id=run_id)
            with pytest.raises(WorkflowContinuedAsNewError) as over:
                async with asyncio.timeout(WAIT_S):
                    await loop.result(follow_runs=False)
            end = (await loop.fetch_history()).events[-1].workflow_execution_failed_event_attributes
            assert end.failure.message == "LoopRequest: the input must be one JSON object, not 2 values"
            run_id = over.value.new_execution_run_id
    finally:
        await client.get_workflow_handle(id).terminate()


async def test_an_id_that_its_runs_could_not_have(loop_fake: FakeLoopHost) -> None:
    kind, message, _ = await failed(await loop_fake.start(loop=f"{'x' * 170}-{loop_fake.host}"))
    assert (kind, message) == ("InvalidRequest", "LoopRequest: the workflow id is longer than 180 characters")


@pytest.mark.parametrize("kind", ["InvalidRequest", "WorkspaceError", "AgentNotInstalled"])
async def test_what_the_host_refuses(loop_fake: FakeLoopHost, kind: str) -> None:
    async def admit(wanted: AdmitLoop) -> None:
        raise refusal("plan.path: there is no PLAN.md", kind)

    loop_fake.play_admit = admit  # type: ignore[method-assign]
    loop = await loop_fake.start()
    assert (await failed(loop))[:2] == (kind, "plan.path: there is no PLAN.md")
    assert loop_fake.surveys == []


WRONG_WORDS: list[tuple[str, Any, str]] = [
    ("pause", {"now": "perhaps"}, "Pause: now: must be true or false"),
    ("pause", {"when": "now"}, "Pause: when: unknown field"),
    ("resume", {"mode": "fast"}, "Resume: mode: must be 'checkpoint', 'batch' or 'autonomous'"),
    ("feedback", None, "Feedback: text: is required"),
    ("feedback", {"text": "x", "id": "no good"}, "Feedback: id: must be as the pattern"),
    ("feedback", {"text": "x" * 20_001}, "Feedback: text: "),
    ("remove_feedback", {}, "RemoveFeedback: id: is required"),
    ("revise", {}, "Revise: needs plan or prompt"),
    ("revise", {"plan": {"path": "/etc/passwd"}}, "Revise: plan.path: must be a path inside the workspace"),
    ("restart", {"from": "iteration"}, 'Restart: number is required with from "iteration", and only there'),
    ("rollback", {}, "Rollback: checkpoint: is required"),
    ("rollback", "1", "Rollback: must be an object"),
    ("set_limits", {"iterations": 0}, "SetLimits: iterations: must be at least 1"),
    ("set_limits", {"iterations": 10**400}, "SetLimits: iterations: must be at most 9223372036854775807"),
    ("skip_wait", {"now": True}, "SkipWait: now: unknown field"),
    ("exit", ["x"], "Exit: must be an object"),
    ("checkpoints", {}, "Cleanup: needs exactly one of numbers, older_than_s, oldest, all"),
]


async def test_a_wrong_update_is_refused_before_it_costs_history(held: Loop) -> None:
    before = len((await held.fetch_history()).events)
    for name, said, told in WRONG_WORDS:
        kind, message = await refused(held, name, said)
        assert kind == "InvalidRequest"
        assert message.startswith(told)
    assert len((await held.fetch_history()).events) == before


async def test_signals_of_all_kinds_harm_nothing(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [HELD]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    names = ("feedback", "remove_feedback", "revise", "rollback", "set_limits", "checkpoints", "restart", "resume")
    for name in names:
        for said in ("garbage", 7, [None], {"unknown": 1}, {"number": -1}):
            await loop.signal(name, said)
    for name in ("feedback", "remove_feedback", "revise", "rollback", "checkpoints", "resume", "skip_wait"):
        await loop.signal(name)
        await loop.signal(name, None)
    await loop.signal("rollback", {"checkpoint": 99})
    await loop.signal("restart", {"from": "iteration", "number": 9})
    await loop.signal("no_such_signal", "x")
    await loop.signal("feedback", {"text": "the last word"})
    now = await reaches(loop, lambda now: now.feedback)
    assert [each.text for each in now.feedback] == ["the last word"]
    assert (now.status, now.iteration, now.checkpoints_total, now.plan_versions) == ("running", 1, 1, 1)
    loop_fake.release()
    assert (await ended(loop)).iterations == 2
    await never_retried(loop)


async def test_each_update_is_a_signal_too(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [HELD]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    await loop.signal("set_limits", {"iterations": 9})
    await loop.signal("revise", {"plan": "another plan"})
    await loop.signal("feedback", {"text": "one", "id": "f-1"})
    await loop.signal("feedback", {"text": "two", "id": "f-2"})
    await loop.signal("remove_feedback", {"id": "f-1"})
    await loop.signal("pause", {"now": True})
    now = await reaches(loop, "paused")
    assert (now.limits.iterations, now.plan_versions, [each.id for each in now.feedback]) == (9, 2, ["f-2"])
    await loop.signal("rollback", {"checkpoint": 0})
    await reaches(loop, lambda now: now.checkpoints_total == 3 and now.iteration == 0)
    await loop.signal("checkpoints", {"oldest": 1})
    await reaches(loop, lambda now: now.checkpoints_total == 2)
    await loop.signal("exit")
    assert (await ended(loop)).stop_reason == "exit"


async def test_wrong_queries(held: Loop) -> None:
    with pytest.raises(WorkflowQueryFailedError, match=r"CheckpointQuery: limit: .*500"):
        await held.query("checkpoints", {"limit": 501})
    assert await held.query("fork_point", 99) is None


async def test_a_loop_whose_request_is_wrong_is_told_nothing(temporal: Client) -> None:
    """What came before its first workflow task finds it closing already."""
    fake = FakeLoopHost(temporal)
    loop = await fake.start_raw({"plan": "x"})
    await loop.signal("feedback", {"text": "x"})
    async with fake.at_work(cached=0):
        assert (await failed(loop))[0] == "InvalidRequest"
    await never_retried(loop)


@pytest.fixture
async def held(loop_fake: FakeLoopHost) -> Loop:
    """A loop whose agent is at work."""
    loop_fake.script = [HELD]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    return loop


async def test_the_receipt_of_a_pause_that_came_too_late(loop_fake: FakeLoopHost) -> None:
    loop_fake.script = [HELD]
    loop = await loop_fake.start()
    await loop_fake.at_hold()
    await tell(loop, "pause")
    loop_fake.release()
    assert (await ended(loop)).stop_reason == "done"
