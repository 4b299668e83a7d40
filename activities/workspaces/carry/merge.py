"""What becomes of each path, branch and tag that has changed on two sides since they were the same. Pure.

`base` is what both had, `ours` the local side, `theirs` the copy. Nothing of ours is ever lost: where both have
changed, ours stays, and the difference is a conflict.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from activities.workspaces.put_back import Replacement, Version

Tree = Mapping[bytes, Replacement]
"""What differs from the base: what a path holds, and what it held in the base."""


@dataclass(frozen=True)
class Commits:
    """What is committed: on our side, on theirs, and in the commit that has both. Each as it differs from the base."""

    ours: Tree
    theirs: Tree
    both: Tree


@dataclass
class Merge:
    """`due`: what is to be done on our side. `conflicts`: paths that stay as they are there, though theirs differ."""

    due: dict[bytes, Replacement] = field(default_factory=dict)
    conflicts: set[bytes] = field(default_factory=set)


class _Conflict(Exception):
    """Both sides have changed the path."""


def merged(ours: Tree, theirs: Tree, commits: Commits | None = None) -> Merge:
    """Merge two trees path by path. `commits`: where both sides have commits of their own, which one commit has now."""
    merge = Merge()
    trees = [ours, theirs, *([commits.ours, commits.theirs, commits.both] if commits else [])]
    base = {path: each.wanted for tree in trees for path, each in tree.items()}
    for path, was in base.items():
        mine, other = _at(ours, path, was), _at(theirs, path, was)
        try:
            if commits is None:
                wanted = _three_way(was, mine, other)
            else:
                wanted = _with_commits(was, mine, other, *(_at(tree, path, was) for tree in trees[2:]))
        except _Conflict:
            merge.conflicts.add(path)
            continue
        if wanted != mine:
            merge.due[path] = Replacement(now=mine, wanted=wanted)
    return merge


def _at(tree: Tree, path: bytes, was: Version | None) -> Version | None:
    return tree[path].now if path in tree else was


def _three_way(base: Version | None, ours: Version | None, theirs: Version | None) -> Version | None:
    if theirs in (base, ours):
        return ours
    if ours == base:
        return theirs
    raise _Conflict


def _with_commits(
    base: Version | None,
    ours: Version | None,
    theirs: Version | None,
    our_commit: Version | None,
    their_commit: Version | None,
    both: Version | None,
) -> Version | None:
    """As `_three_way`, but what is committed on both sides is as the commit of both has it: anything else on the disk
    would look like a change that takes theirs back.
    """
    if ours == our_commit:
        if theirs in (their_commit, base):
            return both
        if both == their_commit:
            return theirs  # not committed, on top of the same
        if theirs == ours:
            return ours
        raise _Conflict
    if ours == both:
        return ours
    return _three_way(base, ours, theirs)


@dataclass
class RefMerge:
    """`due`: name -> (what it is, what it is to be; None: it is not there). `kept_aside`: theirs, which cannot be."""

    due: dict[str, tuple[str | None, str]] = field(default_factory=dict)
    kept_aside: dict[str, str] = field(default_factory=dict)
    diverged: dict[str, tuple[str, str]] = field(default_factory=dict)
    """name -> (ours, theirs): both have moved. One may have all of the other, or a commit may join them."""


def merged_refs(
    base: Mapping[str, str], ours: Mapping[str, str], theirs: Mapping[str, str], symbolic: Collection[str] = ()
) -> RefMerge:
    """Merge branches and tags. One that theirs lacks stays: a name costs nothing, and what it names may be lost.

    `symbolic`: names that ours has for other refs. They are not carried, and stay.
    """
    merge = RefMerge()
    for name, value in theirs.items():
        was, mine = base.get(name), ours.get(name)
        if value in (was, mine):
            continue
        if mine is None and (name in symbolic or any(_is_in_the_way(name, each) for each in (*ours, *symbolic))):
            merge.kept_aside[name] = value
        elif mine == was:
            merge.due[name] = (mine, value)
        elif mine is not None and name.startswith("refs/heads/"):
            merge.diverged[name] = (mine, value)
        else:
            merge.kept_aside[name] = value
    return merge


def _is_in_the_way(name: str, other: str) -> bool:
    """Whether git cannot have both names: one would be a directory of the other."""
    return name.startswith(f"{other}/") or other.startswith(f"{name}/")
