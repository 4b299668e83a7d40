"""Temporal's database lost: another server, set up anew, answers at the same address."""

import pytest

from tests.acceptance.programs import OBEDIENT, python
from tests.acceptance.site import Site, following
from tests.acceptance.test_older_database import log_of, working
from tests.support.processes import marked, until
from workers.server_identity import ServerIdentity


async def test_a_worker_ends_its_runs_and_itself(site_with_server: Site, mark: str) -> None:
    """What it began on the new server would be the lost one's: no later worker would lead, read or stop it."""
    site, server = site_with_server, site_with_server.server
    worker, workspace = site.worker(), site.workspace()
    await worker.ready()
    steersman = await site.steersman()
    request = site.process(*python(OBEDIENT), mark=mark, workspace=workspace)
    lost = await working(steersman, await steersman.start(request, run_id="once-more"))
    server.stop()
    server.lose()
    server.start()

    await until(lambda: worker.exit_code is not None)

    assert worker.exit_code == 1
    said = worker.said("worker_failed")
    assert said
    assert "another Temporal server answers" in said["message"]
    assert not marked(mark)
    assert '"type":"cancelled"' in log_of(site, lost)
    await site.worker().ready()
    steersman = await site.steersman()
    again = await working(steersman, await steersman.start(request, run_id=lost))
    async with following(steersman, again) as attached:
        assert (await steersman.stop(again)).outcome == "stopped"
        assert [event.type for event in await attached.end()] == ["init", "message", "cancelled"]


async def test_a_worker_outlives_a_restart_of_its_server(site_with_server: Site) -> None:
    site, server = site_with_server, site_with_server.server
    worker = site.worker()
    await worker.ready()
    for _ in range(2):
        server.kill()
        server.start()
        steersman = await site.steersman()
        assert (await steersman.run(site.process("true"))).status == "succeeded"
    assert worker.exit_code is None


@pytest.mark.parametrize(
    ("now", "replaced"),
    [
        (ServerIdentity("one", "a"), False),
        (ServerIdentity("two", "a"), False),  # the namespace has failed over
        (ServerIdentity("one", "b"), False),  # it was deleted and made anew
        (ServerIdentity("two", "b"), True),
        (ServerIdentity("two", ""), True),
    ],
)
def test_a_server_is_another_one_by_its_cluster_and_its_namespace(now: ServerIdentity, *, replaced: bool) -> None:
    assert ServerIdentity("one", "a").is_replaced_by(now) == replaced
