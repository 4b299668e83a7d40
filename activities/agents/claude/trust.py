"""Claude Code's own record of the directories that its user trusts. Only read here."""

import os
from collections.abc import Mapping
from pathlib import Path

from activities.untrusted_json import parse

MAX_RECORD = 64 * 1024 * 1024
"""Only this many bytes of the record are read."""


def accepted(directory: Path, environ: Mapping[str, str]) -> bool:
    """Whether this user has accepted Claude Code's trust dialog for the directory, or for the top of its repository.

    The record is `.claude.json` in CLAUDE_CONFIG_DIR, else in the home: `projects[PATH].hasTrustDialogAccepted`.
    A record that cannot be read trusts no directory.
    """
    home = environ.get("CLAUDE_CONFIG_DIR") or environ.get("HOME")
    if not home:
        return False
    try:
        with Path(home, ".claude.json").open("rb") as file:
            projects = parse(file.read(MAX_RECORD))["projects"]
        paths = _directory_and_top(directory)
        return any(projects[each]["hasTrustDialogAccepted"] is True for each in paths if each in projects)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _directory_and_top(directory: Path) -> tuple[str, ...]:
    top = next((each for each in (directory, *directory.parents) if os.path.lexists(each / ".git")), directory)
    return str(directory), str(top)
