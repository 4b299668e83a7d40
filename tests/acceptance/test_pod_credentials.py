"""A cluster whose tokens run out, as those of clouds do within the hour: runs go on, and others begin."""

import pytest

from tests.acceptance.own_cluster import NAMESPACE, SLOW_S, OwnCluster, settings
from tests.acceptance.programs import OBEDIENT, python
from tests.acceptance.site import Site, phase
from tests.support.kubernetes import background_server, missing
from tests.support.kubernetes.account import Account

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.timeout(180),
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]


async def test_runs_go_on_and_others_begin_after_a_token_has_run_out(site: Site) -> None:
    (site.root / "cluster").mkdir()
    (site.root / "account").mkdir()
    with background_server(site.root / "cluster", settings()) as cluster:
        pods, account = OwnCluster(site, cluster), Account(cluster, site.root / "account", NAMESPACE)
        account.gives_token_by(exec=account.plugin())
        pods.config = account.config
        await pods.worker()
        steersman = await site.steersman()
        long = await steersman.start(pods.process(*python(OBEDIENT), workspace=site.workspace()))
        await phase(steersman, long, "running", SLOW_S)
        account.renew()
        cluster.call(cluster.server.sessions.cut)
        short = await steersman.start(pods.process("echo", "there", workspace=site.workspace()))
        assert (await steersman.result(short)).text == "there"
        assert (await steersman.stop(long)).outcome == "stopped"
