"""Codex's own records in CODEX_HOME: its conversations, and the directories that its user trusts. Only read here."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from activities.untrusted_json import object_at, parse_object

MAX_RECORD = 4 * 1024 * 1024
"""Only this many bytes of a record are read."""
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def is_id(session: str) -> bool:
    """Whether this is the form of a thread's id."""
    return _ID.fullmatch(session) is not None


def home(environ: Mapping[str, str]) -> Path | None:
    """Codex's own directory; None where the environment does not tell."""
    if own := environ.get("CODEX_HOME"):
        return Path(own)
    return Path(environ["HOME"], ".codex") if environ.get("HOME") else None


def keeps(session: str, directory: Path, environ: Mapping[str, str]) -> bool:
    """Whether a conversation of this id is there, held in this directory: the first line of its record says where."""
    own = home(environ)
    if own is None or not is_id(session):
        return False
    try:
        for record in own.glob(f"sessions/*/*/*/rollout-*-{session}.jsonl"):
            with record.open("rb") as file:
                first = parse_object(file.readline(MAX_RECORD))
            return object_at(first, "payload").get("cwd") == str(directory)
    except (OSError, ValueError):
        return False
    return False


def trusted(directory: Path, environ: Mapping[str, str]) -> bool:
    """Whether config.toml says `projects.PATH.trust_level = "trusted"`. A record that cannot be read trusts nothing."""
    own = home(environ)
    if own is None:
        return False
    try:
        with (own / "config.toml").open("rb") as file:
            config = tomllib.loads(file.read(MAX_RECORD).decode())
    except (OSError, ValueError, RecursionError):
        return False
    return object_at(config, "projects", str(directory)).get("trust_level") == "trusted"
