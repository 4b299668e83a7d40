"""Hermes's sessions: written out and taken in by its own class for them (archive_program). Measured with 0.19.0.

A session is a row of Hermes's database and its messages, which have no ids of their own beyond it: one is known by what
it says, and by those before it. A session that a person or Hermes has made shorter since, as Hermes does by summing up,
is another one then.

Left out of what comes from elsewhere are the model's address, provider and settings, which decide to whom the key of
this machine is sent, the system prompt, which Hermes makes anew, and what the model's service would fetch for it.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path, PurePath
from typing import Any

from activities.agents import databases
from activities.agents.hermes import interpreter
from activities.ports.archives import Archive
from activities.untrusted_json import object_at, objects_in, parse_limited
from steersman.contracts.activities import RunKey

DATABASE = "STEERSMAN_HERMES_DATABASE"
"""The variable that names the database in Hermes's home: a word of ours, as Hermes has none."""
MAX_MESSAGES = 100_000
"""A session has at most this many: Hermes takes each one in by itself, some 2,000 a second."""
_ID = re.compile(r"[0-9]{8}_[0-9]{6}_[0-9a-f]{4,32}")

_PROGRAM = Path(__file__).with_name("archive_program.py")
_ABSENT = "there is no such session"
_ON_PATH = (
    'hermes=$(command -v hermes) || { echo "hermes is not on PATH" >&2; exit 127; }; exec sh -c "$0" "$hermes" "$@"'
)
_NEEDED = ("HOME", "PATH", "HERMES_HOME")
_ROLES = ("user", "assistant", "tool")
_TIME = len("20261125_020841_")
_KEPT = (
    *("source", "model", "started_at", "ended_at", "end_reason", "input_tokens", "output_tokens"),
    *("cache_read_tokens", "cache_write_tokens", "reasoning_tokens", "estimated_cost_usd", "api_call_count"),
)
"""What a session brings along from elsewhere, beside its messages."""
_TEXTS = (
    *("tool_call_id", "tool_name", "effect_disposition", "finish_reason", "reasoning", "reasoning_content"),
    "api_content",
)


class HermesArchives:
    """See ports.archives.SessionArchives."""

    def is_id(self, session: str) -> bool:
        return _ID.fullmatch(session) is not None

    def database(self, directory: PurePath) -> dict[str, str]:
        """A file beside the user's database, by a name that no other directory has."""
        return {DATABASE: databases.name_of(directory)}

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        return {name: environment[name] for name in _NEEDED if environment.get(name)}

    def written_out(self, session: str) -> tuple[str, ...]:
        return (*_command(), "export", session)

    def taken_in(self) -> tuple[str, ...]:
        return (*_command(), "import")

    def is_absent(self, said: str) -> bool:
        return _ABSENT in said

    def files(self, environment: Mapping[str, str], directory: PurePath) -> tuple[str, ...]:
        home = environment.get("HERMES_HOME") or f"{environment.get('HOME', '/')}/.hermes"
        return databases.files_of(f"{home}/{databases.name_of(directory)}")

    def archive(self, data: bytes, session: str) -> Archive:
        return _archive(parse_limited(data), session)

    def kept(self, key: RunKey, session: str) -> str:
        made = hashlib.sha256(f"{key.run}:{key.execution}:{session}".encode()).hexdigest()
        return f"{session[:_TIME]}{made[:12]}"


@dataclass(frozen=True)
class HermesArchive:
    """See ports.archives.Archive. `session`, `messages`: as archive_program writes them."""

    session: dict[str, Any]
    messages: tuple[dict[str, Any], ...]

    parent: str | None = None
    """A session of a sub-agent's is carried by itself alone, if at all."""

    @property
    def newest_s(self) -> float:
        """0: messages are in the order in which they were added, whatever time they have."""
        return 0

    @cached_property
    def ids(self) -> tuple[str, ...]:
        found, before = [], ""
        for each in self.messages:
            told = [each.get(name) or None for name in ("role", "content", "tool_call_id", "tool_calls")]
            before = hashlib.sha256(json.dumps([before, told], sort_keys=True).encode()).hexdigest()
            found.append(before)
        return tuple(found)

    def subagents(self, after: int = 0) -> tuple[str, ...]:
        return ()

    def renamed(self, name: str, known: Archive | None, parent: str | None = None) -> "HermesArchive":
        both = zip(self.ids, known.ids if known else (), strict=False)
        had = sum(1 for _ in takewhile(lambda ids: ids[0] == ids[1], both))
        fresh = [_harmless(each) for each in self.messages[had:] if each["role"] in _ROLES]
        session = {field: self.session[field] for field in _KEPT if field in self.session}
        return HermesArchive({**session, "id": name}, (*self.messages[:had], *fresh))

    def naming(self, names: Mapping[str, str]) -> "HermesArchive":
        return self

    def whole(self) -> "HermesArchive":
        """To the last message before which no call waits for its result."""
        waiting: set[str] = set()
        ended = 0
        for number, each in enumerate(self.messages, 1):
            waiting |= {str(call.get("id")) for call in objects_in(each.get("tool_calls") or [])}
            waiting.discard(str(each.get("tool_call_id")))
            if not waiting:
                ended = number
        return replace(self, messages=self.messages[:ended])

    def beyond(self, known: Archive | None) -> "HermesArchive | None":
        """All of it: what is there already is told by what it says."""
        return self if known is None or len(self.ids) > len(known.ids) else None

    def data(self) -> bytes:
        return json.dumps({"session": self.session, "messages": self.messages}).encode()


def _command() -> tuple[str, ...]:
    return ("sh", "-c", _ON_PATH, interpreter.ELSEWHERE, "-P", "-c", _PROGRAM.read_text())


def _archive(found: Any, session: str) -> HermesArchive:
    row, messages = object_at(found, "session"), object_at(found).get("messages")
    if row.get("id") != session:
        raise ValueError(f"it does not say that it is session {session}")
    if not isinstance(messages, list) or len(messages) != len(objects_in(messages)):
        raise ValueError("it has no messages")
    if len(messages) > MAX_MESSAGES:
        raise ValueError(f"it has more than {MAX_MESSAGES:,} messages")
    for each in messages:
        _check(each)
    return HermesArchive(row, tuple(messages))


def _check(message: dict[str, Any]) -> None:
    """Raises ValueError for what is no message of Hermes."""
    calls = message.get("tool_calls")
    fits = (
        isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str | list | None)
        and (calls is None or (isinstance(calls, list) and len(calls) == len(objects_in(calls))))
        and all(isinstance(message.get(name), str | None) for name in _TEXTS)
        and all(isinstance(message.get(name), int | float | None) for name in ("timestamp", "token_count"))
    )
    if not fits:
        raise ValueError("it has a message that is none of Hermes's")


def _harmless(message: dict[str, Any]) -> dict[str, Any]:
    """Without what the model's service would be made to fetch for it."""
    content = message.get("content")
    told = {name: _text(message.get(name)) for name in _TEXTS}
    return {**message, **told, "content": _in_itself(content) if isinstance(content, list) else _text(content)}


def _text(value: Any) -> Any:
    """Hermes takes a text for something else that begins with NUL."""
    return value.replace("\0", "") if isinstance(value, str) else value


def _in_itself(parts: Sequence[Any]) -> list[dict[str, Any]]:
    found = []
    for part in objects_in(parts):
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, dict) else image
        if isinstance(url, str) and url.startswith("data:"):
            found.append({"type": "image_url", "image_url": {"url": url}})
        elif isinstance(part.get("text"), str):
            found.append({"type": "text", "text": part["text"]})
    return found
