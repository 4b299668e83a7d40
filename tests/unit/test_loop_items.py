"""Items of every source come to the same list, and nothing counts as closed by mistake."""

import json
from typing import Any

import pytest

from activities.loops.items.checkboxes import parse_checkboxes
from activities.loops.items.item_list import (
    MAX_ITEMS,
    MAX_LISTED,
    from_checkboxes,
    from_json_items,
    item_list,
    unreadable_list,
)
from activities.loops.items.json_items import MalformedItems, parse_items
from steersman.contracts.loop_state import ItemCount, ItemList


def counted(data: Any) -> ItemList:
    return item_list(from_json_items(parse_items(json.dumps(data))))


def state_of(**fields: Any) -> str:
    return counted([{"id": "a", **fields}]).items[0].state


class TestEntries:
    @pytest.mark.parametrize("name", ["items", "issues", "tasks", "stories", "userStories", "features", "data"])
    def test_a_list_may_stand_under_a_name(self, name: str) -> None:
        assert counted({"project": "x", name: ["a", "b"]}).count == ItemCount(open=2)

    def test_texts_and_objects(self) -> None:
        found = counted(["write it", {"id": 7, "title": "test it"}, {"key": "K-1", "name": "ship it"}])
        assert [(item.id, item.text) for item in found.items] == [
            ("#1", "write it"),
            ("7", "test it"),
            ("K-1", "ship it"),
        ]

    @pytest.mark.parametrize("flag", ["done", "passes", "completed", "closed", "passed", "complete"])
    def test_a_flag_closes(self, flag: str) -> None:
        assert (state_of(**{flag: True}), state_of(**{flag: False})) == ("closed", "open")

    @pytest.mark.parametrize("value", ["true", 1, "yes", None, [], {}])
    def test_only_true_is_true(self, value: Any) -> None:
        assert state_of(done=value) == "open"

    @pytest.mark.parametrize(
        ("word", "state"),
        [
            ("closed", "closed"),
            ("Done", "closed"),
            ("COMPLETED", "closed"),
            ("won't fix", "closed"),
            ("in progress", "in_progress"),
            ("In-Progress", "in_progress"),
            ("doing", "in_progress"),
            ("blocked", "blocked"),
            ("on hold", "blocked"),
            ("in review", "needs_review"),
            ("needs_review", "needs_review"),
            ("todo", "open"),
            ("pending", "open"),
            ("not done", "open"),
            ("", "open"),
            (3, "open"),
        ],
    )
    def test_words_for_a_state(self, word: Any, state: str) -> None:
        assert state_of(status=word) == state == state_of(state=word)

    def test_what_contradicts_itself_is_not_closed(self) -> None:
        assert state_of(status="done", passes=False) == "open"
        assert state_of(status="in_progress", passes=True) == "in_progress"
        assert state_of(status="in_progress", passes=False) == "in_progress"
        assert state_of(status="done", passes=True) == "closed"

    @pytest.mark.parametrize("text", ["", "{", '{"a": 1}', "3", '"x"', "null", "[1]", "[[]]", "[null]", "[" * 100_000])
    def test_what_is_no_list_of_items(self, text: str) -> None:
        with pytest.raises(MalformedItems):
            parse_items(text)

    def test_an_empty_list_is_no_error(self) -> None:
        found = counted([])
        assert (found.count.total, found.error) == (0, None)


