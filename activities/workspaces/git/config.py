"""The settings of a repository's configuration that its shadow needs. None of them can make git run a program.

All other settings are ignored: whoever may write in the workspace may have written them.
"""

import asyncio
import os
import re
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from activities.workspaces.files import read_regular
from activities.workspaces.git.repository import Repository
from activities.workspaces.git.runner import GitFailed, GitRunner

CACHE_S = 60.0
"""A cached configuration is used for this many seconds: reading one costs two processes."""
MAX_CONFIG = 1024 * 1024
"""A repository's configuration may have this many bytes."""
MAX_RULES = 16 * 1024 * 1024
"""A file of ignore or attribute rules may have this many bytes: git holds it in memory."""

_WANTED = r"^(core\.(excludesfile|sharedrepository)|extensions\.(objectformat|refstorage))$"
_OWN_RULES = r"^core\.excludesfile$"
_SHARED = re.compile(r"true|false|yes|no|group|all|world|everybody|umask|[0-7]{1,4}")
_MAX_KNOWN = 1000


@dataclass(frozen=True)
class GitConfig:
    """`excludes`: core.excludesFile of the repository's configuration; `own_excludes`: that of the user's own. Both are
    as written, neither expanded nor resolved.
    """

    object_format: str = "sha1"
    shared: str = "false"
    excludes: str | None = None
    own_excludes: str | None = None


@dataclass
class GitConfigCache:
    """Configurations of repositories, each cached until its file changes or CACHE_S have passed."""

    _known: dict[Path, tuple[object, float, GitConfig]] = field(default_factory=dict)

    async def read(self, repository: Repository, git: GitRunner) -> GitConfig:
        """The repository's configuration. `git` works in no repository, as the user. Raises GitFailed, OSError."""
        config, now = repository.common / "config", time.monotonic()
        stamp = _stamp(config)
        known = self._known.get(repository.common)
        if known and known[0] == stamp and now - known[1] < CACHE_S:
            return known[2]
        output = b""
        if stamp is not None:
            # On stdin: git would block at a pipe, and read whatever files an `include` names.
            text = await asyncio.to_thread(read_regular, config, MAX_CONFIG)
            command = ("config", "--file", "-", "--no-includes", "-z", "--get-regexp", _WANTED)
            output = await git.run(*command, stdin=text, ok_codes=(0, 1))
        own = _values(await git.run("config", "--includes", "-z", "--get-regexp", _OWN_RULES, ok_codes=(0, 1)))
        found = _git_config(_values(output), own.get("core.excludesfile") or None)
        if len(self._known) > _MAX_KNOWN:
            self._known.clear()
        self._known[repository.common] = (stamp, now, found)
        return found


def excludes_file(config: GitConfig, environ: Mapping[str, str], repository: Repository) -> str:
    """The path of the user's file of ignore rules; /dev/null for none, or for one that the repository may not name."""
    home = environ.get("HOME", "/")
    base = environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    named = config.excludes or config.own_excludes or f"{base}/git/ignore"
    path = repository.top / (f"{home}{named[1:]}" if named.startswith("~/") else os.path.expanduser(named))
    if config.excludes and not repository.allowed_roots.allows(path):
        return os.devnull
    try:
        found = path.stat()
    except (OSError, ValueError):
        return os.devnull
    # git reads the whole file, and would block at a pipe.
    return str(path) if stat.S_ISREG(found.st_mode) and found.st_size <= MAX_RULES else os.devnull


def _values(output: bytes) -> dict[str, str]:
    lines = output.decode("utf-8", "surrogateescape").split("\0")
    return dict(line.split("\n", 1) for line in lines if "\n" in line)


def _git_config(values: Mapping[str, str], own_excludes: str | None) -> GitConfig:
    storage = values.get("extensions.refstorage", "files")
    if storage != "files":
        raise GitFailed(f"the repository keeps its refs as {storage}: only files are supported")
    shared = values.get("core.sharedrepository", "false")
    return GitConfig(
        object_format="sha256" if values.get("extensions.objectformat") == "sha256" else "sha1",
        shared=shared if _SHARED.fullmatch(shared) else "false",
        excludes=values.get("core.excludesfile") or None,
        own_excludes=own_excludes,
    )


def _stamp(config: Path) -> tuple[int, int, int] | None:
    try:
        found = config.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
