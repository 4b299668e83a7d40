"""Claude Code's own files of conversations: where one is, and in which directory it was held. Only read here."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from activities.untrusted_json import parse_object

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
    slug = re.sub(r"[^a-zA-Z0-9]", "-", str(directory))
    if len(slug) <= _LONGEST:
        projects = [Path(home, "projects", slug)]
    else:
        projects = list(Path(home, "projects").glob(f"{slug[:_LONGEST]}-*"))
    return any(_begun_in(project / f"{session}.jsonl") == str(directory) for project in projects)


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
