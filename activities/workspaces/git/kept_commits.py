"""The commits that a repository keeps under `refs/steersman`: read as hostile input, and compared.

Whose they are must not live here: see activities/kept_checkpoints.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from activities.workspaces.git.checkpoint_commits import REFS
from activities.workspaces.git.repository import COMMIT
from activities.workspaces.git.runner import GitFailed
from activities.workspaces.git.shadow import Shadow

MAX_REFS = 50_000
"""A repository with more refs of ours is not listed."""
MAX_COMMIT = 256 * 1024
"""Of a commit of more bytes nothing but its id is read."""
_HEADER = re.compile(rb"tree ([0-9a-f]{40,64})\n(?:[^\n]+\n)*?committer [^\n]*> (\d{1,10}) [^\n]*\n")
_COUNTS = re.compile(r" (\d+) files? changed(?:, (\d+) insertions?\(\+\))?(?:, (\d+) deletions?\(-\))?")

Pair = tuple[str, str]
Counts = tuple[int, int, int]
"""Files, lines added, lines removed."""


@dataclass(frozen=True)
class KeptCommit:
    """A ref of ours. `tree`, `time` and `subject` are None where it names no commit that can be read."""

    ref: str
    commit: str
    tree: str | None = None
    time: datetime | None = None
    subject: str | None = None


async def kept_commits(shadow: Shadow) -> list[KeptCommit]:
    """Every ref of ours, in no order. Raises GitFailed, also where there are more than MAX_REFS."""
    listing = ("for-each-ref", f"--count={MAX_REFS + 1}", "--format=%(objectname) %(refname)", f"{REFS}/")
    lines = (await shadow.git.run(*listing)).decode("utf-8", "replace").splitlines()
    if len(lines) > MAX_REFS:
        raise GitFailed(f"more than {MAX_REFS:,} refs are kept there: `git for-each-ref {REFS}` lists them")
    named = [(commit, ref) for commit, ref in (line.split(" ", 1) for line in lines) if COMMIT.fullmatch(commit)]
    found = await _read(shadow, {commit for commit, _ in named})
    return [KeptCommit(ref, commit, *found.get(commit, (None, None, None))) for commit, ref in named]


async def count_all(shadow: Shadow, pairs: Iterable[Pair]) -> dict[Pair, Counts]:
    """What differs between two trees, for each pair of which both are there, by one git. Raises GitFailed."""
    asked = "".join(f"{before} {after}\n" for before, after in dict.fromkeys(pairs))
    if not asked:
        return {}
    diff = ("diff-tree", "--stdin", "-r", "--no-renames", "--no-ext-diff", "--no-textconv", "--shortstat")
    found: dict[Pair, Counts] = {}
    pair: Pair = ("", "")
    for line in (await shadow.git.run(*diff, stdin=asked.encode())).decode("utf-8", "replace").splitlines():
        if counted := _COUNTS.fullmatch(line):
            found[pair] = (int(counted[1]), int(counted[2] or 0), int(counted[3] or 0))
        else:
            before, _, after = line.partition(" ")
            pair = (before, after)
            found[pair] = (0, 0, 0)  # of trees that are alike git says nothing
    return found


async def _read(shadow: Shadow, commits: set[str]) -> dict[str, tuple[str, datetime, str]]:
    """Tree, time and subject of the commits that are there."""
    listed = "".join(f"{each}\n" for each in sorted(commits)).encode()
    if not listed:
        return {}
    sizes = await shadow.git.run("cat-file", "--batch-check=%(objectname) %(objecttype) %(objectsize)", stdin=listed)
    readable = [parts[0] for parts in map(bytes.split, sizes.splitlines()) if _is_readable(parts)]
    if not readable:
        return {}
    output = await shadow.git.run("cat-file", "--batch", stdin=b"".join(each + b"\n" for each in readable))
    found, at = {}, 0
    while at < len(output):
        end = output.index(b"\n", at)
        head = output[at:end].split(b" ")
        at = end + 1
        if len(head) != 3:
            continue  # "missing": somebody removes it meanwhile
        size = int(head[2])
        if told := _told(output[at : at + size]):
            found[head[0].decode()] = told
        at += size + 1
    return found


def _is_readable(parts: Sequence[bytes]) -> bool:
    return len(parts) == 3 and parts[1] == b"commit" and int(parts[2]) <= MAX_COMMIT


def _told(content: bytes) -> tuple[str, datetime, str] | None:
    header = _HEADER.match(content)
    if header is None:
        return None
    try:
        time = datetime.fromtimestamp(int(header[2]), UTC)
    except (ValueError, OverflowError, OSError):
        return None
    subject = content.partition(b"\n\n")[2].partition(b"\n")[0]
    return header[1].decode(), time, subject.decode("utf-8", "replace")
