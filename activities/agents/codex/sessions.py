"""Codex's own files of conversations: where one is, and what its first line says. Only read here.

    sessions/2026/11/26/rollout-2026-11-26T02-32-54-<thread id>.jsonl    lines are added, none is changed

By the local time of its beginning, wherever it was held. Codex finds it by the id in its name, and needs no other file
for that. The first line has the id, too, and that one counts: a thread with the same other id in both is resumed under
that, whatever ids further lines have. A forked thread begins with another one, of which it has the id and a number of
lines: that one's file has to be there. Measured with 0.163.0.

Threads of its sub-agents have files of their own, whose first line has the id of the thread that began them. In a new
process the model goes on with one by the tool `resume_agent`, which finds any thread by its id, and says that there is
no such agent where its file is not there. The thread that began it names it where it did.

Left out are archived ones, which it does not resume, and compressed ones (a feature that is off).
"""

import json
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from activities.agents.codex import records
from activities.agents.command_ids import uuid_for
from activities.ports.sessions import SessionFiles
from activities.untrusted_json import object_at
from steersman.contracts.activities import RunKey

_NAME = "rollout-####-##-##T##-##-##-{}.jsonl"
_PLACE = f"sessions/####/##/##/{_NAME}"
_ID = rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_BEGUN = re.compile(rb'(?:"receiver_thread_ids":\["|\\"agent_id\\":\\")(' + _ID + rb')\\?"')
_PUT_AWAY = (f"archived_sessions/{_NAME}", f"{_PLACE}.zst")


class CodexSessions:
    """See ports.sessions."""

    def home(self, environment: Mapping[str, str]) -> str | None:
        """CODEX_HOME, else in the home of the user."""
        home = records.home(environment)
        return str(home) if home and home.is_absolute() else None

    def files(self, session: str, directory: PurePath) -> SessionFiles | None:
        """One file, wherever the thread was held."""
        if not records.is_id(session):
            return None
        put_away = tuple(each.format(session) for each in _PUT_AWAY)
        return SessionFiles(_PLACE.format(session), None, ThreadHeader(), put_away, subagents=SpawnedThreads())

    def begun(self, key: RunKey, attempt: int) -> str | None:
        """Codex chooses the ids of its threads."""
        return None

    def kept(self, key: RunKey, session: str) -> str:
        """Codex resumes a thread of any UUID."""
        return uuid_for(key, f"kept-{session}")


class ThreadHeader:
    """See ports.sessions.FirstLine: the record `session_meta`."""

    def source(self, line: bytes, session: str) -> str | None:
        """The thread that this one was forked from."""
        source = _header(line, session).get("forked_from_id")
        if source is None or (isinstance(source, str) and records.is_id(source)):
            return source
        raise ValueError("it was forked from what is no thread")

    def renamed(self, line: bytes, session: str, name: str) -> bytes:
        """Both ids are of one length, and nothing else of the line is touched."""
        _header(line, session)
        renamed = line.replace(f'"{session}"'.encode(), f'"{name}"'.encode())
        _header(renamed, name)
        return renamed


class SpawnedThreads:
    """See ports.sessions.Subagents: calls of the tool `spawn_agent`, and the record `session_meta`."""

    named = _BEGUN

    def parent(self, line: bytes, session: str) -> str | None:
        """The thread that began this one."""
        parent = _header(line, session).get("parent_thread_id")
        return parent if isinstance(parent, str) and records.is_id(parent) else None

    def adopted(self, line: bytes, session: str, parent: str) -> bytes:
        """As for ThreadHeader.renamed."""
        said = self.parent(line, session)
        adopted = line.replace(f'"{said}"'.encode(), f'"{parent}"'.encode())
        if self.parent(adopted, session) != parent:
            raise ValueError(f"it does not say that it is of a sub-agent of {said}")
        return adopted


def _header(line: bytes, session: str) -> dict[str, Any]:
    """What the line says of the thread. Raises ValueError where it is of another one, or may be read in two ways."""
    try:
        record = object_at(json.loads(line, object_pairs_hook=_unambiguous))
    except RecursionError as error:
        raise ValueError(str(error)) from error
    header = object_at(record, "payload")
    if record.get("type") != "session_meta" or header.get("id") != session:
        raise ValueError(f"it does not say that it is of thread {session}")
    return header


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("it says something twice")
    return found
