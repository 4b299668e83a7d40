"""What must hold of every run when all is over. Pure: evidence in, sentences about what did not hold out."""

import itertools
import re
from collections import Counter
from collections.abc import Iterable

from steersman.contracts.messages import MessageReceipt
from steersman.contracts.run import MessageRecord
from tests.chaos.evidence import Evidence

TERMINAL = {"done": "COMPLETED", "cancelled": "CANCELED", "failed": "FAILED"}
STRUCK = ("shim_killed", "shim_ended", "agent_killed", "agent_ended")
"""What ends the agent's process."""
SHIM_DEAD = ("shim_killed", "shim_ended")
STOPPED = ("cancelled", "cancelled_twice", "terminated", "ended", "interrupted", "redirected", "retired")
MAX_CRASHES = 3


def findings(run: Evidence) -> list[str]:
    """All that is wrong with a run, each as one sentence that names it."""
    checks = (end, log, journal, lines, words, messages, receipts, decisions, processes, leftovers)
    return [f"{run.run} ({run.status}): {each}" for check in checks for each in check(run)]


def end(run: Evidence) -> Iterable[str]:
    """It closed, in a way that what befell it explains."""
    if run.status == "RUNNING":
        yield "lost: it is still open, though it was to end"
    explained = {"COMPLETED"}
    explained |= {"CANCELED"} if run.count("cancelled", "cancelled_twice", "retired") else set()
    explained |= {"TERMINATED"} if run.count("terminated") else set()
    explained |= {"CANCELED", "FAILED"} if run.kind == "loop" and run.count("loop_paused", "terminated") else set()
    crashes = run.count(*STRUCK)
    explained |= {"FAILED"} if crashes > (MAX_CRASHES if run.kind in {"talking", "asking"} else 0) else set()
    # A run that finds a full disk at its start fails at once, and says so.
    explained |= {"FAILED"} if "[Errno 28]" in (run.failure or "") else set()
    if run.status not in {"RUNNING", *explained}:
        yield f"nothing that befell it explains that end: {run.failure}; what befell it: {dict(run.befell)}"


def log(run: Evidence) -> Iterable[str]:
    """Numbered from 1 without gaps, sources rising, one terminal event, the last, which agrees with Temporal."""
    if run.events is None:
        if run.status == "COMPLETED":
            yield "no event log"
        return
    if run.torn:
        yield "the log's last line is torn"
    numbers = [each["seq"] for each in run.events]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"events are not numbered 1 to {len(numbers)}: {_odd(numbers)}"
    sources = [tuple(each["source"]) for each in run.events]
    if any(a >= b for a, b in itertools.pairwise(sources)):
        yield "sources of events do not rise"
    ends = [each["type"] for each in run.events if each["type"] in TERMINAL]
    if len(ends) != 1 or run.events[-1]["type"] not in TERMINAL:
        yield f"terminal events are {ends}, the last event is {run.events[-1]['type'] if run.events else None}"
    elif TERMINAL[ends[0]] != run.status and run.status not in {"TERMINATED", "RUNNING"}:
        yield f"the log says {ends[0]}"


def journal(run: Evidence) -> Iterable[str]:
    """Records are numbered from 1 without gaps, each command is written once."""
    for attempt, records in enumerate(run.journals, 1):
        numbers = [record[0] for record in records]
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"attempt {attempt}: the journal is not numbered 1 to {len(numbers)}: {_odd(numbers)}"
        commands = Counter(record[2] for record in records if record[1] == "in")
        if twice := [command for command, times in commands.items() if times > 1]:
            yield f"attempt {attempt}: written twice: {twice}"


