"""Claude Code's own record of conversations: where one is kept, and of which directory it is. Only read here."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_LONGEST = 200
"""Claude Code cuts a longer name of a directory, and puts a hash behind it."""
_HEAD = 256 * 1024


def is_id(text: str) -> bool:
    """Whether it is the id of a conversation. Anything else Claude Code would take for a file's name, or a title."""
    return _ID.fullmatch(text) is not None


def own_directory(environ: Mapping[str, str]) -> str | None:
    """Where Claude Code keeps settings, memory and conversations of its user; None where nobody can tell."""
    return environ.get("CLAUDE_CONFIG_DIR") or (f"{environ['HOME']}/.claude" if environ.get("HOME") else None)


def is_of(directory: Path, session: str, environ: Mapping[str, str]) -> bool:
    """Whether this conversation was begun in this directory. `directory` is resolved, `environ` the worker's."""
    home = own_directory(environ)
    if home is None or not is_id(session):
        return False
    slug = re.sub(r"[^a-zA-Z0-9]", "-", str(directory))
    if len(slug) <= _LONGEST:
        places = [Path(home, "projects", slug)]
    else:
        places = list(Path(home, "projects").glob(f"{slug[:_LONGEST]}-*"))
    return any(_begun_in(place / f"{session}.jsonl") == str(directory) for place in places)


def _begun_in(transcript: Path) -> str | None:
    """The directory that the first line with one names: two directories may share a name in the record."""
    try:
        descriptor = os.open(transcript, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            lines = file.read(_HEAD).split(b"\n")
    except OSError:
        return None
    for line in lines:
        try:
            said = json.loads(line).get("cwd")
        except (ValueError, AttributeError, RecursionError):
            continue
        if isinstance(said, str):
            return said
    return None
