"""`steer loop start`'s words made into a LoopRequest's JSON. Pure but for the files that the words name.

Whether the request makes sense is judged by the contract, in one place for every client.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from steersman.cli import request

ITEM_KINDS = ("checkboxes", "beads", "json", "command")
_CHECKBOX = re.compile(rb"^\s*(?:[-*+]|\d+[.)])\s+\[[ xX]\]\s", re.MULTILINE)
MAX_LOOKED_AT = 1024 * 1024


def limits(
    *, counts: dict[str, int | None], cost_usd: float | None, durations: dict[str, str | None]
) -> dict[str, Any]:
    """The limits that were said, by the contract's names. `durations`: by their option's name, e.g. 15m."""
    timed = {f"{name.replace('-', '_')}_s": request.seconds(word, f"--{name}") for name, word in durations.items()}
    return request.given(**counts, cost_usd=cost_usd, **timed)


def workspace_of(path: str | None, base: Any) -> Path:
    """The directory that the words mean: the one named, the request file's, or this one."""
    if path is None and isinstance(base, dict):
        try:
            path = str(base["run"]["workspace"]["path"])
        except (KeyError, TypeError):
            path = None
    return Path(os.path.abspath(path or "."))  # noqa: PTH100 - resolve() would follow links on this machine


def plan_of(word: str, workspace: Path, phase: str | None = None) -> str | dict[str, str]:
    """A text, or a file or directory inside the workspace: `{"path": ...}`, relative to it.

    `-` is stdin, `@FILE` a file: one outside the workspace is read as the text. Any other word that is the path of
    something inside the workspace is that.
    """
    if word == "-":
        return _text(request.text_of(word), phase)
    named = word.startswith("@")
    path = word[1:] if named else word
    found = _inside(path, workspace)
    if found is not None:
        return {"path": found} | ({"phase": phase} if phase else {})
    if named:
        return _text(request.text_of(word), phase)
    return _text(word, phase)


def _text(text: str, phase: str | None) -> str:
    if phase:
        raise typer.BadParameter("--phase is for a plan that is a directory of phases in the workspace")
    return text


def _inside(path: str, workspace: Path) -> str | None:
    """Where it is in the workspace; None where nothing of that path is."""
    if not path or "\n" in path or len(path) > 4096 or "\0" in path:
        return None
    for base in (Path.cwd(), workspace):
        full = Path(os.path.abspath(base / path))  # noqa: PTH100 - as above
        try:
            if full != workspace and full.is_relative_to(workspace) and full.exists():
                return str(full.relative_to(workspace))
        except OSError:
            continue
    return None


def items_of(word: str) -> dict[str, Any]:
    """KIND, or KIND:PATH (checkboxes, json), KIND:ID,ID (beads), KIND:COMMAND."""
    kind, colon, rest = word.partition(":")
    if kind not in ITEM_KINDS:
        raise typer.BadParameter(f"--items: expected none or one of {', '.join(ITEM_KINDS)}, not {kind!r}")
    if not colon:
        return {"kind": kind}
    if kind == "beads":
        return {"kind": kind, "ids": [each.strip() for each in rest.split(",") if each.strip()]}
    return {"kind": kind, "command" if kind == "command" else "path": rest}


def items_by_default(plan: str | dict[str, str], workspace: Path, *, verified: bool) -> dict[str, Any] | None:
    """The plan's checkboxes where it is a file; unless it has none here and a command says when the loop is done."""
    if isinstance(plan, str) or (verified and not _has_checkboxes(workspace / plan["path"])):
        return None
    return {"kind": "checkboxes"}


def _has_checkboxes(path: Path) -> bool:
    try:
        return any(_CHECKBOX.search(text) for text in _texts(path))
    except OSError:
        return True  # the worker may see what this machine does not


def _texts(path: Path) -> Iterator[bytes]:
    for file in sorted(path.glob("*.md")) if path.is_dir() else [path]:
        with file.open("rb") as opened:
            yield opened.read(MAX_LOOKED_AT)


def verify_of(command: str | None, timeout: str | None) -> dict[str, Any]:
    """`done.verify`; empty where nothing was said."""
    if command is None:
        if timeout is not None:
            raise typer.BadParameter("--verify-timeout needs --verify")
        return {}
    return request.given(command=command, timeout_s=request.seconds(timeout, "--verify-timeout"))


def merged(base: Any, said: dict[str, Any]) -> Any:
    """A request from a file with the command line's words over it. What is no object is left for the contract."""
    from steersman.loopdata import merged as over

    return over(base, said) if isinstance(base, dict) else base
