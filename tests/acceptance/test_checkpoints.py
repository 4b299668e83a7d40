"""What is kept of a workspace's files can be seen, of whoever it is."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from steersman.client import Steersman
from steersman.errors import HostUnreachable, ServerRefused
from tests.acceptance.programs import python
from tests.acceptance.site import Site
from tests.acceptance.test_changes import git, made
from tests.cli.steer import Steer

pytestmark = pytest.mark.acceptance


@pytest.fixture
def repository(shared: Site) -> Path:
    return made(shared.workspace())


@pytest.fixture
async def steer(shared: Site, tmp_path: Path) -> AsyncIterator[Steer]:
    command = Steer(shared.namespace.address, tmp_path, shared.namespace.name)
    yield command
    await command.close()


async def test_what_is_kept_is_listed_newest_first(
    shared: Site, steersman: Steersman, steer: Steer, repository: Path
) -> None:
    program = "open('edited', 'a').write('four\\n'); open('new', 'w').write('new\\n')"
    run = await steersman.start(shared.process(*python(program), workspace=repository))
    await steersman.result(run)
    host = (await steersman.state(run)).host or ""
    undone = await steersman.undo(run)
    (repository / "below").mkdir()
    found = await steersman.checkpoints(host, str(repository / "below"))
    assert (found.repository, found.total) == (str(repository), 3)
    assert [(each.kind, each.run) for each in found.checkpoints] == [("rescue", run), ("end", run), ("baseline", run)]
    rescue, end, _ = found.checkpoints
    assert (end.files, end.insertions, end.deletions) == (2, 2, 0)
    assert (rescue.commit, rescue.ref) == (undone.rescue, undone.ref)
    assert git(repository, "rev-parse", end.ref or "").strip() == end.commit

    shown = (await steer("checkpoints", str(repository), "--host", host)).out
    assert "2 files, +2 -0" in shown
    assert shown.count(f"run {run}") == 3
    limited = await steer("checkpoints", str(repository), "--host", host, "--limit", "1")
    assert len(limited.out.splitlines()) == 2
    assert "and 2 more" in limited.err
    assert (await steer("checkpoints", str(repository), "--host", host, "--json")).json["total"] == 3


@pytest.mark.exhaustive
async def test_what_cannot_be_listed_is_said_at_once(
    shared: Site, steersman: Steersman, steer: Steer, repository: Path
) -> None:
    run = await steersman.start(shared.process("true", workspace=repository))
    await steersman.result(run)
    host = (await steersman.state(run)).host or ""
    plain = shared.workspace()
    for path, why in ((plain, "is in no git repository"), (plain / "nowhere", "does not exist on this host")):
        with pytest.raises(ServerRefused, match=why):
            await steersman.checkpoints(host, str(path))
        refused = await steer("checkpoints", str(path), "--host", host)
        assert refused.code == 5
        assert why in refused.err
    alone = await steer("checkpoints", str(repository), "--host", "nobody-at-all")
    assert alone.code == 4
    assert "no worker answers on host nobody-at-all" in alone.err
    with pytest.raises(HostUnreachable):
        await steersman.checkpoints("nobody-at-all", str(repository))
