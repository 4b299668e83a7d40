"""Claude Code's own files of conversations: where one is, and in which directory it was held. Only read here.

    projects/<name of the directory>/<session>.jsonl    the conversation: lines are added, none is changed
                                    /<session>/         long results of its tools, conversations of its sub-agents

Nothing else belongs to it, and `--resume` takes one that was brought to another directory, whatever directories its
lines name: measured with Claude Code 2.1.327.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePath

from activities.agents.command_ids import uuid_for
from activities.ports.sessions import SessionFiles
from activities.untrusted_json import parse_object
from steersman.contracts.activities import RunKey

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_LONGEST = 200
"""Claude Code cuts a longer directory name, and appends a hash."""
_HEAD = 256 * 1024
"""Bytes at the beginning of a conversation in which the directory is looked for."""


def is_id(text: str) -> bool:
    """Whether this is the id of a conversation. Claude Code takes anything else for a file's name, or a title."""
    return _ID.fullmatch(text) is not None


def own_directory(environ: Mapping[str, str]) -> str | None:
    """The directory of Claude Code's settings, memory and conversations; None if the environment does not tell."""
    return environ.get("CLAUDE_CONFIG_DIR") or (f"{environ['HOME']}/.claude" if environ.get("HOME") else None)


def is_of(directory: Path, session: str, environ: Mapping[str, str]) -> bool:
    """Whether this conversation began in this directory. `directory` is resolved, `environ` is the worker's."""
    home = own_directory(environ)
    if home is None or not is_id(session):
        return False
    slug = _slug(directory)
    if len(slug) <= _LONGEST:
        projects = [Path(home, "projects", slug)]
    else:
        projects = list(Path(home, "projects").glob(f"{slug[:_LONGEST]}-*"))
    return any(_begun_in(project / f"{session}.jsonl") == str(directory) for project in projects)


class ClaudeSessions:
    """See ports.sessions."""

    def home(self, environment: Mapping[str, str]) -> str | None:
        home = own_directory(environment)
        return home if home and home.startswith("/") else None

    def files(self, session: str, directory: PurePath) -> SessionFiles | None:
        if not is_id(session):
            return None
        name = _slug(directory)
        if len(name) > _LONGEST:
            name = f"{name[:_LONGEST]}-{_hash(directory)}"
        return SessionFiles(f"projects/{name}/{session}.jsonl", f"projects/{name}/{session}")

    def begun(self, key: RunKey, attempt: int) -> str:
        return uuid_for(key, f"session-{attempt}")

    def kept(self, key: RunKey, session: str) -> str:
        # Claude Code goes by a conversation's file name alone, whatever ids its lines have (measured).
        return uuid_for(key, f"kept-{session}")


def _units(directory: PurePath) -> list[int]:
    """A path as JavaScript has it."""
    data = str(directory).encode("utf-16-le", "surrogatepass")
    return [int.from_bytes(data[at : at + 2], "little") for at in range(0, len(data), 2)]


def _slug(directory: PurePath) -> str:
    return "".join(chr(unit) if unit < 0x80 and chr(unit).isalnum() else "-" for unit in _units(directory))


def _hash(directory: PurePath) -> str:
    """What Claude Code appends: the 32-bit hash of Java's strings, without its sign, in base 36."""
    value = 0
    for unit in _units(directory):
        value = (value * 31 + unit) & 0xFFFFFFFF
    value, digits = abs(value - (value >> 31 << 32)), ""
    while value:
        value, digit = divmod(value, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits or "0"


def _begun_in(transcript: Path) -> str | None:
    """The directory that the first line with one names: two directories may have the same name in the record."""
    try:
        descriptor = os.open(transcript, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            lines = file.read(_HEAD).split(b"\n")
    except OSError:
        return None
    for line in lines:
        try:
            directory = parse_object(line).get("cwd")
        except ValueError:
            continue
        if isinstance(directory, str):
            return directory
    return None
