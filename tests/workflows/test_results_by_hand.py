"""Somebody completes an activity by hand, with what is no result of it: `temporal activity complete --result null`."""

import asyncio
import inspect
import typing
from typing import NoReturn

import pytest
from temporalio import activity
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.workflowservice.v1 import RespondActivityTaskCompletedByIdRequest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import CancelledError

from activities import carry_activities, hold_activities, host_activities, loop_activities, run_activities
from steersman.contracts import names
from steersman.contracts.activities import FinalizeInput, StopInput
from steersman.contracts.errors import ErrorType
from steersman.contracts.loop_activities import Survey, SurveyInput
from steersman.contracts.run import StopReport
from tests.workflows.fake_host import QUIET, STOPPED, FakeHost, Run, done, failed, phase, state, succeeded, until
from tests.workflows.fake_loop_host import FakeLoopHost
from tests.workflows.loop_client import failed as failed_loop
from tests.workflows.loop_client import state as loop_state
from workflows.activity_results import RESULTS

pytestmark = [pytest.mark.integration, QUIET]

NO_RESULTS = ["null", "{}", '"done"', ""]
"""The last one is no payload at all, as an SDK's client can do it."""


async def complete(workflow: Run, activity: str, result: str) -> None:
    """As the Temporal CLI does."""

    async def pending() -> str | None:
        found = (await workflow.describe()).raw_description.pending_activities
        return next((each.activity_id for each in found if each.activity_type.name == activity), None)

    payload = Payload(metadata={"encoding": b"json/plain"}, data=result.encode())
    asked = RespondActivityTaskCompletedByIdRequest(
        namespace=workflow._client.namespace,  # noqa: SLF001 - which the handle does not tell
        workflow_id=workflow.id,
        activity_id=await until(pending),
        result=Payloads(payloads=[payload]) if result else None,
    )
    await workflow._client.workflow_service.respond_activity_task_completed_by_id(asked)  # noqa: SLF001


async def never() -> NoReturn:
    await asyncio.Future()
    raise AssertionError("unreachable")


@pytest.mark.parametrize("result", NO_RESULTS)
async def test_the_agent_is_stopped_and_the_run_closes_with_that_report(fake: FakeHost, result: str) -> None:
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        await complete(run, names.RUN_AGENT, result)
        error, message, _ = await failed(run)
        assert error == ErrorType.AGENT_FAILED
        assert "what run_agent was completed with is no RunOutcome: " in message
        assert "Validation" not in message, "it says what is wrong"
        assert [(stop.key.run, stop.reason) for stop in fake.stops] == [(run.id, "failed")]
        (end,) = fake.ends
        assert end.event.stop_report == STOPPED
        now = await state(run)
        assert (now.phase, now.closed_as) == ("closed", "failed")


@pytest.mark.parametrize("result", NO_RESULTS)
async def test_a_stop_without_a_report_is_unverified_and_the_run_cancelled(fake: FakeHost, result: str) -> None:
    asked = asyncio.Event()

    async def stop(stop: StopInput) -> StopReport:
        asked.set()
        return await never()

    fake.play_stop = stop  # type: ignore[method-assign]
    async with fake.at_work():
        run = await fake.start()
        await phase(run, "running")
        await run.cancel()
        await until(asked.is_set)
        await complete(run, names.STOP_AGENT, result)
        with pytest.raises(WorkflowFailureError) as raised:
            await run.result()
        assert isinstance(raised.value.cause, CancelledError)
        report = (await state(run)).stop_report
        assert report
        assert report.outcome == "unverified"


async def test_a_result_is_not_held_back_by_an_answer_about_its_log(fake: FakeHost) -> None:
    asked = asyncio.Event()

    async def end(end: FinalizeInput) -> None:
        asked.set()
        await never()

    fake.play_end = end  # type: ignore[method-assign]
    fake.ending.set_result(done("done"))
    async with fake.at_work():
        run = await fake.start()
        await until(asked.is_set)
        await complete(run, names.FINALIZE_RUN, '"done"')
        assert (await succeeded(run)).text == "done"


async def test_a_loop_closes_as_failed(loop_fake: FakeLoopHost) -> None:
    asked = asyncio.Event()

    async def survey(wanted: SurveyInput) -> Survey:
        asked.set()
        return await never()

    loop_fake.play_survey = survey  # type: ignore[method-assign]
    loop = await loop_fake.start()
    await until(asked.is_set)
    await complete(loop, names.SURVEY_WORKSPACE, "null")
    error, message, _ = await failed_loop(loop)
    assert (error, "what survey_workspace was completed with is no Survey" in message) == (ErrorType.LOOP_FAILED, True)
    assert (await loop_state(loop)).status == "failed"


def test_results_are_of_the_types_that_activities_return() -> None:
    returned = {
        definition.name: typing.get_type_hints(definition.fn)["return"]
        for module in (carry_activities, hold_activities, host_activities, loop_activities, run_activities)
        for _, owner in inspect.getmembers(module, inspect.isclass)
        for _, function in inspect.getmembers(owner, inspect.isfunction)
        if (definition := activity._Definition.from_callable(function))  # noqa: SLF001 - there is no other way to it
    }
    assert {name: returned[name] for name in RESULTS} == RESULTS
