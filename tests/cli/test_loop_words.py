"""`steer loop start`'s words as a request, and a loop in a person's words."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer

from steersman.cli.loop import formatting
from steersman.cli.loop import request as loop_request
from steersman.contracts.loop_state import Checkpoint, Item, ItemCount, ItemList, LoopState
from steersman.contracts.workspace_holder import WorkspaceHolder
from tests.client.fake_loop import checkpoint

NOW = datetime(2030, 1, 2, 12, tzinfo=UTC)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with a plan, its `docs` as the current directory."""
    workspace = tmp_path / "app"
    (workspace / "docs").mkdir(parents=True)
    (workspace / "PLAN.md").write_text("# Plan\n\n- [ ] one\n")
    (workspace / "prose.md").write_text("Make it good.\n")
    (workspace / "docs" / "01-first.md").write_text("1. [x] done\n")
    (tmp_path / "outside.md").write_text("from outside")
    monkeypatch.chdir(workspace / "docs")
    return workspace


@pytest.mark.parametrize(
    ("word", "plan"),
    [
        ("PLAN.md", {"path": "PLAN.md"}),
        ("@PLAN.md", {"path": "PLAN.md"}),
        ("../PLAN.md", {"path": "PLAN.md"}),
        ("01-first.md", {"path": "docs/01-first.md"}),
        (".", {"path": "docs"}),
        ("docs", {"path": "docs"}),
        ("@../../outside.md", "from outside"),
        ("Make", "Make"),
        ("v1.2 is out", "v1.2 is out"),
        ("speed/size: choose", "speed/size: choose"),
        ("Make PLAN.md better", "Make PLAN.md better"),
        ("a\nb", "a\nb"),
        ("x" * 5000, "x" * 5000),
    ],
)
def test_a_plan_is_a_text_or_what_is_in_the_workspace(place: Path, word: str, plan: Any) -> None:
    assert loop_request.plan_of(word, place) == plan


@pytest.mark.parametrize("word", ["PLANN.md", "./PLANN", "dcos/", "../../outside.md", "..", "/nowhere/PLAN.md"])
def test_what_looks_like_a_path_and_is_none_there_is_no_plan(place: Path, word: str) -> None:
    with pytest.raises(typer.BadParameter, match="looks like a path"):
        loop_request.plan_of(word, place)


def test_what_looks_like_a_path_in_a_workspace_that_is_not_here_is_one(tmp_path: Path) -> None:
    assert loop_request.plan_of("PLAN.md", tmp_path / "elsewhere") == {"path": "PLAN.md"}
    assert loop_request.plan_of("mend it", tmp_path / "elsewhere") == "mend it"


@pytest.mark.parametrize(
    ("asked", "limit"),
    [
        ({"run": {"agent": "claude"}}, 25),
        ({"run": {"agent": "claude"}, "limits": {"iterations": 3}}, 25),
        ({"run": {"agent": "claude"}, "limits": {"cost_usd": 3}}, 3),
        ({"run": {"agent": "claude"}, "limits": {"cost_usd": None}}, None),
        ({"run": {"agent": "codex"}}, "none"),
        ({"run": {"agent": "claude", "fallback": [{"agent": "opencode"}]}}, 25),
        ({"run": {"agent": "claude", "fallback": [{"agent": "opencode"}, {"agent": "codex"}]}}, "none"),
        ({"run": {"agent": "recipe"}}, "none"),
    ],
)
def test_what_a_loop_may_cost(asked: dict[str, Any], limit: Any) -> None:
    bounded = loop_request.with_cost_limit(asked)
    assert bounded.get("limits", {}).get("cost_usd", "none") == limit
    assert (f"${limit:.2f}" in loop_request.bounds(bounded)) if isinstance(limit, int) else True
    assert "iterations" in loop_request.bounds(bounded)


def test_an_absolute_path_inside_is_inside(place: Path) -> None:
    assert loop_request.plan_of(str(place / "PLAN.md"), place) == {"path": "PLAN.md"}
    assert loop_request.plan_of("docs", place, "01") == {"path": "docs", "phase": "01"}
    with pytest.raises(typer.BadParameter, match="phase"):
        loop_request.plan_of("a text", place, "01")
    with pytest.raises(typer.BadParameter, match="nowhere"):
        loop_request.plan_of("@nowhere.md", place)


