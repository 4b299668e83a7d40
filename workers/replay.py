"""`worker.py replay`: histories, replayed with the workflows at hand."""

import re
import time
from collections.abc import Sequence
from pathlib import Path

from google.protobuf.json_format import ParseError
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.converter import PayloadCodec
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.worker import Replayer

from steersman.codec import data_converter
from steersman.contracts import names
from steersman.history_payloads import obstacle
from workers.replay_debug import debug, last_deeds
from workers.wiring import WORKFLOWS
from workflows.runner import ReplaySafeRunner

_OURS = (names.RUN_WORKFLOW, names.LOOP_WORKFLOW, names.SWEEP_WORKFLOW, names.NOTICE_WORKFLOW)
MAX_FAILURE = 500
"""Characters of what Temporal says otherwise."""
_NAMED = ("activity_type", "workflow_type", "timer_id", "marker_name", "signal_name", "update_id")
"""Fields of an event that tell what it is of, apart from its type."""


async def replay(files: Sequence[Path], codec: PayloadCodec | None) -> list[dict[str, object]]:
    """Of each file: whether its history replays (`ok`), where it diverges, or why (`error`) it is no history of ours.

    `id`, `workflow`, `events`, `took_ms`: of what it is. `divergence`: Temporal's words. `at`: the event of the history
    that the code at hand would not have come to: `event` (its number), `type` and `of`. `did`: what the code asked for
    in the step at which it diverged, each with the `lines` of ours that did, innermost first; timers are not seen.
    """
    # Without a build id the SDK hashes every loaded module, which takes longer than the replay.
    silent = _silent()
    converter = data_converter(codec)
    replayer = Replayer(
        workflows=WORKFLOWS,
        data_converter=converter,
        workflow_runner=ReplaySafeRunner(),
        build_id="replay",
        runtime=silent,
    )
    answers = []
    for file in files:
        answer = await _replay(replayer, file, converter.payload_codec)
        if answer["divergence"]:
            deeds = await last_deeds(_history(file), converter, silent)
            answer["did"] = [{"what": each.what, "lines": list(each.lines)} for each in deeds]
        answers.append(answer)
    return answers


async def step_through(file: Path, codec: PayloadCodec | None) -> str | None:
    """Replay one file in pdb; how it diverged. Raises ValueError where it is no history of ours."""
    history = _history(file)
    if (kind := _kind(history)) not in _OURS:
        raise ValueError(_not_ours(file, kind))
    if why_not := await obstacle(history, data_converter(codec).payload_codec):
        raise ValueError(f"{file} cannot be replayed here: {why_not}")
    if _has_not_begun(history):
        return None
    failure = await debug(history, data_converter(codec), _silent())
    return _sentence(str(failure)) if failure else None


def _silent() -> Runtime:
    """Any other logs to stdout, which is for the answer."""
    return Runtime(telemetry=TelemetryConfig(logging=None))


def _kind(history: WorkflowHistory) -> str:
    return history.events[0].workflow_execution_started_event_attributes.workflow_type.name


def _history(file: Path) -> WorkflowHistory:
    """Raises ValueError where it has none."""
    try:
        text = file.read_text()
        history = WorkflowHistory.from_json(file.stem, text)
        started = history.events[0].workflow_execution_started_event_attributes
        # A loop names its runs after itself: the file's name would not do.
        return WorkflowHistory.from_json(started.workflow_id or file.stem, text)
    except (OSError, ValueError, IndexError, RecursionError, ParseError) as error:
        why = "it has no event" if isinstance(error, IndexError) else str(error)
        raise ValueError(f"{file} is no workflow history: {why}") from error


def _has_not_begun(history: WorkflowHistory) -> bool:
    """Of a start that is delayed there is one event, and no code: Temporal's replay would wait for more for ever."""
    return len(history.events) == 1


def _not_ours(file: Path, kind: str) -> str:
    return f"{file} is the history of {kind or 'no workflow'}, which is none of Steersman's"


async def _replay(replayer: Replayer, file: Path, codec: PayloadCodec | None) -> dict[str, object]:
    began = time.monotonic()
    answer: dict[str, object] = {"ok": False, "id": None, "workflow": None, "events": 0, "took_ms": 0}
    answer |= {"divergence": None, "at": None, "did": [], "error": None}
    try:
        history = _history(file)
    except ValueError as error:
        return answer | {"error": str(error)}
    kind = _kind(history)
    answer |= {"id": history.workflow_id, "workflow": kind, "events": len(history.events)}
    if kind not in _OURS:
        return answer | {"error": _not_ours(file, kind)}
    if why_not := await obstacle(history, codec):
        return answer | {"error": f"{file} cannot be replayed here: {why_not}"}
    if _has_not_begun(history):
        return answer | {"ok": True}
    result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    failure = _sentence(str(result.replay_failure)) if result.replay_failure else None
    took_ms = round((time.monotonic() - began) * 1000)
    at = _at(history.events, failure) if failure else None
    return answer | {"ok": failure is None, "took_ms": took_ms, "divergence": failure, "at": at}


def _sentence(failure: str) -> str:
    """What Temporal says of a divergence, without the structure around it."""
    found = re.search(r'message: "(\[TMPRL\d+\] (?:[^"\\]|\\.)*)"', failure)
    return found[1] if found else failure.partition("\n")[0][:MAX_FAILURE]


def _at(events: Sequence[HistoryEvent], failure: str) -> dict[str, object] | None:
    """The event that Temporal's words name, by its number or by what it is of; None where they name none."""
    numbered = re.search(r"HistoryEvent\(id: (\d+)|event[_ ]id:? (\d+)", failure)
    named = re.search(r"of scheduled event '([^']+)'", failure)
    number, name = int(numbered[1] or numbered[2]) if numbered else None, named[1] if named else None
    event = next((each for each in events if each.event_id == number or (name and _of(each) == name)), None)
    if event is None:
        return None
    kind = EventType.Name(event.event_type).removeprefix("EVENT_TYPE_").lower()
    return {"event": event.event_id, "type": kind, "of": _of(event)}


def _of(event: HistoryEvent) -> str:
    attributes = getattr(event, event.WhichOneof("attributes") or "", None)
    for name in _NAMED:
        if (value := getattr(attributes, name, None)) and (text := str(getattr(value, "name", value))):
            return text
    return ""
