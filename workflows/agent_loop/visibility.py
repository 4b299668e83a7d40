"""Details of a loop for the Temporal Web UI."""

from steersman.contracts.loop_state import LoopState
from workflows.display import markdown_list


def details(state: LoopState) -> str:
    """Markdown for the workflow's current details."""
    items, totals = state.items, state.totals
    left = f"{items.count.left} of {items.count.total} left" if items and not items.error else None
    rows = [
        ("Status", state.status + (f" ({state.stop_reason})" if state.stop_reason else "")),
        ("Reason", state.reason),
        ("Waits for", state.waits_for),
        ("Until", state.wakes_at.isoformat(timespec="seconds") if state.wakes_at else None),
        ("Iteration", f"{state.iteration} ({totals.iterations} of {state.limits.iterations} used)"),
        ("Run", state.run),
        ("Agent", state.agent),
        ("Workspace", state.workspace),
        ("Host", state.host),
        ("Session", state.session_id),
        ("Plan", f"version {state.plan.number}" if state.plan else None),
        ("Phase", state.phase),
        ("Items", items.error if items and items.error else left),
        ("Cost", f"${totals.cost_usd:.4f}" if totals.cost_usd else None),
        ("Verification", f"{state.verification.status}" if state.verification else None),
        ("Feedback waiting", str(len(state.feedback)) if state.feedback else None),
        ("Checkpoints", str(state.checkpoints_total)),
        ("Error", state.last_error),
    ]
    return markdown_list(rows)
