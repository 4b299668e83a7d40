"""The path of a run from request to result, on both servers."""

import asyncio
import json
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from temporalio.api.activity.v1 import ActivityOptions
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.failure.v1 import ApplicationFailureInfo, Failure
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.api.workflowservice.v1 import RespondActivityTaskFailedByIdRequest, UpdateActivityOptionsRequest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from steersman.contracts import names
from steersman.contracts.activities import (
    Claim,
    FinalizeInput,
    MessagesSettled,
    Progressed,
    RunAgentInput,
    RunOutcome,
    SessionStarted,
)
from steersman.contracts.errors import ErrorType
from steersman.contracts.model import JsonObject
from steersman.contracts.run import Handle, Usage
from tests.workflows.fake_host import (
    QUIET,
    STOPPED,
    FakeHost,
    Run,
    done,
    event_types,
    failed,
    never_failed,
    never_retried,
    phase,
    state,
    succeeded,
    took,
    until,
)

pytestmark = [pytest.mark.integration, QUIET]


async def test_a_run_succeeds(any_fake: FakeHost, request: pytest.FixtureRequest) -> None:
    run = await any_fake.start(labels={"team": "x"}, limits={"duration_s": 600})
    await took(run, names.SESSION_STARTED)
    running = await phase(run, "running")
    assert (running.agent, running.workspace, running.host) == ("claude", "/w", any_fake.host)
    assert running.handle is not None
    assert (running.handle.pid, running.handle.worker_queue) == (4711, any_fake.own_queue())
    assert running.capabilities is not None
    assert running.capabilities.steer
    outcome = done(
        "42", structured={"a": 1}, usage=Usage(input_tokens=9), cost_usd=0.5, turns=3, stop_reason="end_turn"
    )
    any_fake.ending.set_result(outcome)
    result = await succeeded(run)
    assert (result.status, result.text, result.structured) == ("succeeded", "42", {"a": 1})
    assert (result.session_id, result.attempts, result.turns, result.cost_usd) == ("s-1", 1, 3, 0.5)
    assert result.started_at <= result.ended_at
    closed = await state(run)
    assert (closed.phase, closed.cost_usd, closed.execution) == ("closed", 0.5, run.first_execution_run_id)
    assert [(end.event.type, end.event.text) for end in any_fake.ends if end.event.type == "done"] == [("done", "42")]
    (asked,) = any_fake.runs
    assert (asked.key.run, asked.key.execution) == (run.id, run.first_execution_run_id)
    # A server that skips time may skip a task's timeout, too.
    await (never_failed if "skipping" in request.node.name else never_retried)(run)


async def test_the_result_is_json_that_other_sdks_read(fake: FakeHost) -> None:
    async with fake.at_work():
        fake.ending.set_result(done())
        run = await fake.start()
        await succeeded(run)
    history = await run.fetch_history()
    (payload,) = history.events[-1].workflow_execution_completed_event_attributes.result.payloads
    assert payload.metadata["encoding"] == b"json/plain"
    assert json.loads(payload.data)["status"] == "succeeded"


@pytest.mark.parametrize("error", list(ErrorType))
async def test_a_failure_says_its_type_and_carries_a_result(any_fake: FakeHost, error: ErrorType) -> None:
    facts: JsonObject = {"exit_code": 3, "signal": None, "stderr": ["boom"]}
    any_fake.ending.set_result(
        RunOutcome(status="failed", error=error, message="the sentence", facts=facts, attempts=2, cost_usd=0.1)
    )
    run = await any_fake.start()
    kind, message, result = await failed(run)
    assert (kind, message) == (error, "the sentence")
    assert (result.status, result.error, result.attempts, result.cost_usd) == ("failed", "the sentence", 2, 0.1)
    assert result.facts == facts
    (end,) = any_fake.ends
    assert end.event.type == "failed"
    assert (await state(run)).error == "the sentence"


async def test_a_host_that_refuses_fails_the_run_at_once(fake: FakeHost) -> None:
    async def refuse(request: Any) -> Claim:
        raise ApplicationError("workspace.path: /w does not exist", type=ErrorType.INVALID_REQUEST, non_retryable=True)

    fake.play_claim = refuse  # type: ignore[method-assign]
    async with fake.at_work():
        run = await fake.start()
        kind, message, _ = await failed(run)
    assert (kind, message) == ("InvalidRequest", "workspace.path: /w does not exist")
    assert not fake.runs
    assert not fake.ends


