"""Programs of a worker that is gone work on in a copy for a while: those of the next worker wait for them."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from activities.runtimes.machine import ChildMachine
from tests.support.processes import until
from tests.workspaces.carrying import Carrying, files

SLOW = """#!/bin/sh
case " $* " in
    *" checkout-index "*) touch {begun}; until test -e {go}; do sleep 0.02; done ;;
esac
exec {git} "$@"
"""

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


@pytest.fixture
async def work(tmp_path: Path) -> AsyncIterator[Carrying]:
    found = Carrying(tmp_path)
    found.git()
    found.here("for i in $(seq 300); do mkdir -p d$i; echo $i > d$i/f; done; git add -A; git commit -qm first")
    yield found
    await found.close()


@pytest.mark.parametrize("what", ["made", "removed"])
async def test_a_copy_that_a_killed_workers_git_still_writes_is_waited_for(work: Carrying, what: str) -> None:
    begun, go = work.root / "begun", work.root / "go"
    bin_ = work.root / "bin"
    bin_.mkdir()
    (bin_ / "git").write_text(SLOW.format(begun=begun, go=go, git=shutil.which("git")))
    (bin_ / "git").chmod(0o755)
    slow = ChildMachine(work.there, {"PATH": f"{bin_}:{os.environ['PATH']}"})
    usual, work.place = work.place, type(work.place)(slow, work.place.root, sys.executable)
    killed = asyncio.create_task(work.out())
    await until(begun.exists)
    killed.cancel()
    with suppress(asyncio.CancelledError):
        await killed
    work.place = usual
    after = asyncio.create_task(work.out() if what == "made" else usual.remove())
    done, _ = await asyncio.wait({after}, timeout=1)
    assert not done, "it has met the git of the one before"
    go.touch()
    await after
    if what == "made":
        assert files(work.copy) == files(work.top)
        assert not (await work.back("echo theirs > d1/f")).conflicts
        assert (work.top / "d1/f").read_text() == "theirs\n"
    else:
        assert not (work.there / "place").exists()
    await slow.aclose()
