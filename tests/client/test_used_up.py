"""A run that has had as many updates as Temporal takes for one: clients go on with signals, and nobody need know."""

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from steersman.client import Steersman
from steersman.errors import AlreadyDecided, MessageRefused
from tests.client.fake_host import FakeHost, init
from tests.support.temporal import DevServer, connect

pytestmark = [pytest.mark.integration]


async def test_people_are_heard_all_the_same(tmp_path: Path) -> None:
    with closing(DevServer(tmp_path, ("history.maxTotalUpdates=2",)).start()) as server:
        client = await connect(server.address)
        async with FakeHost(client).at_work() as host:
            steersman = Steersman(client)
            request = {"agent": "claude", "prompt": "x", "workspace": {"path": "/w"}, "permissions": {"mode": "ask"}}
            run = await steersman.start(request)
            host.show(run, init())
            for number in range(4):
                await host.ask(run, f"a-{number}", "Bash", command="ls")
                receipt = await steersman.decide(run, f"a-{number}", "allow")
                assert (receipt.id, receipt.tool, receipt.input) == (f"a-{number}", "Bash", {"command": "ls"})
            async with asyncio.timeout(20):
                while len(host.fake_run(run).decisions) < 4:
                    await asyncio.sleep(0.05)
            with pytest.raises(AlreadyDecided):
                await steersman.decide(run, "a-1", "deny")
            assert (await steersman.steer(run, "use tabs")).state == "acknowledged"
            assert (await steersman.interrupt(run, "sum up")).state == "acknowledged"
            assert [each.text for each in host.fake_run(run).messages] == ["use tabs", "sum up"]
            await steersman.stop(run)


async def test_what_the_run_does_not_take_is_refused(tmp_path: Path) -> None:
    with closing(DevServer(tmp_path, ("history.maxTotalUpdates=1",)).start()) as server:
        client = await connect(server.address)
        async with FakeHost(client).at_work() as host:
            steersman = Steersman(client)
            run = await steersman.start({"agent": "claude", "prompt": "x", "workspace": {"path": "/w"}})
            host.show(run, init())
            assert (await steersman.steer(run, "use tabs")).state == "acknowledged"
            await steersman.interrupt(run, end=True)
            with pytest.raises(MessageRefused, match="the run is ending"):
                await steersman.steer(run, "and the docs")
            await steersman.stop(run)
            assert [each.text for each in host.fake_run(run).messages] == ["use tabs", None]
