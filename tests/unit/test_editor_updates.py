"""What an agent says and what its tools put out, as an editor is told it."""

from typing import Any

import pytest

pytest.importorskip("acp")

from steersman.acp.updates import MAX_OUTPUT, Updates
from steersman.contracts.events import (
    AgentEvent,
    FileChangeEvent,
    PermissionEvent,
    ProgressEvent,
    ToolOutputEvent,
    ToolResultEvent,
    ToolUseEvent,
)
from tests.client.fake_host import now, said, tool_output, tool_result, tool_use


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


def texts(*events: AgentEvent) -> tuple[str, str]:
    """All that is told of the events: the answer, and the thoughts."""
    updates = Updates()
    made = [update for event in events for update in updates.of(event)]
    kinds = "agent_message_chunk", "agent_thought_chunk"
    answer, thoughts = ("".join(each.content.text for each in made if each.session_update == kind) for kind in kinds)
    return answer, thoughts


def test_messages_do_not_run_together() -> None:
    assert texts(said("One."), said("Tw", delta=True), said("o.", delta=True), said("Two.")) == ("One.\n\nTwo.", "")
    assert texts(said("hm", kind="thinking"), ProgressEvent(time=now(), text="a step")) == ("", "hm\n\na step\n")


def test_what_a_sub_agent_says_is_no_part_of_the_answer() -> None:
    told = texts(
        said("I wait", delta=True),
        said("found it", parent_tool_id="t-Agent"),
        said("both", parent_tool_id="t-Other"),
        said(" here", delta=True),
        said("I wait here"),
    )
    assert told == ("I wait here", "found it\n\nboth")


@pytest.mark.parametrize(
    ("cut", "whole"),
    [({"message_id": "m-1"}, {"message_id": "m-2"}), ({"attempt": 1}, {"attempt": 2}), ({}, {})],
    ids=["another message", "another process", "unnamed"],
)
def test_a_message_after_one_that_was_cut_off_is_told_once(cut: dict[str, object], whole: dict[str, object]) -> None:
    answer, _ = texts(
        said("I am thin", delta=True, **cut),
        ProgressEvent(time=now(), text="the turn was interrupted"),
        said("New", delta=True, **whole),
        said("New", **whole),
    )
    assert answer == "I am thinNew"


def test_calls_of_two_runs_are_told_apart_and_none_is_left_at_work() -> None:
    change = FileChangeEvent(time=now(), seq=7, path="a", change="created", tool_id="t-Write")
    first, second = Updates("one"), Updates("two")
    assert first.of(change)[0].tool_call_id != second.of(change)[0].tool_call_id
    first.of(tool_use("Bash"))
    first.of(tool_use("Read"))
    first.of(tool_result("Read", "read"))
    assert [(each.tool_call_id, each.status) for each in first.unfinished()] == [("t-Bash", "failed")]


@pytest.mark.parametrize(("state", "status"), [("allowed", "completed"), ("denied", "failed"), ("withdrawn", "failed")])
def test_a_question_about_a_call_that_is_not_told_ends_with_its_answer(state: Any, status: str) -> None:
    updates = Updates()
    asked = PermissionEvent(time=now(), id="1-a", tool="bash", tool_id="sub-1", input={"command": "x"}, state="asked")
    assert updates.of(asked) == []
    call = updates.asked(asked).tool_call_id
    assert [each.tool_call_id for each in updates.unfinished()] == [call]
    (ended,) = updates.of(asked.model_copy(update={"state": state}))
    assert (ended.tool_call_id, ended.status) == (call, status)
    assert updates.unfinished() == []


def test_that_about_a_call_that_is_told_ends_with_the_result() -> None:
    updates = Updates()
    call = tool_use("Bash", command="x")
    updates.of(call)
    asked = PermissionEvent(time=now(), id="1-a", tool="Bash", tool_id=call.id, input={"command": "x"}, state="asked")
    assert updates.asked(asked).tool_call_id == call.id
    assert updates.of(asked.model_copy(update={"state": "allowed"})) == []
