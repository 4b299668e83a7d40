"""The outcome of a followed loop: the last line, the exit code; and a followed loop as JSON lines."""

import json
from dataclasses import dataclass

from steersman.cli.exits import Exit, code_of
from steersman.cli.loop import formatting
from steersman.cli.output import write_line
from steersman.client import Steersman
from steersman.contracts.errors import RunError
from steersman.contracts.loop_state import LoopResult, LoopState
from steersman.errors import SteersmanError
from steersman.loop_items import LoopItem, RunBegun


@dataclass(frozen=True)
class LoopOutcome:
    """How a loop ended, as far as that is known."""

    code: Exit
    result: LoopResult | None
    error: str | None = None


async def read_outcome(steersman: Steersman, loop: str) -> LoopOutcome:
    """The outcome of a loop that has closed."""
    try:
        result = await steersman.loops.result(loop)
    except (SteersmanError, RunError) as error:
        found = getattr(error, "result", None)
        return LoopOutcome(code_of(error) or Exit.FAILED, found if isinstance(found, LoopResult) else None, str(error))
    return LoopOutcome(Exit.OK if result.status == "completed" else Exit.EXITED, result)


def end_line(end: LoopOutcome) -> tuple[str, str]:
    """The last line for a person, and its style."""
    parts = [end.error, formatting.result_line(end.result) if end.result else None]
    status = end.result.status if end.result else "cancelled" if end.code == Exit.CANCELLED else "failed"
    return " · ".join(filter(None, parts)), formatting.STATUS_STYLES[status]


def write_item(item: LoopItem) -> None:
    """Print one JSON line: a state, the beginning of a run, or an event with its run."""
    if isinstance(item, LoopState):
        data = {"type": "state", **item.model_dump(mode="json")}
    elif isinstance(item, RunBegun):
        data = {"type": "run", "id": item.run, "iteration": item.iteration, "verifies": item.verifies}
    else:
        data = {"run": item.run, **item.event.model_dump(mode="json")}
    write_line(json.dumps(data))


def write_outcome(end: LoopOutcome) -> None:
    """Print the last JSON line."""
    data = end.result.model_dump(mode="json") if end.result else {}
    write_line(json.dumps({"type": "result", **data, "error": end.error or data.get("error")}))