class TestBlockers:
    @pytest.mark.parametrize("name", ["blocked_by", "blockedBy", "depends_on", "dependsOn", "dependencies"])
    def test_an_open_blocker_holds_an_item_up_until_it_closes(self, name: str) -> None:
        items: list[dict[str, Any]] = [{"id": "a"}, {"id": "b", name: ["a"]}]
        assert counted(items).count == ItemCount(open=1, blocked=1)
        assert [item.blocked_by for item in counted(items).items] == [(), ("a",)]
        items[0]["done"] = True
        assert counted(items).count == ItemCount(open=1, closed=1)

    def test_a_blocker_in_work_or_review_still_blocks(self) -> None:
        for state in ("in_progress", "needs_review", "blocked"):
            assert state_of_second(state) == "blocked"

    def test_an_item_marked_as_blocked_is_freed_by_its_blockers(self) -> None:
        assert counted([{"id": "a", "done": True}, {"id": "b", "status": "blocked", "blocked_by": "a"}]).count.open == 1
        assert counted([{"id": "b", "status": "blocked"}]).count.blocked == 1

    def test_a_blocker_that_nobody_knows_does_not_block(self) -> None:
        assert counted([{"id": "b", "blocked_by": ["gone"]}]).count == ItemCount(open=1)

    def test_a_closed_item_stays_closed(self) -> None:
        assert counted([{"id": "a"}, {"id": "b", "done": True, "blocked_by": ["a"]}]).count.closed == 1

    def test_numbers_and_commas(self) -> None:
        items = [{"id": 1}, {"id": 2, "done": True}, {"id": 3, "depends_on": [1]}, {"id": 4, "depends_on": "2, 1"}]
        assert [(item.id, item.state) for item in counted(items).items][:3] == [
            ("1", "open"),
            ("3", "blocked"),
            ("4", "blocked"),
        ]

    def test_beads_says_how_a_dependency_is_and_of_which_kind(self) -> None:
        def issue(kind: str, status: str) -> str:
            link = {"id": "bd-9", "title": "x", "status": status, "issue_type": "task", "dependency_type": kind}
            return counted([{"id": "bd-1", "status": "open", "dependencies": [link]}]).items[0].state

        assert issue("blocks", "open") == "blocked"
        assert issue("blocks", "closed") == issue("blocks", "tombstone") == "open"
        for kind in ("parent-child", "related", "discovered-from"):
            assert issue(kind, "open") == "open"

    def test_boxes_name_each_other(self) -> None:
        text = "- [ ] a ^a\n- [ ] b (blocked by: ^a)\n- [ ] c (blocked by: #2)\n"
        assert [item.state for item in item_list(from_checkboxes(parse_checkboxes(text))).items] == [
            "open",
            "blocked",
            "blocked",
        ]
        assert item_list(from_checkboxes(parse_checkboxes(text.replace("[ ] a", "[x] a")))).count == ItemCount(
            open=1, blocked=1, closed=1
        )


def state_of_second(first: str) -> str:
    return counted([{"id": "a", "status": first}, {"id": "b", "blocked_by": ["a"]}]).items[1].state


class TestList:
    def test_what_is_left_comes_first_and_the_rest_is_counted(self) -> None:
        items = [{"id": f"{n}", "done": n % 2 == 0} for n in range(600)]
        found = counted(items)
        assert found.count == ItemCount(open=300, closed=300)
        assert len(found.items) == MAX_LISTED
        assert {item.state for item in found.items} == {"open"}
        assert [item.id for item in found.items[:3]] == ["1", "3", "5"]

    def test_too_many_are_an_error_and_not_a_result(self) -> None:
        found = counted([{"done": True}] * (MAX_ITEMS + 1))
        assert found.error == f"there are {MAX_ITEMS + 1} items, more than {MAX_ITEMS}"

    def test_the_digest_is_of_ids_and_states_alone(self) -> None:
        first = counted([{"id": "a", "title": "x"}, {"id": "b"}])
        assert first.digest == counted([{"id": "a", "title": "y"}, {"id": "b"}]).digest
        for other in (
            [{"id": "a", "done": True}, {"id": "b"}],
            [{"id": "a"}],
            [{"id": "a"}, {"id": "c"}],
            [{"id": "a", "status": "doing"}, {"id": "b"}],
        ):
            assert counted(other).digest != first.digest

    def test_the_digest_knows_items_beyond_those_listed(self) -> None:
        many = [{"id": f"{n}"} for n in range(400)]
        assert counted(many).digest != counted([*many[:-1], {"id": "399", "done": True}]).digest

    def test_texts_are_bounded_and_fit_the_wire(self) -> None:
        found = counted([{"id": "x" * 5000, "title": "line one\n\tline two " + "y" * 5000, "phase": "p" * 500}])
        (item,) = found.items
        assert len(item.id) == 200
        assert len(item.text) == 300
        assert item.text.startswith("line one line two y")
        assert ItemList.model_validate_json(found.model_dump_json()) == found

    def test_lone_surrogates_do_not_break_the_wire(self) -> None:
        found = item_list(from_json_items(parse_items('[{"id": "\\ud800", "title": "\\udfff"}]')))
        assert ItemList.model_validate_json(found.model_dump_json()) == found

    def test_the_same_id_twice_is_two_items(self) -> None:
        found = counted([{"id": "a", "done": True}, {"id": "a"}])
        assert found.count == ItemCount(open=1, closed=1)
        assert len({item.id for item in found.items}) == 2

    def test_an_error_has_nothing_closed(self) -> None:
        found = unreadable_list("it is gone")
        assert (found.error, found.count.total) == ("it is gone", 0)
        assert found.digest != unreadable_list("it is another").digest
