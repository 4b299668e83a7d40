"""Output of a tool at work, as an editor is told it."""

import pytest

pytest.importorskip("acp")

from steersman.acp.updates import MAX_OUTPUT, Updates
from steersman.contracts.events import AgentEvent, ToolOutputEvent, ToolResultEvent, ToolUseEvent
from tests.client.fake_host import tool_output, tool_result, tool_use


def contents(updates: Updates, *events: ToolUseEvent | ToolOutputEvent | ToolResultEvent) -> list[tuple[str, str]]:
    """The state and the text of the call after each update that has a text."""
    given: list[AgentEvent] = [*events]
    made = [update for event in given for update in updates.of(event)]
    return [(each.status, each.content[0].content.text) for each in made if each.content]


def test_each_update_has_all_of_it_and_the_result_takes_its_place() -> None:
    events = tool_use("Bash"), tool_output("Bash", "one\n"), tool_output("Bash", "two\n"), tool_result("Bash", "all")
    told = contents(Updates(), *events)
    assert told == [("in_progress", "one\n"), ("in_progress", "one\ntwo\n"), ("completed", "all")]


def test_of_much_the_end_and_that_some_is_left_out() -> None:
    updates = Updates()
    told = contents(updates, tool_use("Bash"), *(tool_output("Bash", f"{each} " * 500) for each in range(20)))
    assert all(len(text) <= MAX_OUTPUT for _, text in told)
    assert told[-1][1].endswith("19 19 ")
    assert contents(updates, tool_output("Bash", "later\n", omitted=True)) == [("in_progress", "…\nlater\n")]


def test_of_a_call_that_the_editor_does_not_know_nothing() -> None:
    updates = Updates()
    assert updates.of(tool_output("Bash", "one\n")) == []
    assert contents(updates, tool_use("Bash"), tool_result("Bash", "all"), tool_output("Bash", "late")) == [
        ("completed", "all")
    ]
