"""What becomes of a path that two sides have changed."""

import itertools

import pytest

from activities.workspaces.carry.merge import Commits, Merge, Tree, merged, merged_refs
from activities.workspaces.put_back import Replacement, Version

PATH = b"a"


def version(name: str | None) -> Version | None:
    return None if name is None else Version(b"100644", name.encode())


def tree(base: str | None, now: str | None) -> Tree:
    return {} if base == now else {PATH: Replacement(now=version(now), wanted=version(base))}


def outcome(merge: Merge, ours: str | None) -> str | None:
    """What the path holds afterwards, or "conflict"."""
    if merge.conflicts:
        assert (merge.conflicts, merge.due) == ({PATH}, {})
        return "conflict"
    if not merge.due:
        return ours
    assert merge.due[PATH].now == version(ours)
    wanted = merge.due[PATH].wanted
    return None if wanted is None else wanted.object_id.decode()


def with_commits(base: str | None, ours: str | None, theirs: str | None, *committed: str | None) -> str | None:
    commits = Commits(*(tree(base, each) for each in committed))
    return outcome(merged(tree(base, ours), tree(base, theirs), commits), ours)


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "wanted"),
    [
        ("b", "b", "t", "t"),
        ("b", "b", None, None),
        (None, None, "t", "t"),
        ("b", "o", "b", "o"),
        ("b", None, "b", None),
        ("b", "s", "s", "s"),
        ("b", None, None, None),
        ("b", "o", "t", "conflict"),
        ("b", None, "t", "conflict"),
        ("b", "o", None, "conflict"),
        (None, "o", "t", "conflict"),
    ],
)
def test_one_side_wins_or_nobody(base: str | None, ours: str | None, theirs: str | None, wanted: str | None) -> None:
    assert outcome(merged(tree(base, ours), tree(base, theirs)), ours) == wanted


@pytest.mark.parametrize(
    "values",  # base, ours, theirs, our commit, their commit, the commit of both; what is wanted
    [
        ("b", "o", "t", "o", "t", "m", "m"),  # committed on both sides
        ("b", "o", "b", "o", "b", "o", "o"),  # committed here
        ("b", "b", "t", "b", "t", "t", "t"),  # committed there
        ("b", "b", "d", "b", "b", "b", "d"),  # changed there
        ("b", "d", "b", "b", "b", "b", "d"),  # changed here
        ("b", "b", "d", "b", "t", "t", "d"),  # committed there, and changed again
        ("b", "o", "d", "o", "t", "m", "conflict"),  # ... and committed here, too
        ("b", "d", "t", "b", "t", "t", "conflict"),  # committed there, changed here
        ("b", "d", "t", "b", "d", "d", "d"),
        ("u", None, "u", None, None, None, None),  # in no commit, and removed here
        ("u", "u", "t", None, None, None, "t"),  # in no commit, and changed there
        ("u", "u", "u", None, "u", "u", "u"),  # committed there as it was
        (None, "o", None, "o", None, "o", "o"),
        (None, None, "t", None, None, None, "t"),
        (None, "o", "t", None, None, None, "conflict"),
    ],
)
def test_what_is_committed_on_both_sides_is_as_their_merge_has_it(values: tuple[str | None, ...]) -> None:
    base, ours, theirs, *committed, wanted = values
    assert with_commits(base, ours, theirs, *committed) == wanted


def test_what_is_only_on_our_disk_is_never_replaced() -> None:
    """Whatever else there is: what is in neither the base nor a commit of ours stays."""
    values = (None, "1", "2", "3")
    for base, theirs, our_commit, their_commit, both in itertools.product(values, repeat=5):
        assert with_commits(base, "mine", theirs, our_commit, their_commit, both) in ("mine", "conflict")


def test_refs() -> None:
    base = {"refs/heads/main": "1", "refs/heads/old": "1", "refs/tags/v": "1", "refs/heads/both": "1"}
    ours = {**base, "refs/heads/mine": "1", "refs/heads/both": "2", "refs/tags/v": "2", "refs/heads/d": "1"}
    theirs = {
        "refs/heads/main": "3",
        "refs/heads/both": "3",
        "refs/tags/v": "3",
        "refs/heads/new": "3",
        "refs/heads/d/e": "3",
        "refs/tags/w": "3",
    }
    merge = merged_refs(base, ours, theirs)
    assert merge.due == {"refs/heads/main": ("1", "3"), "refs/heads/new": (None, "3"), "refs/tags/w": (None, "3")}
    assert merge.diverged == {"refs/heads/both": ("2", "3")}
    assert merge.kept_aside == {"refs/tags/v": "3", "refs/heads/d/e": "3"}
