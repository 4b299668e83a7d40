"""Runs that change many files go through deploys in each of their steps: in place, in a copy, in a worktree; undone."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from steersman.client import Steersman
from tests.acceptance.deploys import WAYS, Deploys
from tests.acceptance.programs import python
from tests.acceptance.site import Site, answered
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
PLACES: Final[dict[str, dict[str, Any]]] = {
    "in place": {},
    "copy": {"isolation": "copy"},
    "worktree": {"worktree": "fix"},
}


@pytest.mark.exhaustive
@pytest.mark.timeout(400)
@pytest.mark.parametrize("way", WAYS)
async def test_each_step_of_a_run_goes_through_deploys(site: Site, mark: str, way: str) -> None:
    steersman = await site.steersman()
    deploys = Deploys(site, way)
    async with deploys.going_on(), asyncio.TaskGroup() as group:
        for place in PLACES.values():
            group.create_task(used(site, steersman, place, mark))
    assert deploys.count > 5
    assert not marked(mark)


async def used(site: Site, steersman: Steersman, place: dict[str, Any], mark: str) -> None:
    """Three runs in one workspace, one after the other, each of which is taken back."""
    workspace = repository(site.workspace(), {f"d{i % 40}/f{i}": f"{i}\n" for i in range(FILES)})
    before = on_disk(workspace)
    for word in ("one", "two", "three"):
        request = site.process(*python(REWRITE, word), mark=mark)
        run = await steersman.start({**request, "workspace": {"path": str(workspace), **place}})
        result = await answered(partial(steersman.result, run))
        assert (result.status, result.attempts) == ("succeeded", 1)
        where = Path(result.worktree.directory) if result.worktree else workspace
        assert on_disk(where) == changed(before, word)
        assert f" {word} " in (await answered(partial(steersman.diff, run))).stat
        assert not (await answered(partial(steersman.undo, run))).conflicts
        assert on_disk(where) == before
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