@pytest.mark.parametrize(
    ("word", "items"),
    [
        ("checkboxes", {"kind": "checkboxes"}),
        ("checkboxes:TODO.md", {"kind": "checkboxes", "path": "TODO.md"}),
        ("beads:a-1, b-2", {"kind": "beads", "ids": ["a-1", "b-2"]}),
        ("json:items.json", {"kind": "json", "path": "items.json"}),
        ("command:./list: all", {"kind": "command", "command": "./list: all"}),
    ],
)
def test_items(word: str, items: dict[str, Any]) -> None:
    assert loop_request.items_of(word) == items


def test_items_of_no_kind_are_named() -> None:
    with pytest.raises(typer.BadParameter, match="tickets"):
        loop_request.items_of("tickets:1")


@pytest.mark.parametrize(
    ("plan", "verified", "counts"),
    [
        ({"path": "PLAN.md"}, False, True),
        ({"path": "PLAN.md"}, True, True),
        ({"path": "prose.md"}, False, True),
        ({"path": "prose.md"}, True, False),
        ({"path": "docs"}, True, True),
        ({"path": "example.md"}, True, False),
        ({"path": "half.md"}, True, True),
        ({"path": "phases"}, True, True),
        ({"path": "elsewhere.md"}, True, True),
        ("a text", False, False),
    ],
)
def test_which_plans_have_items_by_default(
    place: Path,
    plan: Any,
    verified: bool,  # noqa: FBT001 - pytest fills it in
    counts: bool,  # noqa: FBT001 - the same
) -> None:
    example = "Make it good, with a list like\n\n1. ```md\n   - [ ] one\n   ```\n\n<!-- no list:\n- [x] two\n-->\n"
    (place / "example.md").write_text(example)
    (place / "half.md").write_text("```\n- [ ] not\n```\n\n> - [~] half done")
    (place / "phases").mkdir()
    (place / "phases" / "01-first.md").write_text("---\ntitle: First\nstatus: open\n---\n\nMake it good.\n")
    found = loop_request.items_by_default(plan, place, verified=verified)
    assert found == ({"kind": "checkboxes"} if counts else None)


def test_the_workspace_is_the_one_named_or_the_files_or_here(place: Path) -> None:
    assert loop_request.workspace_of("..", None) == place
    assert loop_request.workspace_of(None, {"run": {"workspace": {"path": "/src"}}}) == Path("/src")
    assert loop_request.workspace_of(None, {"run": 1}) == place / "docs"
    assert loop_request.workspace_of(None, None) == Path.cwd()


def state(**fields: Any) -> LoopState:
    items = ItemList(count=ItemCount(open=2, blocked=1, closed=2), items=(Item(id="a", text="one \x1b[2J"),))
    return LoopState.model_validate(
        {"iteration": 3, "limits": {"iterations": 9}, "items": items, "started_at": NOW} | fields
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"run": "l-3"}, "at work"),
        ({"run": "l-3", "phase": "02-storage"}, "at work on 02-storage"),
        ({}, "looking at the workspace"),
        ({"wakes_at": NOW + timedelta(seconds=8)}, "next iteration in 8 s"),
        ({"wakes_at": NOW - timedelta(seconds=8)}, "next iteration in 0 s"),
        ({"status": "waiting_rate_limit"}, "rate limit"),
        ({"status": "waiting_for_decision"}, "waiting for your decision"),
        ({"status": "paused", "wakes_at": None}, "paused"),
        ({"status": "verifying", "run": "l-3-verify"}, "verifying"),
    ],
)
def test_the_next_step(fields: dict[str, Any], words: str) -> None:
    assert formatting.next_step(state(**fields), NOW) == words


def test_a_rate_limit_says_until_when() -> None:
    until = (datetime.now(UTC) + timedelta(days=3)).replace(hour=14, minute=5)
    said = formatting.next_step(state(status="waiting_rate_limit", wakes_at=until), NOW)
    assert said == f"rate limit: until {until.astimezone():%Y-%m-%d %H:%M}"


