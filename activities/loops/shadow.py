"""A git directory of our own for somebody else's work tree.

It shares the repository's objects and refs, and nothing else: configuration, attributes and index are ours, so no
filter, hook or monitor that stands in the repository ever runs, and its own index and HEAD are not touched. One survey
at a time works in it. What is written with it must not live here.

    loops/<loop>/lock           held for as long as one of our gits runs
                /git/           config, info/attributes, info/exclude, index
                /git/refs       -> the repository's; so are packed-refs, sharedindex.*
                /git/nested     repositories in the work tree that the index holds as such
"""

import asyncio
import contextlib
import fcntl
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from activities.loops.facts import FactBook, Facts, excludes
from activities.loops.git import Git, GitFailed, end_orphans, marks
from activities.loops.reading import read_regular
from activities.loops.repository import Repository

PATIENCE_S = 600.0
FACTS_PATIENCE_S = 15.0
_TRY_S, _TRIES = 0.02, 50

_CASE = "true" if sys.platform == "darwin" else "false"
_CONFIG = f"""[core]
	repositoryFormatVersion = {{version}}
	bare = false
	fileMode = true
	symlinks = true
	ignoreCase = {_CASE}
	precomposeUnicode = {_CASE}
	logAllRefUpdates = false
	hooksPath = /dev/null
	attributesFile = /dev/null
	autocrlf = false
	safecrlf = false
	fsmonitor = false
	untrackedCache = false
	splitIndex = false
	quotePath = false
	fsyncMethod = batch
	sharedRepository = {{shared}}
[gc]
	auto = 0
[extensions]
{{extensions}}"""
_ATTRIBUTES = "* -text !eol !crlf -ident -filter !working-tree-encoding\n"
"""The bytes as they are; these come before what the work tree's own files say."""

_SHARED_INDEX = re.compile(r"sharedindex\.[0-9a-f]{40,64}")
_MAX_EXCLUDE = 1024 * 1024


@dataclass(frozen=True)
class Shadow:
    """One that is open. `git` works in it."""

    path: Path
    repository: Repository
    git: Git
    excludes: str

    @property
    def index(self) -> Path:
        return self.path / "index"

    @property
    def nested(self) -> set[bytes]:
        """Paths of repositories within the work tree that are in the index."""
        try:
            return set((self.path / "nested").read_bytes().split(b"\0")) - {b""}
        except FileNotFoundError:
            return set()

    def keep_nested(self, paths: set[bytes]) -> None:
        """Remember them: before they are in the index, so that none is there unknown."""
        if paths != self.nested:
            (self.path / "nested").write_bytes(b"\0".join(sorted(paths)))

    def forget_index(self) -> None:
        """Begin anew: every file is read again."""
        self.index.unlink(missing_ok=True)
        self.keep_nested(set())

    def listing(self, *arguments: str) -> tuple[str, ...]:
        """A command that knows what the person's own file of ignored names says."""
        return ("-c", f"core.excludesFile={self.excludes}", *arguments)

    def elsewhere(self, directory: Path | None = None, **variables: str) -> Git:
        """The same git in another directory, with other variables."""
        environment = {**self.git.environment, **variables}
        return replace(self.git, directory=directory or self.git.directory, environment=environment)


@asynccontextmanager
async def opened(
    directory: Path, repository: Repository, program: str, environ: Mapping[str, str], book: FactBook
) -> AsyncIterator[Shadow]:
    """The shadow in a loop's directory, held until the end. `environ`: the person's, for PATH and their ignored names.

    Raises GitFailed.
    """
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    path = directory / "git"
    try:
        async with _locked(directory / "lock", deadline) as held:
            soon = deadline - PATIENCE_S + FACTS_PATIENCE_S
            marked = marks(directory / "lock")
            own = Git(program, directory, {**_own(environ), **marked}, soon, held)
            facts = await book.ask(repository, own)
            await asyncio.to_thread(_prepare, path, repository, facts)
            environment = {**_environment(environ, path, repository), **marked}
            git = Git(program, repository.top, environment, deadline, held)
            yield Shadow(path, repository, git, excludes(facts, environ, repository))
    except OSError as error:
        raise GitFailed(f"{error.filename or directory}: {error.strerror}") from error


@asynccontextmanager
async def _locked(path: Path, deadline: float) -> AsyncIterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    tries = 0
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if asyncio.get_running_loop().time() > deadline:
                raise GitFailed("another git is still at work for this loop")
            tries += 1
            if tries % _TRIES == 0:
                how = signal.SIGTERM if tries == _TRIES else signal.SIGKILL
                await asyncio.to_thread(end_orphans, path, how)
            await asyncio.sleep(_TRY_S)
        yield descriptor
    finally:
        os.close(descriptor)


# ---- the directory


def _prepare(path: Path, repository: Repository, facts: Facts) -> None:
    (path / "info").mkdir(mode=0o700, parents=True, exist_ok=True)
    version, extensions = (1, f"\tobjectFormat = {facts.object_format}\n") if facts.object_format != "sha1" else (0, "")
    _write(path / "config", _CONFIG.format(version=version, shared=facts.shared, extensions=extensions).encode())
    _write(path / "info" / "attributes", _ATTRIBUTES.encode())
    _write(path / "info" / "exclude", _small(repository.common / "info" / "exclude"))
    _write(path / "HEAD", b"ref: refs/steersman/none\n")
    # An index knows files by their inodes: of another place it would know nothing, or worse.
    place = os.fsencode(f"{repository.top}\0{repository.common}\0{facts.object_format}")
    if _content(path / "worktree") != place:
        (path / "index").unlink(missing_ok=True)
        (path / "nested").unlink(missing_ok=True)
        _write(path / "worktree", place)
    for each in path.glob("*.lock"):
        each.unlink()  # of a git that was killed: none runs now
    for name in ("refs", "packed-refs"):
        _link(path / name, repository.common / name)
    with os.scandir(repository.git) as entries:
        for entry in entries:
            if _SHARED_INDEX.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                _link(path / entry.name, Path(entry.path))


def _write(path: Path, data: bytes) -> None:
    if _content(path) != data:
        path.write_bytes(data)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _link(path: Path, target: Path) -> None:
    try:
        if path.readlink() == target:
            return
        path.unlink()
    except FileNotFoundError:
        pass
    path.symlink_to(target)


def _small(path: Path) -> bytes:
    try:
        return read_regular(path, _MAX_EXCLUDE)
    except OSError:
        return b""


# ---- environments

_QUIET = {
    "LC_ALL": "C",
    "TZ": "UTC",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
}
"""git speaks English, asks nobody, fetches nothing, and takes every object for itself."""


def _own(environ: Mapping[str, str]) -> dict[str, str]:
    """To ask for the person's own configuration, in no repository."""
    kept = {name: environ[name] for name in ("PATH", "HOME", "XDG_CONFIG_HOME") if name in environ}
    return {**kept, **_QUIET, "GIT_DIR": os.devnull}


def _environment(environ: Mapping[str, str], path: Path, repository: Repository) -> dict[str, str]:
    person = {"NAME": "Steersman", "EMAIL": "steersman@localhost"}
    return {
        **_QUIET,
        "PATH": environ.get("PATH", os.defpath),
        "HOME": str(path),
        "XDG_CONFIG_HOME": str(path),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_DIR": str(path),
        "GIT_WORK_TREE": str(repository.top),
        "GIT_OBJECT_DIRECTORY": str(repository.objects),
        **{f"GIT_{role}_{what}": said for role in ("AUTHOR", "COMMITTER") for what, said in person.items()},
    }
