"""A git worktree for a run: git takes it for its own, nothing of the repository runs for it, none is filled twice."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from activities.run_worktrees import RunWorktrees
from activities.workspaces.git.shadows import Shadows
from steersman.contracts.errors import InvalidRequest, WorkspaceError
from steersman.contracts.request import RunRequest, Workspace
from steersman.contracts.run import Worktree


@dataclass
class Place:
    """A repository `top` with a commit, and a state directory beside it."""

    root: Path

    def __post_init__(self) -> None:
        self.top, self.state = self.root / "top", self.root / "state"
        for each in (self.top, self.state):
            each.mkdir()
        self.sh("git init -qb main; git config user.name Person; git config user.email person@example.invalid")
        self.sh(
            "mkdir sub; echo one > sub/file; printf 'a\\r\\n' > crlf; ln -s crlf link; echo '#!' > run; chmod +x run"
        )
        self.sh("git add -A; git commit -qm first; echo theirs > sub/file; echo new > untracked; git add untracked")
        roots = [self.root]
        self.worktrees = RunWorktrees(Shadows({**os.environ, "HOME": str(self.root)}, roots), self.state)

    def sh(self, script: str, where: Path | None = None) -> str:
        return subprocess.run(
            ["sh", "-ec", script],
            cwd=where or self.top,
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "HOME": str(self.root)},
        ).stdout.strip()

    def place(self, branch: str, workspace: Path | None = None) -> Worktree:
        where = workspace or self.top
        asked = Workspace(path=str(where), worktree=branch)
        found = self.worktrees.place(RunRequest(agent="claude", prompt="go", workspace=asked), where)
        assert found
        return found

    async def make(self, branch: str, workspace: Path | None = None) -> Path:
        return await self.worktrees.make(self.place(branch, workspace), workspace or self.top)

    @property
    def standing(self) -> str:
        """The user's own work tree, index and HEAD."""
        return self.sh("git status --porcelain; git diff; git diff --cached; git rev-parse --abbrev-ref HEAD")


