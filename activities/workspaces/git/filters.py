"""Filters that git puts the content of files through, as a user has configured them. None is run here."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from activities.workspaces.git.effective_config import effective_config
from activities.workspaces.git.shadow import Shadow

HARMLESS = frozenset({b"lfs"})
"""Filters that leave alone what has gone through them: Git LFS knows its own pointers."""
_DRIVERS = r"^filter\..*\.(clean|smudge|process)$"


@dataclass(frozen=True)
class FilteredFile:
    """A file that has a filter, and the filter's name."""

    path: bytes
    name: bytes


async def filtered_file(shadow: Shadow, tree: str) -> FilteredFile | None:
    """A file of a tree for which git would run a filter that is configured anywhere, and that would change it; None
    where there is none.

    Raises GitFailed.
    """
    settings = await effective_config(shadow.repository, shadow.user_git, _DRIVERS)
    named = {name.removeprefix("filter.").rpartition(".")[0].encode() for name, value in settings.items() if value}
    if not (drivers := named - HARMLESS):
        return None
    entries = (await shadow.git.run("ls-tree", "-r", "-z", tree)).split(b"\0")[:-1]
    paths = [each.split(b"\t", 1)[1] for each in entries]
    rules = [each for each, path in zip(entries, paths, strict=True) if path.rpartition(b"/")[2] == b".gitattributes"]
    with tempfile.TemporaryDirectory(dir=shadow.path.parent) as scratch:
        index = str(Path(scratch) / "index")
        ours = shadow.with_variables(GIT_INDEX_FILE=index)
        await ours.run("update-index", "-z", "--index-info", stdin=b"".join(each + b"\0" for each in rules))
        # By the attributes in the tree, the repository's, the user's and the machine's; the index is ours.
        command = ("-c", "core.fsmonitor=false", "check-attr", "--cached", "--stdin", "-z", "filter")
        listed = b"".join(each + b"\0" for each in paths)
        answers = (await shadow.as_user(GIT_INDEX_FILE=index).run(*command, stdin=listed)).split(b"\0")
    for path, name in zip(answers[::3], answers[2::3], strict=False):
        if name in drivers:
            return FilteredFile(path, name)
    return None
