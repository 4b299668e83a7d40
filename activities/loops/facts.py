"""What a repository's configuration says that a shadow of it has to know. None of it can make git run anything.

Everything else in that configuration is left unread: whoever may write in the workspace may have written it.
"""

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from activities.loops.git import Git, GitFailed
from activities.loops.reading import read_regular
from activities.loops.repository import Repository

BELIEVED_S = 60.0
"""For so long nobody is asked again: it costs a process."""
MAX_CONFIG = 1024 * 1024

_WANTED = r"^(core\.(excludesfile|sharedrepository)|extensions\.(objectformat|refstorage))$"
_SHARED = re.compile(r"true|false|yes|no|group|all|world|everybody|umask|[0-7]{1,4}")
_MANY = 1000


@dataclass(frozen=True)
class Facts:
    """`excludes`: the person's own file of ignored names, as it was written."""

    object_format: str = "sha1"
    shared: str = "false"
    excludes: str | None = None


@dataclass
class FactBook:
    """The facts of repositories, remembered for a while."""

    _known: dict[Path, tuple[object, float, Facts]] = field(default_factory=dict)

    async def ask(self, repository: Repository, git: Git) -> Facts:
        """The facts. `git`: one that works in the repository itself. Raises GitFailed, OSError."""
        config, now = repository.common / "config", time.monotonic()
        stamp = _stamp(config)
        known = self._known.get(repository.common)
        if known and known[0] == stamp and now - known[1] < BELIEVED_S:
            return known[2]
        if stamp is not None:
            read_regular(config, MAX_CONFIG)  # a pipe would keep git waiting
        facts = _read(await git.run("config", "-z", "--get-regexp", _WANTED, well=(0, 1)))
        if len(self._known) > _MANY:
            self._known.clear()
        self._known[repository.common] = (stamp, now, facts)
        return facts


def excludes(facts: Facts, environ: Mapping[str, str], repository: Repository) -> str:
    """Where the person's own file of ignored names is; /dev/null for none."""
    home = environ.get("HOME", "/")
    base = environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    said = facts.excludes or f"{base}/git/ignore"
    path = repository.top / (f"{home}{said[1:]}" if said.startswith("~/") else os.path.expanduser(said))
    return str(path) if path.is_file() else "/dev/null"


def _read(said: bytes) -> Facts:
    lines = said.decode("utf-8", "surrogateescape").split("\0")
    values = dict(line.split("\n", 1) for line in lines if "\n" in line)
    storage = values.get("extensions.refstorage", "files")
    if storage != "files":
        raise GitFailed(f"the repository keeps its refs as {storage}: only files are supported")
    shared = values.get("core.sharedrepository", "false")
    return Facts(
        object_format="sha256" if values.get("extensions.objectformat") == "sha256" else "sha1",
        shared=shared if _SHARED.fullmatch(shared) else "false",
        excludes=values.get("core.excludesfile") or None,
    )


def _stamp(config: Path) -> tuple[int, int, int] | None:
    try:
        found = config.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
