"""`worker.py replay`: a history, replayed with the workflows at hand."""

import time
from pathlib import Path

from temporalio.client import WorkflowHistory
from temporalio.converter import PayloadCodec
from temporalio.worker import Replayer

from steersman.codec import data_converter
from workers.wiring import WORKFLOWS


async def replay(file: Path, codec: PayloadCodec | None) -> dict[str, object]:
    """Whether the file's history replays (`ok`), and where it diverges."""
    began = time.monotonic()
    try:
        text = file.read_text()  # noqa: ASYNC240 - nothing else runs
        history = WorkflowHistory.from_json(file.stem, text)
        started = history.events[0].workflow_execution_started_event_attributes
        # A loop names its runs after itself: the file's name would not do.
        history = WorkflowHistory.from_json(started.workflow_id or file.stem, text)
    except (OSError, ValueError, IndexError) as error:
        return {"ok": False, "workflow": None, "events": 0, "took_ms": 0, "divergence": f"{file}: {error}"}
    # Without a build id the SDK hashes every loaded module, which takes longer than the replay.
    replayer = Replayer(workflows=WORKFLOWS, data_converter=data_converter(codec), build_id="replay")
    result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    failure = result.replay_failure
    return {
        "ok": failure is None,
        "workflow": started.workflow_type.name,
        "events": len(history.events),
        "took_ms": round((time.monotonic() - began) * 1000),
        "divergence": str(failure) if failure else None,
    }
