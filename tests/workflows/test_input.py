"""Bad input, as any SDK or the Temporal CLI may send it: InvalidRequest at once, in a sentence; nothing retries."""

import json
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import WithStartWorkflowOperation, WorkflowUpdateFailedError
from temporalio.common import RawValue, WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError

from steersman.contracts import names
from steersman.ids import new_run_id
from tests.workflows.fake_host import QUIET, FakeHost, event_types, failed, failure, never_retried, state

pytestmark = [pytest.mark.integration, QUIET]

GOOD: dict[str, Any] = {"agent": "claude", "prompt": "p", "workspace": {"path": "/w"}}
SECRET = "sk-ant-very-secret"


def raw(data: bytes, encoding: bytes | None = b"json/plain") -> RawValue:
    metadata = {} if encoding is None else {"encoding": encoding}
    return RawValue(Payload(metadata=metadata, data=data))


WRONG: dict[str, tuple[tuple[Any, ...], str]] = {
    "no input": ((), "the input must be one JSON object, not 0 values"),
    "two inputs": ((GOOD, GOOD), "the input must be one JSON object, not 2 values"),
    "null": ((None,), "the input must be one JSON object, not nothing"),
    "a list": (([GOOD],), "the input must be one JSON object, not a list"),
    "a string": (("claude",), "the input must be one JSON object, not a string"),
    "JSON in a string": ((json.dumps(GOOD),), "the input must be one JSON object, not a string"),
    "a number": ((7,), "the input must be one JSON object, not a number"),
    "bytes": ((b"\x00\x01",), "the input must be one JSON object"),
    "no JSON": ((raw(b"{agent: claude}"),), "the input must be one JSON object"),
    "half a JSON": ((raw(b'{"agent":"claude"'),), "the input must be one JSON object"),
    "no UTF-8": ((raw(b"\xff\xfe\xfa"),), "the input must be one JSON object"),
    "a protobuf": ((raw(b"\x08\x01", b"binary/protobuf"),), "the input must be one JSON object"),
    "encrypted": ((raw(b"x", b"binary/encrypted"),), "the input must be one JSON object"),
    "no encoding": ((raw(b"{}", None),), "the input must be one JSON object"),
    "a null payload": ((raw(b"", b"binary/null"),), "the input must be one JSON object"),
    "one good and one torn": ((GOOD, raw(b"{")), "the input must be one JSON object"),
    "a lone surrogate": ((raw(b'{"agent":"claude","prompt":"\\ud800","workspace":{"path":"/w"}}'),), "the input"),
    "nested too deep": ((raw(b'{"options":' + b"[" * 5000 + b"]" * 5000 + b"}"),), ""),
    "a NaN": ((raw(b'{"agent":"claude","prompt":"p","workspace":{"path":"/w"},"lease_s":NaN}'),), ""),
    "no name of an agent": (({**GOOD, "agent": "GPT 5"},), "agent"),
    "a missing workspace": (({"agent": "claude", "prompt": "p"},), "workspace: is required"),
    "a relative path": (({**GOOD, "workspace": {"path": "w"}},), "workspace.path: must be an absolute path"),
    "a wrong field": (({**GOOD, "limits": {"turns": "many"}},), "limits.turns"),
    "an unknown field": (({**GOOD, "promt": "p"},), "promt: unknown field"),
    "a schema that is none": (({**GOOD, "output_schema": "integer"},), "output_schema"),
    "a literal secret": (({**GOOD, "env": {"API_KEY": SECRET}},), "API_KEY looks like a secret"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_bad_input_fails_the_run_at_once(fake: FakeHost, case: str) -> None:
    inputs, says = WRONG[case]
    async with fake.at_work():
        run = await fake.start_raw(*inputs)
        error = await failure(run)
        assert error.type == "InvalidRequest"
        assert says in error.message
        assert SECRET not in error.message
    await never_retried(run)
    assert "ACTIVITY_TASK_SCHEDULED" not in await event_types(run)
    assert not fake.runs


async def test_a_run_that_was_refused_takes_no_messages(fake: FakeHost) -> None:
    async with fake.at_work():
        run = await fake.start_raw([1])
        await failed(run)
        closed = await state(run)
    assert (closed.phase, closed.agent, closed.messages) == ("closed", None, ())
    assert "must be one JSON object" in (closed.error or "")


async def test_a_message_that_comes_with_a_wrong_request_is_told_so(fake: FakeHost) -> None:
    start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
        names.RUN_WORKFLOW,
        [1],
        id=new_run_id(),
        task_queue=fake.queue,
        id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
    )
    async with fake.at_work():
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await fake.client.execute_update_with_start_workflow(
                names.STEER, {"text": "go"}, start_workflow_operation=start
            )
        await failed(await start.workflow_handle())
    assert isinstance(refused.value.cause, ApplicationError)
    assert refused.value.cause.message == "the run's request is wrong: it never began"
