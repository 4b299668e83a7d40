"""Nothing from outside holds a worker's event loop: each reader of foreign data meets its worst case under a watch."""

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from activities.admission import schemas
from activities.admission.schemas import admit_schema, mismatch
from activities.agents.claude.transcript import ClaudeTranscript
from activities.agents.process.conversation import Silence
from activities.loops.items.plans import read_plan
from activities.loops.items.sources import read_items
from activities.ports.agent import Progress
from activities.ports.runtime import MAX_LINE, ChannelClosed, StopTimes
from activities.running.attempt import AttemptRunner
from activities.running.attempt_state import AttemptState
from activities.shim.client.journal import LineJoiner, Record, RecordParser
from activities.store.event_reader import Cursor, read
from activities.store.eventlog import EventLog
from steersman.cli.formatting import clean, flat
from steersman.contracts.activities import ApprovalAsked, Settlement
from steersman.contracts.errors import AgentFailed, InvalidRequest
from steersman.contracts.events import MAX_TEXT, EventBase, MessageEvent
from steersman.contracts.loop import Items
from steersman.contracts.request import RunRequest, parse_request
from steersman.contracts.run import StopReport
from tests.hostile.test_event_log import NOW
from workflows.display import one_line

STALL_S = 3.0
"""The most processor time that may go by before the loop comes round: a busy machine makes no more of it.

Of all threads: who holds the interpreter in another one holds up the loop, too.
"""
SLEEP_S = 15.0
"""The longest that it may stand still without computing."""


@asynccontextmanager
async def watched(bound_s: float = STALL_S) -> AsyncIterator[None]:
    """Fails where the loop did not come round for longer than the bound."""
    computed = slept = 0.0

    async def tick() -> None:
        nonlocal computed, slept
        while True:
            before, began = time.process_time(), time.monotonic()
            await asyncio.sleep(0.005)
            computed, slept = max(computed, time.process_time() - before), max(slept, time.monotonic() - began)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.01)
    try:
        yield
    finally:
        await asyncio.sleep(0.01)
        ticking.cancel()
        assert computed < bound_s, f"the loop stood still for {computed:.1f} s of processor time"
        assert slept < SLEEP_S, f"the loop stood still for {slept:.1f} s"


def asking(schema: dict[str, Any]) -> RunRequest:
    return parse_request({"agent": "claude", "prompt": "x", "workspace": {"path": "/x"}, "output_schema": schema})


