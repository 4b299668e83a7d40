"""Text for a terminal: hostile text made harmless, times, deadlines and stop reports as phrases. Pure functions.

Text that an agent, a tool or a file said may move no cursor, change no color, hide no word. What is made visible:
`steersman.contracts.text`. Everything else in `steersman.cli` may import this module; it imports nothing of it.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from steersman.contracts.text import flat, visible

if TYPE_CHECKING:
    from steersman.contracts.events import CancelledEvent
    from steersman.contracts.run import Approval, Changes, Finalize, StopReport, Worktree
    from steersman.reports import StopResult

__all__ = [
    "changes_phrase",
    "chosen",
    "clean",
    "counted",
    "deadline_phrase",
    "duration",
    "end_phrase",
    "finalize_phrase",
    "flat",
    "none_of",
    "sessions_phrase",
    "shortened",
    "stop_phrase",
    "stop_result_phrase",
    "worktree_phrase",
]

clean = visible


def chosen(answer: str, words: Iterable[str]) -> str | None:
    """The first of these words that a person's answer is, or begins as: `y`, `ye` and `Yes` are "yes". None for
    anything else: who was typing a sentence when the question came has chosen nothing.
    """
    said = answer.strip().lower()
    return next((each for each in words if said and each.startswith(said)), None)


def none_of(answer: str, letters: str) -> str:
    """What a person is told of an answer that is none: `letters` are those that would be."""
    return f"{shortened(flat(answer), 40)!r} is none of {letters}"


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters, the last of them an ellipsis where something was cut."""
    return text if len(text) <= limit else text[: limit - 1] + "\u2026"


def counted(count: int, noun: str) -> str:
    """1 turn, 2 turns."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """12.3 s, 4 min 05 s, 2 h 07 min."""
    if seconds < 60:
        return f"{max(seconds, 0):.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def deadline_phrase(approval: "Approval") -> str:
    """Until when an approval waits, in the local time of this machine."""
    if approval.deadline is None:
        return "waits for ever"
    local = approval.deadline.astimezone()
    day = "" if local.date() == datetime.now(local.tzinfo).date() else f"{local:%Y-%m-%d} "
    return f"denied at {day}{local:%H:%M:%S}"


def stop_phrase(report: "StopReport | None", how: str = "cancelled") -> str:
    """A stop report and the reason of the stop."""
    return _took(report, how) + (f": {flat(report.reason)}" if report and report.reason else "")


def _took(report: "StopReport | None", how: str) -> str:
    if report is None:
        return how
    if report.outcome == "unverified" and report.left:
        return f"{how}; not proven: look at process {', '.join(map(str, report.left))}"
    if report.outcome == "unverified":
        return f"{how}; nobody could look whether the agent is gone"
    if not report.processes:
        return f"{how}; no process was running"
    plural = "es" * (report.processes != 1)
    word = "stopped" if how == "cancelled" else how
    return f"{word}: {report.processes} process{plural} {report.how or 'gone'}, {report.took_ms} ms"


def changes_phrase(changes: "Changes") -> str:
    """What a run changed, e.g. "3 files, +12 -4"."""
    if changes.after is None or changes.error:
        return f"what it changed is not known: {flat(changes.error or 'nobody could look')}"
    if not changes.files:
        return "no file changed"
    return f"{counted(changes.files, 'file')}, +{changes.insertions} -{changes.deletions}"


def worktree_phrase(worktree: "Worktree") -> str:
    """Where a run has left what it made."""
    return f"branch {flat(worktree.branch)} in {flat(worktree.top)}"


def finalize_phrase(finalize: "Finalize", run: str, *, waits: bool = True) -> str:
    """What became of the copy that a run worked in. `waits`: a failed one is there, for all that is known."""
    if finalize.status == "failed":
        told = f"not carried back: {flat(finalize.error or 'nobody could do it')}"
        if finalize.ref:
            return f"{told}: kept in {flat(finalize.ref)}"
        if finalize.lost or not waits:
            return told
        return f"{told}; `steer workspace retry {flat(run)}`, or `discard {flat(run)}`"
    if finalize.status == "none":
        return "nothing to carry back"
    if finalize.status == "succeeded":
        return "carried back"
    total = len(finalize.conflicts) + finalize.unnamed_conflicts
    shown = ", ".join(flat(each) for each in finalize.conflicts[:5]) + (" ..." if total > 5 else "")
    what = f"{counted(total, 'conflict')} ({shown})" if total else "commits"
    return f"carried back, but for {what}: kept in {flat(finalize.ref or '')}"


def sessions_phrase(finalize: "Finalize") -> str | None:
    """What a person has to know of the agent's sessions of a run that worked in a copy; None where there is nothing."""
    if finalize.session_error:
        return f"the agent's session stays where it worked: {flat(finalize.session_error)}"
    if not finalize.sessions:
        return None
    pairs = ", ".join(f"{flat(kept)} (was {flat(session)})" for session, kept in sorted(finalize.sessions.items()))
    return f"the session as the run left it is {pairs}"


def end_phrase(event: "CancelledEvent") -> str:
    """How a run was cancelled or terminated, by whom and why."""
    how = "terminated" if event.terminated else "cancelled"
    how += f" by {flat(event.by)}" if event.by else ""
    report = event.stop_report
    if report is None:
        return how + (f": {flat(event.reason)}" if event.reason else "")
    return stop_phrase(report, how)


def stop_result_phrase(answer: "StopResult", noun: str) -> str:
    """The answer of `stop`. `noun`: run or loop."""
    from steersman.contracts.run import StopReport

    if answer.outcome == "not_found":
        return f"no {noun} {flat(answer.run)}"
    if answer.outcome == "already_finished":
        return f"the {noun} had finished already"
    return stop_phrase(StopReport.model_validate(answer.model_dump() | {"phase": answer.phase or "closed"}))
