"""What tools put out while they work: how much of it is told, and that every reader of a journal is told the same."""

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities.agents.acp.transcript import AcpTranscript
from activities.agents.codex.transcript import CodexTranscript
from activities.agents.tool_output import BURST, EVENT_COST, LEAST, MAX_CALLS, MAX_END, ToolOutputs, both_ends
from activities.ports.runtime import Record
from steersman.contracts.events import MAX_CALL_OUTPUT, MAX_TEXT, MAX_TOOL_OUTPUT, EventBase, ToolOutputEvent
from tests.agents.journals import Line

START = datetime(2026, 1, 1, tzinfo=UTC)
COUNT = 3000
THREAD = "01a215b2-8f9d-71e1-bb43-d05106fe2c6c"


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def texts(events: list[ToolOutputEvent]) -> list[str]:
    return [event.text for event in events]


class TestPieces:
    def test_what_comes_now_and_then_is_told_as_it_comes(self) -> None:
        outputs = ToolOutputs()
        told = [event for each in range(1000) for event in outputs.added(at(each), "t", f"line {each}\n")]
        assert texts(told) == [f"line {each}\n" for each in range(1000)]
        assert not any(event.omitted for event in told)

    def test_of_a_long_piece_the_end_is_told(self) -> None:
        (event,) = ToolOutputs().added(at(0), "t", "x" * 10_000 + "the end")
        assert (len(event.text), event.text[-7:], event.omitted) == (MAX_TOOL_OUTPUT, "the end", True)

    def test_many_single_characters_are_told_together(self) -> None:
        """Ten a second, for ten minutes: as dots of a test suite come."""
        outputs = ToolOutputs()
        told = [event for each in range(6000) for event in outputs.added(at(each / 10), "t", ".")]
        assert 1500 < len(told) < 3000
        assert not any(event.omitted for event in told)
        assert 5950 < sum(map(len, texts(told))) <= 6000

    @pytest.mark.parametrize("piece", [1, 80, 8192, 1 << 20])
    @pytest.mark.parametrize("per_second", [10, 1000, 1_000_000])
    def test_a_flood_is_told_in_part(self, piece: int, per_second: int) -> None:
        outputs, told = ToolOutputs(), list[ToolOutputEvent]()
        for each in range(min(100 * (1 << 20) // piece, COUNT)):
            told += outputs.added(at(each / per_second), "t", "x" * piece)
        assert all(len(event.text) <= MAX_TOOL_OUTPUT for event in told)
        spent = sum(len(event.text) + EVENT_COST for event in told)
        assert spent <= min(MAX_CALL_OUTPUT, BURST + MAX_CALL_OUTPUT * COUNT / per_second / 600 + 1)

    def test_a_flood_of_hours_is_told_of_ever_less_often_and_the_last_says_so(self) -> None:
        outputs, told = ToolOutputs(), list[ToolOutputEvent]()
        for each in range(4 * 3600):
            told += outputs.added(at(each), "t", "x" * 8192)
        assert sum(len(event.text) for event in told) <= MAX_CALL_OUTPUT
        minutes = {(event.time - START) // timedelta(minutes=1) for event in told}
        assert minutes >= set(range(30)), "in each of the first minutes something is told"
        assert max(minutes) > 50
        assert [event.truncated for event in told] == [False] * (len(told) - 1) + [True]
        assert all(event.omitted for event in told)
        assert all(len(event.text) >= LEAST for event in told)

    def test_a_clock_that_goes_back_or_far_ahead_gives_nothing_away(self) -> None:
        outputs, told = ToolOutputs(), list[ToolOutputEvent]()
        for each in range(2000):
            told += outputs.added(at(1e8 if each % 2 else 0), "t", "x" * 8192)
        assert sum(len(event.text) for event in told) <= MAX_CALL_OUTPUT

    def test_each_call_has_its_own_share_and_so_many_are_kept(self) -> None:
        outputs = ToolOutputs()
        for each in range(5000):
            outputs.added(at(0), f"t-{each}", "x" * 5000)
        assert len(outputs.calls) == MAX_CALLS
        assert texts(outputs.added(at(0), "another", "y")) == ["y"]


class TestWhole:
    """Output that is said whole each time."""

    def test_only_what_is_new_is_told(self) -> None:
        outputs, whole, told = ToolOutputs(), "", list[ToolOutputEvent]()
        for each in range(200):
            whole += f"line {each}\n"
            told += outputs.replaced(at(each), "t", whole)
            told += outputs.replaced(at(each), "t", whole)
        assert "".join(texts(told)) == whole
        assert len(told) == 200
        assert not any(event.omitted for event in told)

    def test_of_which_the_end_alone_is_said(self) -> None:
        outputs, whole, told = ToolOutputs(), "", list[ToolOutputEvent]()
        for each in range(500):
            whole += f"line {each}\n"
            told += outputs.replaced(at(each), "t", whole[-400:])
        assert "".join(texts(told)) == whole
        assert not any(event.omitted for event in told)

    def test_that_ran_ahead(self) -> None:
        outputs = ToolOutputs()
        outputs.replaced(at(0), "t", "".join(f"line {each}\n" for each in range(100)))
        (event,) = outputs.replaced(at(1), "t", "something else\n")
        assert (event.text, event.omitted) == ("something else\n", True)


def test_a_call_that_ends_leaves_the_end_of_its_output() -> None:
    outputs = ToolOutputs()
    for each in range(10_000):
        outputs.added(at(0), "t", f"line {each}\n")
    end, cut = outputs.close("t")
    assert (len(end), cut) == (MAX_END, True)
    assert end.endswith("line 9998\nline 9999\n")
    assert outputs.close("t") == ("", False)


@pytest.mark.parametrize("length", [0, MAX_TEXT, MAX_TEXT + 1, 10 * MAX_TEXT])
def test_a_long_result_keeps_its_end(length: int) -> None:
    text = "a" * (length // 2) + "b" * (length - length // 2)
    kept = both_ends(text)
    assert len(kept) <= MAX_TEXT
    assert (kept == text) == (length <= MAX_TEXT)
    assert (kept[:1], kept[-1:]) == (text[:1], text[-1:])


# In journals.


def codex_line(seq: int, method: str, seconds: float = 0, **params: Any) -> Record:
    frame = {"method": method, "params": {"threadId": THREAD, "turnId": "turn", **params}}
    return Line(seq, int(at(seconds).timestamp() * 1000), "out", json.dumps(frame).encode())


def codex_journal() -> list[Record]:
    opened = json.dumps({"id": "session", "result": {"thread": {"id": THREAD}}}).encode()
    item = {"type": "commandExecution", "id": "call", "command": "make", "cwd": "/w", "status": "inProgress"}
    done = {**item, "status": "completed", "aggregatedOutput": "all of it", "exitCode": 0}
    deltas = [
        codex_line(10 + each, "item/commandExecution/outputDelta", each / 50, itemId="call", delta=f"{each} " * 400)
        for each in range(200)
    ]
    return [
        Line(1, int(START.timestamp() * 1000), "out", opened),
        codex_line(2, "turn/started", turn={"id": "turn"}),
        codex_line(3, "item/commandExecution/outputDelta", itemId="call", delta="of a call that nobody knows"),
        codex_line(4, "item/started", item=item),
        *deltas,
        codex_line(300, "item/completed", item=done),
        codex_line(301, "item/commandExecution/outputDelta", itemId="call", delta="too late"),
    ]


def acp_journal() -> list[Record]:
    def line(seq: int, seconds: float, stream: str = "out", ident: str = "", **frame: Any) -> Record:
        data = json.dumps({"jsonrpc": "2.0", **frame}).encode()
        return Line(seq, int(at(seconds).timestamp() * 1000), stream, data, ident)

    def update(seq: int, seconds: float, **fields: Any) -> Record:
        params = {"sessionId": "s-1", "update": {"toolCallId": "call", **fields}}
        return line(seq, seconds, method="session/update", params=params)

    def told(text: str) -> Any:
        return [{"type": "content", "content": {"type": "text", "text": text}}]

    begun = [
        line(1, 0, "in", "initialize", id="initialize", method="initialize", params={}),
        line(2, 0, id="initialize", result={"protocolVersion": 1}),
        line(3, 0, "in", "session", id="session", method="session/new", params={}),
        line(4, 0, id="session", result={"sessionId": "s-1"}),
        line(5, 0, "in", "prompt", id="prompt", method="session/prompt", params={"sessionId": "s-1"}),
        update(6, 0, sessionUpdate="tool_call", status="pending", kind="execute", content=told("a description")),
        update(7, 0, sessionUpdate="tool_call_update", title="make", content=told("still a description")),
    ]
    whole, working = "", []
    for each in range(200):
        whole += f"{each} " * 400
        fields: Any = {"content": told(whole[-30_000:])}
        working.append(update(10 + each, each / 50, sessionUpdate="tool_call_update", status="in_progress", **fields))
    return [*begun, *working, update(300, 9, sessionUpdate="tool_call_update", status="completed", content=told(whole))]


def fed(found: Any, records: list[Record]) -> list[EventBase]:
    return [event for record in records for event in found.feed(record)]


KINDS: dict[str, tuple[Any, list[Record]]] = {
    "codex": (lambda: CodexTranscript(("prompt", "do it")), codex_journal()),
    "acp": (AcpTranscript, acp_journal()),
}


@pytest.mark.parametrize("kind", KINDS)
class TestJournals:
    def test_output_comes_between_the_call_and_its_result(self, kind: str) -> None:
        make, records = KINDS[kind]
        events = [event for event in fed(make(), records) if event.type.startswith("tool")]  # type: ignore[attr-defined]
        assert [event.type for event in (events[0], events[-1])] == ["tool_use", "tool_result"]  # type: ignore[attr-defined]
        told = [event for event in events if isinstance(event, ToolOutputEvent)]
        assert 20 < len(told) == len(events) - 2
        assert {event.id for event in told} == {"call"}
        assert not any("description" in event.text or "nobody" in event.text for event in told)

    def test_whoever_reads_on_from_a_snapshot_tells_the_same(self, kind: str) -> None:
        make, records = KINDS[kind]
        for cut in range(0, len(records), 7):
            plain, restored = make(), make()
            fed(plain, records[:cut])
            restored.restore(plain.snapshot())
            assert fed(restored, records[cut:]) == fed(plain, records[cut:])

    def test_a_snapshot_of_an_older_worker_is_read(self, kind: str) -> None:
        make, records = KINDS[kind]
        before, restored = make(), make()
        fed(before, records[:60])
        older = json.loads(before.snapshot())
        del older["outputs" if kind == "codex" else "_outputs"]
        restored.restore(json.dumps(older).encode())
        told = fed(restored, records[60:])
        assert told[-1].type == "tool_result"  # type: ignore[attr-defined]
        assert any(isinstance(event, ToolOutputEvent) for event in told)

    def test_whatever_a_snapshot_claims(self, kind: str) -> None:
        """It is refused, or nothing beyond the bounds is told."""
        make, records = KINDS[kind]
        before = make()
        fed(before, records[:60])
        taken, name = json.loads(before.snapshot()), "outputs" if kind == "codex" else "_outputs"
        chance = random.Random(1)
        values: list[Any] = [None, -1, 1 << 70, 0.5, "x" * 20_000, True, [], {}, "\ud800"]
        for _ in range(100):
            forged = json.loads(json.dumps(taken))
            call = forged[name]["calls"]["call"]
            for field in chance.sample(sorted(call), 2):
                call[field] = chance.choice(values)
            restored = make()
            try:
                restored.restore(json.dumps(forged).encode())
            except ValueError:
                continue
            told = [event for event in fed(restored, records[60:]) if isinstance(event, ToolOutputEvent)]
            assert sum(len(event.text) for event in told) <= MAX_CALL_OUTPUT


@pytest.mark.parametrize("value", [None, 7, ["a"], {"a": 1}, "\ud800", "x" * 1_000_000, True])
def test_whatever_an_agent_says_of_output(value: Any) -> None:
    codex, records = CodexTranscript(("prompt", "do it")), codex_journal()[:4]
    found = fed(codex, [*records, codex_line(9, "item/commandExecution/outputDelta", itemId="call", delta=value)])
    acp = AcpTranscript()
    fed(acp, acp_journal()[:7])
    for meta in ({"terminal_output_delta": value}, {"terminal_output_delta": {"data": value}}, value):
        update = {"sessionUpdate": "tool_call_update", "toolCallId": "call", "_meta": meta, "content": value}
        frame = {"method": "session/update", "params": {"sessionId": "s-1", "update": update}}
        found += fed(acp, [Line(9, 1, "out", json.dumps(frame).encode())])
    for event in found:
        event.model_dump_json().encode()
        assert not isinstance(event, ToolOutputEvent) or len(event.text) <= MAX_TOOL_OUTPUT


def test_a_result_without_a_text_is_what_a_terminal_has_shown() -> None:
    """As codex-acp has it."""
    found = AcpTranscript()
    fed(found, acp_journal()[:7])
    update = {"sessionUpdate": "tool_call_update", "toolCallId": "call"}
    said = [
        {**update, "_meta": {"terminal_output_delta": {"data": "one\n"}}},
        {**update, "status": "completed", "_meta": {"terminal_output_delta": {"data": "two\n"}}},
    ]
    frames = [{"method": "session/update", "params": {"sessionId": "s-1", "update": each}} for each in said]
    events = fed(found, [Line(9, 1, "out", json.dumps(frame).encode()) for frame in frames])
    assert [(event.type, event.text) for event in events] == [("tool_output", "one\n"), ("tool_result", "one\ntwo\n")]  # type: ignore[attr-defined]
