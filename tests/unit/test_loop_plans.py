"""Plans of one file and of phases: order, dependencies, progress, and what is a new version of one."""

import os
from pathlib import Path

import pytest

from activities.loops.items.item_list import item_list
from activities.loops.items.plans import check_plan, read_plan
from steersman.contracts.errors import InvalidRequest


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work" / "plan").mkdir(parents=True)
    return tmp_path / "work"


def write(work: Path, **files: str) -> None:
    """Phases by name, `_01_a` for `01-a.md`."""
    for name, text in files.items():
        (work / "plan" / f"{name[1:].replace('_', '-')}.md").write_text(text)


def order(work: Path) -> list[str]:
    plan = read_plan(work, "plan")
    assert plan.error is None
    return [phase.name for phase in plan.phases]


def states(work: Path, start: str | None = None) -> dict[str, str]:
    return {phase.name: phase.state for phase in read_plan(work, "plan", start).phases}


def refusal(work: Path, path: str = "plan", phase: str | None = None) -> str:
    with pytest.raises(InvalidRequest) as refused:
        check_plan(work, path, phase, "plan")
    return refused.value.message


class TestOrder:
    def test_by_number_not_by_letter(self, work: Path) -> None:
        write(work, _2_b="", _10_c="", _01_a="")
        assert order(work) == ["01-a", "2-b", "10-c"]

    def test_only_phases_are_phases(self, work: Path) -> None:
        write(work, _01_a="", _00_overview="- [ ] not this", _README="- [ ] nor this", _notes="", _02_overview_of_b="")
        (work / "plan" / "03_c.md").write_text("")
        (work / "plan" / "04-d.txt").write_text("")
        assert order(work) == ["01-a", "02-overview-of-b", "03_c"]

    @pytest.mark.parametrize(
        "said",
        [
            "---\ndepends_on: [02]\n---\n",
            "---\ndepends_on: 2\n---\n",
            "---\ntitle: A\ndepends-on:\n  - 02-b  # first\n---\n",
            "---\ndepends_on: '02-b.md'\n---\n",
            "# A\nDepends on: 02\n",
            "# A\n**Depends on**: 02-b\n",
            "# A\n**Dependencies:** Phase 2\n",
            "# A\n- Dependencies: Phase 2 (the store)\n",
            "# A\n**Dependencies:** [Phase 2](02-b.md)\n",
            "# A\n**Dependencies:** `02-b.md`.\n",
            "# A\n## Dependencies\n\n- Phase 2: the store\n",
            "# A\nDepends on:\n- 02\n",
            "# A\r\nDepends on: 02\r\n",
        ],
    )
    def test_a_phase_comes_after_what_it_depends_on(self, work: Path, said: str) -> None:
        write(work, _01_a=said, _02_b="", _03_c="")
        assert order(work) == ["02-b", "01-a", "03-c"]

    @pytest.mark.parametrize(
        "said",
        [
            "Depends on: none",
            "**Dependencies:** None",
            "Dependencies: -",
            "Dependencies: React 18, Node 20",
            "It depends on: nothing",
            "```\nDepends on: 02\n```",
            "Dependencies: 3 tables and a view",
            "---\ndepends_on: []\n---",
        ],
    )
    def test_other_words_are_no_dependency(self, work: Path, said: str) -> None:
        write(work, _01_a=said, _02_b="")
        assert order(work) == ["01-a", "02-b"]
        check_plan(work, "plan", None, "plan")

    def test_several_at_once(self, work: Path) -> None:
        write(work, _01_a="Depends on: 02, 03-c and Phase 4", _02_b="", _03_c="", _04_d="")
        assert order(work) == ["02-b", "03-c", "04-d", "01-a"]
        assert read_plan(work, "plan").phases[-1].depends_on == ("02-b", "03-c", "04-d")

    def test_a_circle_is_named(self, work: Path) -> None:
        write(work, _01_a="Depends on: 03", _02_b="Depends on: 01", _03_c="Depends on: 01", _04_d="Depends on: 02")
        assert "01-a -> 03-c -> 01-a" in refusal(work)
        plan = read_plan(work, "plan")
        assert "01-a -> 03-c -> 01-a" in str(plan.error)
        assert [phase.state for phase in plan.phases] == ["open"] * 4

    def test_a_phase_that_waits_for_itself(self, work: Path) -> None:
        write(work, _01_a="Depends on: 01")
        assert "01-a -> 01-a" in refusal(work)

    @pytest.mark.parametrize("said", ["Depends on: 07", "---\ndepends_on: [storage]\n---\n", "Depends on: 02-other"])
    def test_an_unknown_dependency_is_named(self, work: Path, said: str) -> None:
        write(work, _01_a="", _02_b=said)
        assert "phase 02-b depends on" in refusal(work)
        assert "there is no such phase" in str(read_plan(work, "plan").error)

    def test_titles(self, work: Path) -> None:
        write(work, _01_a="---\ntitle: The store\n---\n# Else", _02_b="\n## Phase two\n", _03_c="nothing")
        assert [phase.title for phase in read_plan(work, "plan").phases] == ["The store", "Phase two", ""]


