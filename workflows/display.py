"""What the Temporal Web UI shows of a run: texts only, made from its state."""

from steersman.contracts.run import RunState

MAX_LINE = 160


def one_line(text: str, limit: int = MAX_LINE) -> str:
    """The first line, bounded."""
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= limit else line[: limit - 1] + "…"


def details(state: RunState) -> str:
    """Markdown for the workflow's current details."""
    rows = [
        ("Agent", state.agent),
        ("Phase", state.phase),
        ("Workspace", state.workspace),
        ("Host", state.host),
        ("Process", f"pid {state.handle.pid}" if state.handle else None),
        ("Session", state.session_id),
        ("Attempt", str(state.attempt) if state.attempt else None),
        ("Cost", f"${state.cost_usd:.4f}, {_turns(state.turns)}" if state.turns else None),
        ("Tokens", f"{state.usage.input_tokens} in, {state.usage.output_tokens} out" if state.turns else None),
        ("Last", f"{state.last_event.type}: {one_line(state.last_event.summary)}" if state.last_event else None),
        ("Waiting for approval", ", ".join(f"{each.tool} ({each.id})" for each in state.approvals) or None),
        ("Messages", ", ".join(f"{each.kind} {each.state}" for each in state.messages[-5:]) or None),
        ("Stopped", _stopped(state)),
        ("Error", state.error),
    ]
    return "\n".join(f"- **{name}**: {_plain(value)}" for name, value in rows if value)


def _turns(count: int) -> str:
    return "1 turn" if count == 1 else f"{count} turns"


def _plain(text: str) -> str:
    """One bounded line: what an agent wrote must not forge lines of ours."""
    return one_line(" ".join(text.split()), 500)


def _stopped(state: RunState) -> str | None:
    report = state.stop_report
    if report is None:
        return None
    how = f", {report.how}, {report.processes} processes, {report.took_ms} ms" if report.how else ""
    return f"{report.outcome} while {report.phase}{how}"