def content(block: bytes, size: int = 5_000_000) -> bytes:
    """An assistant's frame of about this many bytes with one thing again and again."""
    return b'{"type":"assistant","message":{"content":[' + (block + b",") * (size // (len(block) + 1)) + b"1]}}"


DELTA = b'{"type":"stream_event","event":{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}}'
ASK = b'{"type":"control_request","request_id":"%d","request":{"subtype":"can_use_tool","tool_name":"x","input":{}}}'
WIDE = b'{"a":[' + b'{"b":"cccccccccc"},' * 10 + b"1]}"
FRAMES: dict[str, list[bytes]] = {
    "nested lists": [b"[" * 5_000_000, b'{"a":' * 1_000_000, b'{"a":' + b"[" * 900 + b"]" * 900 + b"}"],
    "a million lists": [content(b"[]")],
    "a million objects": [content(b"{}")],
    "a million numbers": [content(b"1")],
    "a million texts": [content(b'{"type":"text","text":"a"}')],
    "a thousand texts": [content(b'{"type":"text","text":"a"}', 27_000)] * 20,
    "a hundred thousand tools": [content(b'{"type":"tool_use","id":"a","name":"b","input":{}}')],
    "a wide tool": [content(b'{"type":"tool_use","id":"a","name":"b","input":{"x":[' + WIDE * 1000 + b"]}}", 300_000)],
    "a long number": [b'{"a":' + b"1" * 5_000_000 + b"}", b'{"a":0.' + b"1" * 5_000_000 + b"}"],
    "a long exponent": [b'{"type":"result","total_cost_usd":1e' + b"9" * 5_000_000 + b"}"],
    "surrogates": [content(b'"\\ud800"', 2_000_000), b'{"a":"' + b"\\ud800" * 800_000 + b'"}'],
    "a long text": [content(b'{"type":"text","text":"' + b"a" * 5_000_000 + b'"}')],
    "a long line": [b'{"type":"x","y":"' + b"a" * 17_000_000 + b'"}'],
    "a large answer": [b'{"type":"result","structured_output":[' + b"[]," * 1_000_000 + b"1]}"],
    "50,000 deltas": [DELTA] * 50_000,
    "20,000 questions": [ASK % number for number in range(20_000)],
}


class Journal:
    """A channel that has it all already, as after a takeover; nothing is said to it."""

    handle = None
    known = 1 << 62

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines

    offset = 0
    is_cut = False

    def may_enter(self, after: int) -> bool:
        return False

    async def records(self, after: int = 0, offset: int = 0) -> AsyncGenerator[Sequence[Record], None]:
        joiner, batch, size = LineJoiner(MAX_LINE), list[Record](), 0
        for number, data in enumerate(self._lines, 1):
            joined = joiner.push(Record(number, 1000, "out", data, ""))
            batch.append(Record(number, 1000, "out", joined.data if joined else b"", ""))
            size += len(data)
            if size > 256 * 1024:
                yield batch
                batch, size = [], 0
        end = json.dumps({"code": 0, "signal": None, "reason": "exited", "stop": None}).encode()
        yield [*batch, Record(len(self._lines) + 1, 1000, "exit", end, "")]

    async def write(self, command: str, data: str | None) -> bool:
        return False

    async def stop(self, times: StopTimes, reason: str) -> StopReport:
        raise ChannelClosed

    async def cause(self) -> str:
        return ""

    async def close(self) -> None: ...


class Quiet:
    """Looks after the process and has nothing to say."""

    stop_times = StopTimes(0, 0)

    def observe(self, events: list[EventBase]) -> None: ...

    def settle(self, settlements: list[Settlement]) -> None: ...

    def tick(self) -> None: ...

    def limit(self) -> None:
        return None

    def silence_left_s(self) -> float:
        return math.inf

    def live(self, number: int) -> None: ...

    def delivered(self, number: int, kind: str, settlement: Settlement) -> None: ...

    def stopping(self, reason: str) -> None: ...

    async def ask(self, asked: ApprovalAsked) -> None: ...


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FRAMES)
async def test_no_frame_of_an_agent_holds_the_loop(name: str, tmp_path: Path) -> None:
    transcript = ClaudeTranscript()
    with closing(EventLog(tmp_path / "events.jsonl")) as log:
        life = AttemptRunner(AttemptState(1), Journal(FRAMES[name]), transcript, Silence(), log, Quiet(), Progress())
        async with watched():
            await life.run()
    events, _ = read(tmp_path / "events.jsonl", Cursor(), 0, 1 << 40)
    assert len(events) <= max(21_000, len(FRAMES[name]))
    written = (tmp_path / "events.jsonl").read_bytes().split(b"\n")
    assert max(map(len, written)) < 2 * 1024 * 1024


