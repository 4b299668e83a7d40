"""Workspaces that nobody has trusted: what of them is not loaded, and what is handed over as text instead.

Nothing in a workspace's files is run here, and nothing outside of the workspace is read for them. Which workspaces are
trusted is the policy's.
"""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from activities.admission.workspace_scan import scan
from activities.ports.admission import Untrusted, WorkspaceFiles
from activities.workspaces.files import Unreadable, read_regular, resolve_inside
from activities.workspaces.git.allowed_roots import AllowedRoots, OutsideRoots
from activities.workspaces.git.repository import BrokenRepository, common_directory, git_directory

MAX_INSTRUCTIONS = 40_000
"""A file with instructions is cut off after this many characters; Claude Code warns from there on."""
_MAX_CONFIG = 256 * 1024

_SECTION = re.compile(r"\[\s*([A-Za-z0-9.-]*)")
_PLAIN_SECTIONS = frozenset(
    [
        *("advice", "branch", "color", "core", "extensions", "fetch", "gui", "index", "init", "pack", "pull", "push"),
        *("rebase", "remote", "rerere", "status", "user"),
    ]
)
_PROGRAMS = re.compile(
    r"askpass|attributesfile|command|editor|fsmonitor|gitproxy|helper|hookspath|pager|program|proxy|receivepack"
    r"|sshcommand|uploadpack|vcs|worktree",
    re.IGNORECASE,
)

ANYWHERE = AllowedRoots((Path("/"),))

GIT_ENVIRONMENT = {
    "GIT_CONFIG_COUNT": "4",
    "GIT_CONFIG_KEY_0": "core.fsmonitor",
    "GIT_CONFIG_VALUE_0": "false",
    "GIT_CONFIG_KEY_1": "core.hooksPath",
    "GIT_CONFIG_VALUE_1": os.devnull,
    "GIT_CONFIG_KEY_2": "diff.ignoreSubmodules",
    "GIT_CONFIG_VALUE_2": "all",
    "GIT_CONFIG_KEY_3": "safe.bareRepository",
    "GIT_CONFIG_VALUE_3": "explicit",
}
"""For git in an untrusted workspace: hooks lie in it, and a repository within it has a configuration of its own."""


def untrusted(directory: Path, files: WorkspaceFiles, confines: AllowedRoots = ANYWHERE) -> Untrusted:
    """What becomes of this workspace for an agent that loads `files`. Never raises for what is in it.

    `confines`: where the parts of its repository may lie.
    """
    around = scan(repository_top(directory))
    texts = [(name, text) for name in files.instructions if (text := _text(directory, name))]
    return Untrusted(
        left_out=tuple(name for name in files.programs if os.path.lexists(directory / name)),
        instructions="\n\n".join(f"# {name}\n\n{text}" for name, text in texts),
        git_runs_programs=around.has_repositories or git_runs_programs(directory, confines),
        leads_out=around.leads_out,
    )


def sentence(workspace: str, found: Untrusted) -> str | None:
    """What a person is told of an untrusted workspace; None where nothing was left out."""
    parts = []
    if left_out := [*map(str, found.above), *found.left_out]:
        parts.append(f"{', '.join(left_out)} not loaded")
    if found.leads_out:
        parts.append("every command asks for permission, because links may lead out of it")
    elif found.git_runs_programs:
        parts.append("git asks for permission, because a repository's configuration may run programs")
    if not parts:
        return None
    is_not = "is not trusted"
    if found.to_trust:
        why = "of what lies above it" if found.above else f"{found.to_trust} is not"
        is_not = f"counts as not trusted, because {why}"
    return f"the workspace {is_not}: {'; '.join(parts)}. To trust it: steer trust {found.to_trust or workspace}"


def programs_above(directory: Path, files: WorkspaceFiles, is_trusted: Callable[[Path], bool]) -> tuple[Path, ...]:
    """Files with programs that the agent would load of directories that this one lies in and that nobody trusts; the
    nearest first.
    """
    top = repository_top(directory)
    last = top if os.path.lexists(top / ".git") else Path(top.anchor)
    return tuple(
        each / name
        for each in directory.parents
        for name in (*files.from_root, *(files.from_top if each.is_relative_to(last) else ()))
        if os.path.lexists(each / name) and not is_trusted(each)
    )


def is_within(directory: Path, trusted: Sequence[Path]) -> bool:
    """Whether it is one of these directories, or lies in one. Links are resolved."""
    return any(directory.is_relative_to(os.path.realpath(each)) for each in trusted)


def repository_top(directory: Path) -> Path:
    """The work tree that a directory lies in, by the nearest `.git`; itself where there is none."""
    return next((each for each in (directory, *directory.parents) if os.path.lexists(each / ".git")), directory)


def git_runs_programs(directory: Path, confines: AllowedRoots = ANYWHERE) -> bool:
    """Whether the repository's own configuration may make a harmless git command run programs.

    True for everything that is not plainly harmless: other sections than the usual ones, included files, submodules
    (each has a configuration of its own), what cannot be read, parts that lie outside of the confines.
    """
    top = repository_top(directory)
    if any(_is_bare(each) for each in (directory, *directory.parents) if each.is_relative_to(top)):
        return True
    if not os.path.lexists(top / ".git"):
        return False
    if os.path.lexists(top / ".gitmodules"):
        return True
    try:
        git = git_directory(top, confines)
        if git is None:
            return True
        common = common_directory(git, confines)
        confines.check_repository(git, common)
    except (BrokenRepository, OutsideRoots):
        return True
    return any(
        _names_programs(path) for path in {common / "config", common / "config.worktree", git / "config.worktree"}
    )


def _is_bare(directory: Path) -> bool:
    """Git takes a directory that looks like this for a repository, its configuration included."""
    return all(os.path.lexists(directory / name) for name in ("HEAD", "objects", "refs"))


def _names_programs(config: Path) -> bool:
    try:
        text = read_regular(config, _MAX_CONFIG).decode("utf-8", "replace")
    except FileNotFoundError:
        return False
    except OSError:
        return True
    sections = {found.split(".")[0].lower() for found in _SECTION.findall(text)}
    keys = (line.split("=")[0] for line in text.split("\n"))
    return not sections <= _PLAIN_SECTIONS or any(_PROGRAMS.search(key) for key in keys)


def _text(directory: Path, name: str) -> str:
    try:
        data = read_regular(resolve_inside(directory, name), _MAX_CONFIG)
    except (Unreadable, OSError):
        return ""
    text = data.decode("utf-8", "replace").replace("\0", "").strip()
    return text if len(text) <= MAX_INSTRUCTIONS else f"{text[:MAX_INSTRUCTIONS]}\n(cut off here)"
