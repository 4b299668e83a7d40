"""The shadow repository of a loop: a git directory of Steersman's own for a user's work tree.

It shares the repository's objects and refs, and nothing else: it has its own configuration, attributes and index, so no
filter, hook or monitor of the repository ever runs, and the repository's index and HEAD are not touched. One survey at
a time works in it. What is written through it must not live here.

    loops/<loop>/lock           held while a git of this loop runs
                /git/           config, info/attributes, info/exclude, index
                /git/refs       -> the repository's; packed-refs and sharedindex.* are links, too
                /git/nested     nested repositories of the work tree that the index holds
                /git/worktree   the work tree, common directory and object format that the index is of
"""

import asyncio
import contextlib
import fcntl
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from activities.workspaces.files import read_regular
from activities.workspaces.git.config import GitConfig, GitConfigCache, excludes_file
from activities.workspaces.git.repository import Repository
from activities.workspaces.git.runner import GitFailed, GitRunner, end_orphans, owner_variables

TIMEOUT_S = 600.0
"""An operation in a shadow may take this many seconds, the wait for its lock included."""
CONFIG_TIMEOUT_S = 15.0
"""The repository's configuration must be read within this many seconds."""
_TRY_S, _TRIES_PER_SIGNAL = 0.02, 50

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
_ATTRIBUTES = "* -text !eol !crlf -ident -filter !working-tree-encoding !diff\n"
"""Files are stored byte for byte; these attributes take precedence over the work tree's own."""

_SHARED_INDEX = re.compile(r"sharedindex\.[0-9a-f]{40,64}")
_MAX_EXCLUDE = 1024 * 1024


@dataclass(frozen=True)
class Shadow:
    """An open shadow. `git` works in it; `user_git` works in no repository, with the user's own configuration."""

    path: Path
    repository: Repository
    git: GitRunner
    user_git: GitRunner
    excludes_file: str

    @property
    def index(self) -> Path:
        return self.path / "index"

    @property
    def nested(self) -> set[bytes]:
        """Paths of nested repositories that are in the index."""
        try:
            return set((self.path / "nested").read_bytes().split(b"\0")) - {b""}
        except FileNotFoundError:
            return set()

    def record_nested(self, paths: set[bytes]) -> None:
        """Record the paths of nested repositories. Called before they enter the index, so that each there is known."""
        if paths != self.nested:
            (self.path / "nested").write_bytes(b"\0".join(sorted(paths)))

    def forget_index(self) -> None:
        """Remove the index: every file is read again."""
        self.index.unlink(missing_ok=True)
        self.record_nested(set())

    def with_excludes(self, *arguments: str) -> tuple[str, ...]:
        """A command that respects the user's own file of ignore rules."""
        return ("-c", f"core.excludesFile={self.excludes_file}", *arguments)

    def as_user(self, **variables: str) -> GitRunner:
        """A git of the user's, with all configuration that counts for theirs: whoever may write in the workspace may
        have written it. Only for commands of which git runs nothing that is named there.
        """
        git, top = str(self.repository.git), str(self.repository.top)
        environment = {**self.user_git.environment, "GIT_DIR": git, "GIT_WORK_TREE": top, **variables}
        return replace(self.user_git, directory=self.repository.top, environment=environment)

    def with_variables(self, directory: Path | None = None, **variables: str) -> GitRunner:
        """The same git, in another directory and with further environment variables."""
        environment = {**self.git.environment, **variables}
        return replace(self.git, directory=directory or self.git.directory, environment=environment)


@asynccontextmanager
async def open_shadow(
    directory: Path, repository: Repository, program: str, environ: Mapping[str, str], configs: GitConfigCache
) -> AsyncIterator[Shadow]:
    """The shadow in a loop's directory, locked until the context ends. `environ` is the user's: PATH and ignore rules.

    Raises GitFailed.
    """
    deadline = asyncio.get_running_loop().time() + TIMEOUT_S
    path = directory / "git"
    try:
        async with _locked(directory / "lock", deadline) as lock_descriptor:
            config_deadline = deadline - TIMEOUT_S + CONFIG_TIMEOUT_S
            owner = owner_variables(directory / "lock")
            variables = {**_user_environment(environ), **owner}
            outside = GitRunner(program, directory, variables, config_deadline, lock_descriptor)
            config = await configs.read(repository, outside)
            await asyncio.to_thread(_prepare, path, repository, config)
            environment = {**_shadow_environment(environ, path, repository), **owner}
            git = GitRunner(program, repository.top, environment, deadline, lock_descriptor)
            user_git = replace(outside, deadline=deadline)
            yield Shadow(path, repository, git, user_git, excludes_file(config, environ, repository))
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
            if tries % _TRIES_PER_SIGNAL == 0:
                number = signal.SIGTERM if tries == _TRIES_PER_SIGNAL else signal.SIGKILL
                await asyncio.to_thread(end_orphans, path, number)
            await asyncio.sleep(_TRY_S)
        yield descriptor
    finally:
        os.close(descriptor)


# ---- the directory


def _prepare(path: Path, repository: Repository, config: GitConfig) -> None:
    (path / "info").mkdir(mode=0o700, parents=True, exist_ok=True)
    version, extensions = 0, ""
    if config.object_format != "sha1":
        version, extensions = 1, f"\tobjectFormat = {config.object_format}\n"
    _write(path / "config", _CONFIG.format(version=version, shared=config.shared, extensions=extensions).encode())
    _write(path / "info" / "attributes", _ATTRIBUTES.encode())
    _write(path / "info" / "exclude", _excludes(repository.common / "info" / "exclude"))
    _write(path / "HEAD", b"ref: refs/steersman/none\n")
    # An index identifies files by their inodes: that of another work tree would be wrong.
    work_tree = os.fsencode(f"{repository.top}\0{repository.common}\0{config.object_format}")
    if _content(path / "worktree") != work_tree:
        (path / "index").unlink(missing_ok=True)
        (path / "nested").unlink(missing_ok=True)
        _write(path / "worktree", work_tree)
    for each in path.glob("*.lock"):
        each.unlink()  # left by a git that was killed: none runs now
    for each in path.parent.glob(f"{tempfile.gettempprefix()}*"):
        shutil.rmtree(each, ignore_errors=True)  # left by a worker that was killed: whoever makes one has the lock
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


def _excludes(path: Path) -> bytes:
    try:
        return read_regular(path, _MAX_EXCLUDE)
    except OSError:
        return b""


# ---- environments

_FIXED = {
    "LC_ALL": "C",
    "TZ": "UTC",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
}
"""git prints English, prompts nobody, fetches nothing, and replaces no object by another."""


def _user_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """For reading the user's own configuration, in no repository."""
    names = ("PATH", "HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")
    kept = {name: environ[name] for name in names if name in environ}
    return {**kept, **_FIXED, "GIT_DIR": os.devnull}


def _shadow_environment(environ: Mapping[str, str], path: Path, repository: Repository) -> dict[str, str]:
    identity = {"NAME": "Steersman", "EMAIL": "steersman@localhost"}
    return {
        **_FIXED,
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
        **{f"GIT_{role}_{name}": value for role in ("AUTHOR", "COMMITTER") for name, value in identity.items()},
    }
