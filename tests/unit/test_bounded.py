"""What a person is shown of a tool's input and result: less than all of it is never taken for all."""

from datetime import UTC, datetime
from typing import Any

import pytest

from activities.agents.codex.items import result_events
from activities.untrusted_json import bounded, shown_text
from steersman.contracts.events import ToolResultEvent

LARGE: dict[str, Any] = {
    "a long text": {"command": "x" * 10_000 + "; rm -r ~"},
    "many members": {**{f"harmless-{number}": 1 for number in range(2000)}, "command": "rm -r ~"},
    "a long list": {"commands": ["true"] * 2000 + ["rm -r ~"]},
    "names that begin alike": {"n" * 600: "true", "n" * 601: "rm -r ~"},
    "many lists": {str(number): ["true"] * 900 for number in range(20)},
    "large numbers": {"numbers": [10**4000] * 900},
    "deep": {"a": [[[[[[[[[[[[[[[[[[[[[[[["rm -r ~"]]]]]]]]]]]]]]]]]]]]]]]]},
}


@pytest.mark.parametrize("given", LARGE.values(), ids=LARGE)
def test_what_is_left_out_is_said(given: dict[str, Any]) -> None:
    shown = bounded(given, 4096)
    assert shown != given
    assert "…" in str(shown)
    assert len(str(shown)) < 100_000


@pytest.mark.parametrize("given", ["a long text", "many members", "a long list"])
def test_what_was_said_of_all_of_it_is_said_of_a_part(given: str) -> None:
    shown = bounded(LARGE[given], 4096)
    assert bounded(shown, 4096) == shown


def test_all_of_it_is_shown_as_it_is() -> None:
    given: dict[str, Any] = {"a": ["b", {"c": None}], "d": "e" * 4096, **{str(number): 1 for number in range(900)}}
    assert bounded(given, 4096) == given


def test_how_many_are_left_out() -> None:
    assert bounded({"a": list(range(1500))})["a"][-1] == "… (501 more)"  # type: ignore[index]
    assert bounded({str(number): 1 for number in range(1500)})["…"] == "… (501 more)"


def test_an_image_among_a_tools_results_is_named() -> None:
    image = {"type": "image", "data": "aGk="}
    assert shown_text([{"type": "text", "text": "here:"}, image, "no block"]) == "here:\n[image]"
    item = {"type": "mcpToolCall", "id": "c", "status": "completed", "result": {"content": [image]}}
    (result,) = result_events(datetime.now(UTC), item, "mcp__things__draw")
    assert isinstance(result, ToolResultEvent)
    assert result.text == "[image]"
