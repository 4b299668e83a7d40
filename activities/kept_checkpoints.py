"""Whose the checkpoints are that a repository keeps, by the names of their refs.

    runs%2FXX/RUN%2FEXECUTION-before-ID    a run's files before its first process; -after-ID: after its last one;
                                           -undone-TIME: before its changes were undone
    conflicts/RUN                          what could not be merged of a run's copy
    LOOP/NUMBER                            a loop's checkpoint

Whoever may write in a workspace can write such refs: what they say is shown, and nothing follows from it.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import unquote

from activities.run_changes import AFTER, BEFORE, RESCUE
from activities.workspaces.git.checkpoint_commits import REFS
from activities.workspaces.git.kept_commits import Counts, KeptCommit, Pair
from activities.workspaces.printable_text import printable
from steersman.contracts.workspace import WorkspaceCheckpoint, WorkspaceCheckpointKind

MAX_REF = 500
"""No ref of ours has a name of more characters."""
MAX_BYTES = 1_000_000
"""An answer has at most this many bytes of JSON."""
EARLIEST = datetime.min.replace(tzinfo=UTC)

_OF_RUN = re.compile(rf"{REFS}/runs%2F[0-9a-f]{{2}}/([^/]+)-({BEFORE}|{AFTER}|{RESCUE})-[0-9a-f]+")
_OF_CONFLICT = re.compile(rf"{REFS}/conflicts/([^/]+)")
_OF_LOOP = re.compile(rf"{REFS}/([^/]+)/(\d{{1,9}})")
_SUBJECT = re.compile(rf"(.+): (?:{BEFORE}|{AFTER}|before its changes were undone|checkpoint \d+)")
_CUT = re.compile(r"\+[0-9a-f]{24}$")
_IN_ORDER = ("baseline", "loop", "end", "conflict", "rescue")
_KINDS: dict[str, WorkspaceCheckpointKind] = {BEFORE: "baseline", AFTER: "end", RESCUE: "rescue"}


def listed(kept: Iterable[KeptCommit]) -> list[tuple[WorkspaceCheckpoint, KeptCommit]]:
    """The checkpoints among them, newest first."""
    told = [(checkpoint, each) for each in kept if (checkpoint := _checkpoint(each))]
    return sorted(told, key=lambda each: _order(each[0]), reverse=True)


def pairs(found: Sequence[tuple[WorkspaceCheckpoint, KeptCommit]]) -> dict[str, Pair]:
    """The trees of what a checkpoint is compared with and of its own, by its ref: a run's end with its baseline, a
    loop's checkpoint with the one before it.
    """
    before: dict[str, str] = {}
    for _, each in found:  # newest first: of two baselines the one before all processes counts
        if each.tree:
            before[_place(each.ref)] = each.tree
    wanted = {}
    for checkpoint, each in found:
        if checkpoint.kind == "end":
            earlier = before.get(_place(each.ref).removesuffix(AFTER) + BEFORE)
        elif checkpoint.kind == "loop" and checkpoint.number:
            earlier = before.get(f"{each.ref.rpartition('/')[0]}/{checkpoint.number - 1}")
        else:
            continue
        if earlier and each.tree:
            wanted[each.ref] = (earlier, each.tree)
    return wanted


def page(
    found: Sequence[WorkspaceCheckpoint],
    counts: Mapping[str, Counts],
    is_foreign: Callable[[WorkspaceCheckpoint], bool],
) -> tuple[WorkspaceCheckpoint, ...]:
    """As many of them as an answer can have, with what differs, by ref. `is_foreign`: of another namespace."""
    size, told = 0, []
    for each in found:
        files, insertions, deletions = counts.get(each.ref or "", (None, None, None))
        hidden = {"run": None, "loop": None, "ref": None} if is_foreign(each) else {}
        counted = {"files": files, "insertions": insertions, "deletions": deletions}
        one = each.model_copy(update={**counted, **hidden})
        size += len(one.model_dump_json().encode()) + 1
        if size > MAX_BYTES:
            break
        told.append(one)
    return tuple(told)


def _checkpoint(kept: KeptCommit) -> WorkspaceCheckpoint | None:
    if len(kept.ref) > MAX_REF:
        return None
    if found := _OF_RUN.fullmatch(kept.ref):
        return _of_run(_KINDS[found[2]], _id(found[1], kept, of_run=True), kept)
    if found := _OF_CONFLICT.fullmatch(kept.ref):
        return _of_run("conflict", _id(found[1], kept), kept)
    if found := _OF_LOOP.fullmatch(kept.ref):
        return WorkspaceCheckpoint(
            loop=_id(found[1], kept),
            kind="loop",
            number=int(found[2]),
            time=kept.time,
            commit=kept.commit,
            ref=printable(kept.ref),
        )
    return None


def _of_run(kind: WorkspaceCheckpointKind, run: str, kept: KeptCommit) -> WorkspaceCheckpoint:
    return WorkspaceCheckpoint(run=run, kind=kind, time=kept.time, commit=kept.commit, ref=printable(kept.ref))


def _id(name: str, kept: KeptCommit, *, of_run: bool = False) -> str:
    """The workflow id in a ref's name: whole by the commit's subject, where the name was cut."""
    if not _CUT.search(name):
        whole = unquote(name, errors="replace")
        # RUN/EXECUTION, of which the run alone is told.
        return printable((whole.rpartition("/")[0] if of_run else "") or whole)
    subject = _SUBJECT.fullmatch(kept.subject or "")
    return printable(subject[1] if subject else f"{unquote(_CUT.sub('', name), errors='replace')}...", MAX_REF)


def _order(each: WorkspaceCheckpoint) -> tuple[datetime, int, int, str]:
    """Git's times are whole seconds: within one a run's come in the order in which they are made."""
    return each.time or EARLIEST, _IN_ORDER.index(each.kind), each.number or 0, each.ref or ""


def _place(ref: str) -> str:
    """A ref without what tells it from others of the same run and kind."""
    return ref.rpartition("-")[0] if _OF_RUN.fullmatch(ref) else ref
