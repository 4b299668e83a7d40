"""What the fake runs of a loop answer, and what its surveys find: plain data."""

from datetime import UTC, datetime, timedelta
from typing import Any

from steersman.contracts.loop_state import Item, ItemCount, ItemList
from steersman.contracts.run import RunResult

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
NOTHING_USED: dict[str, Any] = {"session_id": None, "cost_usd": 0, "turns": 0, "usage": {}}


def result(text: str = "done", **fields: Any) -> dict[str, Any]:
    """What a run of the agent answers: 110 tokens, one cent, one turn, session s-1."""
    usage = {"input_tokens": 100, "output_tokens": 10}
    facts = {"status": "succeeded", "text": text, "session_id": "s-1", "turns": 1, "cost_usd": 0.01, "usage": usage}
    times = {"started_at": EPOCH, "ended_at": EPOCH + timedelta(seconds=1)}
    return RunResult.model_validate({**facts, **times, **fields}).model_dump(mode="json")


def fails(kind: str = "AgentFailed", message: str = "no way", **fields: Any) -> dict[str, Any]:
    """A run that fails with that type."""
    return {"fails": kind, "message": message, "result": result("", status="failed", **fields)}


def never_began(kind: str = "AgentFailed", message: str = "no way") -> dict[str, Any]:
    """A run that fails before its agent read anything."""
    return fails(kind, message, **NOTHING_USED)


def limited(resets_at: Any = None, **fields: Any) -> dict[str, Any]:
    """A run that the provider's rate limit ended."""
    facts = {"rate_limit": {"resets_at": resets_at, "kind": "five_hour"}}
    return fails("AgentFailed", "rate limited", facts=facts, **fields)


def exits(code: int, output: str = "") -> dict[str, Any]:
    """A verification that ends with that exit code."""
    if code == 0:
        return result(output, **NOTHING_USED)
    told = fails("AgentCrashed", f"sh ended with exit code {code}")
    return {**told, "result": result(output, facts={"exit_code": code}, status="failed", **NOTHING_USED)}


def items(closed: int, left: int = 0, **counts: int) -> ItemList:
    """So many items."""
    listed = [Item(id=f"#{n}", text=f"step {n}") for n in range(1, left + 1)]
    count = ItemCount(closed=closed, open=left, **counts)
    return ItemList(count=count, items=tuple(listed), digest=count.model_dump_json())
