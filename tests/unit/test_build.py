"""The id by which Temporal tells one build of the workflows from another."""

from pathlib import Path

import pytest

import workflows
from workers.build import build_id


def test_the_same_code_has_the_same_id() -> None:
    assert build_id() == build_id()


def test_it_begins_with_the_version_and_is_short() -> None:
    version, _, digest = build_id().partition("+")
    assert version[0].isdigit()
    assert len(digest) == 12


def test_other_workflows_have_another_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path(workflows.__path__[0])
    for path in here.rglob("*.py"):
        there = tmp_path / path.relative_to(here)
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(path.read_bytes())
    before = build_id()
    monkeypatch.setattr(workflows, "__path__", [str(tmp_path)])
    assert build_id() == before, "where they lie is no part of it"
    (tmp_path / "waiting.py").write_text("")
    assert build_id() != before
