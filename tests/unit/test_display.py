"""The texts that the Temporal Web UI shows."""

from datetime import UTC, datetime

import pytest

from steersman.contracts.run import Approval, Handle, LastEvent, MessageRecord, RunState, StopReport, Usage
from workflows.display import MAX_LINE, details, one_line

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\nb", "a"), ("  a  ", "a"), ("", ""), ("\n\n b\nc", "b"), ("x" * 500, "x" * (MAX_LINE - 1) + "…")],
)
def test_one_line(text: str, shown: str) -> None:
    assert one_line(text) == shown


def test_an_empty_state_shows_its_phase_alone() -> None:
    assert details(RunState()) == "- **Phase**: queued"


def test_a_full_state_shows_what_a_person_asks_for() -> None:
    state = RunState(
        phase="stopping",
        agent="claude",
        workspace="/w",
        host="h",
        handle=Handle(host="h", boot_id="b", pid=4711, start_time=1),
        session_id="s-1",
        attempt=2,
        usage=Usage(input_tokens=10, output_tokens=5),
        cost_usd=0.01234,
        turns=3,
        last_event=LastEvent(seq=9, type="tool_use", summary="Bash\nrm", time=NOW),
        approvals=(Approval(id="a-1", tool="Bash", input={}, since=NOW),),
        messages=(MessageRecord(id="m", kind="steer", state="delivered", received_at=NOW),),
        stop_report=StopReport(outcome="stopped", phase="running", how="killed", processes=4, took_ms=1500),
        error="limits.turns",
    )
    shown = details(state)
    for part in (
        "**Agent**: claude",
        "**Workspace**: /w",
        "pid 4711",
        "s-1",
        "**Attempt**: 2",
        "$0.0123, 3 turns",
        "10 in, 5 out",
        "tool_use: Bash",
        "Bash (a-1)",
        "steer delivered",
        "stopped while running, killed, 4 processes, 1500 ms",
        "**Error**: limits.turns",
    ):
        assert part in shown
    assert all(line.startswith("- **") for line in shown.split("\n"))


def test_a_stop_that_nobody_could_verify_says_no_more_than_that() -> None:
    state = RunState(stop_report=StopReport(outcome="unverified", phase="running"))
    assert "**Stopped**: unverified while running" in details(state).split("- ")


def test_text_of_an_agent_cannot_add_lines() -> None:
    state = RunState(
        error="first\n- **Phase**: closed",
        workspace="/w`\n- **Agent**: other",
        last_event=LastEvent(seq=1, type="message", summary="x\n- **Host**: other", time=NOW),
    )
    names = [line.split("**")[1] for line in details(state).split("\n")]
    assert names == ["Phase", "Workspace", "Last", "Error"]
