"""Checkboxes as people and agents write them."""

import time

import pytest

from activities.loops.items.checkboxes import parse_checkboxes, unticked
from steersman.contracts.checkbox_lines import UnclosedFence


def states(text: str) -> list[str]:
    return [box.state for box in parse_checkboxes(text)]


@pytest.mark.parametrize(
    ("mark", "state"),
    [
        (" ", "open"),
        ("", "open"),
        ("\u00a0", "open"),
        ("x", "closed"),
        ("X", "closed"),
        ("~", "in_progress"),
        ("/", "in_progress"),
        ("-", "blocked"),
        ("!", "blocked"),
        ("?", "needs_review"),
    ],
)
def test_each_mark_has_its_state(mark: str, state: str) -> None:
    assert states(f"- [{mark}] do it") == [state]


@pytest.mark.parametrize(
    "line",
    ["- [ ] a", "* [ ] a", "+ [ ] a", "1. [ ] a", "12) [ ] a", "    - [ ] a", "\t* [ ] a", "> - [ ] a", "- [ ] a\r"],
)
def test_every_kind_of_list_item(line: str) -> None:
    assert [(box.state, box.text) for box in parse_checkboxes(f"# Plan\n{line}\n")] == [("open", "a")]


@pytest.mark.parametrize(
    "line",
    ["[ ] no item", "- [](link)", "- [ ]tight", "- [1] a footnote", "- [link](x)", "-[ ] no space", "text - [ ] a"],
)
def test_what_is_no_box(line: str) -> None:
    assert parse_checkboxes(line) == []


def test_a_box_without_words_counts() -> None:
    assert states("- [ ]\n- [x]\n") == ["open", "closed"]


def test_ids_are_numbers_unless_the_line_names_one() -> None:
    found = parse_checkboxes("- [ ] one\n- [ ] two ^login\n  - [ ] three\n- [ ] four ^login\n")
    assert [(box.id, box.text) for box in found] == [("#1", "one"), ("login", "two"), ("#3", "three"), ("#4", "four")]


def test_a_caret_in_the_text_is_no_id() -> None:
    assert [(box.id, box.text) for box in parse_checkboxes("- [ ] compute x^2\n")] == [("#1", "compute x^2")]


def test_blockers_are_named_in_the_text() -> None:
    (box,) = parse_checkboxes("- [ ] ship (blocked by: #1, ^login, other) now ^ship\n")
    assert (box.text, box.blocked_by, box.id) == ("ship now", ("#1", "login", "other"), "ship")


@pytest.mark.parametrize(
    ("fence", "mark"),
    [("```", "```"), ("````", "`````"), ("~~~", "~~~"), ("  ```", "```"), ("- ```", "  ```"), ("> ```", "> ```")],
)
def test_boxes_in_code_do_not_count(fence: str, mark: str) -> None:
    assert states(f"- [x] a\n{fence}python\n- [ ] example\n{mark}\n- [x] b\n") == ["closed", "closed"]


def test_a_longer_fence_is_not_closed_by_a_shorter_one() -> None:
    assert states("````\n```\n- [ ] a\n```\n- [ ] b\n````\n- [x] c") == ["closed"]


def test_inline_code_opens_nothing() -> None:
    assert states("``` not a `fence` ```\n- [ ] a") == ["open"]


def test_a_fence_that_is_never_closed_hides_nothing() -> None:
    with pytest.raises(UnclosedFence, match="line 2 is never closed"):
        parse_checkboxes("- [x] a\n```\n- [ ] hidden\n")


def test_boxes_in_comments_do_not_count() -> None:
    assert (
        states("<!--\nLegend:\n- [ ] open\n```\n-->\n- [x] a\n<!-- - [ ] b -->\n- [x] c <!-- not\n- [x] d")
        == ["closed"] * 3
    )
    assert states("```\n<!--\n```\n- [ ] a\n") == ["open"]
    with pytest.raises(UnclosedFence, match="the comment of line 2 is never closed"):
        parse_checkboxes("- [x] a\n<!-- - [ ] hidden\n")
    assert unticked("<!--\n```\n-->\n- [x] a") == unticked("<!--\n```\n-->\n- [ ] a")


def test_ticking_a_box_is_no_new_plan() -> None:
    plan = "# Plan\n\n- [ ] a\n  1. [ ] b\n```\n- [ ] code\n```\n"
    assert unticked(plan) == unticked(plan.replace("- [ ] a", "- [x] a").replace("1. [ ] b", "1. [~] b"))
    assert unticked(plan) == unticked(plan.replace("\n", "\r\n"))
    for changed in (plan.replace("a\n", "A\n"), plan.replace("[ ] code", "[x] code"), plan + "- [x] more\n"):
        assert unticked(plan) != unticked(changed)


@pytest.mark.parametrize(
    "line",
    [
        " " * 400_000 + "x",
        "> " * 200_000 + "x",
        "- " * 200_000 + "x",
        "- [ ] " + " " * 400_000 + "^",
        "- [ ] " + "(blocked by " * 40_000,
        "- [ ] (blocked by" + " " * 400_000,
        "`" * 400_000,
    ],
)
def test_a_hostile_line_takes_no_time(line: str) -> None:
    began = time.process_time()
    try:
        parse_checkboxes(line)
    except UnclosedFence:
        pass
    unticked(line)
    assert time.process_time() - began < 10
