"""How the session of one process begins: what the launch writes down for whichever worker leads it, and what is asked.

The launch knows the directory and whether the workspace is trusted; a worker that takes over has only the journal. So
it goes along in `_meta` of the first frame, where the protocol lets clients put what is theirs.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from activities.agents.acp import frames
from activities.agents.frames import Frame
from activities.untrusted_json import object_at, objects_in, text_of

META = "steersman"
NO_COMMAND = "What follows is meant as it is written, not as a command of yours:\n"


@dataclass(frozen=True)
class Setting:
    """A value that the session is given before its first prompt: `name` is "mode" or "model"."""

    name: str
    value: str


@dataclass(frozen=True)
class Start:
    """What the launch knows of a process.

    Args:
        directory: where the agent works, absolute.
        preamble: what the first prompt begins with.
        restricted: a text must not reach the agent's own commands (Gemini CLI's `/extensions install`, for one).
    """

    directory: str = ""
    preamble: str = ""
    restricted: bool = False


def initialize(start: Start) -> str:
    """The first frame: what we offer is nothing, the agent reads files and runs commands itself."""
    params = {
        "protocolVersion": frames.PROTOCOL_VERSION,
        "clientCapabilities": {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False},
        "clientInfo": {"name": "steersman", "version": "1"},
        "_meta": {META: asdict(start)},
    }
    return frames.request(frames.INITIALIZE, "initialize", params)


def start_of(frame: Frame) -> Start:
    """What `initialize` wrote down."""
    meta = object_at(frame, "params", "_meta", META)
    directory, preamble = text_of(meta.get("directory")), text_of(meta.get("preamble"))
    return Start(directory, preamble, restricted=meta.get("restricted") is not False)


def plain(texts: Sequence[str]) -> tuple[str, ...]:
    """The same texts, as a prompt that no agent takes for a command of its own: those begin with a sign."""
    first = "".join(texts).lstrip()[:1]
    return tuple(texts) if not first or first.isalnum() else (NO_COMMAND, *texts)


def open_session(directory: str, session: str | None, abilities: Frame, *, fork: bool) -> str | None:
    """The request for a session: a new one, or the given one again; None where the agent can do neither.

    `abilities`: the agent's answer to `initialize`. A session that is resumed is not told again, one that is loaded is.
    """
    params: dict[str, Any] = {"cwd": directory, "mcpServers": []}
    if session is None:
        return frames.request(frames.SESSION, "session/new", params)
    known = object_at(abilities, "agentCapabilities", "sessionCapabilities")
    params["sessionId"] = session
    if fork:
        return frames.request(frames.SESSION, "session/fork", params) if "fork" in known else None
    if "resume" in known:
        return frames.request(frames.SESSION, "session/resume", params)
    loads = object_at(abilities, "agentCapabilities").get("loadSession") is True
    return frames.request(frames.SESSION, "session/load", params) if loads else None


def set_value(setting: Setting, session: str, opened: Frame) -> str | None:
    """The request for a setting; None where the session offers no such value. `opened`: the answer to the session's
    request. Some agents have options (`configOptions`), older ones modes and models of their own methods.
    """
    command, params = frames.SETTING + setting.name, {"sessionId": session}
    for option in _options(setting.name, opened):
        if setting.value in _values(option.get("options")):
            params |= {"configId": text_of(option.get("id")), "value": setting.value}
            return frames.request(command, "session/set_config_option", params)
    state = object_at(opened, f"{setting.name}s")
    offered = objects_in(state.get("availableModes" if setting.name == "mode" else "availableModels"))
    ident = "id" if setting.name == "mode" else "modelId"
    if setting.value not in [each.get(ident) for each in offered]:
        return None
    params["modeId" if setting.name == "mode" else "modelId"] = setting.value
    return frames.request(command, f"session/set_{setting.name}", params)


def offered(name: str, opened: Frame) -> list[str]:
    """The values of a setting that the session offers, for a message."""
    found = [value for option in _options(name, opened) for value in _values(option.get("options"))]
    state = object_at(opened, f"{name}s")
    found += [text_of(each.get("id") or each.get("modelId")) for key in state for each in objects_in(state[key])]
    return [each[:100] for each in found[:20]]


def _options(name: str, opened: Frame) -> list[Frame]:
    """The options of this setting; one without a category is known by its id."""
    return [
        each for each in objects_in(opened.get("configOptions")) if (each.get("category") or each.get("id")) == name
    ]


def _values(options: Any) -> list[str]:
    """The values of an option's choices, which may be in groups."""
    choices = [choice for each in objects_in(options) for choice in (objects_in(each.get("options")) or [each])]
    return [text_of(each.get("value")) for each in choices]
