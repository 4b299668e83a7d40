"""What a hostile repository can do to a loop in it: nothing leaves the roots, and nothing hangs."""

import asyncio
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.admission.policy import Policy
from activities.loop_activities import LoopActivities
from activities.loops.items.plans import check_plan, read_plan
from activities.loops.items.sources import read_items
from activities.workspaces.checkpoints import WorkspaceCheckpoints
from activities.workspaces.git.checkpoint_commits import ref
from activities.workspaces.git.runner import GitFailed
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.loop import Items
from steersman.contracts.loop_activities import DropInput, KeptInput, LoopKey, RestoreInput
from steersman.contracts.request import RunRequest
from tests.loops.loop_site import Site, git, put, repository, seen
from tests.loops.test_activities import unknown, whoever_calls
from tests.support.files import below
from tests.support.processes import marked, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

FILES: Mapping[str, str] = {"a.txt": "one\n", "dir/b.txt": "two\n"}
SOON_S = 30.0
"""A look at something that hangs; most of it is the time after which a git counts as hung."""


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A repository in the only root."""
    return repository(tmp_path / "root" / "work", FILES)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A repository of somebody else's."""
    return repository(tmp_path / "outside", {"secret.txt": "s\n"})


@pytest.fixture
def site(tmp_path: Path, top: Path) -> Site:
    made = Site(tmp_path, top)
    made.checkpoints = WorkspaceCheckpoints(made.environ, [tmp_path / "root"])
    return made


def content(directory: Path) -> dict[str, object]:
    """Everything below a directory."""
    return {
        str(each.relative_to(directory)): each.readlink() if each.is_symlink() else each.read_bytes()
        for each in below(directory)
        if each.is_symlink() or each.is_file()
    }


async def error_of(site: Site, number: int | None = 1) -> str:
    """Why a look kept no files; it comes soon."""
    began = time.monotonic()
    survey = await site.look(number)
    assert time.monotonic() - began < SOON_S
    assert survey.commit is None
    assert survey.error is not None
    return survey.error