@pytest.mark.exhaustive
async def test_a_long_log_is_taken_over_and_read_beside_the_loop(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with closing(EventLog(path)) as log:
        for number in range(100):
            log.append(1, number, [MessageEvent(time=NOW, text="\0" * MAX_TEXT)])
        for number in range(100, 20_000):
            log.append(1, number, [MessageEvent(time=NOW, text="x")])
    async with watched():
        (await asyncio.to_thread(EventLog.take_over, path, 1)).close()
        await asyncio.to_thread(read, path, Cursor(), 0, 10_000_000)


LONG = 1_000_000
TEXTS = {
    "spaces": " " * LONG + "x",
    "quotes": "> " * (LONG // 2) + "x",
    "bullets": "- " * (LONG // 2) + "`",
    "numbers": "1. " * (LONG // 3),
    "boxes": "- [ ] a ^x\n" * (LONG // 11),
    "blocked": "- [ ] " + "(blocked by: " * (LONG // 13),
    "brackets": "depends on: " + "[" * LONG,
    "links": "depends on: " + "[](" * (LONG // 3),
    "dependencies": "depends on: " + "1," * (LONG // 2),
    "comments": "---\na: x" + " # " * (LONG // 3) + "\n---\n",
    "lines": "\r" * LONG,
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", TEXTS)
async def test_no_plan_holds_the_loop_from_its_thread(name: str, tmp_path: Path) -> None:
    (tmp_path / "PLAN.md").write_text(TEXTS[name], newline="")
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan" / "01-a.md").write_text(TEXTS[name], newline="")

    async def run(argv: Sequence[str]) -> bytes:
        return TEXTS[name].encode()

    command = Items.model_validate({"kind": "command", "command": "x"})
    async with watched(), asyncio.timeout(60):
        await asyncio.to_thread(read_plan, tmp_path, "PLAN.md", None)
        await asyncio.to_thread(read_plan, tmp_path, "plan", None)
        await read_items(command, None, None, tmp_path, run)


@pytest.mark.exhaustive
async def test_no_list_of_items_holds_the_loop(tmp_path: Path) -> None:
    lists = [
        "[" * LONG,
        "[" + "1" * LONG + "]",
        "[" + '"a",' * (LONG // 4) + '"a"]',
        json.dumps([{"status": "a" + " " * LONG + "b"}]),
        json.dumps([{"id": "x", "blocked_by": "1," * (LONG // 2)}]),
        json.dumps([{"id": "x", "status": "done"}] * 30_000),
    ]
    items = Items.model_validate({"kind": "json", "path": "items.json"})

    async def run(argv: Sequence[str]) -> bytes:
        return b""

    for text in lists:
        (tmp_path / "items.json").write_text(text[: 2 * 1024 * 1024])
        async with watched():
            await read_items(items, None, None, tmp_path, run)


GOOD: dict[str, Any] = {"agent": "claude", "prompt": "x", "workspace": {"path": "/x"}}
REQUESTS: dict[str, dict[str, Any]] = {
    "variables": GOOD | {"env": {f"A{number}": "x" for number in range(100_000)}},
    "wrong variables": GOOD | {"env": {f"A {number}": {"x": 1} for number in range(60_000)}},
    "labels": GOOD | {"labels": {str(number): {} for number in range(100_000)}},
    "rules": GOOD | {"permissions": {"allow": ["("] * 300_000}},
    "unknown fields": GOOD | {str(number): 0 for number in range(100_000)},
    "a session": GOOD | {"session": "a" * LONG},
    "an empty prompt": GOOD | {"prompt": " " * LONG},
    "a name": GOOD | {"env": {"A" * LONG: "x", "KEY" * (LONG // 3) + "x": "x"}},
    "a number": GOOD | {"lease_s": 10**4000},
    "a command": {"agent": "process", "workspace": {"path": "/x"}, "command": [""] * 400_000},
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", REQUESTS)
async def test_no_request_holds_the_loop(name: str) -> None:
    async with watched():
        with suppress(InvalidRequest):
            parse_request(REQUESTS[name])


@pytest.mark.exhaustive
async def test_nothing_shown_holds_the_loop() -> None:
    for text in TEXTS.values():
        async with watched():
            clean(text), flat(text), one_line(text)


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_no_journal_holds_the_loop(size: int) -> None:
    record = b"%d 1 out+ %d -\n" + b"a" * size + b"\n"
    data = b"".join(record % (number, size) for number in range(1, min(200_000, 5_000_000 // size)))
    parser, joiner = RecordParser(), LineJoiner(1_000_000)
    async with watched():
        for start in range(0, len(data), 256 * 1024):
            for each in parser.feed(data[start : start + 256 * 1024]):
                joiner.push(each)
            await asyncio.sleep(0)
    ended = joiner.push(Record(parser.seq + 1, 1, "out", b"", ""))
    assert ended is not None
    assert len(ended.data) <= 1_000_000


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


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_that_takes_for_ever_is_given_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schema, answer = ANSWERS[name]
    if name != "backtracking":  # that one uses up all that it has
        monkeypatch.setattr(schemas, "DEADLINE_S", 2)
    before = time.monotonic()
    async with watched():
        wrong = await mismatch(schema, answer)
    assert isinstance(wrong, AgentFailed)
    assert wrong.message.startswith("output_schema: the answer ")
    assert time.monotonic() - before < 60


@pytest.mark.parametrize("name", SCHEMAS)
async def test_a_schema_that_takes_for_ever_is_given_up(name: str) -> None:
    before = time.monotonic()
    async with watched():
        with suppress(InvalidRequest):
            await admit_schema(asking(SCHEMAS[name]))
    assert time.monotonic() - before < 60


@pytest.mark.exhaustive
async def test_checks_run_beside_each_other_and_cancelled_ones_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "DEADLINE_S", 2)
    async with watched():
        checks = [asyncio.create_task(mismatch(*ANSWERS["backtracking"])) for _ in range(8)]
        await asyncio.sleep(0.3)
        for each in checks[1:]:
            each.cancel()
        assert await mismatch({"type": "integer"}, 7) is None
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
        wrong = await mismatch({"$ref": place}, 7)
        with pytest.raises(InvalidRequest, match="which is not in it"):
            await admit_schema(asking({"$schema": place, "$ref": place}))
    assert wrong is not None
    assert "which is not in it" in wrong.message
    assert not asked


@pytest.mark.parametrize(
    ("schema", "missing"),
    [
        ({"$ref": "#/definitions/Missing"}, "#/definitions/Missing"),
        ({"properties": {"a": {"items": {"$ref": "other.json"}}}}, "other.json"),
        ({"$ref": "#/$defs/there", "$defs": {"there": {"type": "integer"}}}, None),
        ({"$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}}, "$ref": "#/$defs/node"}, None),
        ({"$id": "http://x/y", "$ref": "#/$defs/a", "$defs": {"a": {}}}, None),
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, None),
        ({"properties": {"$ref": {"type": "string"}}, "const": {"$ref": "nowhere"}}, None),
        (
            {"$schema": "http://json-schema.org/draft-04/schema#", "$ref": "#/definitions/a", "definitions": {"a": {}}},
            None,
        ),
        ({"$ref": "inner", "$defs": {"a": {"$id": "inner", "type": "integer"}}}, None),
        ({"$anchor": "top", "items": {"$ref": "#top"}}, None),
    ],
)
async def test_a_reference_that_leads_nowhere_is_refused_before_an_agent_works(
    schema: dict[str, Any], missing: str | None
) -> None:
    if missing is None:
        await admit_schema(asking(schema))
        return
    with pytest.raises(InvalidRequest) as refused:
        await admit_schema(asking(schema))
    assert refused.value.message.endswith(f"the schema refers to {missing}, which is not in it")


async def test_what_a_check_says_is_short_and_names_the_fault() -> None:
    assert await mismatch(None, "anything") is None
    assert await mismatch({"$ref": "https://json-schema.org/draft/2020-12/schema"}, {"type": "object"}) is None
    none = await mismatch({}, None)
    assert none is not None
    assert none.message == "output_schema: the agent gave no structured answer"
    wrong = await mismatch({"type": "integer"}, "x" * 100_000)
    assert wrong is not None
    assert wrong.message.startswith("output_schema: the answer does not fit: 'xxx")
    assert len(wrong.message) < 600
    with pytest.raises(InvalidRequest, match="output_schema: not a JSON Schema: 'objekt'"):
        await admit_schema(asking({"type": "objekt"}))
