"""What the Temporal Web UI shows of a run: texts only, made from its state."""

from collections.abc import Iterable

from steersman.contracts.run import Approval, RunState
from steersman.contracts.text import literal, main_argument

MAX_LINE = 160


def one_line(text: str, limit: int = MAX_LINE) -> str:
    """The first line, bounded."""
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= limit else line[: limit - 1] + "…"


def summary(text: str, limit: int = MAX_LINE) -> str:
    """The first line, bounded, for where Markdown is shown: it stays the text that somebody wrote."""
    return literal(one_line(text, limit), limit)


def listed(rows: Iterable[tuple[str, str | None]]) -> str:
    """Markdown's list of what has a value, each on one bounded line: a value adds no line of ours, nor Markdown."""
    return "\n".join(f"- **{name}**: {summary(' '.join(value.split()), 500)}" for name, value in rows if value)


def details(state: RunState) -> str:
    """Markdown for the workflow's current details."""
    rows = [
        ("Agent", state.agent),
        ("Phase", f"closed ({state.closed_as})" if state.closed_as else state.phase),
        ("Workspace", state.workspace),
        ("Host", state.host),
        ("Process", f"pid {state.handle.pid}" if state.handle else None),
        ("Session", state.session_id),
        ("Attempt", str(state.attempt) if state.attempt else None),
        ("Cost", f"${state.cost_usd:.4f}, {_turns(state.turns)}" if state.turns else None),
        ("Tokens", f"{state.usage.input_tokens} in, {state.usage.output_tokens} out" if state.turns else None),
        ("Last", f"{state.last_event.type}: {one_line(state.last_event.summary)}" if state.last_event else None),
        *(("Waiting for approval", _asked(each)) for each in state.approvals),
        ("Messages", ", ".join(f"{each.kind} {each.state}" for each in state.messages[-5:]) or None),
        ("Stopped", _stopped(state)),
        ("Error", state.error),
    ]
    return listed(rows)


def _turns(count: int) -> str:
    return "1 turn" if count == 1 else f"{count} turns"


def _stopped(state: RunState) -> str | None:
    report = state.stop_report
    if report is None:
        return None
    how = f", {report.how}, {report.processes} processes, {report.took_ms} ms" if report.how else ""
    why = f": {report.reason}" if report.reason else ""
    return f"{report.outcome} while {report.phase}{how}{why}"


def _asked(approval: Approval) -> str:
    until = f"denied at {approval.deadline:%Y-%m-%d %H:%M:%S} UTC" if approval.deadline else "waits for ever"
    about = one_line(main_argument(approval.input))
    return f"{approval.tool} ({approval.id}), {until}" + (f": {about}" if about else "")
