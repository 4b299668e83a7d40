"""A real git repository as a loop's workspace, and what a person would see of it."""

import io
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from activities.loops.loop_store import LoopStore
from activities.store.ownership import Ownership
from activities.workspaces.checkpoints import WorkspaceCheckpoints
from activities.workspaces.git.checkpoint_commits import ref
from steersman.contracts.loop_activities import Survey
from tests.support.files import below

PERSON = {
    "GIT_AUTHOR_NAME": "Person",
    "GIT_AUTHOR_EMAIL": "person@example.com",
    "GIT_COMMITTER_NAME": "Person",
    "GIT_COMMITTER_EMAIL": "person@example.com",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_OPTIONAL_LOCKS": "0",
}
LOOP = "loop-1"
Files = dict[str, "bytes | str"]
"""Path -> content, `-> target` of a link, `+x` in front of an executable's content."""


def git(directory: Path, *arguments: str, **variables: str) -> str:
    """The person's own git."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory), **PERSON, **variables}
    command = ["git", "-c", "protocol.file.allow=always", "-C", str(directory), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, f"git {arguments}: {done.stderr.decode(errors='replace')}"
    return done.stdout.decode("utf-8", "surrogateescape")


def put(directory: Path, files: Mapping[str, bytes | str]) -> None:
    """Write files, their directories too."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def repository(directory: Path, files: Mapping[str, bytes | str] | None = None, *options: str) -> Path:
    """A repository with these files in its first commit, or without any commit."""
    directory.mkdir(parents=True, exist_ok=True)
    git(directory, "init", "-q", "-b", "main", *options)
    if files:
        put(directory, files)
        git(directory, "add", "-A")
        git(directory, "commit", "-q", "-m", "first")
    return directory


def seen(top: Path, commit: str) -> Files:
    """A commit's files as git has them."""
    files: Files = {}
    blobs: list[tuple[str, str, str]] = []
    for line in git(top, "ls-tree", "-r", "-z", commit).split("\0")[:-1]:
        facts, path = line.split("\t", 1)
        mode, kind, ident = facts.split(" ")
        if kind == "commit":
            files[path] = f"repository {ident}"
            continue
        blobs.append((path, mode, ident))
    asked = "".join(f"{ident}\n" for _, _, ident in blobs).encode()
    shown = subprocess.run(["git", "-C", str(top), "cat-file", "--batch"], input=asked, capture_output=True, check=True)
    with io.BytesIO(shown.stdout) as answers:
        for path, mode, ident in blobs:
            named, kind, size = answers.readline().decode().split()
            assert (named, kind) == (ident, "blob")
            content = answers.read(int(size) + 1)[:-1]
            files[path] = b"-> " + content if mode == "120000" else b"+x " + content if mode == "100755" else content
    return files


def on_disk(top: Path) -> Files:
    """The files that are there now, git's own aside."""
    files: Files = {}
    for directory, names, plain in os.walk(top):
        if ".git" in names:
            names.remove(".git")
        for name in [*plain, *(each for each in names if Path(directory, each).is_symlink())]:
            path = Path(directory, name)
            key = str(path.relative_to(top))
            if path.is_symlink():
                files[key] = b"-> " + os.fsencode(path.readlink())
            elif path.is_file() and name != ".git":
                files[key] = (b"+x " if path.stat().st_mode & 0o100 else b"") + path.read_bytes()
    return files


def standing(top: Path) -> dict[str, object]:
    """What of a repository is the person's, and must stay as it is."""
    directory = Path(git(top, "rev-parse", "--absolute-git-dir").strip())
    index, config, logs = directory / "index", directory / "config", directory / "logs"
    born = bool(git(top, "for-each-ref", "refs/heads"))
    return {
        "index": index.read_bytes() if index.exists() else b"",
        "index_time": index.stat().st_mtime_ns if index.exists() else 0,
        "head": (directory / "HEAD").read_bytes(),
        "staged": git(top, "diff", "--cached", "--binary") if born else "",
        "status": git(top, "status", "--porcelain=v2", "--branch"),
        "branches": git(top, "for-each-ref", "refs/heads", "refs/tags", "refs/remotes", "refs/stash"),
        "config": config.read_bytes() if config.exists() else b"",
        "logs": {str(each): each.read_bytes() for each in below(logs) if each.is_file()},
    }


class Site:
    """A loop's own place on a host, and a workspace."""

    def __init__(self, directory: Path, workspace: Path, environ: Mapping[str, str] | None = None) -> None:
        home = directory / "home"
        home.mkdir(exist_ok=True)
        self.environ = {"PATH": os.environ["PATH"], "HOME": str(home), **(environ or {})}
        self.home, self.workspace = home, workspace
        self.state = directory / "state"
        self.store = LoopStore(self.state, Ownership("cluster", "default"))
        self.checkpoints = WorkspaceCheckpoints(self.environ, [Path("/")])
        self.loop = LOOP

    async def look(self, number: int | None = 1, workspace: Path | None = None, maker: str = "e") -> Survey:
        """A survey's part that is about files. `maker`: the execution that asks."""
        name = None if number is None else ref(self.loop, number)
        message, directory = f"{self.loop}: checkpoint {number}", self.store.create(self.loop)
        return await self.checkpoints.capture(directory, workspace or self.workspace, name, message, maker)

    async def keep(self, number: int = 1) -> str:
        """A checkpoint; its commit."""
        survey = await self.look(number)
        assert survey.error is None
        assert survey.commit is not None
        return survey.commit

    async def restore(self, number: int, loop: str | None = None, commit: str | None = None) -> int:
        """Files as they were; how many changed."""
        place = self.store.create(self.loop)
        return await self.checkpoints.restore(place, self.workspace, ref(loop or self.loop, number), commit)
