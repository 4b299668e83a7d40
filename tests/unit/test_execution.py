"""Asking a run's workflow for its state while one worker follows on another."""

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest
from temporalio.client import WorkflowHandle, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from activities.temporal import execution
from activities.temporal.execution import FIRST_TIMEOUT, QUERY_TIMEOUT, state_of
from steersman.contracts.errors import ASK_AGAIN
from steersman.contracts.run import RunState

LOST = RPCError("it was handed to a worker that has left", RPCStatusCode.DEADLINE_EXCEEDED, b"")
STALE = WorkflowQueryFailedError(ASK_AGAIN)
GONE = RPCError("there is no such run", RPCStatusCode.NOT_FOUND, b"")
WRONG = WorkflowQueryFailedError("no such query")


class Workflow:
    """Answers once these errors have been raised. `patience`: how long each query would have waited."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.patience: list[timedelta] = []

    async def query(self, name: str, *, result_type: type, rpc_timeout: timedelta) -> RunState:
        self.patience.append(rpc_timeout)
        if self._errors:
            raise self._errors.pop(0)
        return RunState(phase="running")


async def asked(workflow: Workflow) -> RunState:
    return await state_of(cast("WorkflowHandle[Any, Any]", workflow))


@pytest.mark.parametrize("errors", [[], [LOST], [STALE] * 5, [STALE, LOST, STALE]])
async def test_it_is_asked_again(errors: list[Exception]) -> None:
    workflow = Workflow(*errors)
    assert (await asked(workflow)).phase == "running"
    assert len(workflow.patience) == len(errors) + 1


@pytest.mark.parametrize("errors", [[LOST] * 2, [STALE] * 6, [GONE], [WRONG]])
async def test_what_stays_is_raised(errors: list[Exception]) -> None:
    workflow = Workflow(*errors)
    with pytest.raises(type(errors[-1])) as raised:
        await asked(workflow)
    assert raised.value is errors[-1]
    assert sum(set(workflow.patience), timedelta()) <= FIRST_TIMEOUT + QUERY_TIMEOUT


async def test_it_waits_no_longer_than_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another's query waits at the server, the SDK goes on for 10 s whatever an attempt may take."""
    for name in ("FIRST_TIMEOUT", "QUERY_TIMEOUT"):
        monkeypatch.setattr(execution, name, timedelta(milliseconds=10))

    class Full(Workflow):
        async def query(self, name: str, *, result_type: type, rpc_timeout: timedelta) -> RunState:
            await asyncio.Event().wait()
            raise AssertionError

    async with asyncio.timeout(5):
        with pytest.raises(RPCError, match="in time"):
            await asked(Full())
