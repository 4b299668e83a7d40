"""The frames that are written to Hermes's gateway: JSON-RPC 2.0, one object a line.

The id of each of our requests is that of the command that writes it, so it is the same in every worker. A worker that
takes over has only the journal: what the launch alone knows goes along in the first frame, under a name of ours that
the gateway does not look at.
"""

import json
import re
from typing import Any

from activities.agents.frames import Frame
from activities.agents.prompts import instructions
from activities.ports.admission import Admission
from activities.untrusted_json import object_at, text_of
from steersman.contracts.model import JsonObject
from steersman.contracts.request import RunRequest

SESSION = "session"
"""The request that begins or resumes the session."""
DIRECTORY = "directory"
"""A session that is resumed works where it did before: this is told where it is now."""
PROMPT, REPAIR = "prompt", "repair"
AGAIN = "again-"
"""The prompt of a message that was to steer, and that no result of a tool carried to the model."""
USAGE = "usage-"
"""The request for the tokens used, after the tool call of this number."""
ANSWER = "answer-"
"""The answer to the agent's question of this id."""

SUBMIT, STEER, INTERRUPT, RESUME = "prompt.submit", "session.steer", "session.interrupt", "session.resume"
ANSWERS: dict[str, tuple[str, JsonObject]] = {
    "clarify.request": ("clarify.respond", {"answer": "Nobody can answer this here: decide by yourself."}),
    "sudo.request": ("sudo.respond", {"password": ""}),
    "secret.request": ("secret.respond", {"value": ""}),
    "terminal.read.request": ("terminal.read.respond", {"text": ""}),
    "approval.request": ("approval.respond", {"choice": "deny"}),
}
"""What Hermes asks its user, and what it is told: without an answer it waits for minutes."""

META = "steersman"
_COLUMNS = 100
_RESUMED = re.compile(
    rb'\{"jsonrpc": "2\.0", "id": "session", "result": \{"session_id": "(\w{1,64})", "resumed": "(\w{1,64})", '
)
_REFERENCE = re.compile(r"@(?=(?:diff|staged)\b|(?:file|folder|git|url):)")


def line(frame: Frame) -> str:
    """A frame as it is written."""
    return json.dumps(frame) + "\n"


def request(command: str, method: str, **params: Any) -> str:
    """A request of ours, as a line."""
    return line({"jsonrpc": "2.0", "id": command, "method": method, "params": params})


def session(asked: RunRequest, admission: Admission, resumed: str | None) -> str:
    """The request for the session. `resumed`: that of the process before."""
    directory = str(admission.directory)
    params: JsonObject = {"cols": _COLUMNS, META: {"directory": directory, "preamble": preamble(asked, admission)}}
    if admission.untrusted:
        # To Hermes that is no code workspace, so it does not ask its git by itself.
        params["source"] = META
    if known := resumed or asked.session:
        return request(SESSION, RESUME, session_id=known, **params)
    if asked.model:
        params["model"] = asked.model
    return request(SESSION, "session.create", cwd=directory, **params)


def preamble(asked: RunRequest, admission: Admission) -> str:
    """What the first prompt begins with. No reference of Hermes's own is left in it, which would read a file, fetch a
    page or run git before the model is asked.
    """
    return _REFERENCE.sub("@ ", instructions(asked.system_prompt, admission.untrusted))


def start_of(frame: Frame) -> tuple[str, str]:
    """The directory and what the first prompt begins with, as the request for the session has them."""
    start = object_at(frame, "params", META)
    return text_of(start.get("directory")), text_of(start.get("preamble"))


def resumed_in(line: bytes) -> Frame | None:
    """The beginning of an answer to `session.resume`, whose history may be more than anybody reads."""
    found = _RESUMED.match(line)
    return {"id": SESSION, "result": {"session_id": found[1].decode(), "resumed": found[2].decode()}} if found else None


def answer(command: str, ident: str, asked: str, session_id: str) -> str:
    """The answer to a question of this kind, and of this id."""
    method, said = ANSWERS[asked]
    return request(command, method, session_id=session_id, request_id=ident, **said)
