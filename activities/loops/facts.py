"""What a repository's configuration says that a shadow of it has to know. None of it can make git run anything.

Everything else in that configuration is left unread: whoever may write in the workspace may have written it.
"""

import asyncio
import os
import re
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from activities.loops.git import Git, GitFailed
from activities.loops.reading import read_regular
from activities.loops.repository import Repository

BELIEVED_S = 60.0
"""For so long nobody is asked again: it costs two processes."""
MAX_CONFIG = 1024 * 1024
MAX_RULES = 16 * 1024 * 1024

_WANTED = r"^(core\.(excludesfile|sharedrepository)|extensions\.(objectformat|refstorage))$"
_OWN_RULES = r"^core\.excludesfile$"
_SHARED = re.compile(r"true|false|yes|no|group|all|world|everybody|umask|[0-7]{1,4}")
_MANY = 1000


@dataclass(frozen=True)
class Facts:
    """`excludes`: a file of ignored names that the repository's configuration names; `own_excludes`: one that the
    person's own does. Both as they were written.
    """

    object_format: str = "sha1"
    shared: str = "false"
    excludes: str | None = None
    own_excludes: str | None = None


@dataclass
class FactBook:
    """The facts of repositories, remembered for a while."""

    _known: dict[Path, tuple[object, float, Facts]] = field(default_factory=dict)

    async def ask(self, repository: Repository, git: Git) -> Facts:
        """The facts. `git`: one that works in no repository, as the person. Raises GitFailed, OSError."""
        config, now = repository.common / "config", time.monotonic()
        stamp = _stamp(config)
        known = self._known.get(repository.common)
        if known and known[0] == stamp and now - known[1] < BELIEVED_S:
            return known[2]
        said = b""
        if stamp is not None:
            # Given to git as text: it would wait for a pipe, and read whatever files an `include` names.
            text = await asyncio.to_thread(read_regular, config, MAX_CONFIG)
            ask = ("config", "--file", "-", "--no-includes", "-z", "--get-regexp", _WANTED)
            said = await git.run(*ask, stdin=text, well=(0, 1))
        own = _values(await git.run("config", "--includes", "-z", "--get-regexp", _OWN_RULES, well=(0, 1)))
        facts = _read(_values(said), own.get("core.excludesfile") or None)
        if len(self._known) > _MANY:
            self._known.clear()
        self._known[repository.common] = (stamp, now, facts)
        return facts


def excludes(facts: Facts, environ: Mapping[str, str], repository: Repository) -> str:
    """Where the person's own file of ignored names is; /dev/null for none, or one that the repository may not name."""
    home = environ.get("HOME", "/")
    base = environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    said = facts.excludes or facts.own_excludes or f"{base}/git/ignore"
    path = repository.top / (f"{home}{said[1:]}" if said.startswith("~/") else os.path.expanduser(said))
    if facts.excludes and not repository.confines.hold(path):
        return os.devnull
    try:
        found = path.stat()
    except (OSError, ValueError):
        return os.devnull
    # git reads it whole, and would wait for a pipe.
    return str(path) if stat.S_ISREG(found.st_mode) and found.st_size <= MAX_RULES else os.devnull


def _values(said: bytes) -> dict[str, str]:
    lines = said.decode("utf-8", "surrogateescape").split("\0")
    return dict(line.split("\n", 1) for line in lines if "\n" in line)


def _read(values: Mapping[str, str], own_excludes: str | None) -> Facts:
    storage = values.get("extensions.refstorage", "files")
    if storage != "files":
        raise GitFailed(f"the repository keeps its refs as {storage}: only files are supported")
    shared = values.get("core.sharedrepository", "false")
    return Facts(
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
