"""What in a workspace lets harmless commands reach further: repositories within it, links that lead out of it."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

MAX_ENTRIES = 50_000
MAX_S = 2.0
_PUBLIC = tuple(map(Path, ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt", "/nix/store")))
"""Programs and libraries: a link into these gives nothing away (virtual environments hold some)."""


@dataclass(frozen=True)
class WorkspaceScan:
    """What was found; a tree that is too large to be scanned counts as having both."""

    has_repositories: bool = False
    """A `.git` below the top: such a repository has a configuration of its own, and git looks into it."""
    leads_out: bool = False
    """A link that leads out of the tree: commands that take no path to it follow it all the same."""


def scan(top: Path) -> WorkspaceScan:
    """Scan a tree for at most MAX_S seconds. Follows no link, opens no file. `top` is resolved."""
    until, entries = time.monotonic() + MAX_S, 0
    repositories = leads_out = False
    waiting = [str(top)]
    while waiting and not (repositories and leads_out):
        directory = waiting.pop()
        try:
            with os.scandir(directory) as found:
                for entry in found:
                    entries += 1
                    if entries > MAX_ENTRIES or time.monotonic() > until:
                        return WorkspaceScan(has_repositories=True, leads_out=True)
                    if entry.name == ".git":
                        repositories = repositories or directory != str(top)
                    elif entry.is_symlink():
                        leads_out = leads_out or _is_outside(entry.path, top)
                    elif entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError:
            continue  # gone since, or nobody's to read
    return WorkspaceScan(repositories, leads_out)


def _is_outside(link: str, top: Path) -> bool:
    target = Path(os.path.realpath(link))
    return not any(target.is_relative_to(each) for each in (top, *_PUBLIC))