def linked(path: Path, target: Path) -> None:
    """Put a link in the place of what is there, and that where it leads."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.rename(target)
    path.symlink_to(target)


class TestRoots:
    """Real paths of a repository's parts lie within the roots."""

    @pytest.mark.parametrize("name", [".git", "none"])
    async def test_a_git_file_that_names_a_directory_outside(
        self, site: Site, top: Path, outside: Path, name: str
    ) -> None:
        (top / ".git").rename(top.parent / "moved")
        (top / ".git").write_text(f"gitdir: {outside / name}\n")
        before = content(outside)
        said = await error_of(site)
        assert said.endswith(
            "the git directory that the workspace's .git names lies outside of this worker's"
            " --workspace-root and --git-root"
        )
        assert content(outside) == before

    @pytest.mark.parametrize("name", [".git", "none"])
    async def test_a_common_directory_outside(self, site: Site, top: Path, outside: Path, name: str) -> None:
        (top / ".git" / "commondir").write_text(str(outside / name))
        before = content(outside)
        assert "the repository's common directory lies outside" in await error_of(site)
        assert content(outside) == before

    @pytest.mark.parametrize("part", ["", "objects", "refs", "objects/info", "objects/pack", "HEAD", "packed-refs"])
    async def test_links_that_lead_out(self, site: Site, top: Path, tmp_path: Path, part: str) -> None:
        git(top, "pack-refs", "--all")
        linked(top / ".git" / part, tmp_path / "elsewhere" / "stolen")
        before = content(tmp_path / "elsewhere")
        assert "lies outside of this worker's --workspace-root and --git-root" in await error_of(site)
        assert content(tmp_path / "elsewhere") == before

    async def test_a_directory_of_objects_that_leads_out(self, site: Site, top: Path, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        for number in range(256):
            place = top / ".git" / "objects" / f"{number:02x}"
            if not place.exists():
                place.symlink_to(tmp_path / "elsewhere")
        assert "a link in the repository's objects lies outside" in await error_of(site)
        assert content(tmp_path / "elsewhere") == {}

    @pytest.mark.parametrize("name", [".git/objects", "none"])
    async def test_alternates_outside(self, site: Site, top: Path, outside: Path, name: str) -> None:
        put(top, {".git/objects/info/alternates": f"{outside / name}\n"})
        assert "an alternate of the repository's objects lies outside" in await error_of(site)

    async def test_alternates_of_alternates(self, site: Site, top: Path, outside: Path, tmp_path: Path) -> None:
        inner = repository(tmp_path / "root" / "inner")
        put(top, {".git/objects/info/alternates": "../../../inner/.git/objects\n"})
        assert (await site.look(1)).error is None
        put(inner, {".git/objects/info/alternates": f"# one\n{outside}/.git/objects\n"})
        assert "an alternate of the repository's objects lies outside" in await error_of(site, 2)

    async def test_a_quoted_alternate_cannot_be_judged(self, site: Site, top: Path, outside: Path) -> None:
        put(top, {".git/objects/info/alternates": f'"{outside}/.git/object\\163"\n'})
        assert "quoted path" in await error_of(site)

    async def test_alternates_in_a_circle(self, site: Site, top: Path, tmp_path: Path) -> None:
        inner = repository(tmp_path / "root" / "inner")
        put(top, {".git/objects/info/alternates": f"{inner}/.git/objects\n"})
        put(inner, {".git/objects/info/alternates": f"{top}/.git/objects\n"})
        assert (await site.look(1)).error is None

    async def test_rules_of_ignored_names_outside(self, site: Site, top: Path, tmp_path: Path) -> None:
        put(tmp_path, {"rules": "a.txt\nnew\n"})
        put(top, {"new": "x"})
        git(top, "config", "core.excludesFile", str(tmp_path / "rules"))
        assert "new" in seen(top, await site.keep())

    async def test_a_repository_within_that_leads_out(self, site: Site, top: Path, outside: Path) -> None:
        put(top, {"sub/.git": f"gitdir: {outside}/.git\n", "sub/file": "x"})
        assert "sub" not in seen(top, await site.keep())

    async def test_a_worktree_whose_repository_the_operator_names(
        self, site: Site, tmp_path: Path, outside: Path
    ) -> None:
        tree = tmp_path / "root" / "tree"
        git(outside, "worktree", "add", "-q", str(tree))
        site.workspace = tree
        assert "lies outside" in await error_of(site)
        site.checkpoints = WorkspaceCheckpoints(site.environ, [tmp_path / "root"], [outside])
        assert seen(outside, await site.keep()) == {"secret.txt": b"s\n"}

    async def test_without_roots_everything_is_as_git_has_it(self, site: Site, top: Path, tmp_path: Path) -> None:
        linked(top / ".git", tmp_path / "elsewhere" / "git")
        site.checkpoints = WorkspaceCheckpoints(site.environ, [Path("/")])
        assert seen(top, await site.keep()).keys() == FILES.keys()


class TestRefs:
    """Checkpoints are kept in the repository itself, and nowhere else."""

    @pytest.mark.parametrize("place", ["refs/steersman", "refs/steersman/loop-1"])
    @pytest.mark.parametrize("kind", ["directory", "dangling", "pipe", "file", "circle"])
    async def test_what_stands_in_the_place_of_their_directory(
        self, site: Site, top: Path, tmp_path: Path, place: str, kind: str
    ) -> None:
        site.checkpoints = WorkspaceCheckpoints(site.environ, [Path("/")])
        directory, target = top / ".git" / place, tmp_path / "target"
        directory.parent.mkdir(parents=True, exist_ok=True)
        if kind == "directory":
            target.mkdir()
        elif kind == "pipe":
            os.mkfifo(target)
        if kind == "file":
            directory.write_text("x")
        else:
            directory.symlink_to(directory if kind == "circle" else target)
        said = await error_of(site)
        assert place in said or "git would hang" in said
        assert not target.is_dir() or content(target) == {}
        place_of_loop = site.store.create(site.loop)
        for asked in (
            site.checkpoints.numbers(place_of_loop, top, site.loop),
            site.checkpoints.drop(place_of_loop, top, site.loop, None),
            site.restore(1),
        ):
            with pytest.raises(GitFailed):
                await asked

    @pytest.mark.parametrize("kind", ["file", "dangling", "pipe"])
    async def test_a_link_in_the_place_of_one(self, site: Site, top: Path, tmp_path: Path, kind: str) -> None:
        target, place = tmp_path / "target", top / ".git" / ref(site.loop, 1)
        place.parent.mkdir(parents=True)
        place.symlink_to(target)
        if kind == "pipe":
            os.mkfifo(target)
            assert "git would hang at .git/refs/steersman/loop-1/1" in await error_of(site)
            return
        if kind == "file":
            target.write_text("kept")
        await site.keep(1)
        assert not place.is_symlink()
        assert target.exists() == (kind == "file")


PIPES = [
    ".gitignore",
    "dir/.gitignore",
    ".gitattributes",
    "dir/.gitattributes",
    ".git/HEAD",
    ".git/index",
    ".git/packed-refs",
    ".git/config",
    ".git/commondir",
    ".git/info/exclude",
    ".git/objects/info/alternates",
    ".git/objects/info/commit-graph",
    ".git/refs/heads/main",
    ".git/refs/steersman/loop-1/1",
]


class TestHangs:
    """Nothing that stands in a workspace holds a look up for longer than seconds."""

    @pytest.mark.parametrize("path", PIPES)
    async def test_a_pipe_in_the_place_of_a_file(self, site: Site, top: Path, path: str) -> None:
        (top / path).unlink(missing_ok=True)
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(top / path)
        said = await error_of(site)
        assert f"git would hang at {path}" in said or "list of alternates cannot be read" in said

    async def test_a_pipe_in_a_repository_within(self, site: Site, top: Path) -> None:
        inner = repository(top / "inner", {"x": "x"})
        (inner / ".git" / "HEAD").unlink()
        os.mkfifo(inner / ".git" / "HEAD")
        assert "git would hang at inner/.git/HEAD" in await error_of(site)

    async def test_a_hook_that_was_switched_off_is_no_trap(self, site: Site, top: Path) -> None:
        site.checkpoints = WorkspaceCheckpoints(site.environ, [Path("/")])
        put(top, {".git/hooks/x": ""})
        (top / ".git" / "hooks" / "pre-commit").symlink_to(os.devnull)
        assert (await site.look(1)).error is None

    async def test_a_link_to_a_pipe(self, site: Site, top: Path, tmp_path: Path) -> None:
        site.checkpoints = WorkspaceCheckpoints(site.environ, [Path("/")])
        os.mkfifo(tmp_path / "pipe")
        put(top, {".git/objects/info/x": ""})
        (top / ".git" / "objects" / "info" / "alternates").symlink_to(tmp_path / "pipe")
        assert "git would hang at .git/objects/info/alternates" in await error_of(site)

    async def test_rules_that_no_memory_holds(self, site: Site, top: Path) -> None:
        with (top / ".gitignore").open("wb") as file:
            file.truncate(10 * 1024**3)
        assert "git would hang at .gitignore" in await error_of(site)

    async def test_an_include_of_a_pipe_is_not_read(self, site: Site, top: Path, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with (top / ".git" / "config").open("a") as file:
            file.write(f"[include]\n\tpath = {tmp_path / 'pipe'}\n")
        await site.keep()

    async def test_a_git_that_waits_is_not_asked_again(self, site: Site, top: Path, tmp_path: Path) -> None:
        far = tmp_path / "root" / "far" / "objects"
        (far / "info").mkdir(parents=True)
        (far / "pack").mkdir()
        os.mkfifo(far / "info" / "alternates")
        site.checkpoints = WorkspaceCheckpoints(site.environ, [Path("/")])
        put(top, {".git/objects/info/alternates": f"{far}\n"})
        assert "without doing anything" in await error_of(site)
        assert "it is asked again in" in await error_of(site, 2)
        assert marked(str(site.state)) == {}

    async def test_a_git_that_does_not_let_itself_be_ended(self, site: Site, top: Path, tmp_path: Path) -> None:
        program = tmp_path / "bin" / "git"
        put(tmp_path, {"bin/git": "#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 1000; done\n"})
        program.chmod(0o755)
        site.environ["PATH"] = f"{program.parent}:{site.environ['PATH']}"
        assert "without doing anything" in await error_of(site)
        assert marked(str(site.state)) == {}

    async def test_a_directory_of_many_names(self, site: Site, top: Path) -> None:
        (top / "many").mkdir()
        for number in range(20_000):
            (top / "many" / str(number)).mkdir()
        await site.keep()

    async def test_links_in_a_circle(self, site: Site, top: Path) -> None:
        (top / "circle").symlink_to("circle")
        (top / "up").symlink_to("..")
        assert seen(top, await site.keep())["circle"] == b"-> circle"


class TestAnswers:
    """An answer about something outside of the roots is the same whatever is there."""

    @pytest.fixture
    def ways(self, top: Path, outside: Path) -> list[str]:
        """Paths that lead out of the root: to a directory, a file, nothing, through links, and back again."""
        (outside / "file").touch()
        (outside / "to-root").symlink_to(top.parent)
        for name in ("file", "none", "none/deeper", ".", "file/below"):
            (top / f"link-{name.replace('/', '-')}").symlink_to(outside / name)
        return [
            *(str(outside / name) for name in ("", "file", "none", "none/deeper", "file/below")),
            *(str(each) for each in top.glob("link-*")),
            f"{top}/../../outside/.git",
            f"{outside}/to-root/../none",
            f"{outside}/none/../../root/work",
            f"{outside}/dir/../../root/work",
            f"{top.parent}/../outside/none/../../root/work",
        ]

    def test_a_requests_directories(self, top: Path, ways: list[str]) -> None:
        policy = Policy({}, workspace_roots=(top.parent,))
        for way in ways:
            with pytest.raises(InvalidRequest) as refused:
                policy.workspace(way)
            assert refused.value.message == f"workspace.path: {way} is outside this worker's --workspace-root"

    def test_a_requests_files(self, top: Path, ways: list[str]) -> None:
        policy = Policy({}, allow_file=(top.parent,))
        for way in ways:
            run = {"agent": "process", "command": ["true"], "workspace": {"path": "/"}}
            asked = RunRequest.model_validate({**run, "env": {"X": {"from_file": way}}})
            with pytest.raises(InvalidRequest, match=r"env\.X\.from_file: .* is not allowed on this worker"):
                policy.environment(asked)

    async def test_a_loop_whose_workspace_may_be_gone(self, site: Site, top: Path, ways: list[str]) -> None:
        policy = Policy(site.environ, workspace_roots=(top.parent,))
        activities = LoopActivities(cast("Client", None), {}, site.store, policy, whoever_calls, unknown)
        for way in ways:
            said = f"workspace.path: {way} is outside this worker's --workspace-root"
            run = RunRequest.model_validate({"agent": "process", "command": ["true"], "workspace": {"path": way}})
            key = LoopKey(loop=site.loop, execution="e")
            asked = RestoreInput(key=key, run=run, source=site.loop, number=1)
            assert (await ActivityEnvironment().run(activities.restore_checkpoint, asked)).error == said
            drop = DropInput(loop=site.loop, workspace=way, all=True)
            with pytest.raises(ApplicationError, match=re.escape(said)):
                await ActivityEnvironment().run(activities.drop_checkpoints, drop)
            kept = KeptInput(loop=site.loop, workspace=way)
            with pytest.raises(ApplicationError, match=re.escape(said)):
                await ActivityEnvironment().run(activities.list_checkpoints, kept)

    def test_a_plan_and_items(self, top: Path, ways: list[str]) -> None:
        for link in top.glob("link-*"):
            with pytest.raises(InvalidRequest, match=f"plan.path: {link.name} leads out of the workspace$"):
                check_plan(top, link.name, None, "plan")
            assert read_plan(top, link.name).error == f"{link.name} leads out of the workspace"


async def test_what_git_refuses_is_not_tried_again(site: Site, top: Path) -> None:
    (top / ".git" / "refs" / "steersman").symlink_to("elsewhere")
    activities = LoopActivities(cast("Client", None), {}, site.store, Policy(site.environ), whoever_calls, unknown)
    with pytest.raises(ApplicationError, match="refs/steersman in the repository is a link") as refused:
        await ActivityEnvironment().run(
            activities.drop_checkpoints, DropInput(loop=site.loop, workspace=str(top), all=True)
        )
    assert refused.value.non_retryable


async def test_a_cancelled_look_at_something_that_hangs(site: Site, top: Path, tmp_path: Path) -> None:
    """Neither the look that was cancelled nor the one after it takes long."""
    put(tmp_path, {"bin/git": "#!/bin/sh\ntrap '' TERM\ntouch began\nwhile :; do sleep 1000; done\n"})
    (tmp_path / "bin" / "git").chmod(0o755)
    path = site.environ["PATH"]
    site.environ["PATH"] = f"{tmp_path / 'bin'}:{path}"
    look = asyncio.create_task(site.look(1))
    await until((site.store.create(site.loop) / "began").exists)
    began = time.monotonic()
    look.cancel()
    with pytest.raises(asyncio.CancelledError):
        await look
    assert time.monotonic() - began < 20  # its sleep takes a quarter of an hour
    assert marked(str(site.state)) == {}
    site.environ["PATH"] = path
    await site.keep(2)


async def test_names_that_are_no_text_are_told_as_text(site: Site, top: Path) -> None:
    (top / ".git").rename(top.parent / "moved")
    (top / ".git").write_bytes(b"gitdir: \xff\x1b[31m\n")
    survey = await site.look(1)
    assert f"{top}/??[31m, which is no git directory" in (survey.error or "")
    survey.model_dump_json()


@pytest.mark.parametrize("name", [b"01-\xff.md", b"01-\x1b[2J.md"], ids=["bytes", "control"])
def test_a_phase_whose_name_cannot_be_shown(top: Path, name: bytes) -> None:
    put(top, {"plan/02-good.md": "- [ ] x\n"})
    (top / "plan" / os.fsdecode(name)).write_text("- [ ] y\n")
    plan = read_plan(top, "plan")
    assert (plan.phases, plan.error) == ((), "plan holds a phase whose name cannot be shown")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "printed",
    [
        b"- [ ] \x1b[31m\n" * 10_000,
        b'[{"id": "\\ud800", "title": "\\u001b[2J"}]',
        b"[" * 100_000,
        b"[" + b'"",' * 300_000 + b'""]',
    ],
    ids=["control", "surrogates", "deep", "many"],
)
async def test_what_a_program_prints_goes_over_the_wire(top: Path, printed: bytes) -> None:
    async def run(argv: Sequence[str]) -> bytes:
        return printed

    items = await read_items(Items(kind="command", command="x"), None, None, top, run)
    assert len(items.model_dump_json()) < 500_000
