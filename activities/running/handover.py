"""What the next agent of a run is told of the one before it, which could not go on; and why another may at all."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from activities.ports.baseline import Baseline
from activities.running.totals import LastWork
from activities.store.event_reader import tail
from steersman.contracts.errors import AgentNotInstalled, AuthenticationFailed, RunError
from steersman.contracts.events import MAX_TEXT
from steersman.contracts.request import FallbackCause

MAX_SAID = 8_000
"""Characters of the last agent's words."""
MAX_MESSAGE = 2_000
"""Characters of each message of people."""
LONG = 200
"""A message that has so long a prompt in it is that prompt."""
CUT = "\n(cut off here)"
MAX_DIFF = 30_000
MAX_MESSAGES = 20
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


async def handover(last: LastWork, prompts: Sequence[str], log: Path, baseline: Baseline) -> str:
    """What precedes the prompt of the next agent; empty where nothing was done. Raises OSError.

    Args:
        last: what the newest agent has come to that has done anything.
        prompts: what the agents were asked by the run itself, which is no message.
        log: the run's event log.
        baseline: the workspace as the run found it.
    """
    messages = await asyncio.to_thread(lambda: list(_messages(log, prompts)))
    diff = await baseline.changes(MAX_DIFF)
    if not (last.said or messages or diff):
        return ""
    before = f'Another agent ("{last.agent}") has worked on this before you and could not go on'
    rest = "You go on in the same directory, with the files as it left them; what it has done need not be done again."
    parts = [f"{before} ({last.why[:500]}). {rest}"]
    if messages:
        earlier = " (earlier ones are left out)" if len(messages) > MAX_MESSAGES else ""
        told = [f"- {text[:MAX_MESSAGE]}{CUT if len(text) > MAX_MESSAGE else ''}" for text in messages[-MAX_MESSAGES:]]
        parts.append("\n".join([f"People said to it meanwhile, in this order{earlier}:", *told]))
    if last.said:
        cut = "(cut off before this) " if len(last.said) > MAX_SAID else ""
        parts.append(f"Its last words:\n{cut}{last.said[-MAX_SAID:]}")
    if diff:
        cut = CUT if len(diff) >= MAX_DIFF else ""
        parts.append(f"What has changed in the files since the run began:\n```diff\n{diff}{cut}\n```")
    parts.append("What you are both asked:")
    return "\n\n".join(parts) + "\n\n"


def _messages(log: Path, prompts: Sequence[str]) -> Iterator[str]:
    """What people have said to the agents beside their prompts, as far as the log's end has it."""
    for line in tail(log):
        text = _message(line) if b'"role"' in line else ""
        if text and not any(_is(text, prompt) for prompt in prompts):
            yield text


def _is(text: str, prompt: str) -> bool:
    """Whether the log has the prompt so: whole or cut; a long one perhaps with what an agent's class adds to it."""
    return text[:MAX_TEXT] == prompt[:MAX_TEXT] or (len(prompt) >= LONG and prompt[:MAX_TEXT] in text)


def _message(line: bytes) -> str:
    try:
        event: Any = json.loads(line)
    except ValueError:
        return ""
    if not isinstance(event, dict) or event.get("type") != "message" or event.get("role") != "user":
        return ""
    ours = str(event.get("message_id") or "")
    return "" if ours == "repair" or ours.startswith("resume-") else str(event.get("text") or "")
