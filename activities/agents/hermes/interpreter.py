"""The Python that has Hermes: its gateway is a module of it, and only the command `hermes` is on PATH.

A console script names its interpreter, as pip and uv write it, or lies beside one. Nothing is run here.
"""

import os
import re
from pathlib import Path

from activities.ports.place import PlaceInfo
from steersman.contracts.errors import AgentNotInstalled

EXECUTABLE = "hermes"
HINT = "uv tool install hermes-agent, or pipx install hermes-agent"
MAX_HEAD = 4096
"""Only this many bytes of the script are read."""

_NAMED = re.compile(rb"#! ?(/[^\n\t ]*/(?:python|pypy)[0-9.]*)[\n\r ]")
_LONG = re.compile(rb"#!/bin/sh\n'''exec' [\"']?(/[^\n\"']*/(?:python|pypy)[0-9.]*)[\"']? ")
"""What stands in place of an interpreter that is too long for the kernel, or has spaces."""

ELSEWHERE = r"""
{ read -r mark first rest && { IFS= read -r second || :; }; } < "$0" || exit 127
[ "$mark" = "#!" ] || first=${mark#??}
case $second in
  "'''exec' "*)
    first=${second#"'''exec' "}
    case $first in [\"\']*) first=${first#?}; first=${first%%[\"\']*};; *) first=${first%% *};; esac;;
esac
case $first in /*/python*|/*/pypy*) exec "$first" "$@";; esac
echo "$0 names no Python in its first lines" >&2; exit 127
"""
"""The same on another machine, whose files nobody here reads: the script is $0."""


def command(script: str, place: PlaceInfo | None) -> tuple[str, ...]:
    """The beginning of a command line that runs this Python, before its own arguments. Raises AgentNotInstalled."""
    return ("/bin/sh", "-c", ELSEWHERE, script) if place else (interpreter(script),)


def interpreter(script: str) -> str:
    """The Python of a console script on this machine. Raises AgentNotInstalled."""
    resolved = Path(os.path.realpath(script))
    try:
        with resolved.open("rb") as file:
            head = file.read(MAX_HEAD)
    except OSError as error:
        raise AgentNotInstalled(f"hermes: {script} cannot be read: {error.strerror}") from error
    named = [os.fsdecode(found[1]) for found in (_NAMED.match(head), _LONG.match(head)) if found]
    # Another program has this name, too: only a script has its Python beside it.
    beside = [str(resolved.parent / name) for name in ("python3", "python") if head.startswith(b"#!")]
    for each in (*named, *beside):
        if os.access(each, os.X_OK) and Path(each).is_file():
            return each
    raise AgentNotInstalled(f"hermes: {script} names no Python that is there, and none lies beside it: {HINT}")
