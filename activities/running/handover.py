"""What an agent is told that goes on for another, or begins again without its session; and why another may at all."""

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
_LOST = (
    "Your process ended unexpectedly, and the conversation was lost with it. You begin again in the same directory, "
    "with the files as you left them. Check what was done already: it need not be done again."
)
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
    done = await _done(last.said, prompts, log, baseline)
    before = f'Another agent ("{last.agent}") has worked on this before you and could not go on ({last.why[:500]}).'
    rest = "You go on in the same directory, with the files as it left them; what it has done need not be done again."
    return "\n\n".join([f"{before} {rest}", *done, "What you are both asked:", ""]) if done else ""


async def begun_again(said: str, prompts: Sequence[str], log: Path, baseline: Baseline) -> str:
    """What precedes the prompt of an agent that has lost its session with its process; empty where nothing was done.

    `said`: its last words; the rest is as for `handover`. Raises OSError.
    """
    done = await _done(said, prompts, log, baseline)
    return "\n\n".join([_LOST, *done, "What you are asked:", ""]) if done else ""


async def _done(said: str, prompts: Sequence[str], log: Path, baseline: Baseline) -> list[str]:
    """What was told and done before; empty where that is nothing."""
    parts = []
    messages = await asyncio.to_thread(lambda: list(_messages(log, prompts)))
    diff = await baseline.changes(MAX_DIFF)
    if messages:
        earlier = " (earlier ones are left out)" if len(messages) > MAX_MESSAGES else ""
        told = [f"- {text[:MAX_MESSAGE]}{CUT if len(text) > MAX_MESSAGE else ''}" for text in messages[-MAX_MESSAGES:]]
        parts.append("\n".join([f"People said meanwhile, in this order{earlier}:", *told]))
    if said:
        cut = "(cut off before this) " if len(said) > MAX_SAID else ""
        parts.append(f"The last words before:\n{cut}{said[-MAX_SAID:]}")
    if diff:
        cut = CUT if len(diff) >= MAX_DIFF else ""
        parts.append(f"What has changed in the files since the run began:\n```diff\n{diff}{cut}\n```")
    return parts


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
    text = str(event.get("text") or "")
    return "" if ours == "repair" or ours.startswith("resume-") or _LOST in text else text
