"""Hermes's failures as the run's errors. It has no codes for them: what is known is in their words."""

import re
from typing import Any

from activities.agents.crashes import crash, exit_facts
from activities.agents.frames import Frame
from activities.agents.hermes.interpreter import HINT
from activities.ports.agent import ExitFact
from activities.untrusted_json import text_of
from steersman.contracts.errors import AgentFailed, AgentNotInstalled, AuthenticationFailed, InvalidRequest, RunError

NO_SUCH_SESSION = 4007
_NO_REPLY = "⚠️ No reply: "
"""So Hermes begins the last words of a turn whose model has not come to an end; without those they are `(empty)`."""
_EMPTY = "(empty)"
_NO_GATEWAY = "No module named 'tui_gateway"
_STATUS = re.compile(r"\bHTTP (\d{3})\b")
_NO_KEY = re.compile(r"no (?:LLM|inference) provider|no api key|api key (?:is )?(?:missing|not set)", re.IGNORECASE)


def turn_error(text: str) -> RunError:
    """The error of a turn that failed, by what Hermes says of it."""
    message = text.strip()[:4000] or "Hermes gave no reason"
    found = _STATUS.search(message)
    status = int(found[1]) if found else 0
    if status in (401, 403) or _NO_KEY.search(message):
        return AuthenticationFailed(f"Hermes could not authenticate: {message}")
    facts: dict[str, Any] = {"api_error_status": status} if status else {}
    if status == 429:
        facts["rate_limit"] = {}
    return AgentFailed(f"Hermes's turn failed: {message}", **facts)


def no_answer(text: str) -> RunError | None:
    """The error of a turn that to Hermes ended well, though its model gave no answer; None for one that it gave."""
    last = text.strip().rpartition("\n\n")[2]
    if last.startswith(_NO_REPLY):
        return AgentFailed(f"Hermes's turn failed: no reply: {last.removeprefix(_NO_REPLY)[:4000]}")
    return AgentFailed("Hermes's turn failed: its model gave no answer") if text.strip() == _EMPTY else None


def session_error(error: Frame) -> RunError:
    """The error of a session that cannot be begun or resumed."""
    message = text_of(error.get("message"))[:1000] or "the gateway gave no session"
    if error.get("code") == NO_SUCH_SESSION:
        return InvalidRequest(f"session: {message}")
    return AgentFailed(f"Hermes could not begin its session: {message}")


def start_failure(exit_fact: ExitFact) -> RunError:
    """A process that ended before any session began."""
    if any(_NO_GATEWAY in line for line in exit_fact.stderr):
        return AgentNotInstalled(
            f"hermes: the Python of this command has no gateway of Hermes: {HINT}", **exit_facts(exit_fact)
        )
    return crash(exit_fact)
