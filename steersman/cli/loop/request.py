"""The words of a command line as the JSON of a LoopRequest. Pure but for the files that the words name.

Whether the request is valid is decided by the contract, in one place for every client.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from steersman.cli import request
from steersman.cli.formatting import counted
from steersman.contracts.checkbox_lines import BOX, UnclosedFence, shown_lines

ITEM_KINDS = ("checkboxes", "beads", "json", "command")
_STATUS = re.compile(r"\A---[ \t]*\r?\n(?:.+\n)*?status[ \t]*:", re.IGNORECASE)
"""In a phase's front matter."""
DEFAULT_COST_USD = 25.0
"""A loop started from a terminal ends at this cost, unless it is told otherwise."""
MAX_READ_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Base:
    """The request that `--from-file` names, which the command line's options override."""

    request: Any
    """The JSON of the file, whatever it is; None where no file was named."""
    workspace: Path

    @property
    def given(self) -> bool:
        """Whether there is such a request."""
        return self.request is not None

    def default(self, value: str) -> str | None:
        """A default of the command line's, which holds only without a file."""
        return None if self.given else value

    def chosen_workspace(self, option: str | None) -> dict[str, str]:
        """`run.workspace`; empty where the file names it."""
        return {"path": str(self.workspace)} if option is not None or not self.given else {}

    def merged(self, said: dict[str, Any]) -> Any:
        """The whole request. A file that holds no object is left for the contract."""
        if not self.given:
            return {"run": {}, "done": {}} | said
        from steersman._client.loop_requests import merged

        return merged(self.request, said) if isinstance(self.request, dict) else self.request


def base_of(request_file: str | None, workspace: str | None) -> Base:
    """The file's request, and the workspace that the option, the file or the current directory names."""
    found = request.json_of(request_file) if request_file is not None else None
    return Base(found, workspace_of(workspace, found))


def with_cost_limit(asked: Any) -> Any:
    """The request with a limit of what it may cost, where its agents report that and nobody has said any."""
    run, given = (asked.get("run"), asked.get("limits", {})) if isinstance(asked, dict) else (None, None)
    if not isinstance(run, dict) or not isinstance(given, dict) or "cost_usd" in given or not _all_report_cost(run):
        return asked
    return {**asked, "limits": {**given, "cost_usd": DEFAULT_COST_USD}}


def _all_report_cost(run: dict[str, Any]) -> bool:
    from steersman.contracts.agents import CAPABILITIES

    fallback = run.get("fallback") or []
    others = fallback if isinstance(fallback, list) else []
    agents = [run.get("agent"), *(each.get("agent") for each in others if isinstance(each, dict))]
    return all(agent in CAPABILITIES and CAPABILITIES[agent].cost for agent in map(str, agents))


def bounds(asked: Any) -> str:
    """What the loop may come to before it ends by itself, in words; empty for what only the contract can judge."""
    from steersman.contracts.loop import LoopLimits

    given = asked.get("limits", {}) if isinstance(asked, dict) else None
    if not isinstance(given, dict):
        return ""
    most = [counted(given.get("iterations", LoopLimits().iterations), "iteration")]
    cost = given.get("cost_usd")
    if isinstance(cost, int | float):
        most.append(f"${cost:.2f}")
    return f"it ends after at most {' or '.join(most)}: steer loop limits changes that"


def limits(
    *, counts: dict[str, int | None], cost_usd: float | request.Never | None, durations: dict[str, str | None]
) -> dict[str, Any]:
    """The limits that were given, by the contract's names. `durations`: words such as 15m, by the option's name."""
    timed = {f"{name.replace('-', '_')}_s": request.seconds(word, f"--{name}") for name, word in durations.items()}
    return request.given(**counts, cost_usd=cost_usd, **timed)


def workspace_of(path: str | None, base: Any) -> Path:
    """The workspace: the directory that is named, else the request file's, else the current one."""
    if path is None and isinstance(base, dict):
        try:
            path = str(base["run"]["workspace"]["path"])
        except (KeyError, TypeError):
            path = None
    return Path(request.workspace_path(path))


def optional_plan(word: str | None, workspace: Path, phase: str | None) -> str | dict[str, str] | None:
    """As `plan_of`; None where no plan was given."""
    if word is not None:
        return plan_of(word, workspace, phase)
    if phase is not None:
        raise typer.BadParameter("--phase needs PLAN")
    return None


def plan_of(word: str, workspace: Path, phase: str | None = None) -> str | dict[str, str]:
    """A text, or a file or directory inside the workspace: `{"path": ...}`, relative to it.

    `-` is stdin, `@FILE` a file: one outside the workspace is read as the text. Any other word that is the path of
    something inside the workspace is that. One that looks like a path and is none is a slip, and no plan to pay for.
    """
    if word == "-":
        return _text(request.text_of(word), phase)
    named = word.startswith("@")
    path = word[1:] if named else word
    found = _inside(path, workspace)
    if phase is not None and not phase.strip():
        raise typer.BadParameter("--phase: must not be empty")
    if found is not None:
        return {"path": found} | ({"phase": phase} if phase else {})
    if named:
        return _text(request.text_of(word), phase)
    if _looks_like_a_path(word):
        if not workspace.is_dir():  # on a machine that this one does not see
            return {"path": word} | ({"phase": phase} if phase else {})
        hint = "@FILE reads a file from elsewhere, - a text from stdin"
        raise typer.BadParameter(f"PLAN: {word} looks like a path, and nothing is there in {workspace} ({hint})")
    return _text(word, phase)


def _looks_like_a_path(word: str) -> bool:
    """A word with a slash or with a suffix, such as `PLAN.md` or `docs/plans`."""
    return re.fullmatch(r"[^\s]*/[^\s]*|[^\s]+\.[A-Za-z][A-Za-z0-9]{0,7}|\.\.?", word) is not None


def _text(text: str, phase: str | None) -> str:
    if phase:
        raise typer.BadParameter("--phase is for a plan that is a directory of phases in the workspace")
    return text


def _inside(path: str, workspace: Path) -> str | None:
    """The path relative to the workspace; None where nothing is at that path in it."""
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
    """The checkboxes of a plan that is a file; None where it has none and a command verifies that the loop is done."""
    if isinstance(plan, str) or (verified and not _has_items(workspace / plan["path"])):
        return None
    return {"kind": "checkboxes"}


def _has_items(path: Path) -> bool:
    """Whether there are checkboxes, or phases that say their status."""
    try:
        in_phases = path.is_dir()
        return any((in_phases and _STATUS.match(text)) or _has_boxes(text) for text in _texts(path))
    except OSError:
        return True  # the worker may see what this machine does not


def _has_boxes(text: str) -> bool:
    try:
        return any(map(BOX.match, shown_lines(text)))
    except UnclosedFence:
        return True  # the worker says what is wrong


def _texts(path: Path) -> Iterator[str]:
    for file in sorted(path.glob("*.md")) if path.is_dir() else [path]:
        with file.open("rb") as opened:
            yield opened.read(MAX_READ_BYTES).decode("utf-8", "replace").removeprefix("\ufeff")


def verify_of(command: str | None, timeout: str | None) -> dict[str, Any]:
    """`done.verify`; empty where no command was given."""
    if command is None:
        if timeout is not None:
            raise typer.BadParameter("--verify-timeout needs --verify")
        return {}
    return request.given(command=command, timeout_s=request.seconds(timeout, "--verify-timeout"))