def lines(run: Evidence) -> Iterable[str]:
    """The log has each line that the agent noted, once and in order."""
    if run.kind in {"talking", "asking"}:
        return
    found = run.lines
    if found != list(range(1, len(found) + 1)):
        yield f"lines in the log are not 1 to {len(found)}: {_odd(found)}"
    noted = run.noted.get(run.token or "", [])
    # It notes a line after it has said it; what a dead shim had not read yet died with it.
    least = 0 if run.count(*SHIM_DEAD) else len(noted)
    if not least <= len(found) <= len(noted) + 1:
        yield f"{len(found)} lines in the log, {len(noted)} noted by the agent"


def words(run: Evidence) -> Iterable[str]:
    """Of what the model said nothing is twice in the log; nothing is missing where nobody cut it short."""
    found = run.words
    if any(a >= b for a, b in itertools.pairwise(found)):
        yield f"words of the model are doubled or out of order: {_odd(found)}"
    whole = not run.count(*STRUCK, *STOPPED) and run.kind in {"talking", "asking"}
    if whole and found != run.answered:
        yield f"the model said {run.answered}, the log has {found}"
    if twice := [number for number, times in Counter(run.ran).items() if times > 1]:
        yield f"tool calls that ran twice: {twice}"


def messages(run: Evidence) -> Iterable[str]:
    """The agent took each message at most once; after a crash one may be twice in what it resumes (docs/claude.md)."""
    for message_id, text in run.said.items():
        times = max((sum(each.count(text) for each in texts) for texts in run.conversations), default=0)
        if times > 1 + run.count(*STRUCK):
            yield f"{message_id} is {times} times in the conversation"


def receipts(run: Evidence) -> Iterable[str]:
    """What was said of a message to whoever asked, and at the end, is what the agent's own record says."""
    answers: list[MessageReceipt | MessageRecord] = [*run.receipts, *run.messages]
    for each in answers:
        text = run.said.get(each.id)
        if text is None:
            continue
        read = any(text in told for texts in run.conversations for told in texts)
        # A turn that is ended before the model was asked leaves what began it in the session.
        taken = read or any(text in line for line in run.session)
        if each.state == "acknowledged" and not taken:
            yield f"{each.id} was acknowledged ({each.how}), and the agent has not read it"
        if each.state in {"too_late", "rejected"} and read:
            yield f"{each.id} was {each.state} ({each.how}), and the agent has read it"


def decisions(run: Evidence) -> Iterable[str]:
    """Each approval has one answer, and what was denied has not run."""
    answers: dict[str, set[str]] = {}
    for each in run.decisions:
        answers.setdefault(each.id, set()).add(each.decision)
        number = re.search(r"echo (\d+) >>", str(each.input.get("command", "")))
        if each.decision == "deny" and number and int(number[1]) in run.ran:
            yield f"tool call {number[1]} was denied, and ran"
    for approval, given in answers.items():
        if len(given) > 1:
            yield f"approval {approval} was allowed and denied"


def processes(run: Evidence) -> Iterable[str]:
    """Nothing of a closed run lives, a report that says so was true, and no workspace ever saw two agents."""
    if run.living and run.status != "RUNNING":
        yield f"orphans: {run.living}"
    stopped = run.report is not None and run.report.outcome == "stopped"
    # A terminate closes the workflow before anybody hears of it: what the report says became true later.
    if run.living_at_close and run.status != "TERMINATED" and (stopped or run.status == "COMPLETED"):
        yield f"closed {'as stopped ' if stopped else ''}while processes of it lived: {run.living_at_close}"
    if run.overlaps:
        yield f"two agents at once: {run.overlaps}"
    if run.agents_at_once > 1:
        yield f"{run.agents_at_once} processes of the agent at once"


def leftovers(run: Evidence) -> Iterable[str]:
    """Nothing is left of the private files of a closed run's processes."""
    if run.files and run.status != "RUNNING":
        yield f"left of Launch.files: {run.files}"


def _odd(numbers: list[int]) -> str:
    """Where a row of numbers is not what it should be."""
    for place, number in enumerate(numbers):
        if number != place + 1:
            return f"{numbers[max(place - 2, 0) : place + 3]} at {place + 1}"
    return ""
