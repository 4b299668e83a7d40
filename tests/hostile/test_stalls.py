"""Nothing from outside holds a worker's event loop: each reader of foreign data meets its worst case under a watch."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from activities.schemas import admit_schema, misfit
from steersman.contracts.errors import AgentFailed, InvalidRequest
from steersman.contracts.request import RunRequest, parse_request

STALL_S = 1.5
"""The longest that one thing may hold the loop on a machine with other things to do: ten times what was measured."""


@asynccontextmanager
async def watched(bound_s: float = STALL_S) -> AsyncIterator[None]:
    """Fails where the loop did not come round for longer than the bound."""
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.005)
            longest = max(longest, time.monotonic() - before)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.01)
    try:
        yield
    finally:
        await asyncio.sleep(0.01)
        ticking.cancel()
        assert longest < bound_s, f"the loop stood still for {longest:.1f} s"


def asking(schema: dict[str, Any]) -> RunRequest:
    return parse_request({"agent": "claude", "prompt": "x", "workspace": {"path": "/x"}, "output_schema": schema})


BACKTRACKING = {"not": {"pattern": "^(a+)+$"}}
ANSWERS: dict[str, tuple[dict[str, Any], Any]] = {
    "backtracking": (BACKTRACKING, "a" * 40 + "!"),
    "a loop of references": ({"$ref": "#"}, 1),
    "growing references": (
        {
            "$defs": {str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 9} for n in range(9)} | {"9": {}},
            "$ref": "#/$defs/0",
        },
        1,
    ),
    "unequal items": ({"uniqueItems": True}, [{str(n): [n]} for n in range(20_000)]),
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "unequal names": {"enum": [{str(n): [n]} for n in range(9_000)], "required": [str(n) for n in range(9_000)]},
    "a dialect of its own": {"$schema": ["x"], "type": "object"},
    "deep": {"not": {"not": {"not": {}}}},
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_that_takes_for_ever_is_given_up(name: str) -> None:
    schema, answer = ANSWERS[name]
    before = time.monotonic()
    async with watched():
        wrong = await misfit(schema, answer)
    assert isinstance(wrong, AgentFailed)
    assert wrong.message.startswith("output_schema: the answer ")
    assert time.monotonic() - before < 15


@pytest.mark.parametrize("name", SCHEMAS)
async def test_a_schema_that_takes_for_ever_is_given_up(name: str) -> None:
    before = time.monotonic()
    async with watched():
        with suppress(InvalidRequest):
            await admit_schema(asking(SCHEMAS[name]))
    assert time.monotonic() - before < 15


async def test_checks_run_beside_each_other_and_cancelled_ones_leave_nothing() -> None:
    async with watched():
        checks = [asyncio.create_task(misfit(*ANSWERS["backtracking"])) for _ in range(8)]
        await asyncio.sleep(0.3)
        for each in checks[1:]:
            each.cancel()
        assert await misfit({"type": "integer"}, 7) is None
        await asyncio.gather(*checks, return_exceptions=True)


@pytest.mark.parametrize("where", ["http://127.0.0.1:{port}/schema.json", "file:///etc/hostname"])
async def test_references_fetch_nothing(where: str) -> None:
    asked: list[bytes] = []

    async def heard(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read(100))
        writer.close()

    server = await asyncio.start_server(heard, "127.0.0.1", 0)
    async with server:
        place = where.format(port=server.sockets[0].getsockname()[1])
        wrong = await misfit({"$ref": place}, 7)
        await admit_schema(asking({"$schema": place, "$ref": place}))
    assert wrong is not None
    assert "which is not in it" in wrong.message
    assert not asked


async def test_what_a_check_says_is_short_and_names_the_fault() -> None:
    assert await misfit(None, "anything") is None
    assert await misfit({"$ref": "https://json-schema.org/draft/2020-12/schema"}, {"type": "object"}) is None
    none = await misfit({}, None)
    assert none is not None
    assert none.message == "output_schema: the agent gave no structured answer"
    wrong = await misfit({"type": "integer"}, "x" * 100_000)
    assert wrong is not None
    assert wrong.message.startswith("output_schema: the answer does not fit: 'xxx")
    assert len(wrong.message) < 600
    with pytest.raises(InvalidRequest, match="output_schema: not a JSON Schema: 'objekt'"):
        await admit_schema(asking({"type": "objekt"}))
