"""Claude Code's own record of the directories that its user trusts. Only read here, never written."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

MAX_RECORD = 64 * 1024 * 1024


def accepted(directory: Path, environ: Mapping[str, str]) -> bool:
    """Whether this user has accepted Claude Code's trust dialog for the directory, or for the top of its repository.

    The record is `.claude.json` in CLAUDE_CONFIG_DIR, else in the home: `projects[PATH].hasTrustDialogAccepted`.
    What cannot be read trusts nobody.
    """
    home = environ.get("CLAUDE_CONFIG_DIR") or environ.get("HOME")
    if not home:
        return False
    try:
        with Path(home, ".claude.json").open("rb") as file:
            projects = json.loads(file.read(MAX_RECORD))["projects"]
        return any(projects[each]["hasTrustDialogAccepted"] is True for each in _places(directory) if each in projects)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _places(directory: Path) -> tuple[str, ...]:
    top = next((each for each in (directory, *directory.parents) if os.path.lexists(each / ".git")), directory)
    return str(directory), str(top)