@pytest.fixture
def repo(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_git_takes_it_for_one_of_its_own(repo: Place) -> None:
    before = repo.standing
    made = await repo.make("fix/login")
    assert made.is_relative_to(repo.state / "worktrees")
    assert repo.sh("git status --porcelain; git rev-parse --abbrev-ref HEAD", made) == "fix/login"
    assert (made / "sub" / "file").read_text() == "one\n", "it begins at HEAD"
    assert (made / "crlf").read_bytes() == b"a\r\n"
    assert (made / "link").readlink() == Path("crlf")
    assert os.access(made / "run", os.X_OK)
    assert not (made / "untracked").exists()
    assert f"{made} " in repo.sh("git worktree list")
    assert repo.standing == before

    repo.sh("echo two > sub/file; git commit -qam second; echo three > sub/file; echo x > new", made)
    assert await repo.make("fix/login") == made
    assert (made / "sub" / "file").read_text() == "three\n", "work goes on there"
    assert (made / "new").exists()
    assert repo.sh("git log --format=%s fix/login") == "second\nfirst"
    assert repo.standing == before
    assert await repo.make("fix/login", repo.top / "sub") == made / "sub"
    assert await repo.make("fix/other", made) != made, "a worktree's repository is the same"

    repo.sh(f"git worktree remove --force {made}; git fsck; git worktree prune -v")
    again = await repo.make("fix/login")
    assert (again, (again / "sub" / "file").read_text()) == (made, "two\n")


async def test_names_tell_branches_and_repositories_apart(repo: Place, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Place(tmp_path / "other")
    names = ["a/b", "a-b", "a.b", "x" * 200, "x" * 199 + "y", "ä", "ö"]
    assert len({repo.place(each).top for each in names}) == len(names)
    assert repo.place("a").top != other.place("a").top


async def test_nothing_of_the_repository_runs(repo: Place) -> None:
    trap = f"touch {repo.root}/ran; exit 0"
    for hook in ("post-checkout", "post-index-change", "reference-transaction", "pre-commit"):
        (repo.top / ".git" / "hooks").mkdir(exist_ok=True)
        path = repo.top / ".git" / "hooks" / hook
        path.write_text(f"#!/bin/sh\n{trap}\n")
        path.chmod(0o755)
    repo.sh(
        "echo '* filter=evil text eol=crlf ident' > .gitattributes; git add .gitattributes; git commit -qm attributes"
    )
    repo.sh(
        f"git config core.fsmonitor '{trap}'; git config core.sshCommand '{trap}'; git config core.hooksPath .git/hooks"
    )
    (repo.root / "ran").unlink(missing_ok=True)
    made = await repo.make("fix")
    assert (made / "sub" / "file").read_text() == "one\n"
    await repo.make("fix")
    assert not (repo.root / "ran").exists()
    repo.sh(f"git config filter.evil.smudge '{trap}'; git config filter.evil.process '{trap}'")
    repo.sh(f"git config alias.config '!{trap}'; git config core.pager '{trap}'; git config core.editor '{trap}'")
    (repo.root / "ran").unlink(missing_ok=True)
    with pytest.raises(WorkspaceError, match="filter for"):
        await repo.make("fix")
    with pytest.raises(WorkspaceError, match="filter for"):
        await repo.make("other")
    assert not (repo.root / "ran").exists()


CRYPT = "printf '*.enc filter=crypt\\n' > .gitattributes; echo plain > a.enc; git add -A; git commit -qm secret; "
DRIVER = "filter.crypt.clean 'tr a-z b-za'"


@pytest.mark.parametrize(
    "configured",
    [
        f"git config {DRIVER}",
        f"git config --global {DRIVER}",
        f"git config -f .git/more {DRIVER}; git config include.path more",
        f"git config -f ../more {DRIVER}; git config --global includeIf.gitdir:**/top/.path {{root}}/more",
        f"git config extensions.worktreeConfig true; git config --worktree {DRIVER}",
        f"git config {DRIVER}; git mv .gitattributes x; git commit -qm x; mv x .git/info/attributes",
        f"git config {DRIVER}; printf '[attr]own filter=crypt\\na.enc own\\n' > .gitattributes; git commit -qam macro",
    ],
)
async def test_a_file_that_git_would_put_through_a_filter_is_refused(repo: Place, configured: str) -> None:
    repo.sh(CRYPT)
    assert (await repo.make("before") / "a.enc").read_text() == "plain\n", "none is configured"
    repo.sh(configured.format(root=repo.root))
    listed, refs = repo.sh("git worktree list"), repo.sh("git for-each-ref refs/heads")
    said = r"a filter for a\.enc \(crypt\), which cannot be carried .*: make one with `git worktree add`"
    for branch in ("fix", "before"):
        with pytest.raises(WorkspaceError, match=said):
            await repo.make(branch)
    assert (repo.sh("git worktree list"), repo.sh("git for-each-ref refs/heads")) == (listed, refs)


@pytest.mark.parametrize(
    "configured",
    [
        "filter.other.clean cat",
        "filter.crypt.clean ''",
        "filter.lfs.clean cat; sed -i s/crypt/lfs/ .gitattributes; git commit -qam lfs",
    ],
)
async def test_a_filter_that_git_does_not_run_or_that_changes_nothing_is_none(repo: Place, configured: str) -> None:
    repo.sh(f"{CRYPT} git config {configured}; mkdir x; echo '*.enc -filter' > x/.gitattributes")
    made = await repo.make("fix")
    assert repo.sh("git add -A; git status --porcelain", made) == ""


@pytest.mark.parametrize(
    ("branch", "before", "why"),
    [
        ("main", "", "branch main is checked out at .*/top"),
        ("fix", "git branch fix; git worktree add -q ../mine fix", "branch fix is checked out at .*/mine"),
        (
            "fix",
            "git branch fix; mkdir -p .git/rebase-merge; echo refs/heads/fix > .git/rebase-merge/head-name",
            "/top",
        ),
        ("fix/deeper", "git branch fix", "refs/heads/fix"),
        ("fix", "git symbolic-ref refs/heads/fix refs/heads/main", "no branch itself"),
        ("fix", "git checkout -q --orphan none", "has no commit yet"),
        ("fix", "mkdir ../outside; ln -s ../../outside .git/worktrees", "is a link"),
    ],
)
async def test_what_cannot_be_is_said_and_leaves_nothing(repo: Place, branch: str, before: str, why: str) -> None:
    if before:
        repo.sh(before)
    listed, refs = repo.sh("git worktree list"), repo.sh("git for-each-ref refs/heads")
    with pytest.raises(WorkspaceError, match=why):
        await repo.make(branch)
    assert repo.sh("git worktree list") == listed
    assert branch != "main" or repo.sh("git for-each-ref refs/heads") == refs
    assert not [*(repo.state / "worktrees").glob("*/*")]
    assert not (repo.root / "outside").exists() or not [*(repo.root / "outside").iterdir()]


async def test_a_branch_of_the_main_work_tree_is_known_whatever_its_git_directory_is_called(repo: Place) -> None:
    repo.sh("git init -q --separate-git-dir ../apart; git worktree add -q ../linked -b side")
    with pytest.raises(WorkspaceError, match=r"branch main is checked out at .*/apart"):
        await repo.make("main", repo.root / "linked")


async def test_what_became_of_it_is_looked_at(repo: Place) -> None:
    made = await repo.make("fix")
    repo.sh("git checkout -qb elsewhere", made)
    with pytest.raises(WorkspaceError, match="has elsewhere checked out"):
        await repo.make("fix")
    repo.sh("git checkout -q fix", made)
    await repo.make("fix")
    (repo.top / "gone").mkdir()
    with pytest.raises(WorkspaceError, match="has no directory gone"):
        await repo.make("fix", repo.top / "gone")
    kept = Path((made / ".git").read_text().removeprefix("gitdir: ").strip())
    kept.rename(kept.with_name("away"))
    with pytest.raises(WorkspaceError, match="knows nothing of its worktree"):
        await repo.make("fix")
    (made / ".git").unlink()
    with pytest.raises(WorkspaceError, match="is no worktree of"):
        await repo.make("fix")
    plain = repo.root / "plain"
    plain.mkdir()
    with pytest.raises(InvalidRequest, match="in no git repository"):
        repo.place("fix", plain)


async def test_a_directory_that_is_a_link_leads_nowhere(repo: Place) -> None:
    repo.sh("rm -r sub; ln -s / sub; git add -A; git commit -qm link; rm sub; mkdir sub")
    with pytest.raises(WorkspaceError, match="has no directory sub"):
        await repo.make("fix", repo.top / "sub")


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("git worktree lock {made}; mv {made} {away}", "is gone, and locked"),
        ("git worktree move {made} {away}", "was moved to .*away: `git worktree move` it back"),
    ],
)
async def test_what_git_keeps_of_one_that_is_elsewhere_stays(repo: Place, script: str, why: str) -> None:
    made, away = await repo.make("fix"), repo.root / "away"
    repo.sh("echo mine > sub/file; git add sub/file", made)
    repo.sh(script.format(made=made, away=away))
    for _ in range(2):
        with pytest.raises(WorkspaceError, match=why):
            await repo.make("fix")
    assert repo.sh("git diff --cached --name-only", away) == "sub/file"
    assert not made.exists()


