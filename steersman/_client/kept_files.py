"""Which commits hold a run's files before and after it: its own, or those of its loop's checkpoints."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from temporalio.client import Client

from steersman.contracts.run import RunState
from steersman.contracts.workspace import LoopStep
from steersman.errors import NothingKept, RunNotFound, translated

if TYPE_CHECKING:
    from steersman.contracts.loop_state import Checkpoint


@dataclass(frozen=True)
class KeptOfRun:
    """`after` None: there is none. `step`: the checkpoints of its loop that these are."""

    before: str
    after: str | None
    step: LoopStep | None = None


async def kept_of_run(client: Client, run: str, state: RunState) -> KeptOfRun | None:
    """The commits; None where nothing was kept of the run, and it is no loop's.

    Raises NothingKept where the loop has none before or after it; RunNotFound, NoWorker, ServerUnreachable.
    """
    if state.baseline is not None:
        return KeptOfRun(state.baseline, state.changes.after if state.changes else None)
    with translated(of=f"run {run}", address=client.service_client.config.target_host):
        found = await client.get_workflow_handle(run).describe()
    if found.parent_id is None:
        return None
    from steersman._client.loop_calls import LoopCalls  # noqa: PLC0415 - most programs have no loops

    loop = found.parent_id
    try:
        checkpoints = await LoopCalls(client).checkpoints(loop)
    except RunNotFound as error:
        raise NothingKept(f"run {run} is that of another workflow, of which nothing is known: {error}") from error
    own = next((each for each in checkpoints if each.run == run), None)
    if own is None:
        # At work, a verification, or cut off with its loop: so far nothing was kept after it.
        before = checkpoints[-1] if checkpoints and checkpoints[-1].time <= found.start_time else None
        return _step(loop, run, before, None)
    return _step(loop, run, next((each for each in checkpoints if each.number == own.number - 1), None), own)


def _step(loop: str, run: str, before: "Checkpoint | None", after: "Checkpoint | None") -> KeptOfRun:
    if before is None:
        raise NothingKept(f"run {run}: loop {loop} has no checkpoint of just before it: it was deleted, or never made")
    for each in (before, *([after] if after else [])):
        if each.commit is None:
            why = f": {each.note}" if each.note else ""
            raise NothingKept(f"run {run}: checkpoint {each.number} of loop {loop} has no files{why}")
    step = LoopStep(loop=loop, older=before.number, newer=after.number if after else None)
    return KeptOfRun(before.commit or "", after.commit if after else None, step)
