"""opencode's sessions: written out by `opencode export`, taken in by `opencode import`. Measured with 1.18.33.

`export` writes a session with its messages and their parts; into a pipe it writes 64 KiB at most. `import` adds what is
not there by its id, of messages and of parts, changes none that is there, and sets the session's directory to the one
in which it runs. A message is another session's where that has its id, and a part is of whichever message it names: so
ids of what comes from elsewhere are made anew. Both commands run plugins of the directory unless they are told not to.

Each sub-agent has a session of its own, with `parentID`, which is not written out with its parent. The tool `task`
names it in its metadata, its result and its error, and goes on with any session that is named to it; with one that is
not there it begins a new one, without a word. What a sub-agent must not do is in its session's rules of permission.

Other rules of permission, what a session shares and where its messages get files from by themselves are left out of
what comes from elsewhere.
"""

import hashlib
import json
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from activities.agents import databases
from activities.ports.archives import Archive
from activities.untrusted_json import count_of, object_at, objects_in, parse_limited
from steersman.contracts.activities import RunKey

_SESSION = re.compile(r"ses_[0-9A-Za-z]{12}[0-9A-Za-z]{14}")
_MESSAGE = re.compile(r"msg_[0-9A-Za-z]{12}[0-9A-Za-z]{14}")
_PART = re.compile(r"prt_[0-9A-Za-z]{12}[0-9A-Za-z]{14}")
_SUBAGENT = re.compile(rf"\b{_SESSION.pattern}\b")
_SAID = 200
"""A session of a sub-agent's is named within so many characters."""
_TIME = len("msg_") + 12
"""An id begins with its kind and time, and ends with what makes it unlike any other."""
_DENY = "deny"
_DIGITS = string.digits + string.ascii_letters
_KEPT = ("id", "slug", "projectID", "directory", "title", "version", "time", "cost", "tokens")
"""What a session brings along from elsewhere, beside its messages."""
_QUIET = ("AUTOUPDATE", "LSP_DOWNLOAD", "MODELS_FETCH", "PROJECT_CONFIG", "SHARE")
_NEEDED = ("HOME", "PATH", "OPENCODE_DB", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")


class OpencodeArchives:
    """See ports.archives.SessionArchives."""

    def is_id(self, session: str) -> bool:
        return _SESSION.fullmatch(session) is not None

    def database(self, directory: PurePath) -> dict[str, str]:
        """A file beside the user's database, by a name that no other directory has."""
        return {"OPENCODE_DB": databases.name_of(directory)}

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        found = {name: environment[name] for name in _NEEDED if environment.get(name)}
        return {**found, "NO_COLOR": "1", "OPENCODE_PURE": "1", **{f"OPENCODE_DISABLE_{what}": "1" for what in _QUIET}}

    def written_out(self, session: str) -> tuple[str, ...]:
        return ("opencode", "export", session)

    def taken_in(self) -> tuple[str, ...]:
        return ("opencode", "import")

    def is_absent(self, said: str) -> bool:
        return "Session not found" in said

    def files(self, environment: Mapping[str, str], directory: PurePath) -> tuple[str, ...]:
        data = environment.get("XDG_DATA_HOME") or f"{environment.get('HOME', '/')}/.local/share"
        return databases.files_of(f"{data}/opencode/{databases.name_of(directory)}")

    def archive(self, data: bytes, session: str) -> Archive:
        return _archive(parse_limited(data), session)

    def kept(self, key: RunKey, session: str) -> str:
        return _another(session, f"{key.run}:{key.execution}")


@dataclass(frozen=True)
class OpencodeArchive:
    """See ports.archives.Archive. `messages`: as opencode has them, each with its parts; `new`: ids of those of them
    that were made anew.
    """

    info: dict[str, Any]
    messages: tuple[dict[str, Any], ...]
    new: frozenset[str] = frozenset()

    @property
    def newest_s(self) -> float:
        times = [count_of(object_at(each, "info", "time").get("created")) for each in self.messages]
        return max(times, default=0) / 1000

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(each["info"]["id"] for each in self.messages)

    @property
    def parent(self) -> str | None:
        parent = self.info.get("parentID")
        return parent if _is_id(_SESSION, parent) else None

    def subagents(self, after: int = 0) -> tuple[str, ...]:
        parts = [part for each in self.messages[after:] for part in each["parts"]]
        named = [found[0] for part in reversed(parts) for text in _told(part) if (found := _SUBAGENT.search(text))]
        return tuple(dict.fromkeys(named))

    def renamed(self, name: str, known: Archive | None, parent: str | None = None) -> "OpencodeArchive":
        had = set(known.ids) if known else set()
        fresh = [each for each in self.messages if each["info"]["id"] not in had]
        ids = [one["id"] for each in fresh for one in (each["info"], *each["parts"])]
        names = {each: _another(each, name) for each in ids} | {self.info["id"]: name}
        messages = tuple(_renamed(_harmless(each), names) for each in self.messages)
        info = {name: self.info[name] for name in _KEPT if name in self.info}
        if parent is not None:
            info |= {"parentID": parent, "permission": _denied(self.info.get("permission"))}
        new = frozenset(names[each["info"]["id"]] for each in fresh)
        return OpencodeArchive(_renamed(info, names), messages, new)

    def naming(self, names: Mapping[str, str]) -> "OpencodeArchive":
        others = {session: name for session, name in names.items() if session != name}
        return replace(self, messages=_naming(self.messages, others)) if others else self

    def whole(self) -> "OpencodeArchive":
        ended = [bool(each["parts"]) and _is_ended(each["info"]) for each in self.messages]
        return replace(self, messages=self.messages[: [*ended, False].index(False)])

    def beyond(self, known: Archive | None) -> "OpencodeArchive | None":
        messages = known.messages if isinstance(known, OpencodeArchive) else ()
        had = {each["info"]["id"]: _parts(each) for each in messages}
        more = tuple(each for each in self.messages if _is_more(each, had) and each["info"]["id"] in self.new)
        return replace(self, messages=more) if more or known is None else None

    def data(self) -> bytes:
        return json.dumps({"info": self.info, "messages": self.messages}).encode()


def _archive(found: Any, session: str) -> OpencodeArchive:
    info, messages = object_at(found, "info"), objects_in(object_at(found).get("messages"))
    if info.get("id") != session:
        raise ValueError(f"it does not say that it is session {session}")
    for each in messages:
        _check(each, session)
    made = OpencodeArchive(info, tuple(messages))
    if len(set(made.ids)) != len(made.ids):
        raise ValueError("it has a message twice")
    return made


def _check(message: dict[str, Any], session: str) -> None:
    """Raises ValueError for a message that is not this session's, or has parts that are not its own."""
    info, parts = object_at(message, "info"), message.get("parts")
    if not _is_id(_MESSAGE, info.get("id")) or info.get("sessionID") != session:
        raise ValueError("it has a message that is none of its own")
    if not isinstance(parts, list) or len(parts) != len(objects_in(parts)):
        raise ValueError("it has a message without parts")
    for part in parts:
        if not _is_id(_PART, part.get("id")) or (part.get("sessionID"), part.get("messageID")) != (session, info["id"]):
            raise ValueError("it has a part that is none of its message's")


def _is_id(kind: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and kind.fullmatch(value) is not None


def _is_ended(info: dict[str, Any]) -> bool:
    return info.get("role") != "assistant" or "completed" in object_at(info, "time")


def _is_more(message: dict[str, Any], had: Mapping[str, set[str]]) -> bool:
    its = had.get(message["info"]["id"])
    return its is None or not _parts(message) <= its


def _parts(message: dict[str, Any]) -> set[str]:
    return {part["id"] for part in message["parts"]}


def _harmless(message: dict[str, Any]) -> dict[str, Any]:
    """Without what the model's service, or opencode itself, would be made to read for it."""
    parts = [_attached(part) for part in message["parts"] if _is_in_itself(part)]
    return {"info": message["info"], "parts": parts}


def _attached(part: dict[str, Any]) -> dict[str, Any]:
    """The same of what a tool has given beside its text."""
    state = object_at(part, "state")
    if "attachments" not in state:
        return part
    attachments = [each for each in objects_in(state["attachments"]) if _is_in_itself(each)]
    return {**part, "state": {**state, "attachments": attachments}}


def _is_in_itself(part: dict[str, Any]) -> bool:
    url = part.get("url")
    return part.get("type") != "file" or (isinstance(url, str) and url.startswith("data:"))


def _told(part: dict[str, Any]) -> list[str]:
    """Where a part may name the session of a sub-agent: a call of the tool, or what opencode says when one ends."""
    state = object_at(part, "state")
    called = (object_at(state, "metadata").get("sessionId"), state.get("error")) if part.get("tool") == "task" else ()
    said = (part.get("text"),) if part.get("synthetic") is True else ()
    return [each[:_SAID] for each in (*called, *said) if isinstance(each, str)]


def _denied(rules: Any) -> list[dict[str, str]]:
    """What rules of permission forbid: that alone may come from elsewhere."""
    found = objects_in(rules) if isinstance(rules, list) else []
    texts = [(each.get("permission"), each.get("pattern")) for each in found if each.get("action") == _DENY]
    return [
        {"permission": permission, "pattern": pattern, "action": _DENY}
        for permission, pattern in texts
        if isinstance(permission, str) and isinstance(pattern, str)
    ]


def _naming(value: Any, names: Mapping[str, str]) -> Any:
    """The value, with each of these ids replaced in all its texts."""
    if isinstance(value, str):
        return _SUBAGENT.sub(lambda found: names.get(found[0], found[0]), value)
    if isinstance(value, dict):
        return {key: _naming(each, names) for key, each in value.items()}
    return type(value)(_naming(each, names) for each in value) if isinstance(value, list | tuple) else value


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """The value, with each text that is one of these ids replaced."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, dict):
        return {key: _renamed(each, names) for key, each in value.items()}
    return [_renamed(each, names) for each in value] if isinstance(value, list) else value


def _another(id: str, name: str) -> str:
    """An id of the same kind and time, made of this one and a name."""
    number = int.from_bytes(hashlib.sha256(f"{name}:{id}".encode()).digest())
    made = ""
    for _ in range(len(id) - _TIME):
        number, digit = divmod(number, len(_DIGITS))
        made += _DIGITS[digit]
    return id[:_TIME] + made
