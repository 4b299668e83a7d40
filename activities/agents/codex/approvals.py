"""Codex's requests: asked, answered and resolved, as the journal has them. Who answers must not live here."""

import re
from datetime import datetime
from typing import Any

from activities.agents import approval_ids
from activities.agents.codex.items import TOOLS, mcp_tool
from activities.agents.codex.state import MAX_WITHDRAWN, CodexState
from activities.agents.frames import Frame
from activities.untrusted_json import MAX_NAME, bounded, object_at, text_of
from steersman.contracts.events import ErrorEvent, EventBase, PermissionEvent
from steersman.contracts.model import JsonObject
from steersman.contracts.run import Approval

KINDS = {
    "item/commandExecution/requestApproval": "commandExecution",
    "item/fileChange/requestApproval": "fileChange",
}
ELICITATION = "mcpServer/elicitation/request"
"""A question of an MCP server's, or of Codex's own: whether a tool of that server may be called."""
MCP_CALL = "mcp_tool_call"
"""`codex_approval_kind` of the latter. It names the tool in its text alone, and no item (measured with 0.163)."""
_NAMED = re.compile(r' run tool "([^"]+)"\?$')

SHOWN_INPUT = 4096
"""Strings of what is to be approved have this many characters."""
KEPT = (
    "itemId",
    "approvalId",
    "command",
    "cwd",
    "reason",
    "grantRoot",
    "additionalPermissions",
    "networkApprovalContext",
)
"""The fields of a request that anybody needs."""
OUTSIDE = "what is allowed may run outside it: Codex does not say whether the model has asked for that"
"""Of a command: the request is the same with `sandbox_permissions: require_escalated` (measured with 0.163)."""


def is_approval(frame: Frame) -> bool:
    """Whether this request, as it is kept, asks for a permission that a person can give."""
    return text_of(frame.get("method")) in KINDS or _is_mcp_call(frame)


def _is_mcp_call(frame: Frame) -> bool:
    return frame.get("method") == ELICITATION and "tool" in object_at(frame, "params")


def tool_of(frame: Frame) -> str:
    """The tool that an approval is for."""
    if _is_mcp_call(frame):
        return text_of(object_at(frame, "params").get("tool"))
    return TOOLS[KINDS[text_of(frame.get("method"))]]


def answer_of(frame: Frame, *, allowed: bool) -> JsonObject:
    """The answer to an approval."""
    word = "accept" if allowed else "decline"
    if not _is_mcp_call(frame):
        return {"decision": word}
    return {"action": word, "content": {}} if allowed else {"action": word}


def approval_id(frame: Frame) -> str:
    """The id of the approval that a request asks for."""
    return approval_ids.of_request(frame.get("id"))


def approval_of(frame: Frame, state: CodexState, now: datetime) -> Approval:
    """What a person is asked by a request."""
    shown = input_of(frame, state)
    return Approval(id=approval_id(frame), tool=tool_of(frame), tool_id=tool_id(frame), input=shown, since=now)


def tool_id(frame: Frame) -> str | None:
    """The id of the item that is to be done."""
    return text_of(object_at(frame, "params").get("itemId"))[:MAX_NAME] or None


def input_of(frame: Frame, state: CodexState) -> JsonObject:
    """What is to be done: of a command as the request has it, of changes as their item does."""
    params = object_at(frame, "params")
    if _is_mcp_call(frame):
        return bounded(object_at(params, "arguments"), SHOWN_INPUT)
    known = object_at(state.items.get(text_of(params.get("itemId"))[:MAX_NAME]), "input")
    given = {name: each for name, each in params.items() if not name.endswith("Id")}
    sandbox = {"sandbox": OUTSIDE} if tool_of(frame) == TOOLS["commandExecution"] else {}
    return bounded({**known, **given, **sandbox}, SHOWN_INPUT)


def asked(time: datetime, frame: Frame, state: CodexState) -> list[EventBase]:
    """Take a request of the agent."""
    ident, params = frame.get("id"), object_at(frame, "params")
    if not isinstance(ident, int | str) or len(str(ident)) > MAX_NAME:
        return [ErrorEvent(time=time, message="the agent asked something that nobody can answer")]
    kept = bounded({name: params[name] for name in KEPT if params.get(name) is not None}, SHOWN_INPUT)
    if frame.get("method") == ELICITATION and object_at(params, "_meta").get("codex_approval_kind") == MCP_CALL:
        kept = _mcp_call(params, state)
    frame = {"id": ident, "method": text_of(frame.get("method"))[:MAX_NAME], "params": kept}
    state.pending[str(ident)] = frame
    if not is_approval(frame):
        return []
    return [_event(time, frame, state="asked", input=input_of(frame, state))]


def answered(time: datetime, frame: Frame, state: CodexState) -> list[EventBase]:
    """Take an answer that was written to the agent."""
    question = state.pending.pop(str(frame.get("id")), None)
    if question is None or not is_approval(question):
        return []
    result = object_at(frame, "result")
    allowed = "accept" in (result.get("decision"), result.get("action"))
    return [_event(time, question, state="allowed" if allowed else "denied")]


def resolved(time: datetime, params: Frame, state: CodexState) -> list[EventBase]:
    """Take the word that a request needs no answer any more, because its turn was interrupted."""
    question = state.pending.pop(str(params.get("requestId")), None)
    if question is None or not is_approval(question):
        return []
    if len(state.withdrawn) < MAX_WITHDRAWN:
        state.withdrawn.add(approval_id(question))
    return [_event(time, question, state="withdrawn")]


def _mcp_call(params: Frame, state: CodexState) -> JsonObject:
    """What is kept of a request for a call of a server's tool, with the call's id where no other can be meant."""
    named = _NAMED.search(text_of(params.get("message")))
    tool = mcp_tool(text_of(params.get("serverName")), named[1] if named else "")
    kept = bounded({"tool": tool, "arguments": object_at(params, "_meta", "tool_params")}, SHOWN_INPUT)
    calls = [ident for ident, item in state.items.items() if item["name"] == tool]
    return {**kept, "itemId": calls[0]} if len(calls) == 1 else kept


def _event(time: datetime, question: Frame, **fields: Any) -> PermissionEvent:
    named: dict[str, Any] = {"id": approval_id(question), "tool": tool_of(question), "tool_id": tool_id(question)}
    return PermissionEvent(time=time, **named, **fields)
