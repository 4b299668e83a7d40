"""The frames that are written to `codex app-server`: JSON-RPC without the field `jsonrpc`, one object a line.

The id of each of our requests is that of the command that writes it, so it is the same in every worker.
"""

import json
from collections.abc import Sequence
from typing import Any

from activities.agents.frames import Frame
from activities.agents.prompts import instructions
from activities.ports.admission import Admission
from steersman.contracts.attachments import Attachment
from steersman.contracts.model import JsonObject, JsonValue
from steersman.contracts.request import PermissionMode, RunRequest

INITIALIZE = "initialize"
INITIALIZED = "initialized"
SESSION = "session"
"""The request that starts, resumes or forks the thread."""
PROMPT = "prompt"
CLEAN = "clean-"
"""The request to end a turn's running commands has the id `clean-<turn id>`: an interrupt leaves them at work."""
SUBAGENT = "subagent-"
"""The request to end a sub-agent's turn has the id `subagent-<turn id>`: an interrupt leaves that at work, too."""
DENIAL = "denial-"
"""A person's words on the denial of the agent's request of this id."""
ANSWER = "answer-"
"""The answer to the agent's request of this id."""

SANDBOXES: dict[PermissionMode, tuple[str, str]] = {
    "read_only": ("read-only", "never"),
    "ask": ("workspace-write", "untrusted"),
    "accept_edits": ("workspace-write", "never"),
    "full": ("danger-full-access", "never"),
}
"""Each mode's sandbox and approval policy. `untrusted` asks before each command that is not known to be harmless."""


def line(frame: Frame) -> str:
    """A frame as it is written."""
    return json.dumps(frame) + "\n"


def request(command: str, method: str, **params: Any) -> str:
    """A request of ours, as a line."""
    return line({"id": command, "method": method, "params": params})


def handshake(version: str) -> list[tuple[str, str]]:
    """What is written before anything else; the requests behind it need not wait for an answer (measured).

    Ending a thread's background terminals is among the experimental API.
    """
    client = {"name": "steersman", "title": "Steersman", "version": version}
    opening = request(INITIALIZE, "initialize", clientInfo=client, capabilities={"experimentalApi": True})
    return [(INITIALIZE, opening), (INITIALIZED, line({"method": "initialized"}))]


def session(asked: RunRequest, admission: Admission, resumed: str | None) -> str:
    """The request for the thread. `resumed`: that of the process before."""
    sandbox, approvals = SANDBOXES[asked.permissions.mode]
    params: JsonObject = {
        "cwd": str(admission.directory),
        "sandbox": sandbox,
        "approvalPolicy": approvals,
        "config": _config(admission),
    }
    if asked.model:
        params["model"] = asked.model
    if given := instructions(asked.system_prompt, admission.untrusted):
        params["developerInstructions"] = given
    thread = resumed or asked.session
    if thread is None:
        return request(SESSION, "thread/start", **params)
    forks = asked.fork_session and not resumed
    return request(SESSION, "thread/fork" if forks else "thread/resume", threadId=thread, excludeTurns=True, **params)


def turn(
    command: str,
    thread: str,
    text: str,
    schema: JsonObject | None,
    effort: str | None,
    images: Sequence[Attachment] = (),
) -> str:
    """A text for the agent. While a turn runs it joins that turn (measured: as with turn/steer), else it begins one: so
    no text is lost to a turn that ends at that moment. `clientUserMessageId` comes back once the model is given it.
    """
    shown: list[JsonValue] = [{"type": "image", "url": f"data:{each.media_type};base64,{each.data}"} for each in images]
    params: JsonObject = {
        "threadId": thread,
        "input": [{"type": "text", "text": text}, *shown],
        "clientUserMessageId": command,
    }
    if schema is not None:
        params["outputSchema"] = schema
    if effort is not None:
        params["effort"] = effort
    return request(command, "turn/start", **params)


def answer(question: Any, result: JsonObject) -> str:
    """The answer to a request of the agent's, by its id."""
    return line({"id": question, "result": result})


def refusal(question: Any, message: str) -> str:
    """The answer to a request that nobody here can answer."""
    return line({"id": question, "error": {"code": -32601, "message": message}})


def _config(admission: Admission) -> JsonObject:
    """Settings that go before those of the user's config.toml."""
    trust = "untrusted" if admission.untrusted else "trusted"
    config: JsonObject = {"projects": {str(admission.directory): {"trust_level": trust}}}
    if admission.untrusted:
        config["project_doc_max_bytes"] = 0  # no AGENTS.md: its text is among the instructions
        config["skills"] = {"include_instructions": False}  # the model is told of none: the workspace's load untrusted
    if admission.further:
        config["sandbox_workspace_write"] = {"writable_roots": [str(each) for each in admission.further]}
    return config
