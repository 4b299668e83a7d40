"""What is written to Codex, held against the schemas that the installed program itself gives out."""

import json
import subprocess
from pathlib import Path, PurePath
from typing import Any

import jsonschema
import pytest

from activities.agents.codex import frames
from activities.ports.admission import Admission, Untrusted
from steersman.contracts.request import PermissionMode, parse_request
from tests.support.programs import program

pytestmark = pytest.mark.integration

THREAD = "01a20fad-fe45-7da3-aa51-1b2bb9c0dc99"


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("schemas")
    command = [program("codex"), "app-server", "generate-json-schema", "--experimental", "--out", str(directory)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return directory


def holds(schemas: Path, name: str, value: Any) -> None:
    schema = json.loads((schemas / f"{name}.json").read_text())
    jsonschema.validate(value, schema)
    fields = schema.get("properties", {})
    assert not set(value) - set(fields) or not fields, "a field that the program does not know is dropped silently"


def session(mode: PermissionMode, **fields: Any) -> dict[str, Any]:
    request = parse_request(
        {
            "agent": "codex",
            "prompt": "go",
            "workspace": {"path": "/w"},
            "permissions": {"mode": mode},
            "model": "m",
            "system_prompt": "low",
            **fields,
        }
    )
    admission = Admission({}, PurePath("/w"), further=(Path("/more"),), untrusted=Untrusted(instructions="theirs"))
    frame: dict[str, Any] = json.loads(frames.session(request, admission, None))
    return frame


@pytest.mark.parametrize("mode", frames.SANDBOXES)
@pytest.mark.parametrize(
    ("fields", "method", "name"),
    [
        ({}, "thread/start", "ThreadStartParams"),
        ({"session": THREAD}, "thread/resume", "ThreadResumeParams"),
        ({"session": THREAD, "fork_session": True}, "thread/fork", "ThreadForkParams"),
    ],
)
def test_threads(schemas: Path, mode: PermissionMode, fields: dict[str, Any], method: str, name: str) -> None:
    frame = session(mode, **fields)
    assert frame["method"] == method
    holds(schemas, "ClientRequest", frame)
    holds(schemas, f"v2/{name}", frame["params"])


def test_what_is_said(schemas: Path) -> None:
    opening, initialized = (json.loads(text) for _, text in frames.handshake("1"))
    holds(schemas, "ClientRequest", opening)
    holds(schemas, "ClientNotification", initialized)
    turn = json.loads(frames.turn("prompt", THREAD, "do it", {"type": "object"}, "low"))
    holds(schemas, "v2/TurnStartParams", turn["params"])
    interrupt = json.loads(frames.request("interrupt-1", "turn/interrupt", threadId=THREAD, turnId="t"))
    holds(schemas, "v2/TurnInterruptParams", interrupt["params"])
    clean = json.loads(frames.request("clean-t", "thread/backgroundTerminals/clean", threadId=THREAD))
    for each in (turn, interrupt, clean):
        holds(schemas, "ClientRequest", each)


@pytest.mark.parametrize("decision", ["accept", "decline"])
@pytest.mark.parametrize("kind", ["CommandExecution", "FileChange"])
def test_answers(schemas: Path, kind: str, decision: str) -> None:
    answer = json.loads(frames.answer(0, {"decision": decision}))
    holds(schemas, f"{kind}RequestApprovalResponse", answer["result"])
    holds(schemas, "JSONRPCResponse", answer)
    holds(schemas, "JSONRPCError", json.loads(frames.refusal(0, "nobody")))