class TestProgress:
    def test_a_phase_is_as_far_as_its_boxes(self, work: Path) -> None:
        write(
            work,
            _01_a="- [x] a",
            _02_b="- [x] a\n- [ ] b",
            _03_c="- [ ] a",
            _04_d="- [x] a\n- [?] b",
            _05_e="- [-] a\n- [?] b",
            _06_f="- [~] a\n- [?] b",
        )
        assert list(states(work).values()) == [
            "closed",
            "in_progress",
            "open",
            "needs_review",
            "blocked",
            "in_progress",
        ]

    def test_it_is_blocked_until_what_it_depends_on_is_closed(self, work: Path) -> None:
        write(work, _01_a="- [ ] a", _02_b="Depends on: 01\n- [ ] b\n- [x] c")
        assert states(work) == {"01-a": "open", "02-b": "blocked"}
        found = item_list(read_plan(work, "plan").items)
        assert [(item.id, item.state, item.blocked_by) for item in found.items] == [
            ("01-a#1", "open", ()),
            ("02-b#1", "blocked", ("01-a",)),
            ("02-b#2", "closed", ()),
        ]
        assert found.count.workable == 1
        write(work, _01_a="- [x] a")
        assert states(work) == {"01-a": "closed", "02-b": "in_progress"}
        assert item_list(read_plan(work, "plan").items).count.blocked == 0

    @pytest.mark.parametrize(("status", "state"), [("done", "closed"), ("in progress", "in_progress"), ("", "open")])
    def test_a_phase_without_boxes_is_one_item(self, work: Path, status: str, state: str) -> None:
        write(work, _01_a=f"---\nstatus: {status}\n---\n# Prose only")
        assert states(work) == {"01-a": state}
        (item,) = item_list(read_plan(work, "plan").items).items
        assert (item.id, item.text, item.state, item.phase) == ("01-a", "Prose only", state, "01-a")

    def test_a_status_does_not_close_open_boxes(self, work: Path) -> None:
        write(work, _01_a="---\nstatus: done\n---\n- [ ] a")
        assert states(work) == {"01-a": "open"}

    @pytest.mark.parametrize("start", ["02-b", "02-b.md", "2", "02"])
    def test_what_comes_before_the_start_counts_as_done(self, work: Path, start: str) -> None:
        write(work, _01_a="- [ ] a", _02_b="Depends on: 01\n- [ ] b", _03_c="- [ ] c")
        assert states(work, start) == {"01-a": "closed", "02-b": "open", "03-c": "open"}
        assert item_list(read_plan(work, "plan", start).items).count.closed == 1

    def test_a_start_that_is_gone_is_an_error(self, work: Path) -> None:
        write(work, _01_a="- [x] a")
        assert read_plan(work, "plan", "9").error == "there is no phase 9 in plan"
        assert refusal(work, phase="9") == "plan.phase: there is no phase 9 in plan (01-a)"