async def test_a_run_that_names_another_machine_is_claimed_there(fake: FakeHost, temporal: Client) -> None:
    other = FakeHost(temporal)
    other.ending.set_result(done("over there"))
    async with fake.at_work(), other.at_work():
        run = await fake.start(runtime={"kind": "local", "host": other.host})
        result = await succeeded(run)
    assert result.text == "over there"
    assert (await state_of_closed(fake, other, run)).host == other.host
    assert not fake.runs


async def state_of_closed(fake: FakeHost, other: FakeHost, run: Any) -> Any:
    async with fake.at_work(), other.at_work():
        return await state(run)


async def test_the_state_is_answered_after_the_close_by_another_worker(fake: FakeHost) -> None:
    async with fake.at_work():
        fake.ending.set_result(done())
        run = await fake.start()
        await succeeded(run)
    async with fake.at_work(runs=False, host=False, delivery=False):
        closed = await state(run)
    assert (closed.phase, closed.session_id, closed.attempt) == ("closed", "s-1", 1)


async def test_an_activity_that_fails_for_reasons_of_its_own_is_tried_again(fake: FakeHost) -> None:
    tries = 0

    async def stumble(run: RunAgentInput) -> RunOutcome:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise RuntimeError("the disk was full")
        return done("at last")

    fake.play_agent = stumble  # type: ignore[method-assign]
    async with fake.at_work():
        assert (await succeeded(await fake.start())).text == "at last"


async def test_an_agent_is_stopped_whose_activity_somebody_fails(fake: FakeHost) -> None:
    """With Temporal's own CLI, say. The run closes once it is proved that nothing is left."""
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        await fail_activity(run)
        error, message, result = await failed(run)
        assert (error, "by hand" in message, result.session_id) == (ErrorType.AGENT_FAILED, True, None)
        assert [(stop.key.run, stop.reason) for stop in fake.stops] == [(run.id, "failed")]
        (end,) = fake.ends
        assert end.event.stop_report == STOPPED
        assert (await state(run)).stop_report == STOPPED


async def test_nothing_is_left_of_a_run_whose_activity_was_given_no_time(fake: FakeHost) -> None:
    """By somebody who has changed its options, before a worker took it, as far as the run was told."""
    async with fake.at_work(runs=False):
        run = await fake.start()
        options = ActivityOptions(schedule_to_start_timeout=Duration(seconds=1))
        asked = UpdateActivityOptionsRequest(
            namespace=run._client.namespace,  # noqa: SLF001 - which the handle does not tell
            execution=WorkflowExecution(workflow_id=run.id),
            id=await until(lambda: pending(run)),
            activity_options=options,
            update_mask=FieldMask(paths=["schedule_to_start_timeout"]),
        )
        await run._client.workflow_service.update_activity_options(asked)  # noqa: SLF001
        error, message, _ = await failed(run)
        assert (error, message) == (ErrorType.INVALID_REQUEST, "workspace.host: no worker of that host took the run")
        assert [stop.key.run for stop in fake.stops] == [run.id]


async def pending(run: Run) -> str | None:
    """The id of the activity `run_agent`, once it is asked for."""
    found = (await run.describe()).raw_description.pending_activities
    return next((each.activity_id for each in found if each.activity_type.name == names.RUN_AGENT), None)


async def fail_activity(run: Run) -> None:
    """As `temporal activity fail` does."""
    how = Failure(message="by hand", application_failure_info=ApplicationFailureInfo(non_retryable=True))
    asked = RespondActivityTaskFailedByIdRequest(
        namespace=run._client.namespace,  # noqa: SLF001 - which the handle does not tell
        workflow_id=run.id,
        activity_id=await until(lambda: pending(run)),
        failure=how,
    )
    await run._client.workflow_service.respond_activity_task_failed_by_id(asked)  # noqa: SLF001


async def test_the_limit_of_duration_holds_while_the_workspace_is_copied(fake: FakeHost) -> None:
    """This host copies none: it would be tried for ever."""
    async with fake.at_work():
        run = await fake.start(runtime={"kind": "ssh", "address": "box"}, limits={"duration_s": 1})
        error, message, _ = await failed(run)
        assert (error, message) == (ErrorType.RUN_TIMED_OUT, "limits.duration_s: the run took longer than 1 s")
        assert not fake.runs


async def test_a_result_is_not_held_back_by_a_log_that_cannot_be_closed(fake: FakeHost) -> None:
    async def fail(end: FinalizeInput) -> None:
        raise ApplicationError("no space left", non_retryable=True)

    fake.play_end = fail  # type: ignore[method-assign]
    fake.ending.set_result(done())
    async with fake.at_work():
        run = await fake.start()
        assert (await succeeded(run)).status == "succeeded"


