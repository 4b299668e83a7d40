"""What the next agent of a run is told of the one before it, which could not go on; and why another may at all."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from activities.ports.baseline import Baseline
from activities.store import disk
from steersman.contracts.errors import AgentNotInstalled, AuthenticationFailed, RunError
from steersman.contracts.events import MAX_TEXT
from steersman.contracts.request import FallbackCause, RunRequest

MAX_SAID = 8_000
"""Characters of the last agent's words; of each message of people, a quarter as many."""
MAX_DIFF = 30_000
MAX_MESSAGES = 20
_MAX_TAIL = 4 * 1024 * 1024
"""Only this many bytes of the log's end are looked at."""
_OVERLOADED = frozenset({503, 529})
_RATE_LIMITED = 429


def cause_of(error: RunError) -> FallbackCause | None:
    """Why the agent could not go on; None where another one would fare no better, or nobody knows."""
    if isinstance(error, AgentNotInstalled):
        return "not_installed"
    if isinstance(error, AuthenticationFailed):
        return "authentication"
    limit, status = error.facts.get("rate_limit"), error.facts.get("api_error_status")
    if status in _OVERLOADED or (isinstance(limit, dict) and limit.get("limit") == "overloaded"):
        return "overloaded"
    return "rate_limit" if status == _RATE_LIMITED or limit is not None else None


async def handover(request: RunRequest, why: RunError, said: str, log: Path, baseline: Baseline) -> str:
    """What precedes the prompt of the next agent; empty where nothing was done. Raises OSError.

    Args:
        request: as the agent that could not go on has it.
        why: its failure.
        said: its last words.
        log: the run's event log.
        baseline: the workspace as the run found it.
    """
    messages = [text[: MAX_SAID // 4] for text in _messages(log, request.prompt)][-MAX_MESSAGES:]
    diff = await baseline.changes(MAX_DIFF)
    if not (said or messages or diff):
        return ""
    before = f'Another agent ("{request.agent}") has worked on this before you and could not go on'
    rest = "You go on in the same directory, with the files as it left them; what it has done need not be done again."
    parts = [f"{before} ({why.message[:500]}). {rest}"]
    if messages:
        parts.append("People said to it meanwhile, in this order:\n" + "\n".join(f"- {text}" for text in messages))
    if said:
        parts.append(f"Its last words:\n{said[-MAX_SAID:]}")
    if diff:
        cut = "\n(cut off here)" if len(diff) >= MAX_DIFF else ""
        parts.append(f"What has changed in the files since the run began:\n```diff\n{diff}{cut}\n```")
    parts.append("What you are both asked:")
    return "\n\n".join(parts) + "\n\n"


def _messages(log: Path, prompt: str) -> Iterator[str]:
    """What people have said to the agent beside its prompt, as far as the log's end has it."""
    with os.fdopen(disk.open_regular(log), "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - _MAX_TAIL, 0))
        lines = file.read(_MAX_TAIL).split(b"\n")
    for line in lines[1 if size > _MAX_TAIL else 0 :]:
        text = _message(line) if b'"role"' in line else ""
        if text and not text.endswith(prompt[:MAX_TEXT]):
            yield text


def _message(line: bytes) -> str:
    try:
        event: Any = json.loads(line)
    except ValueError:
        return ""
    if not isinstance(event, dict) or event.get("type") != "message" or event.get("role") != "user":
        return ""
    ours = str(event.get("message_id") or "")
    return "" if ours == "repair" or ours.startswith("resume-") else str(event.get("text") or "")