def test_the_status_line_counts_on_while_the_loop_works() -> None:
    totals = {"cost_usd": 0.5, "active_s": 61.0}
    looked = state(totals=totals, limits={"iterations": 9, "cost_usd": 2}, run="l-3", as_of=NOW)
    later = NOW + timedelta(seconds=5)
    line = "iteration 3/9 · at work · items 3 of 5 left · $0.5000 of $2 · 1 min 06 s · ? keys"
    assert formatting.status_line(looked, later) == line
    assert "1 min 06 s at work" in str(dict(formatting.status_rows("l", looked, later))["time"])
    held = looked.model_copy(update={"status": "paused"})
    assert "1 min 01 s" in formatting.status_line(held, later)


def test_a_loop_that_waits_for_its_workspace_is_not_at_work() -> None:
    holder = WorkspaceHolder(id="fix-1", path="/w", since=NOW)
    looked = state(totals={"active_s": 2.0}, as_of=NOW, workspace_held_by=(holder,))
    later = NOW + timedelta(hours=1)
    assert "waiting for its workspace" in formatting.status_line(looked, later)
    assert "2.0 s" in formatting.status_line(looked, later)
    assert "2.0 s at work" in str(dict(formatting.status_rows("l", looked, later))["time"])


def test_what_changed_is_told_once() -> None:
    before = state(run="l-3", checkpoints=(checkpoint(1),))
    found = {"status": "failed", "command": "make test", "exit_code": 2, "iteration": 3, "time": NOW}
    items = {"open": 1, "closed": 1}
    made = checkpoint(2, iteration=3, cost_usd=0.01, took_s=3, items=items, run="l-3", commit="c0ffee")
    after = state(
        status="paused", waits_for="lunch", checkpoints=(checkpoint(1), made), verification=found, last_error="oh no"
    )
    told = [line for line, _ in formatting.changes(before, after)]
    assert told == [
        "◆ checkpoint 2 · after iteration 3 · $0.0100 · 3.0 s · items 1 of 2 left",
        "verification after iteration 3: failed (exit code 2): make test",
        "! oh no",
        "paused: lunch",
    ]
    assert list(formatting.changes(after, after)) == []
    assert [line for line, _ in formatting.changes(None, after)] == ["paused: lunch"]
    assert [line for line, _ in formatting.changes(after, after.model_copy(update={"status": "running"}))] == [
        "the loop goes on"
    ]


def test_a_checkpoint_without_files_says_why() -> None:
    none = formatting.checkpoint_line(Checkpoint.model_validate(checkpoint(1)))
    assert none == "◆ checkpoint 1 · after iteration 1 · no files are kept: there is no git repository"
    noted = Checkpoint.model_validate(checkpoint(1, note="the files could not be kept: git would hang"))
    assert formatting.checkpoint_line(noted).endswith("1 · the files could not be kept: git would hang")


def test_items_that_cannot_be_read_any_more_are_told() -> None:
    gone = state(items={"count": {}, "error": "PLAN.md does not exist in the workspace"})
    told = [line for line, _ in formatting.changes(state(), gone)]
    assert told == ["! items cannot be read: PLAN.md does not exist in the workspace"]
    assert list(formatting.changes(gone, gone)) == []


def test_why_a_loop_failed_is_told_with_its_end_alone() -> None:
    assert list(formatting.changes(state(), state(status="failed", last_error="plan.phase: there is no phase 9"))) == []


def test_one_screen_says_what_matters_and_nothing_dangerous() -> None:
    shown = dict(formatting.status_rows("l", state(status="paused", waits_for="lunch", workspace="/w"), NOW))
    assert shown["status"] == "paused"
    assert shown["waits for"] == "lunch"
    assert shown["iteration"] == "3 of 9, 0 iterations in all"
    assert shown["items"] == "2 open, 1 blocked, 2 closed"
    marks = [value for name, value in formatting.status_rows("l", state(), NOW) if not name]
    assert marks == ["○ one ␛[2J", "… 2 more"]