async def test_two_at_once_make_one(repo: Place) -> None:
    assert len(set(await asyncio.gather(*(repo.make("fix") for _ in range(4))))) == 1
    assert repo.sh("git worktree list").count("[fix]") == 1


KILLED = """
import asyncio, os, sys
from pathlib import Path
from tests.workspaces.test_linked_trees import RunWorktrees, Shadows, Worktree
root, top, directory = map(Path, sys.argv[1:])
trees = RunWorktrees(Shadows({**os.environ, "HOME": str(root)}, [root]), root / "state")
asyncio.run(trees.make(Worktree(branch="fix", top=str(top), directory=str(directory)), root / "top"))
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("when", range(6))
async def test_killed_at_any_step_the_next_try_comes_to_the_same(repo: Place, when: int) -> None:
    repo.sh("for i in $(seq 2000); do echo $i > sub/$i; done; git add sub; git commit -qm many")
    place = repo.place("fix")
    kept = repo.top / ".git" / "worktrees"
    signs: list[Callable[[], bool]] = [
        (repo.state / "workspaces").exists,
        (repo.top / ".git/refs/heads/fix").exists,
        lambda: kept.exists() and any(kept.iterdir()),
        lambda: any(kept.glob("*/HEAD")),
        lambda: any(Path(place.top).parent.glob(".fix.new/sub/*")),
        lambda: any(kept.glob("*/index")),
    ]
    command = [sys.executable, "-c", KILLED, str(repo.root), place.top, place.directory]
    worker = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    while worker.poll() is None and not signs[when]():
        time.sleep(0.0005)  # without it, it takes the processor from whom it watches
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    made = await repo.make("fix")
    assert repo.sh("git status --porcelain; git rev-parse --abbrev-ref HEAD", made) == "fix"
    assert len([*(made / "sub").iterdir()]) == 2001
    assert [each.name for each in made.parent.iterdir()] == ["fix"]
    assert repo.sh("git worktree list").count("[fix]") == 1
