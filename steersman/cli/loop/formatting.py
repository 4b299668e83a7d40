"""A loop's state as text: the status line, headings, what changed, the one-screen status.

Pure functions on the wire's models. Only `status_line` returns clean text: who prints the others makes it clean.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

from steersman.cli.formatting import counted, duration, flat, shortened
from steersman.contracts.loop_state import Checkpoint, ItemCount, ItemList, LoopResult, LoopState, Verification

ACTIVE = ("running", "verifying", "waiting_rate_limit")
HELD = ("paused", "waiting_for_decision")
RESUMED = "the loop goes on"
STATUS_WORDS = {"waiting_for_decision": "waiting for your decision", "waiting_rate_limit": "rate limit"}
STATUS_STYLES = {
    "running": "green",
    "verifying": "green",
    "paused": "yellow",
    "waiting_for_decision": "bold magenta",
    "waiting_rate_limit": "yellow",
    "completed": "bold green",
    "exited": "bold yellow",
    "cancelled": "bold yellow",
    "failed": "bold red",
}
SHOWN_ITEMS = 8
ITEM_MARKS = {"open": "○", "in_progress": "▸", "blocked": "■", "needs_review": "?", "closed": "✓"}


def status_line(state: LoopState, now: datetime) -> str:
    """One clean line: how far the loop is, what it costs, what comes next."""
    limits, totals = state.limits, state.totals
    active = active_s(state, now)
    parts = [
        f"iteration {state.iteration}/{limits.iterations}",
        next_step(state, now),  # before what a narrow terminal cuts off
        items_left(state.items),
        money(totals.cost_usd, limits.cost_usd),
        duration(active) if active >= 1 else None,
        "? keys",
    ]
    return flat(" · ".join(filter(None, parts)))


def money(spent: float, limit: float | None) -> str | None:
    """What was spent, and of what limit; None where nothing was spent and there is no limit."""
    if not spent and limit is None:
        return None
    return f"${spent:.4f}" + (f" of ${limit:g}" if limit is not None else "")


def items_left(items: ItemList | None) -> str | None:
    """How many items are left; None where there are none to count."""
    if items is None:
        return None
    if items.error:
        return "items cannot be read"
    return f"items {items.count.left} of {items.count.total} left"


def next_step(state: LoopState, now: datetime) -> str:
    """What the loop does now, or waits for."""
    if state.status == "waiting_rate_limit":
        return f"rate limit: until {clock(state.wakes_at)}" if state.wakes_at else "rate limit"
    if state.status != "running":
        return STATUS_WORDS.get(state.status, state.status)
    if state.workspace_held_by:
        return "waiting for its workspace"
    if state.wakes_at:
        return f"next iteration in {countdown((state.wakes_at - now).total_seconds())}"
    phase = f" on {state.phase}" if state.phase else ""
    return f"at work{phase}" if state.run else "looking at the workspace"


def clock(time: datetime) -> str:
    """The local time of day; with the date where it is not today."""
    local = time.astimezone()
    return f"{local:%H:%M}" if local.date() == datetime.now(UTC).astimezone().date() else f"{local:%Y-%m-%d %H:%M}"


def countdown(seconds: float) -> str:
    """Whole seconds; from a minute on, as a duration."""
    return f"{max(round(seconds), 0)} s" if seconds < 60 else duration(seconds)


# What is noted in the stream.


def heading(iteration: int, *, verifies: bool, state: LoopState | None) -> str:
    """The line above the events of a run."""
    if verifies:
        return f"── verification after iteration {iteration} "
    phase = f" · {state.phase}" if state and state.phase else ""
    return f"── iteration {iteration}{phase} "


def changes(before: LoopState | None, state: LoopState) -> Iterator[tuple[str, str]]:
    """Lines and their styles: what is new in a state. Of the first state, only that the loop is held or waits."""
    if before is not None:
        known = {each.number for each in before.checkpoints}
        for each in state.checkpoints:
            if each.number not in known:
                yield checkpoint_line(each), "dim"
        if state.verification and state.verification != before.verification:
            passed = state.verification.status == "passed"
            yield verification_line(state.verification), "green" if passed else "red"
        if (error := _items_error(state)) and error != _items_error(before):
            yield f"! items cannot be read: {error}", "red"
        if before.plan and state.plan and state.plan.number != before.plan.number:
            yield f"the plan is now version {state.plan.number}", "dim"
        if state.mode != before.mode:
            yield f"mode {state.mode}", "dim"
        if state.last_error and state.last_error != before.last_error and state.status != "failed":  # its end says it
            yield f"! {state.last_error}", "red"
    was = before.status if before else "running"
    if state.status != was:
        yield from _turn(was, state)


def _items_error(state: LoopState) -> str | None:
    return state.items.error if state.items else None


def _turn(was: str, state: LoopState) -> Iterator[tuple[str, str]]:
    style = STATUS_STYLES.get(state.status, "")
    if state.status in HELD:
        why = f": {state.waits_for}" if state.waits_for else ""
        yield f"{STATUS_WORDS.get(state.status, state.status)}{why}", style
    elif state.status == "waiting_rate_limit":
        yield next_step(state, datetime.now(UTC)), style
    elif was in HELD and state.status == "running":
        yield RESUMED, "dim"


def checkpoint_line(checkpoint: Checkpoint) -> str:
    """One checkpoint as a line."""
    count = checkpoint.items
    parts = [
        f"checkpoint {checkpoint.number}",
        checkpoint.kind if checkpoint.kind != "iteration" else f"after iteration {checkpoint.iteration}",
        money(checkpoint.cost_usd, None),
        duration(checkpoint.took_s) if checkpoint.took_s else None,
        f"items {count.left} of {count.total} left" if count else None,
        checkpoint.error or checkpoint.note,
        # Of other reasons the note tells.
        None if checkpoint.commit or checkpoint.note else "no files are kept: there is no git repository",
    ]
    return "◆ " + " · ".join(filter(None, parts))


def verification_line(found: Verification) -> str:
    """How a verification ended."""
    code = f" (exit code {found.exit_code})" if found.exit_code else ""
    words = {"missing": "there is no such command", "timed_out": "took too long"}.get(found.status, found.status)
    return f"verification after iteration {found.iteration}: {words}{code}: {found.command}"


def result_line(result: LoopResult) -> str:
    """The last line: how the loop ended, and what it came to."""
    why = f" ({result.stop_reason})" if result.stop_reason and result.stop_reason != "done" else ""
    parts = [
        f"{result.status}{why}" + (f": {flat(result.reason)}" if result.reason else ""),
        counted(result.iterations, "iteration"),
        money(result.cost_usd, None),
        duration((result.ended_at - result.started_at).total_seconds()),
        f"items {result.items.left} of {result.items.total} left" if result.items else None,
        f"verification {result.verification.status}" if result.verification else None,
        counted(result.checkpoints, "checkpoint"),
    ]
    return " · ".join(filter(None, parts))


# One screen.


def status_rows(loop: str, state: LoopState, now: datetime) -> Iterator[tuple[str, str | None]]:
    """Names and values of the status, what a person asks first at the top; rows with None and "" are left out."""
    totals, limits = state.totals, state.limits
    reason = f" ({state.stop_reason})" if state.stop_reason else ""
    yield "loop", loop
    yield "status", f"{STATUS_WORDS.get(state.status, state.status)}{reason}"
    yield "reason", state.reason
    yield "waits for", state.waits_for
    yield (
        "goes on",
        f"{clock(state.wakes_at)}, in {countdown((state.wakes_at - now).total_seconds())}"
        if (state.wakes_at)
        else None,
    )
    used = f", {counted(totals.iterations, 'iteration')} in all" if totals.iterations != state.iteration else ""
    yield "iteration", f"{state.iteration} of {limits.iterations}{used}"
    yield "run", f"{state.run}  (steer attach {state.run})" if state.run else None
    yield "mode", f"{state.mode}, {state.batch_size} at a time" if state.mode == "batch" else state.mode
    yield "plan", _plan(state)
    yield "phases", _phases(state)
    yield from _items(state.items)
    if state.verification:
        yield "verified", verification_line(state.verification)
        for line in state.verification.output.strip().splitlines()[-3:]:
            yield "", f"│ {line}"
    for note in state.feedback:
        yield "feedback", f"{note.id}  {shortened(flat(note.text), 120)}"
    yield "cost", money(totals.cost_usd, limits.cost_usd)
    yield "tokens", f"{totals.tokens}" + (f" of {limits.tokens}" if limits.tokens else "") if totals.tokens else None
    yield "time", _time(state, now)
    yield "progress", f"none for {counted(state.no_progress, 'iteration')}" if state.no_progress else None
    yield "failures", f"{state.failures} in a row" if state.failures else None
    yield "error", state.last_error
    yield "checkpoints", _checkpoints(state)
    yield "agent", f"{state.agent or '?'} in {state.workspace or '?'} on {state.host or 'no host yet'}"
    yield "session", state.session_id
    yield "labels", ", ".join(f"{name}={value}" for name, value in state.labels.items())


def _plan(state: LoopState) -> str | None:
    plan = state.plan
    if plan is None:
        return None
    what = plan.path or shortened(flat((plan.text or "").strip().partition("\n")[0]), 80)
    return what if state.plan_versions < 2 else f"{what}  (version {plan.number} of {state.plan_versions})"


def _phases(state: LoopState) -> str:
    """All phases on one line, the current one marked."""
    names = []
    for each in state.phases:
        mark = "▸" if each.name == state.phase else ITEM_MARKS.get(each.state, "○")
        names.append(f"{mark} {each.name}")
    return "  ".join(names)


def _items(items: ItemList | None) -> Iterator[tuple[str, str | None]]:
    if items is None:
        return
    yield "items", items.error or item_counts(items.count)
    left = [each for each in items.items if each.state != "closed"]
    for each in left[:SHOWN_ITEMS]:
        after = f"  (after {', '.join(each.blocked_by)})" if each.blocked_by else ""
        yield "", f"{ITEM_MARKS.get(each.state, '○')} {shortened(flat(each.text or each.id), 100)}{after}"
    more = items.count.left - min(len(left), SHOWN_ITEMS)
    if more > 0:
        yield "", f"… {more} more"


def item_counts(count: ItemCount) -> str:
    """How many items are in each state."""
    if not count.total:
        return "none"
    found = [(name, getattr(count, name)) for name in ItemCount.model_fields]
    return ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in found if number)


def active_s(state: LoopState, now: datetime) -> float:
    """Seconds that the loop has been at work: it counts on while nothing of it changes."""
    counts = state.as_of and state.status in ACTIVE and not state.workspace_held_by
    since = (now - state.as_of).total_seconds() if state.as_of and counts else 0.0
    return state.totals.active_s + max(0.0, since)


def _time(state: LoopState, now: datetime) -> str | None:
    if state.started_at is None:
        return None
    limit = f" of {duration(state.limits.duration_s)}" if state.limits.duration_s else ""
    return f"{duration(active_s(state, now))}{limit} at work, since {clock(state.started_at)}"


def _checkpoints(state: LoopState) -> str | None:
    if not state.checkpoints:
        return None
    last = state.checkpoints[-1]
    return f"{state.checkpoints_total}, the last is {last.number} ({last.kind}, {clock(last.time)})"
