"""An agent that asks more than anybody is asked at once fails: the turn would wait for an answer that nobody gives."""

import json
from typing import Any

import pytest

from activities.agents.claude.transcript import ClaudeTranscript
from activities.agents.codex.transcript import CodexTranscript
from activities.ports.agent import ExitFact, Transcript
from tests.agents.journals import Line


def claudes(number: int) -> dict[str, Any]:
    request = {"subtype": "can_use_tool", "tool_name": "Bash", "input": {}, "tool_use_id": f"t{number}"}
    return {"type": "control_request", "request_id": f"r{number}", "request": request}


def codexs(number: int) -> dict[str, Any]:
    return {"id": number, "method": "item/commandExecution/requestApproval", "params": {"itemId": f"i{number}"}}


@pytest.mark.parametrize(
    ("transcript", "question"),
    [(ClaudeTranscript(), claudes), (CodexTranscript(None), codexs)],
    ids=["claude", "codex"],
)
def test_they_are_a_failure(transcript: Transcript, question: Any) -> None:
    for number in range(100):
        transcript.feed(record(number, question(number)))
    assert transcript.hopeless is None
    transcript.feed(record(100, question(100)))
    assert "more than 100 things at once" in str(transcript.hopeless)
    verdict = transcript.verdict(ExitFact(reason="stopped", why="hopeless"))
    assert (verdict.error, verdict.resumable) == (transcript.hopeless, False)


def record(number: int, frame: dict[str, Any]) -> Line:
    return Line(seq=number + 1, time_ms=1000, stream="out", id="", data=json.dumps(frame).encode() + b"\n")
