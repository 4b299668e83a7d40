"""MCP servers of a request: which of them run a program, and their configuration with secrets filled in."""

import json
from collections.abc import Mapping

from activities.ports.admission import Program
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.model import JsonObject, JsonValue

_REMOTE = frozenset({"type", "url", "headers"})
_LOCAL = frozenset({"type", "command", "args"})
_TYPES = ("http", "sse", "streamable-http", "ws")
_NO_KEYS = {"ANTHROPIC_API_KEY": "", "ANTHROPIC_AUTH_TOKEN": "", "CLAUDE_CODE_OAUTH_TOKEN": ""}
"""Claude Code gives a server that is a program its own environment, the agent's key included (measured)."""
_EXPANSION = "${"
"""Claude Code expands it to variables of its own environment, the agent's key among them."""


def programs(servers: Mapping[str, JsonObject]) -> tuple[Program, ...]:
    """The servers that run a program: those with a command, and those with a field that is not known here."""
    return tuple(
        Program(f"options.mcp_servers.{name}", _words(server))
        for name, server in servers.items()
        if not _is_remote(server)
    )


def configuration(servers: Mapping[str, JsonObject], lent: Mapping[str, str]) -> JsonObject:
    """The configuration as Claude Code reads it. `lent`: the variables that the operator lends to MCP servers.

    Raises InvalidRequest for what is no server, a value of the wrong type, or a variable that is not lent.
    """
    resolved: JsonObject = {}
    for name, server in servers.items():
        if _EXPANSION in json.dumps(server):
            raise InvalidRequest(f"options.mcp_servers.{name}: must not hold {_EXPANSION!r}, which Claude Code expands")
        filled: JsonObject = {"type": "http", **server} if _is_remote(server) else dict(server)
        if not _is_server(filled):
            raise InvalidRequest(
                f"options.mcp_servers.{name}: must have a command, with args and env, or a url and type http or sse"
            )
        for group in ("env", "headers"):
            values = filled.get(group)
            if isinstance(values, dict):
                filled[group] = {key: _value(name, key, value, lent) for key, value in values.items()}
        resolved[name] = _without_keys(filled) if "command" in filled else filled
    return {"mcpServers": resolved}


def _is_remote(server: JsonObject) -> bool:
    url, kind, headers = server.get("url"), server.get("type", "http"), server.get("headers", {})
    return (
        set(server) <= _REMOTE
        and isinstance(url, str)
        and url.startswith(("https://", "http://"))
        and kind in ("http", "sse")
        and isinstance(headers, dict)
    )


def _without_keys(server: JsonObject) -> JsonObject:
    given = server.get("env", {})
    return {**server, "env": {**_NO_KEYS, **(given if isinstance(given, dict) else {})}}


def _is_server(server: JsonObject) -> bool:
    """Whether Claude Code takes it for one. It leaves out anything else, and tells nobody (measured)."""
    if "command" not in server:
        return isinstance(server.get("url"), str) and server.get("type") in _TYPES
    return bool(_command(server)) and isinstance(server.get("env", {}), dict) and _is_stdio(server)


def _words(server: JsonObject) -> tuple[str, ...]:
    """The command line if nothing else decides what runs; empty otherwise."""
    return _command(server) if set(server) <= _LOCAL and _is_stdio(server) else ()


def _is_stdio(server: JsonObject) -> bool:
    return server.get("type", "stdio") == "stdio"


def _command(server: JsonObject) -> tuple[str, ...]:
    """The command and its arguments; empty where they are no texts."""
    arguments = server.get("args", [])
    words = [server.get("command"), *arguments] if isinstance(arguments, list) else [None]
    return tuple(str(each) for each in words) if all(isinstance(each, str) for each in words) else ()


def _value(server: str, key: str, value: JsonValue, lent: Mapping[str, str]) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and list(value) == ["from_env"] and str(value["from_env"]) in lent:
        return lent[str(value["from_env"])]
    raise InvalidRequest(
        f'options.mcp_servers.{server}: {key} must be a string or {{"from_env": NAME}} with a variable that the '
        "operator lends to MCP servers (see --allow-env)"
    )
