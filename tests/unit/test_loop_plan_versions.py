"""Versions of a loop's plan: what a person revises and what somebody edits, kept and gone back to."""

from datetime import UTC, datetime
from typing import Any

import pytest

from steersman.contracts.loop import PlanFile, parse_loop_request
from steersman.contracts.loop_messages import Revise
from workflows.agent_loop import plans
from workflows.agent_loop.carried_state import CarriedState

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def opened(plan: Any = "work", **fields: Any) -> CarriedState:
    run = {"agent": "claude", "workspace": {"path": "/w"}}
    request = parse_loop_request({"run": run, "plan": plan, "done": {"verify": {"command": "make"}}, **fields})
    return plans.initial_state(request, NOW)


def edited(memory: CarriedState, *hashes: str) -> CarriedState:
    for each in hashes:
        memory = plans.with_survey(memory, memory.plan, each, NOW)
    return memory


def test_a_file_is_known_by_its_hash() -> None:
    memory = edited(opened({"path": "PLAN.md"}), "a", "a", "b", "b")
    assert [(each.number, each.hash) for each in memory.plans] == [(1, "a"), (2, "b")]
    assert memory.plan == 2


def test_what_cannot_be_read_or_is_another_versions_changes_nothing() -> None:
    memory = edited(opened({"path": "PLAN.md"}), "a", "")
    assert plans.with_survey(memory, 7, "b", NOW) == memory
    assert edited(opened("text"), "b") == opened("text")


def test_a_return_finds_the_old_version() -> None:
    memory = edited(opened({"path": "PLAN.md"}), "a", "b")
    assert plans.with_survey(memory, 2, "a", NOW, returned=True).plan == 1
    assert plans.with_survey(memory, 2, "a", NOW).plan == 3


def test_a_template_stays_with_its_versions() -> None:
    memory = opened({"path": "PLAN.md"}, prompt="one {plan}")
    memory = edited(memory, "a", "b")
    memory = plans.with_revision(memory, Revise(prompt="two {plan}"), NOW)
    memory = edited(memory, "c")
    assert memory.template == "two {plan}"
    assert [plans.template_of(memory, number) for number in (1, 2, 3, 4)] == [*["one {plan}"] * 2, *["two {plan}"] * 2]
    back = plans.with_version(memory, 2)
    assert (back.plan, back.template) == (2, "one {plan}")
    assert plans.with_version(memory, 99) == memory


def test_what_a_person_wrote_is_never_forgotten() -> None:
    memory = plans.with_revision(opened("work"), Revise(plan="work more"), NOW)
    memory = plans.with_revision(memory, Revise(plan=PlanFile(path="PLAN.md"), prompt="go"), NOW)
    for number in range(300):
        memory = edited(memory, f"hash-{number}")
    assert len(memory.plans) == plans.MAX_VERSIONS
    assert [each.text for each in memory.plans[:2]] == ["work", "work more"]
    assert memory.plans[2].prompt == "go"
    assert (memory.plan, memory.plan_version.hash, memory.template) == (302, "hash-299", "go")
    assert plans.with_revision(memory, Revise(plan="x"), NOW).plan == 303


def test_a_session_is_told_of_another_plan_and_not_of_another_prompt() -> None:
    assert not plans.with_revision(opened(), Revise(prompt="go"), NOW).revised
    assert plans.with_revision(opened(), Revise(plan="go"), NOW).revised


@pytest.mark.parametrize(("plan", "prompt", "fits"), [("x" * 60_000, None, True), ("é" * 30_000, "é" * 30_000, False)])
def test_texts_are_bounded_together(plan: str, prompt: str | None, *, fits: bool) -> None:
    memory = opened("x" * 60_000, prompt="x" * 60_000)
    memory = plans.with_revision(memory, Revise(plan="x" * 60_000), NOW)
    assert plans.is_too_long(memory, Revise(plan=plan, prompt=prompt)) is not fits
