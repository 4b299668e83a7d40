"""Gemini CLI's own files of conversations: where one is, what its lines say, when it may be loaded. Only looked at.

    projects.json                                                   {"projects": {<directory>: <name>}}
    tmp/<name>/.project_root                                        <directory>
              /chats/session-2026-11-24T21-35-b7f963ac.jsonl        lines are added, none is changed

The name of a conversation has the minute in which it began and the first eight characters of its id. What counts is the
id in its lines: any of them may have it, and the last one wins. Each process that goes on with it adds lines there, and
leaves a further file of its own minute with the same id, in which nothing was said. Where the record has no name for a
directory, the marks (`.project_root`) are looked at. A conversation that was brought to another directory is loaded as
any other. Measured with 0.61.0.

`session/load` in the minute of the name finds no session, and leaves a file that is none any more.

Left out are long results of tools that lie in files beside, and conversations of its sub-agents, in a directory by the
session's id: nothing goes on with one, and a session that goes on opens none.
"""

import json
import re
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path, PurePath

from activities.agents.command_ids import uuid_for
from activities.ports.sessions import ChosenDirectory, SessionFiles
from steersman.contracts.activities import RunKey

MARGIN_S = 1.0
BROUGHT = "2000-01-01T00-00"
"""The minute of a conversation that was brought: no process begins in it."""

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_PLACE = "tmp/*/chats/session-{}-{}.jsonl"
_FIRST = '{{"sessionId":"{}"'
_MESSAGE = '\n{"id":"'

_KEY = b"sessionId"
_ESCAPE = re.compile(rb"\\u00[4-7]")
"""How a letter can be spelled in JSON; Gemini CLI spells none so."""
_TOKEN = re.compile(rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"(\s*:)?|[^"]++', re.DOTALL)
_VALUE = re.compile(rb'\s*"([^"\\]*)"')
_BREAK = re.compile(b"\r|\xe2\x80\xa8|\xe2\x80\xa9")
"""What ends a line for Node.js, too."""
_BEGIN = re.compile(b"(?:" + _BREAK.pattern + rb")[ \t]*+(?=\{)")
_OPENING, _CLOSING = (b"{", b"["), (b"}", b"]")
_DEEPEST = 2
"""A record says its id itself, or in `$set`."""


class GeminiSessions:
    """See ports.sessions."""

    def home(self, environment: Mapping[str, str]) -> str | None:
        """`.gemini` in GEMINI_CLI_HOME, else in the home of the user."""
        home = environment.get("GEMINI_CLI_HOME") or environment.get("HOME")
        return f"{home}/.gemini" if home and home.startswith("/") else None

    def files(self, session: str, directory: PurePath) -> SessionFiles | None:
        """One file, in the directory that Gemini CLI has named for this one."""
        if not _ID.fullmatch(session):
            return None
        held_in = ChosenDirectory(
            str(directory), ("tmp", "history"), ".project_root", "projects.json", _name(directory)
        )
        return SessionFiles(
            _PLACE.format("####-##-##T##-##", session[:8]),
            every_line=Records(),
            chosen=held_in,
            begins=_FIRST.format(session),
            has=_MESSAGE,
            brought=_PLACE.format(BROUGHT, session[:8]),
        )

    def begun(self, key: RunKey, attempt: int) -> str | None:
        """Gemini CLI chooses the ids of its sessions."""
        return None

    def kept(self, key: RunKey, session: str) -> str:
        """Gemini CLI loads a session of any UUID."""
        return uuid_for(key, f"kept-{session}")


class Records:
    """See ports.sessions.EveryLine: records of JSON, of which any may say which session this is."""

    def renamed(self, line: bytes, session: str, name: str, *, is_first: bool) -> bytes:
        """Each id is replaced where it stands, and nothing else is touched."""
        if is_first and not line.startswith(_FIRST.format(session).encode()):
            raise ValueError(f"it does not say that it is of session {session}")
        parts, at = [], 0
        for value in _ids(line):
            _check(value, session)
            parts += [line[at : value.start(1)], name.encode()]
            at = value.end(1)
        renamed = b"".join([*parts, line[at:]]) if parts else line
        for part in _inner(renamed):
            for value in _ids(part):
                _check(value, name)
        return renamed


def _inner(line: bytes) -> Iterator[bytes]:
    """The further lines that Node.js finds in it, as far as they may be records."""
    for found in _BEGIN.finditer(line):
        end = _BREAK.search(line, found.end())
        yield line[found.end() : end.start() if end else len(line)]


def _check(value: "re.Match[bytes]", session: str) -> None:
    if value[1] != session.encode():
        raise ValueError("it says that it is another one")


def _ids(line: bytes) -> Iterator["re.Match[bytes]"]:
    """Where the line says an id. Raises ValueError where one is not said as Gemini CLI does it."""
    if not line.lstrip().startswith(b"{") or (_KEY not in line and not _ESCAPE.search(line)):
        return
    depth = 0
    for token in _TOKEN.finditer(line):
        if token[1] is None:
            depth += sum(token[0].count(each) for each in _OPENING) - sum(token[0].count(each) for each in _CLOSING)
        elif token[2] and depth <= _DEEPEST and _spelled(token[1]) == _KEY:
            value = _VALUE.match(line, token.end())
            if value is None:
                raise ValueError("it says an id that is none")
            yield value


def _spelled(key: bytes) -> bytes:
    if b"\\" not in key:
        return key
    try:
        return str(json.loads(b'"' + key + b'"')).encode(errors="surrogatepass")
    except ValueError:
        return key


def _name(directory: PurePath) -> str:
    """As Gemini CLI names a directory for this one."""
    return re.sub("[^a-z0-9]+", "-", directory.name.lower()).strip("-") or "project"


def wait_s(session: str, environ: Mapping[str, str], *, is_here: bool) -> float:
    """Seconds until the session may be loaded; until the next minute for one that is elsewhere.

    `session`: an id as requests may have it.
    """
    left = 60 - time.time() % 60 + MARGIN_S
    if not is_here:
        return left
    home = environ.get("GEMINI_CLI_HOME") or environ.get("HOME")
    minute = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M")
    name = f"session-{minute}-{session[:8]}.json*"
    return left if home and any(Path(home, ".gemini", "tmp").glob(f"*/chats/{name}")) else 0.0
