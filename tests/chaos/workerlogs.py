"""What workers logged, and whether the faults explain it."""

import json
from collections.abc import Container, Iterable
from pathlib import Path

EXPLAINED = (
    '"action": "temporal.core',  # the SDK's own words; what comes of them is looked at in histories and runs
    '"action": "server_unreachable"',
    "nobody says whether the run has begun already",  # the server is struck, too, and is asked again
    "nobody says who stopped the agent",  # the same, after a reset
    "No space left on device; free some space, or make it writable",  # a run waits, or is refused, while that lasts
)
LOST = '"action": "log_incomplete"'
"""A warning by which a log was ended without what its agent had said last."""
DEADLOCK = "[TMPRL1101]"
"""What the SDK says of a workflow task that took more than two seconds: a freeze in the middle of one looks like that.
The server hands out the task again.
"""


def findings(logs: Iterable[Path], frozen: Container[str] = ()) -> list[str]:
    """Lines of level error, and of what was lost. Of what is no JSON, as a traceback, all together is one finding.

    `frozen`: names of the logs of workers that were frozen.
    """
    found = []
    for path in logs:
        explained = (*EXPLAINED, DEADLOCK) if path.name in frozen else EXPLAINED
        strange: list[str] = []
        for line in [*path.read_text(encoding="utf-8", errors="replace").splitlines(), "{}"]:
            level = _level(line)
            if WARNED in line or line.startswith("  warnings.warn("):
                continue
            if level is None:
                strange.append(line)
                continue
            if strange:
                found.append(f"{path.name}: " + " | ".join([strange[0], *strange[-3:]])[:1500])
                strange = []
            if (level in {"error", "critical"} or LOST in line) and not any(each in line for each in explained):
                found.append(f"{path.name}: {line[:1500]}")
    return found


WARNED = "UserWarning: Cannot find activity to cancel"
"""The SDK says so of an activity that ended in the moment of its cancel; its next line is the source's."""


def _level(line: str) -> str | None:
    """Of a line as workers log it; None of any other."""
    try:
        facts = json.loads(line)
    except ValueError:
        return None
    return str(facts.get("level", "")) if isinstance(facts, dict) else None
