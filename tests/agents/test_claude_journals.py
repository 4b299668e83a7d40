"""Recorded journals of the real CLI, understood: the same events ever after, whatever a hostile agent makes of them."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from activities.agents.claude.errors import result_error, start_failure
from activities.agents.claude.transcript import ClaudeTranscript
from activities.agents.claude.usage import UsageMeter
from activities.agents.command_ids import MESSAGE
from activities.agents.crashes import crash
from activities.agents.frames import parse_frame
from activities.ports.agent import ExitFact, Resumption, Transcript
from activities.ports.runtime import Record
from steersman.contracts.activities import RunOutcome
from steersman.contracts.errors import AuthenticationFailed, ErrorType, InvalidRequest
from steersman.contracts.events import EVENT, MAX_TEXT, EventBase, MessageEvent, ProgressEvent
from tests.agents.journals import Line, as_lines, journals, load, told

LEFT = ExitFact(code=0)
KILLED = ExitFact(signal=9)
ROUNDS = 60


def transcript(resumption: Resumption | None = None) -> ClaudeTranscript:
    return ClaudeTranscript(resumption, rate_limit_s=60)


def understood(name: str) -> ClaudeTranscript:
    found = transcript()
    told(load(next(path for path in journals() if path.stem == name)), found)
    return found


def line(frame: object, stream: str = "out", name: str = "") -> Line:
    return Line(1, 1_700_000_000_000, stream, json.dumps(frame).encode(), name)


@pytest.mark.parametrize("path", journals(), ids=lambda path: path.stem)
class TestEveryJournal:
    def test_it_gives_the_recorded_events(self, path: Path) -> None:
        assert as_lines(told(load(path))) == path.with_suffix(".events.jsonl").read_text(encoding="utf-8")

    def test_feeding_it_twice_gives_the_same(self, path: Path) -> None:
        first, second = transcript(), transcript()
        assert told(load(path), first) == told(load(path), second)
        assert vars(first.progress) == vars(second.progress)
        assert first.settlements() == second.settlements()

    def test_a_worker_that_dies_anywhere_in_it_changes_nothing(self, path: Path) -> None:
        records = load(path)
        whole = told(records)
        for cut in range(0, len(records), 5):
            again = transcript()
            assert told(records[:cut], again) + told(records[cut:], again) == whole

    def test_a_snapshot_of_an_earlier_version_loses_no_message(self, path: Path) -> None:
        records = load(path)
        said = {each.text for each in told(records) if isinstance(each, MessageEvent) and each.role == "user"}
        for cut in range(0, len(records), 3):
            before, after = transcript(), transcript()
            events = told(records[:cut], before)
            if (snapshot := before.snapshot()) is None:
                continue
            state = json.loads(snapshot)
            for name in ("_untold", "_told"):
                del state["messages"][name]
            after.restore(json.dumps(state).encode())
            events += told(records[cut:], after)
            assert {each.text for each in events if isinstance(each, MessageEvent) and each.role == "user"} == said

    def test_random_damage_never_raises_and_is_understood_alike_by_all(self, path: Path) -> None:
        records = load(path)
        for seed in range(ROUNDS):
            damaged = [_damaged(record, random.Random(f"{seed}-{record.seq}")) for record in records]
            first, second = transcript(), transcript()
            events = told(damaged, first)
            assert events == told(damaged, second), seed
            _sound(events, first)


def _damaged(record: Record, chance: random.Random) -> Line:
    kept = Line(record.seq, record.time_ms, record.stream, record.data, record.id)
    if chance.random() > 0.3 or record.stream not in {"in", "out"}:
        return kept
    if chance.random() < 0.2:
        raw = bytearray(record.data)
        for _ in range(chance.randint(1, 5)):
            raw[chance.randrange(len(raw)) :][:1] = bytes([chance.randrange(256)])
            raw.insert(chance.randrange(len(raw) + 1), chance.randrange(256))
        return replace(kept, data=bytes(raw))
    return replace(kept, data=json.dumps(_mutated(json.loads(record.data), chance)).encode())


HOSTILE: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1e308,
    float("nan"),
    float("inf"),
    1 << 70,
    "",
    "x" * 300_000,
    "\ud800",
    "\x00",
    [],
    {},
    [[]],
    [None],
    {"type": None},
    {"id": []},
    [{"type": "text", "text": {}}],
    [{"type": "tool_use", "id": {}, "name": [], "input": "x"}],
    [{"type": "tool_result", "tool_use_id": 7, "content": [{"type": "text", "text": None}]}],
)


def _mutated(value: Any, chance: random.Random) -> Any:
    if chance.random() < 0.06:
        return chance.choice(HOSTILE)
    if isinstance(value, dict):
        items = [(key, _mutated(each, chance)) for key, each in value.items() if chance.random() > 0.03]
        return dict(items)
    return [_mutated(each, chance) for each in value] if isinstance(value, list) else value


def _sound(events: list[EventBase], found: Transcript) -> None:
    """What comes of it can be written, read, sent and shown."""
    for event in events:
        text = EVENT.dump_json(event)  # type: ignore[arg-type]
        assert EVENT.validate_json(text).type in text.decode()
        long = [(event, len(each), each[:20]) for each in _strings(event.model_dump()) if len(each) > MAX_TEXT + 100]
        assert not [type(event).__name__ for event, *_ in long], [each[:20] for *_, each in long]
    for fact in (LEFT, KILLED):
        verdict = found.verdict(fact)
        assert verdict.error is None or verdict.error.message
    progress = found.progress
    outcome = RunOutcome(
        status="succeeded",
        text=progress.text,
        structured=progress.structured,
        session_id=progress.session_id,
        usage=progress.usage,
        cost_usd=progress.cost_usd,
        turns=progress.turns,
        stop_reason=progress.stop_reason,
        messages=tuple(found.settlements()),
    )
    assert RunOutcome.model_validate_json(outcome.model_dump_json()).status == "succeeded"


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from _strings(each)


class TestWhatAJournalMeans:
    @pytest.mark.parametrize("name", ["simple", "tools", "steer_mid_turn", "structured", "permission_allowed"])
    def test_finished_and_good(self, name: str) -> None:
        found = understood(name)
        assert found.finished
        assert found.verdict(LEFT).error is None
        assert not found.pending

    @pytest.mark.parametrize(
        ("name", "how"),
        [
            ("steer_mid_turn", "mid_turn"),
            ("steer_after_last_boundary", "new_turn"),
            ("interrupt_in_stream", "interrupted"),
            ("interrupt_in_tool", "interrupted"),
            ("interrupt_with_question", "interrupted"),
        ],
    )
    def test_what_became_of_the_message(self, name: str, how: str) -> None:
        (settled,) = understood(name).settlements()
        assert (settled.id, settled.state, settled.how) == ("m-1", "acknowledged", how)

    @pytest.mark.parametrize("name", ["steer_after_last_boundary", "interrupt_in_stream", "interrupt_in_tool"])
    def test_what_begins_a_turn_is_acknowledged_once_the_model_is_asked_with_it(self, name: str) -> None:
        """Killed before its `init`, Claude Code goes on without it, and a hook may block it after that: nobody may have
        been told that it was read.
        """
        found, steps = transcript(), []
        for record in load(next(path for path in journals() if path.stem == name)):
            found.feed(record)
            steps += [each for each in ("started", "init", "requesting") if f'"{each}"'.encode() in record.data]
            if len(steps) > 3:
                state = "acknowledged" if steps[-1] == "requesting" else "unverified"
                assert {each.id: each.state for each in found.last_words()} == {"m-1": state}
        assert steps == ["started", "init", "requesting"] * 2
        assert {each.id: each.state for each in found.last_words()} == {"m-1": "acknowledged"}

    def test_what_is_told_in_a_turn_is_acknowledged_once_the_model_answers_it(self) -> None:
        """It is started a tenth of a second before it is in the session; a sub-agent answers another."""
        records = list(load(next(path for path in journals() if path.stem == "steer_mid_turn")))
        *_, started = (place for place, each in enumerate(records) if b'"started"' in each.data)
        answered = next(place for place in range(started, len(records)) if b'"message_start"' in records[place].data)
        found = transcript()
        for record in records[:answered]:
            found.feed(record)
        found.feed(line({"type": "stream_event", "event": {"type": "message_start"}, "parent_tool_use_id": "toolu_1"}))
        assert [each.state for each in found.settlements()] == ["delivered"]
        assert found.last_words()[-1].state == "unverified"
        found.feed(records[answered])
        assert [(each.state, each.how) for each in found.settlements()] == [("acknowledged", "mid_turn")]

    def test_what_begins_a_turn_that_is_interrupted_at_once_was_read(self) -> None:
        found, told = transcript(), {"type": "command_lifecycle", "command_uuid": "u"}
        text = {"type": "user", "uuid": "u", "message": {"role": "user", "content": "go on"}}
        found.feed(line(text, "in", MESSAGE + "m-1"))
        for state in ("queued", "started", "cancelled"):
            found.feed(line({**told, "state": state}))
        assert [each.state for each in found.settlements()] == ["acknowledged"]

    @pytest.mark.parametrize("name", ["interrupt_in_stream", "interrupt_in_tool", "interrupt_with_question"])
    def test_the_result_of_an_interrupted_turn_is_not_the_answer(self, name: str) -> None:
        found = understood(name)
        assert found.progress.text in {"short", "ok"}
        assert found.verdict(LEFT).error is None

    def test_killed_in_the_middle_it_can_be_resumed(self) -> None:
        verdict = understood("killed").verdict(KILLED)
        assert verdict.resumable
        assert not verdict.start_over
        assert verdict.error is not None
        assert (verdict.error.type, verdict.error.facts["signal"]) == (ErrorType.AGENT_CRASHED, 9)

    @pytest.mark.parametrize("end", [ExitFact(signal=15), ExitFact(code=143)])
    def test_sent_sigterm_before_its_session_began_it_is_started_again(self, end: ExitFact) -> None:
        assert transcript().verdict(end).resumable
        assert not transcript().verdict(ExitFact(code=1)).resumable

    def test_errors(self) -> None:
        assert isinstance(understood("unknown_session").verdict(ExitFact(code=1)).error, InvalidRequest)
        failed = understood("error_500").verdict(ExitFact(code=1)).error
        assert failed is not None
        assert (failed.type, failed.facts["api_error_status"]) == (ErrorType.AGENT_FAILED, 500)
        assert isinstance(understood("error_401").hopeless, AuthenticationFailed)

    def test_ended_by_a_person_nothing_is_owed(self) -> None:
        found = understood("ended_in_tool")
        assert found.finished
        assert found.progress.said == "hm"
        settled = {each.id: (each.state, each.how) for each in found.settlements()}
        assert settled["m-1"][0] == "rejected"
        assert settled["m-2"] == ("acknowledged", "interrupted")

    def test_a_task_that_ends_behind_its_back_does_not_call_an_ended_run_back(self) -> None:
        found = understood("ended_in_tool")
        found.feed(line({"type": "system", "subtype": "session_state_changed", "state": "running"}))
        assert found.finished

    def test_a_limit_of_the_provider(self) -> None:
        failed = understood("rate_limited").verdict(ExitFact(code=1)).error
        assert failed is not None
        assert failed.facts["rate_limit"] == {"resets_at": "2033-05-18T03:33:20Z", "limit": "five_hour"}
        impatient = understood("retries_too_long").verdict(ExitFact(signal=15, reason="stopped")).error
        assert impatient is not None
        assert impatient.facts["rate_limit"]["resets_at"] is not None

    def test_a_wait_that_nobody_cut_short_and_that_was_worth_it(self) -> None:
        found = understood("retries_too_long")
        found.feed(line({"type": "stream_event", "event": {"type": "message_start", "message": {"id": "m"}}}))
        assert found.hopeless is None
        stubborn = understood("error_401")
        stubborn.feed(line({"type": "stream_event", "event": {"type": "message_start", "message": {"id": "m"}}}))
        assert isinstance(stubborn.hopeless, AuthenticationFailed)

    def test_a_session_that_was_never_written_down_is_begun_anew(self) -> None:
        resumed = transcript(Resumption(attempt=2, session_id="s"))
        told(load(next(path for path in journals() if path.stem == "unknown_session")), resumed)
        verdict = resumed.verdict(ExitFact(code=1))
        assert verdict.resumable
        assert verdict.start_over


class TestHostileLines:
    @pytest.mark.parametrize(
        "data",
        [b"", b"\xff\xfe", b"null", b"[]", b"7", b'"x"', b"{", b"[" * 100_000, b'{"a":' * 50_000, b"1" * 10_000],
        ids=[
            "empty",
            "no utf-8",
            "null",
            "list",
            "number",
            "string",
            "torn",
            "deep list",
            "deep object",
            "huge number",
        ],
    )
    @pytest.mark.parametrize("stream", ["out", "in", "err", "eof", "exit"])
    def test_what_is_no_frame_is_no_event(self, data: bytes, stream: str) -> None:
        assert transcript().feed(Line(1, 0, stream, data)) == []

    @pytest.mark.parametrize("value", HOSTILE, ids=lambda value: repr(value)[:20])
    @pytest.mark.parametrize(
        "kind",
        [
            "system",
            "command_lifecycle",
            "stream_event",
            "assistant",
            "user",
            "result",
            "rate_limit_event",
            "control_request",
            "control_cancel_request",
            "control_response",
        ],
    )
    def test_a_wrong_type_in_every_field(self, kind: str, value: Any) -> None:
        fields = [
            "subtype",
            "state",
            "uuid",
            "command_uuid",
            "session_id",
            "event",
            "message",
            "content",
            "response",
            "request",
            "request_id",
            "tasks",
            "task_id",
            "usage",
            "modelUsage",
            "model_usage_since_last_result",
            "total_cost_usd",
            "result",
            "errors",
            "is_error",
            "structured_output",
            "terminal_reason",
            "stop_reason",
            "rate_limit_info",
            "tools",
            "model",
            "attempt",
            "error_status",
            "retry_delay_ms",
            "api_error",
            "api_error_status",
            "api_error_params",
            "is_api_error_message",
            "parent_tool_use_id",
        ]
        subtypes = ("init", "session_state_changed", "api_retry", "task_started", "background_tasks_changed", "success")
        for stream, command in (("out", ""), ("in", "message-m"), ("in", "end-m")):
            found = transcript()
            for subtype in subtypes:
                for field in fields:
                    events = found.feed(line({"type": kind, "subtype": subtype, field: value}, stream, command))
                    _sound(events, found)

    def test_a_name_of_a_type_that_nobody_knows(self) -> None:
        assert transcript().feed(line({"type": "telepathy"})) == []

    def test_a_command_is_told_as_it_was_typed(self) -> None:
        marked = "<command-name>/{0}</command-name>\n  <command-message>{0}</command-message>\n"
        marked += "  <command-args>{1}</command-args>"
        said = [marked.format("compact", ""), marked.format("model", "opus  <b>\n2"), "<command-name>is no command"]
        out = "<local-command-stdout>Compacted </local-command-stdout>"
        frames = [
            {"type": "user", "message": {"role": "user", "content": text}, "uuid": str(each), "isReplay": True}
            for each, text in enumerate([*said, out])
        ]
        heard = told([line(frame) for frame in frames], transcript())
        assert [(each.type, each.text) for each in heard if isinstance(each, MessageEvent | ProgressEvent)] == [
            ("message", "/compact"),
            ("message", "/model opus  <b>\n2"),
            ("message", "<command-name>is no command"),
            ("progress", "Compacted"),
        ]

    def test_an_agent_cannot_settle_a_message_that_nobody_wrote(self) -> None:
        found = transcript()
        found.feed(line({"type": "command_lifecycle", "command_uuid": "u", "state": "completed"}))
        assert found.settlements() == []

    @pytest.mark.parametrize("broken", [rb"\ud800", b"\xed\xa0\x80", b"\xff"], ids=["escape", "surrogate", "no UTF-8"])
    def test_what_is_no_text_is_replaced(self, broken: bytes) -> None:
        frame = parse_frame(b'{"message":{"content":"' + broken + rb'x","role":"\ud83d\ude00"}}')
        assert frame is not None
        assert frame["message"]["content"].encode().endswith(b"x")
        assert frame["message"]["role"] == "\N{GRINNING FACE}"


class TestMeter:
    def feed(self, *events: dict[str, Any]) -> UsageMeter:
        meter = UsageMeter()
        meter.model = "claude-sonnet-4-5"
        for event in events:
            meter.stream(event)
        return meter

    def test_a_call_is_estimated_by_list_prices_until_its_result(self) -> None:
        start = {"type": "message_start", "message": {"id": "a", "usage": {"input_tokens": 1_000_000}}}
        delta = {"type": "message_delta", "usage": {"input_tokens": 1_000_000, "output_tokens": 100_000}}
        meter = self.feed(start, delta)
        assert (meter.turns, meter.usage.output_tokens, meter.cost_usd) == (1, 100_000, 4.5)
        exact = {"inputTokens": 1_000_000, "outputTokens": 100_000, "costUSD": 4.25}
        meter.result({"model_usage_since_last_result": {"claude-sonnet-4-5": exact}})
        assert (meter.turns, meter.usage.output_tokens, meter.cost_usd) == (1, 100_000, 4.25)

    def test_calls_of_one_id_are_two_calls(self) -> None:
        """Not every service gives each message an id of its own."""
        start = {"type": "message_start", "message": {"id": "same", "usage": {"input_tokens": 1_000_000}}}
        meter = self.feed(start, start)
        assert (meter.turns, meter.usage.input_tokens, meter.cost_usd) == (2, 2_000_000, 6.0)

    def test_calls_of_agents_beside_each_other_are_told_apart(self) -> None:
        meter = UsageMeter()
        callers = ("", "tool-1", "tool-2")
        for caller in callers:
            meter.stream({"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 10}}}, caller)
        for caller in callers:
            used = {"input_tokens": 10, "output_tokens": 7}
            meter.stream({"type": "message_delta", "usage": used}, caller)
        assert (meter.turns, meter.usage.input_tokens, meter.usage.output_tokens) == (1, 30, 21)

    def test_results_add_up(self) -> None:
        meter = UsageMeter()
        for _turn in range(3):
            meter.result({"model_usage_since_last_result": {"a": {"costUSD": 0.1}, "b": {"costUSD": 0.2}}})
        assert meter.cost_usd == pytest.approx(0.9)

    @pytest.mark.parametrize("cost", [-1, float("nan"), float("inf"), 1e300, "1", None, True, [], 1 << 90])
    def test_a_cost_that_is_none_does_not_lower_or_break_the_bill(self, cost: Any) -> None:
        meter = UsageMeter()
        meter.result({"model_usage_since_last_result": {"a": {"costUSD": 0.5}}})
        meter.result({"model_usage_since_last_result": {"a": {"costUSD": cost}}})
        assert 0.5 <= meter.cost_usd <= 1.5


class TestErrors:
    @pytest.mark.parametrize(
        ("frame", "error"),
        [
            ({"is_error": False}, None),
            ({"is_error": True, "result": "boom"}, ErrorType.AGENT_FAILED),
            ({"is_error": True, "api_error_status": 401, "result": "x"}, ErrorType.AUTHENTICATION_FAILED),
            ({"is_error": True, "api_error_status": 403, "result": "x"}, ErrorType.AUTHENTICATION_FAILED),
            ({"is_error": True, "result": "Not logged in · Please run /login"}, ErrorType.AUTHENTICATION_FAILED),
            ({"is_error": True, "errors": ["No conversation found with session ID: x"]}, ErrorType.INVALID_REQUEST),
            ({"is_error": True, "api_error_status": 529, "result": "Overloaded"}, ErrorType.AGENT_FAILED),
            ({"is_error": True, "subtype": "error_max_turns"}, ErrorType.AGENT_FAILED),
            ({"is_error": True}, ErrorType.AGENT_FAILED),
        ],
    )
    def test_a_result_frame(self, frame: dict[str, Any], error: ErrorType | None) -> None:
        found = result_error(frame, {})
        assert (found.type if found else None) == error
        assert found is None or found.message

    def test_a_crash_carries_its_facts(self) -> None:
        error = crash(ExitFact(code=3, stderr=("first", "last words")))
        assert error.facts == {"exit_code": 3, "signal": None, "stderr": ["first", "last words"]}
        assert "exit code 3" in error.message
        assert error.message.endswith("last words")
        assert "signal 9" in crash(KILLED).message
        assert "lease_s" in crash(ExitFact(reason="lease")).message
        assert "nobody saw" in crash(ExitFact(lost=True)).message

    def test_a_process_that_would_not_start(self) -> None:
        assert start_failure(ExitFact(code=1, stderr=("Please run /login",))).type == ErrorType.AUTHENTICATION_FAILED
        assert start_failure(ExitFact(code=1, stderr=("no",))).type == ErrorType.AGENT_CRASHED
