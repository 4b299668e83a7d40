"""The provider's rate limits on the account, as Claude Code reports them, and which waits end the process.

Only structured fields count, never texts of the agent or a tool. Measured with 2.1.327:
- An account with a plan (OAuth): a `rate_limit_event` with status "rejected", and the refusal's own record in
  `api_error_params.rate_limit_info` of an `assistant` frame. Both tell when the limit resets. Not retried.
- An API key: 429 is retried up to ten times, after `retry-after` where the service gives one of 60 s at most. A longer
  one ends the turn at once, and no frame reports it.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from activities.agents.frames import Frame
from activities.untrusted_json import count_of, name_of, object_at, time_of
from steersman.contracts.errors import AgentFailed
from steersman.contracts.model import JsonObject

RATE_LIMITED, OVERLOADED = 429, 529
FIRST_BACKOFF_S, LAST_BACKOFF_S = 0.5, 32.0
"""Claude Code's own waits: doubled each time, up to a quarter more by chance."""


@dataclass
class Refusals:
    """The newest refusal of one process, until the service answers again. The field is in snapshots by its name."""

    _told: Frame = field(default_factory=dict)

    def event(self, frame: Frame) -> None:
        """Take a rate_limit_event. One that extra usage covers is no refusal."""
        info = object_at(frame, "rate_limit_info")
        refused = info.get("status") == "rejected" and not info.get("isUsingOverage")
        self._told = info if refused else {}

    def message(self, frame: Frame) -> None:
        """Take an assistant frame; one that stands for an error may hold the refusal's record."""
        info = object_at(frame, "api_error_params", "rate_limit_info")
        if frame.get("is_api_error_message") and info:
            self._told = info

    def answered(self) -> None:
        """The model has answered: earlier refusals are over."""
        self._told = {}

    def facts(self, result: Frame) -> JsonObject:
        """The facts of a `result` frame that is an error: `rate_limit` if it failed for one, else none."""
        status = count_of(result.get("api_error_status"))
        if status == OVERLOADED:
            return _facts(None, "overloaded")
        if status == RATE_LIMITED or result.get("api_error") == "usage_limit_reached":
            return _facts(time_of(self._told.get("resetsAt")), name_of(self._told.get("rateLimitType")))
        return {}


def too_long(time: datetime, frame: Frame, max_wait_s: float | None) -> AgentFailed | None:
    """The failure in an api_retry frame if Claude Code would wait for a limit longer than it may.

    All waits of one request may take `max_wait_s`, one of them half of it; None is no bound.
    """
    if max_wait_s is None or count_of(frame.get("error_status")) != RATE_LIMITED:
        return None
    attempt, wait_s = max(count_of(frame.get("attempt")), 1), count_of(frame.get("retry_delay_ms")) / 1000
    own_s = min(FIRST_BACKOFF_S * 2 ** min(attempt - 1, 10), LAST_BACKOFF_S)
    retry_after = wait_s > 2 * own_s  # the service names the same wait each time
    total_s = attempt * wait_s if retry_after else 2 * wait_s
    if wait_s <= max_wait_s / 2 and total_s <= max_wait_s:
        return None
    how = f"it asks to wait {wait_s:.0f} s" if retry_after else f"it refused {attempt} times in a row"
    message = f"the model's service limits this account (HTTP 429): {how}"
    resets_at = time + timedelta(seconds=min(wait_s, 86400)) if retry_after else None
    return AgentFailed(message, api_error_status=RATE_LIMITED, **_facts(resets_at, None))


def _facts(resets_at: datetime | None, limit: str | None) -> JsonObject:
    at = resets_at.astimezone(UTC).isoformat().replace("+00:00", "Z") if resets_at else None
    return {"rate_limit": {"resets_at": at, "limit": limit}}
