"""Tokens and calls of one process of Hermes, its sub-agents' among them."""

from datetime import datetime

from activities.agents.frames import Frame
from activities.agents.hermes.state import HermesState
from activities.untrusted_json import count_of
from steersman.contracts.events import EventBase, UsageEvent
from steersman.contracts.run import Usage


def used(state: HermesState, time: datetime, total: Frame) -> list[EventBase]:
    """Totals are this process's. An answer may come behind a newer one."""
    calls, fresh = count_of(total.get("calls")), count_of(total.get("input"))
    if calls <= state.own_calls:
        return []
    state.own_calls = calls
    state.own = Usage(
        input_tokens=fresh,
        output_tokens=count_of(total.get("output")),
        # What of the prompt was no fresh input was read from the provider's cache, or written to it.
        cache_read_tokens=max(count_of(total.get("prompt")) - fresh, 0),
    )
    return _told(state, time)


def child_ended(state: HermesState, time: datetime, payload: Frame) -> list[EventBase]:
    """A sub-agent has ended."""
    given, said = count_of(payload.get("input_tokens")), count_of(payload.get("output_tokens"))
    state.children = _sum(state.children, Usage(input_tokens=given, output_tokens=said))
    state.child_calls += count_of(payload.get("api_calls"))
    return _told(state, time)


def _told(state: HermesState, time: datetime) -> list[EventBase]:
    progress = state.progress
    progress.usage, progress.turns = _sum(state.own, state.children), state.own_calls + state.child_calls
    return [UsageEvent(time=time, usage=progress.usage, cost_usd=0.0, turns=progress.turns)]


def _sum(one: Usage, other: Usage) -> Usage:
    return Usage(**{name: getattr(one, name) + getattr(other, name) for name in Usage.model_fields})