class TestVersion:
    def test_ticking_and_a_phases_status_make_no_new_version(self, work: Path) -> None:
        write(work, _01_a="- [ ] a", _02_b="---\nstatus: open\ntitle: B\n---\nprose", _00_overview="about")
        first = read_plan(work, "plan").hash
        write(work, _01_a="- [x] a", _02_b="---\nstatus: done\ntitle: B\n---\nprose")
        assert read_plan(work, "plan").hash == first
        assert len(first) == 16

    @pytest.mark.parametrize(
        "changed",
        [
            {"_01_a": "- [ ] b"},
            {"_00_overview": "else"},
            {"_02_b": "---\nstatus: open\ntitle: C\n---\nprose"},
            {"_03_c": ""},
        ],
    )
    def test_all_else_does(self, work: Path, changed: dict[str, str]) -> None:
        write(work, _01_a="- [ ] a", _02_b="---\nstatus: open\ntitle: B\n---\nprose", _00_overview="about")
        first = read_plan(work, "plan").hash
        write(work, **changed)
        assert read_plan(work, "plan").hash != first

    def test_of_one_file(self, work: Path) -> None:
        (work / "PLAN.md").write_text("# P\n- [ ] a\n")
        first = read_plan(work, "PLAN.md")
        (work / "PLAN.md").write_text("# P\n- [x] a\n")
        assert read_plan(work, "PLAN.md").hash == first.hash
        (work / "PLAN.md").write_text("# P\n- [x] a\n- [ ] b\n")
        assert read_plan(work, "PLAN.md").hash != first.hash


class TestRefusals:
    def test_what_is_not_there(self, work: Path) -> None:
        assert refusal(work, "none.md") == "plan.path: none.md does not exist in the workspace"
        assert read_plan(work, "none.md").error == "none.md does not exist in the workspace"

    def test_a_directory_without_phases(self, work: Path) -> None:
        assert refusal(work) == "plan.path: plan holds no phases (01-*.md, 02-*.md)"

    def test_a_phase_of_one_file(self, work: Path) -> None:
        (work / "PLAN.md").write_text("")
        assert refusal(work, "PLAN.md", "2") == "plan.phase: PLAN.md is one file and has no phases"

    def test_a_fence_that_hides_boxes(self, work: Path) -> None:
        write(work, _01_a="- [x] a\n```\n- [ ] b")
        assert refusal(work) == "plan.path: plan/01-a.md: the code fence of line 2 is never closed"
        assert "never closed" in str(read_plan(work, "plan").error)
        (work / "PLAN.md").write_text("~~~\n- [ ] b")
        plan = read_plan(work, "PLAN.md")
        assert (plan.error, plan.items) == ("PLAN.md: the code fence of line 1 is never closed", ())

    @pytest.mark.parametrize("what", ["file", "directory"])
    def test_links_out_of_the_workspace(self, work: Path, tmp_path: Path, what: str) -> None:
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside" / "01-secret.md").write_text("- [x] secret")
        target = tmp_path / "outside" / ("01-secret.md" if what == "file" else "")
        (work / "link").symlink_to(target)
        assert refusal(work, "link") == "plan.path: link leads out of the workspace"
        assert read_plan(work, "link").error == "link leads out of the workspace"
        (work / "plan" / "01-a.md").symlink_to(tmp_path / "outside" / "01-secret.md")
        assert read_plan(work, "plan").error == "plan/01-a.md leads out of the workspace"

    def test_a_link_within_the_workspace_is_fine(self, work: Path) -> None:
        (work / "real.md").write_text("- [ ] a")
        (work / "PLAN.md").symlink_to("real.md")
        assert len(read_plan(work, "PLAN.md").items) == 1

    def test_pipes_devices_and_circles_of_links(self, work: Path) -> None:
        os.mkfifo(work / "pipe.md")
        (work / "zero.md").symlink_to("/dev/zero")
        (work / "round.md").symlink_to("round.md")
        assert read_plan(work, "pipe.md").error == "pipe.md cannot be read: it is no regular file"
        assert "zero.md leads out" in str(read_plan(work, "zero.md").error)
        assert "round.md cannot be read" in str(read_plan(work, "round.md").error)
        os.mkfifo(work / "plan" / "01-a.md")
        assert "it is no regular file" in str(read_plan(work, "plan").error)

    def test_a_file_that_is_too_large(self, work: Path) -> None:
        (work / "PLAN.md").write_bytes(b"a" * (2 * 1024 * 1024 + 1))
        assert read_plan(work, "PLAN.md").error == "PLAN.md cannot be read: it is larger than 2 MiB"

    def test_bytes_that_are_no_text(self, work: Path) -> None:
        (work / "PLAN.md").write_bytes(b"\xef\xbb\xbf- [ ] caf\xe9 \xff\n")
        plan = read_plan(work, "PLAN.md")
        assert (plan.error, [item.text for item in plan.items]) == (None, ["caf\ufffd \ufffd"])
