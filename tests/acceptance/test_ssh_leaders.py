"""Two leaders, each with a state directory of its own, that have runs on one account of one machine."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.programs import OBEDIENT
from tests.acceptance.site import Site, gone
from tests.acceptance.test_changes import git, made
from tests.acceptance.test_isolated import COMMIT, WAIT, copy_of
from tests.acceptance.test_ssh import Elsewhere
from tests.support.processes import marked, until
from tests.support.sshd import missing
from tests.support.temporal import new_namespace

pytestmark = pytest.mark.acceptance

WRITE = "import os\nopen({name!r}, 'w').write('made\\n')\n"


class Leaders:
    """Two sites and the machine that both use."""

    def __init__(self, root: Path, server: str) -> None:
        self.sites = []
        for name in ("one", "two"):
            (root / name).mkdir()
            self.sites.append(Site(root / name, asyncio.run(new_namespace(server))))
        self.elsewhere = Elsewhere(self.sites[0])

    def end(self) -> None:
        for site in self.sites:
            site.end()
        self.elsewhere.end()


@pytest.fixture
def leaders(tmp_path: Path, dev_server: str) -> Iterator[Leaders]:
    if reason := missing():
        pytest.skip(reason)
    found = Leaders(tmp_path, dev_server)
    try:
        yield found
    finally:
        found.end()


@pytest.mark.exhaustive
async def test_neither_is_in_the_others_way(leaders: Leaders, mark: str) -> None:
    elsewhere, (one, two) = leaders.elsewhere, leaders.sites
    workers = [site.worker(*elsewhere.flags) for site in leaders.sites]
    hosts = [await worker.ready() for worker in workers]
    first, second = [await site.steersman() for site in leaders.sites]
    # Of one workspace: they share its objects there, too.
    repository = made(one.workspace())
    go = [elsewhere.home / "go-1", elsewhere.home / "go-2"]
    program = [WRITE.format(name=f"by-{n}") + COMMIT + WAIT.format(go=path) for n, path in enumerate(go)]
    a = await first.start(elsewhere.process(program[0], workspace=repository))
    b = await second.start(elsewhere.process(program[1], workspace=repository))
    copies = [await copy_of(first, a), await copy_of(second, b)]
    await until(lambda: all((copy / f"by-{n}").exists() for n, copy in enumerate(copies)))
    # A leader's stop, sweep, prune and end take nothing of the other's.
    c = await second.start(elsewhere.process(OBEDIENT, workspace=repository, mark=mark))
    await until(lambda: marked(mark))
    assert (await second.stop(c)).outcome == "stopped"
    await gone(mark)
    workers[1].kill()
    again = two.worker(*elsewhere.flags)  # which sweeps
    await again.ready()
    assert (await first.prune(hosts[0], 0)).pruned == ()
    assert (await second.prune(hosts[1], 0)).pruned == (c,)
    again.kill()
    go[0].touch()
    assert (await first.result(a)).status == "succeeded"
    assert [path.name for path in elsewhere.kept if path.parent.name == "copies"] == [copies[1].parents[1].name]
    # What they share may go at any time.
    for path in (elsewhere.home / ".local/state/steersman/objects").glob("*/objects/pack/*.pack"):
        data = path.read_bytes()
        path.unlink()  # copies have a link of their own
        path.write_bytes(data[:-100] + bytes(100))
    d = await first.start(elsewhere.process(WRITE.format(name="later") + COMMIT, workspace=repository))
    assert (await first.result(d)).status == "succeeded"
    await two.worker(*elsewhere.flags).ready()
    go[1].touch()
    result = await second.result(b)
    assert (result.status, result.attempts) == ("succeeded", 1)
    assert {"by-0", "by-1", "later"} <= {path.name for path in repository.iterdir()}
    assert git(repository, "fsck", "--strict", "--no-dangling") == ""
    assert elsewhere.kept == []
