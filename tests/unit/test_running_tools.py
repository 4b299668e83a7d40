"""Lines that a terminal shows of what tools at work put out."""

import pytest

from steersman.cli.terminal.running_tools import LAST, MAX_CALLS, MAX_END, MAX_LINE, RunningTools, output_lines
from steersman.contracts.events import CancelledEvent, EventBase
from tests.client.fake_host import now, said, tool_output, tool_result, tool_use


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one\ntwo", ["one", "two"]),
        ("one\r\n\r\n \ntwo\r\n", ["one", "two"]),
        ("10%\r20%\r30%", ["30%"]),
        ("10%\r20%\r", ["20%"]),
        ("\x1b[32m✓\x1b[0m passed\x1b[K", ["✓ passed"]),
        ("so far \x1b[3", ["so far "]),
        ("so far \x1b", ["so far "]),
        ("\x1b]0;title\x07\x1bc", ["␛]0;title␇␛c"]),
        ("\x1b[2J\x1b[1;1Hhome", ["home"]),
        ("a\tb", ["a       b"]),
        ("a\u202eb\u200b", ["a<202E>b<200B>"]),
        ("", []),
    ],
)
def test_lines_are_as_a_terminal_shows_them_and_harmless(text: str, lines: list[str]) -> None:
    assert output_lines(text) == lines


def last_lines(*events: EventBase, most: int = 5) -> list[str]:
    tools = RunningTools()
    for event in events:
        tools.on_event(event)
    return tools.last_lines(most)


class TestLastLines:
    def test_the_last_ones_of_the_call_that_was_heard_last(self) -> None:
        first, other = tool_output("Bash", "1\n2\n3\n4\n"), tool_output("Test", "a\n")
        assert last_lines(tool_use("Bash"), tool_use("Test"), first) == ["1", "2", "3", "4"]
        assert last_lines(tool_use("Bash"), tool_use("Test"), first, other) == ["a"]
        assert last_lines(tool_use("Bash"), first, other, tool_output("Bash", "5\n"), most=2) == ["4", "5"]

    def test_a_sequence_in_two_pieces(self) -> None:
        assert last_lines(tool_output("Bash", "\x1b[3"), tool_output("Bash", "2mgreen\x1b[0m")) == ["green"]

    def test_what_is_left_out_is_no_line(self) -> None:
        assert last_lines(tool_output("Bash", "half a l"), tool_output("Bash", "ine\n", omitted=True)) == ["ine"]

    def test_nothing_once_it_is_over(self) -> None:
        begun = (tool_use("Bash"), tool_output("Bash", "one\n"))
        tools = RunningTools()
        for event in begun:
            tools.on_event(event)
        tools.ended(tool_result("Bash", "one\n"))
        assert tools.last_lines(5) == []
        assert last_lines(*begun, CancelledEvent(time=now())) == []
        assert last_lines(*begun, said("again").model_copy(update={"attempt": 2})) == [], "its process has ended"

    def test_a_flood_is_kept_in_part(self) -> None:
        tools = RunningTools()
        for number in range(3 * MAX_CALLS):
            for _ in range(10):
                event = tool_output(f"tool-{number}", "x" * 2000)
                tools.on_event(event)
                assert tools.new_lines(event) in ([], ["tool:"])
        assert [len(line) for line in tools.last_lines(5)] == [MAX_LINE]
        assert [len(line) for line in tools.new_lines(tool_output(f"tool-{number}", "\n"))] == [MAX_END]

    def test_the_last_of_too_much_is_said_to_be(self) -> None:
        assert last_lines(tool_output("Bash", "one", truncated=True)) == ["one", LAST]
