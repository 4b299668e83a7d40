"""What tests ask of a loop from outside: its state, its end, its history."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError, CancelledError

from steersman.contracts import names
from steersman.contracts.loop_messages import CheckpointPage, LoopReceipt
from steersman.contracts.loop_state import Checkpoint, LoopResult, LoopState
from tests.workflows.fake_host import never_failed, until
from tests.workflows.fake_loop_host import Loop

WAIT_S = 20.0


async def state(loop: Loop) -> LoopState:
    """What the `state` query answers."""
    return LoopState.model_validate(await loop.query(names.STATE_QUERY))


async def reaches(loop: Loop, wanted: str | Callable[[LoopState], object]) -> LoopState:
    """Wait for a status, or for what a condition says."""

    async def there() -> LoopState | None:
        now = await state(loop)
        return now if (now.status == wanted if isinstance(wanted, str) else wanted(now)) else None

    found: LoopState = await until(there, WAIT_S)
    return found


def decision(iteration: int) -> Callable[[LoopState], object]:
    """It waits for one after that iteration."""
    return lambda now: now.status == "waiting_for_decision" and now.iteration == iteration


def wait(iteration: int) -> Callable[[LoopState], object]:
    """It waits for a time after that iteration."""
    return lambda now: now.wakes_at and now.iteration == iteration


async def ended(loop: Loop) -> LoopResult:
    """The result of a loop that completes or stops."""
    async with asyncio.timeout(WAIT_S):
        return LoopResult.model_validate(await loop.result())


async def failed(loop: Loop) -> tuple[str | None, str, LoopResult]:
    """Type, sentence and result of a loop that fails."""
    with pytest.raises(WorkflowFailureError) as raised:
        async with asyncio.timeout(WAIT_S):
            await loop.result()
    cause = raised.value.cause
    assert isinstance(cause, ApplicationError), cause
    assert cause.non_retryable
    return cause.type, cause.message, LoopResult.model_validate(cause.details[0])


async def cancelled(loop: Loop) -> LoopState:
    """The state of a loop that closes as Canceled."""
    with pytest.raises(WorkflowFailureError) as raised:
        async with asyncio.timeout(WAIT_S):
            await loop.result()
    assert isinstance(raised.value.cause, CancelledError)
    return await state(loop)


async def tell(loop: Loop, name: str, **said: Any) -> LoopReceipt:
    """An update and its receipt."""
    async with asyncio.timeout(WAIT_S):
        return LoopReceipt.model_validate(await loop.execute_update(name, said))


async def refused(loop: Loop, name: str, said: Any = None) -> tuple[str | None, str]:
    """Type and sentence of an update that is refused."""
    with pytest.raises(WorkflowUpdateFailedError) as raised:
        async with asyncio.timeout(WAIT_S):
            await loop.execute_update(name, said)
    cause = raised.value.cause
    assert isinstance(cause, ApplicationError), cause
    return cause.type, cause.message


async def checkpoints(loop: Loop, page: int = 500) -> list[Checkpoint]:
    """All of them, page by page."""
    found: list[Checkpoint] = []
    while True:
        after = found[-1].number if found else -1
        said = CheckpointPage.model_validate(await loop.query(names.CHECKPOINTS, {"after": after, "limit": page}))
        found += said.checkpoints
        if not said.more:
            return found


def kinds(found: LoopState | list[Checkpoint]) -> list[str]:
    """The kinds of the checkpoints, in order."""
    return [each.kind for each in (found if isinstance(found, list) else found.checkpoints)]


async def executions(loop: Loop, client: Client) -> list[Loop]:
    """All of its executions, the last one first."""
    found = []
    run: str = (await loop.describe()).run_id
    while run:
        found.append(client.get_workflow_handle(loop.id, run_id=run))
        first = (await found[-1].fetch_history()).events[0]
        run = first.workflow_execution_started_event_attributes.continued_execution_run_id
    return found


async def never_retried(loop: Loop) -> None:
    """No workflow task of this loop ever failed; on a busy machine one may be lost."""
    await never_failed(loop)
