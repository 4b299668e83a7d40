"""Run by the Python that has Hermes, on any machine: `export SESSION` writes a session of its database on stdout,
`import FILE` adds what is new in one. Hermes 0.19 has a command for the first alone; both go by its own class here.

A session that is there keeps what it has, and its messages have to be the first ones of those that come. So twice is
once, and of two at once the second one finds that nothing is left.
"""

import contextlib
import fcntl
import json
import os
import sys
from pathlib import Path
from typing import Any

import hermes_constants  # type: ignore[import-not-found]
import hermes_state  # type: ignore[import-not-found]

ABSENT = "there is no such session"
MESSAGE = ("role", "content", "tool_call_id", "tool_calls")
"""What makes a message this one; Hermes adds the rest."""
MORE = (
    *("tool_name", "effect_disposition", "timestamp", "token_count", "finish_reason", "reasoning", "reasoning_content"),
    *("reasoning_details", "codex_reasoning_items", "codex_message_items", "api_content"),
)
STRUCTURED = ("reasoning_details", "codex_reasoning_items", "codex_message_items")


def main(verb: str, what: str) -> str | None:
    """An error's words; None where it is done."""
    home = hermes_constants.get_hermes_home()
    database = home / os.environ.get("STEERSMAN_HERMES_DATABASE", "state.db")
    if verb == "export":
        return _export(database, what)
    home.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # NFS takes no lock of a directory
        fcntl.flock(os.open(home, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_EX)  # until this process ends
    return _import(hermes_state.SessionDB(database), json.loads(Path(what).read_bytes()))


def _export(database: Path, session: str) -> str | None:
    found = hermes_state.SessionDB(database).export_session(session) if database.exists() else None
    if found is None:
        return ABSENT
    messages = [{name: each.get(name) for name in (*MESSAGE, *MORE)} for each in found.pop("messages")]
    json.dump({"session": found, "messages": messages}, sys.stdout)
    return None


def _import(store: Any, archive: dict[str, Any]) -> str | None:
    session, messages = archive["session"], archive["messages"]
    known = store.export_session(session["id"])
    if known is None:
        title = session.get("title")
        free = title if isinstance(title, str) and store.get_session_by_title(title) is None else None
        done = store.import_sessions([{**session, "title": free, "cwd": str(Path.cwd()), "messages": []}])
        if not done["ok"]:
            return str(done["errors"])[:400]
    had = [] if known is None else [_told(each) for each in known["messages"]]
    if had != [_told(each) for each in messages[: len(had)]]:
        return "another session of this id is there"
    for each in messages[len(had) :]:
        store.append_message(session["id"], **{name: _value(name, each.get(name)) for name in (*MESSAGE, *MORE)})
    return None


def _told(message: dict[str, Any]) -> list[Any]:
    return [message.get(name) or None for name in MESSAGE]


def _value(name: str, value: Any) -> Any:
    """Hermes gives these as JSON, and takes what they say."""
    return json.loads(value) if name in STRUCTURED and isinstance(value, str) else value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
