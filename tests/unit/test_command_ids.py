"""What agents call their requests becomes the id of a command, which a shim takes whatever it is."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from activities.agents.codex.conversation import CodexConversation
from activities.agents.codex.transcript import CodexTranscript
from activities.agents.command_ids import id_of
from activities.shim.client import Record
from steersman.contracts.request import parse_request


@pytest.mark.parametrize("name", ["request 7", "y" * 200, "é", "", "\n"])
def test_a_name_that_is_no_id_has_one(name: str) -> None:
    ident = id_of("answer-", name)
    assert ident.isascii()
    assert ident.isprintable()
    assert " " not in ident
    assert ident.startswith("answer-")
    assert len(ident) <= 200
    assert ident == id_of("answer-", name)
    assert id_of("answer-", "7") == "answer-7"


@pytest.mark.parametrize("name", ["7", "request 7", "y" * 195])
async def test_codex_is_answered(name: str) -> None:
    written: dict[str, Any] = {}

    async def write(command: str, data: str) -> bool:
        written[command] = json.loads(data)
        return True

    transcript = CodexTranscript(None)
    request = parse_request({"agent": "codex", "prompt": "x", "workspace": {"path": "/w"}})
    channel: Any = SimpleNamespace(write=write)
    requester: Any = None
    asked = {"id": name, "method": "item/commandExecution/requestApproval", "params": {"itemId": "i", "command": "ls"}}
    record = Record(1, 1, "out", json.dumps(asked).encode(), "")
    transcript.feed(record)
    await CodexConversation(request, channel, transcript, requester).hear(record)
    assert written[id_of("answer-", name)]["id"] == name
