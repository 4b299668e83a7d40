"""What the doctor asks a worker of this machine."""

from datetime import UTC, datetime
from typing import Any

import pytest

from steersman._client import server_checks
from steersman._client.server_checks import Check, check_server
from steersman.contracts import names
from steersman.contracts.activities import AgentCheck, AgentChecks, EventPage
from steersman.errors import HostUnreachable
from steersman.hosts import host_name, state_directory
from tests.support.temporal import Namespace

pytestmark = pytest.mark.integration

KEY = AgentCheck(check="key for claude", ok=True, detail="ANTHROPIC_API_KEY")


class Worker:
    """One that the server knows of only at the second look, and what it says of its agents."""

    def __init__(self, agents: AgentChecks | Exception) -> None:
        self._agents = agents
        self._looks = 0

    async def polls(self, _: object, queue: str, *__: object) -> dict[str, datetime]:
        if queue == names.runs_queue(host_name(state_directory())):
            self._looks += 1
            return {"one": datetime.now(UTC)} if self._looks > 1 else {}
        return {"one": datetime.now(UTC)} if queue == names.TASK_QUEUE else {}

    async def call(self, _: object, host: str, name: str, *__: Any, **___: Any) -> object:
        if name == names.READ_EVENTS:
            return EventPage(events=(), ended=True)
        if isinstance(self._agents, Exception):
            raise self._agents
        return self._agents


async def looked(server: Namespace, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> dict[str, Check]:
    monkeypatch.setattr(server_checks, "last_polls", worker.polls)
    monkeypatch.setattr(server_checks, "call_host", worker.call)
    return {each.check: each for each in await check_server(None, server.address, server.name)}


async def test_one_that_has_just_begun_is_asked(client_namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = await looked(client_namespace, Worker(AgentChecks(checks=(KEY,), usable=True)), monkeypatch)
    assert checks["key for claude"].detail == "ANTHROPIC_API_KEY (of the worker)"
    assert checks["codec"].detail.endswith("has the same")


async def test_one_that_does_not_answer_is_not_passed_over(
    client_namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this terminal would find must not stand for it."""
    checks = await looked(
        client_namespace, Worker(HostUnreachable("no worker of host box answers", "box")), monkeypatch
    )
    assert not checks["agents"].ok
    assert "host box" in checks["agents"].detail