async def test_what_the_web_ui_and_a_search_show(fake: FakeHost) -> None:
    async with fake.at_work():
        run = await fake.start(labels={"team": "x"})
        await phase(run, "running")
        await run.signal(names.PROGRESSED, Progressed(session_id="s-1", cost_usd=0.25, turns=2, attempt=1))
        await until(lambda: _cost(run))
        description = await run.describe()
        attributes = {pair.key.name: pair.value for pair in description.typed_search_attributes}
        assert attributes.items() >= {"AgentName": "claude", "RunPhase": "running", "CostUsd": 0.25}.items()
        assert await description.memo() == {"agent": "claude", "workspace": "/w", "labels": {"team": "x"}}
        query = f'AgentName="claude" AND RunPhase="running" AND CostUsd > 0.2 AND WorkflowId="{run.id}"'
        await until(lambda: _count(fake.client, query))
        metadata = await run.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
        assert "$0.2500, 2 turns" in metadata.current_details
        fake.ending.set_result(done(cost_usd=0.75))
        await succeeded(run)
    attributes = {pair.key.name: pair.value for pair in (await run.describe()).typed_search_attributes}
    assert attributes["RunPhase"] == "closed"
    assert attributes["CostUsd"] == 0.75


async def _cost(run: Any) -> bool:
    return (await state(run)).cost_usd == 0.25


async def _count(client: Client, query: str) -> bool:
    return (await client.count_workflows(query)).count == 1


async def test_a_run_without_incidents_has_a_short_history(fake: FakeHost) -> None:
    fake.ending.set_result(done())
    async with fake.at_work():
        run = await fake.start()
        await succeeded(run)
    assert len(await event_types(run)) <= 40


async def test_what_a_session_of_days_tells_stays_under_a_hundred_events(fake: FakeHost) -> None:
    async with fake.at_work(cached=10):
        run = await fake.start()
        await phase(run, "running")
        for turn in range(1, 13):
            await run.signal(names.PROGRESSED, Progressed(session_id="s-1", cost_usd=turn / 10, turns=turn, attempt=1))

            async def told(turns: int = turn) -> bool:
                return (await state(run)).turns == turns

            await until(told)
        fake.ending.set_result(done())
        await succeeded(run)
    assert len(await event_types(run)) < 100


@pytest.mark.parametrize(
    ("signal", "news"),
    [
        (names.SESSION_STARTED, {"worker_queue": 7}),
        (names.SESSION_STARTED, "hello"),
        (names.PROGRESSED, {"cost_usd": "much"}),
        (names.PROGRESSED, None),
        (names.SESSION_STARTED, None),
        (names.APPROVAL_ASKED, None),
        (names.MESSAGES_SETTLED, None),
        (names.APPROVAL_ASKED, {"approval": {}}),
        (names.MESSAGES_SETTLED, [1]),
        ("unknown_signal", {"a": 1}),
    ],
)
async def test_a_malformed_signal_is_harmless(fake: FakeHost, signal: str, news: Any) -> None:
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        await run.signal(signal, news)
        await run.signal(names.MESSAGES_SETTLED, MessagesSettled(messages=()))
        assert (await state(run)).phase == "running"
        fake.ending.set_result(done())
        assert (await succeeded(run)).status == "succeeded"
    await never_retried(run)


@pytest.mark.exhaustive
async def test_many_runs_at_once(fake: FakeHost) -> None:
    fake.ending.set_result(done())
    async with fake.at_work(cached=100):
        runs = await asyncio.gather(*(fake.start() for _ in range(20)))
        results = await asyncio.gather(*(succeeded(run) for run in runs))
    assert [result.status for result in results] == ["succeeded"] * 20


async def test_the_first_word_of_the_baseline_counts_until_the_run_begins_anew(fake: FakeHost) -> None:
    """A worker that takes over reads it from a file that the agent could have changed."""
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")

        async def told(baseline: str | None, **process: int) -> str | None:
            handle = Handle(host=fake.host, boot_id="b", pid=process["pid"], start_time=1)
            started = SessionStarted(
                worker_queue=fake.own_queue(), handle=handle, attempt=process["attempt"], epoch=1, baseline=baseline
            )
            await run.signal(names.SESSION_STARTED, started)
            return (await state(run)).baseline

        assert await told(None, pid=4711, attempt=1) is None
        assert await told("first", pid=4711, attempt=1) == "first"
        assert await told("forged", pid=4711, attempt=1) == "first"
        assert await told("forged", pid=4712, attempt=2) == "first"
        assert await told("anew", pid=4713, attempt=1) == "anew", "another first process: a reset of a closed run"
        assert await told(None, pid=4714, attempt=1) == "anew"
        fake.ending.set_result(done(baseline="too late"))
        await succeeded(run)
    assert [each.baseline for each in fake.ends] == ["anew"]
