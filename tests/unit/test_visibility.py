"""Which workflows are listed, and how many are read for it: the server sorts by the end of each, not by its start."""

import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from steersman._client import visibility

START = datetime(2026, 1, 1, tzinfo=UTC)


class Server:
    """Lists as Temporal does, and counts what is read."""

    def __init__(self, spans: list[tuple[float, float | None]]) -> None:
        """`spans`: seconds from beginning to end, or to none."""
        self.read = 0
        self.runs = [
            SimpleNamespace(
                id=f"run-{number}",
                run_id=str(number),
                start_time=START + timedelta(seconds=begin),
                close_time=None if end is None else START + timedelta(seconds=end),
            )
            for number, (begin, end) in enumerate(spans)
        ]

    async def list_workflows(self, query: str, *, page_size: int) -> AsyncIterator[Any]:
        is_open = query.endswith("CloseTime IS NULL")
        of_kind = [each for each in self.runs if (each.close_time is None) == is_open]
        for each in sorted(of_kind, key=lambda each: each.close_time or each.start_time, reverse=True):
            self.read += 1
            yield each


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    async def summary(execution: Any) -> Any:
        return SimpleNamespace(id=execution.id, started_at=execution.start_time)

    monkeypatch.setattr(visibility, "_run_summary", summary)


async def listed(server: Server, limit: int) -> list[str]:
    client: Any = server
    return [each.id for each in await visibility.list_runs(client, None, limit)]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("limit", [1, 2, 7, 100])
async def test_those_that_began_last_are_listed(seed: int, limit: int) -> None:
    numbers = random.Random(seed)
    spans: list[tuple[float, float | None]] = []
    for begin in range(60):
        lasts = numbers.choice([1, 3, 50]) * numbers.random()
        spans.append((begin, None if numbers.random() < 0.2 else begin + lasts))
    assert await listed(Server(spans), limit) == [f"run-{number}" for number in reversed(range(60))][:limit]


async def test_no_more_is_read_than_overlaps() -> None:
    server = Server([(10 * number, 10 * number + 5) for number in range(1000)])
    assert await listed(server, 1) == ["run-999"]
    assert server.read == 2
    waiting = Server([(number, None) for number in range(1000)])
    assert len(await listed(waiting, 20)) == 20
    assert waiting.read == 21
