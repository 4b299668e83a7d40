"""The line that says how a followed run stands."""

from datetime import UTC, datetime, timedelta

import pytest
from rich.cells import cell_len

from steersman.cli.terminal.run_status import RunStatus
from steersman.contracts.events import (
    TURN_INTERRUPTED,
    AgentEvent,
    DoneEvent,
    InitEvent,
    MessageEvent,
    PermissionEvent,
    ProgressEvent,
    RateLimitEvent,
    UsageEvent,
)
from steersman.contracts.run import Usage

BEGAN = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
NOW = BEGAN + timedelta(seconds=125)


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def line(*events: AgentEvent, width: int = 60, now: datetime = NOW) -> str:
    status = RunStatus()
    for event in events:
        status.on_event(event)
    return status.line(now, width)


INIT = InitEvent(time=BEGAN, session_id="s")
INTERRUPTED = ProgressEvent(time=at(119), text=TURN_INTERRUPTED)
SPENT = UsageEvent(time=at(121), usage=Usage(), cost_usd=0.0123, turns=4)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ((), "no event yet"),
        ((INIT, SPENT), "at work · 2 min 05 s · 4 turns · $0.0123"),
        ((INIT, MessageEvent(time=at(60), text="x")), "at work · 2 min 05 s · silent for 1 min 05 s"),
        (
            (INIT, PermissionEvent(time=at(120), id="a", tool="Bash", state="asked")),
            "waits for an answer · 2 min 05 s",
        ),
        (
            (
                INIT,
                PermissionEvent(time=at(119), id="a", tool="Bash", state="asked"),
                PermissionEvent(time=at(120), id="a", tool="Bash", state="allowed"),
            ),
            "at work · 2 min 05 s",
        ),
        ((INIT, RateLimitEvent(time=at(120), status="rejected")), "rate limit · 2 min 05 s"),
        ((INIT, INTERRUPTED, SPENT), "waits for a message · 2 min 05 s · 4 turns · $0.0123"),
        ((INIT, INTERRUPTED, MessageEvent(time=at(120), role="user", text="go on")), "at work · 2 min 05 s"),
        ((INIT, DoneEvent(time=at(120), text="x")), "ended · 2 min 05 s"),
    ],
)
def test_it_says_how_the_run_stands(events: tuple[AgentEvent, ...], said: str) -> None:
    assert line(*events, width=40) == said


@pytest.mark.parametrize("width", [20, 60, 79, 80, 100, 200])
def test_keys_are_named_where_they_fit(width: int) -> None:
    said = line(INIT, SPENT, width=width)
    assert said.startswith("at work · 2 min 05 s · 4 turns · $0.0123")
    assert cell_len(said) < max(width, 41)
    assert said.endswith("Ctrl-C: menu") == (width >= 89)


def test_an_outage_is_said_until_something_is_heard() -> None:
    status = RunStatus()
    status.on_event(INIT)
    status.outage = "nobody answers, waiting"
    assert status.line(at(5), 60).startswith("nobody answers, waiting · 5 s")
    status.on_event(SPENT)
    assert status.line(at(122), 60).startswith("at work")


def test_a_clock_that_is_behind_does_no_harm() -> None:
    assert line(INIT, now=BEGAN - timedelta(hours=1)) == "at work · 0 s"
