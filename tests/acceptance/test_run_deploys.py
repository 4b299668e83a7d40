"""Runs that change many files go through deploys in each of their steps: in place, in a copy, in a worktree; undone."""

import asyncio
import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.acceptance.deploys import WAYS, Deploys
from tests.acceptance.programs import python
from tests.acceptance.site import Site, answered
from tests.acceptance.test_pods import Pods, nothing_is_left
from tests.acceptance.test_pods import python as python_of_image
from tests.acceptance.test_ssh import THERE, Elsewhere
from tests.loops.loop_site import Files, git, on_disk, repository
from tests.support.processes import marked

FILES: Final = 1000
"""So many that git needs a while for each step."""
REWRITE: Final = f"""
import pathlib, sys, time
word = sys.argv[1]
for i in range({FILES}):
    path = pathlib.Path(f"d{{i % 40}}/f{{i}}")
    if i % 4 == 3:
        path.unlink()
    elif i % 2:
        path.write_text(word * 20)
time.sleep(1)
pathlib.Path(word).write_text(word)
"""
HERE: Final = python(REWRITE)
IN_A_POD: Final = python_of_image(REWRITE)
PLACES: Final[dict[str, dict[str, Any]]] = {
    "in place": {},
    "copy": {"isolation": "copy"},
    "worktree": {"worktree": "fix"},
}


@pytest.fixture
def elsewhere(site: Site) -> Iterator[Elsewhere]:
    with Elsewhere.of(site) as found:
        yield found


@pytest.fixture
def pods(site: Site) -> Iterator[Pods]:
    with Pods.of(site) as found:
        yield found


@pytest.mark.exhaustive
@pytest.mark.timeout(400)
@pytest.mark.parametrize("way", WAYS)
async def test_each_step_of_a_run_goes_through_deploys(site: Site, mark: str, way: str) -> None:
    deploys = Deploys(site.worker, way)
    async with deploys.going_on(), asyncio.TaskGroup() as group:
        for workspace in PLACES.values():
            group.create_task(used(site, deploys, {"workspace": workspace}, mark))
    assert not marked(mark)


@pytest.mark.exhaustive
@pytest.mark.timeout(400)
@pytest.mark.parametrize("way", WAYS)
async def test_each_step_of_a_run_elsewhere_goes_through_deploys(elsewhere: Elsewhere, mark: str, way: str) -> None:
    deploys = Deploys(partial(elsewhere.site.worker, *elsewhere.flags), way)
    async with deploys.going_on(), asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(used(elsewhere.site, deploys, {"runtime": THERE}, mark))
    assert not marked(mark)
    assert elsewhere.kept == []


@pytest.mark.exhaustive
@pytest.mark.cluster
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", WAYS)
async def test_each_step_of_a_run_in_a_pod_goes_through_deploys(pods: Pods, mark: str, way: str) -> None:
    await pods.cluster.begin()
    deploys = Deploys(pods.start_worker, way)
    async with deploys.going_on(), asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(used(pods.site, deploys, {"runtime": pods.cluster.runtime()}, mark, IN_A_POD))
    await nothing_is_left(pods.cluster)


async def used(
    site: Site, deploys: Deploys, fields: dict[str, Any], mark: str, program: tuple[str, ...] = HERE
) -> None:
    """Runs in one workspace, one after the other, each of which is taken back: three, and until there were deploys."""
    steersman = await site.steersman()
    workspace = repository(site.workspace(), {f"d{i % 40}/f{i}": f"{i}\n" for i in range(FILES)})
    before = on_disk(workspace)
    for number in itertools.count(1):
        word = f"word{number}"
        request = site.process(*program, word, mark=mark, **{**fields, "workspace": workspace})
        request["workspace"] |= fields.get("workspace", {})
        run = await steersman.start(request)
        result = await answered(partial(steersman.result, run))
        assert (result.status, result.attempts) == ("succeeded", 1)
        where = Path(result.worktree.directory) if result.worktree else workspace
        assert on_disk(where) == changed(before, word)
        assert f" {word} " in (await answered(partial(steersman.diff, run))).stat
        assert not (await answered(partial(steersman.undo, run))).conflicts
        assert on_disk(where) == before
        if number >= 3 and deploys.count > 5:
            break
    assert on_disk(workspace) == before
    assert git(workspace, "status", "--porcelain") == ""
    assert not list(workspace.glob(".git/**/*.lock"))


def changed(before: Files, word: str) -> Files:
    """What the program leaves of those files."""
    after: Files = {word: word.encode()}
    for name, content in before.items():
        number = int(name.rpartition("f")[2])
        if number % 4 != 3:
            after[name] = (word * 20).encode() if number % 2 else content
    return after
