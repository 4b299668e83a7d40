"""What a run's permission mode refused, summed up at its end."""

from datetime import UTC, datetime
from typing import Any

import pytest

from steersman.cli.terminal.refusals import MAX_RULES, Refusals
from steersman.contracts.events import REFUSED_BY_MODE, PermissionEvent


def refused(*calls: tuple[str, dict[str, Any]], message: str = f"x {REFUSED_BY_MODE}accept_edits).") -> str | None:
    told = Refusals()
    for number, (tool, given) in enumerate(calls):
        common = {"seq": number, "time": datetime.now(UTC), "attempt": 1, "id": f"c{number}", "tool": tool}
        told.on_event(PermissionEvent.model_validate({**common, "input": given, "state": "asked"}))
        told.on_event(PermissionEvent.model_validate({**common, "state": "denied", "message": message}))
    return told.summary()


@pytest.mark.parametrize(
    ("tool", "given", "flags"),
    [
        ("Bash", {"command": "pytest -q"}, "--allow 'Bash(pytest *)'"),
        ("Bash", {"command": "cd /x && A=1 make -j && ls|wc"}, "--allow 'Bash(cd *)' --allow 'Bash(make *)'"),
        ("Bash", {"command": "$(evil)"}, "--allow Bash"),
        ("Bash", {}, "--allow Bash"),
        ("WebFetch", {"url": "http://x"}, "--allow WebFetch"),
    ],
)
def test_it_says_what_would_have_allowed_it(tool: str, given: dict[str, Any], flags: str) -> None:
    said = refused((tool, given))
    assert said is not None
    assert said.startswith(f"the permission mode refused 1 call: {tool}. Next time: {flags}")


def test_calls_are_counted_and_rules_are_bounded() -> None:
    calls = [("Bash", {"command": f"tool{number} -x"}) for number in range(50)]
    said = refused(*calls, ("Bash", {"command": "tool1 -y"}), ("WebFetch", {}))
    assert said is not None
    assert "refused 52 calls: Bash (51), WebFetch." in said
    assert said.count("--allow") == MAX_RULES


def test_what_a_person_denied_is_no_mistake() -> None:
    assert refused(("Bash", {"command": "rm x"}), message="not on my machine") is None
    assert refused() is None
