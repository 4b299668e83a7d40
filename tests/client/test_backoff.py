"""For how long failures in a row are borne."""

import time

import pytest

from steersman._client import backoff
from steersman.errors import ServerUnreachable


async def test_only_failures_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """What came before the first of them, a long poll of 20 s, is no outage."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(backoff, "FIRST_PAUSE_S", 0.0)
    pauses, error = backoff.Backoff(limit_s=60), ServerUnreachable("away")
    for _ in range(2):
        now += 50
        await pauses.pause_after(error)
        now += 59
        await pauses.pause_after(error)
        now += 1
        with pytest.raises(ServerUnreachable):
            await pauses.pause_after(error)
        pauses.reset()
