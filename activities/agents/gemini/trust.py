"""Gemini CLI's own record of the folders that its user trusts. Only read here."""

from collections.abc import Mapping
from pathlib import Path

from activities.untrusted_json import parse_object

MAX_RECORD = 1024 * 1024
"""Only this many bytes of the record are read."""


def accepted(directory: Path, environ: Mapping[str, str]) -> bool:
    """Whether this user has trusted the directory (resolved), or one that it lies in.

    The record is `trustedFolders.json` in `.gemini` of GEMINI_CLI_HOME, else of the home: path -> "TRUST_FOLDER",
    "TRUST_PARENT" or "DO_NOT_TRUST", of which the nearest counts. A record that cannot be read trusts nothing.
    """
    home = environ.get("GEMINI_CLI_HOME") or environ.get("HOME")
    if not home:
        return False
    try:
        with Path(home, ".gemini", "trustedFolders.json").open("rb") as file:
            record = parse_object(file.read(MAX_RECORD))
    except (OSError, ValueError):
        return False
    if "TRUST_PARENT" in (record.get(str(each)) for each in _siblings(directory, record)):
        return "DO_NOT_TRUST" not in _nearest(directory, record)
    return "TRUST_FOLDER" in _nearest(directory, record)


def _nearest(directory: Path, record: dict[str, object]) -> list[object]:
    return next(([record[str(each)]] for each in (directory, *directory.parents) if str(each) in record), [])


def _siblings(directory: Path, record: dict[str, object]) -> list[Path]:
    """The folders whose parent the directory is, or lies in."""
    within = {directory, *directory.parents}
    return [Path(each) for each in record if Path(each).parent in within]
