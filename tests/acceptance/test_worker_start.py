"""A worker's own start and end, whatever its server does meanwhile."""

import asyncio
from pathlib import Path

import pytest

from steersman.contracts.errors import InvalidRequest
from tests.acceptance.programs import OBEDIENT, python
from tests.acceptance.site import Site, gone, phase
from tests.support.processes import until
from tests.support.slow_server import slow_server


@pytest.mark.exhaustive
async def test_a_server_that_is_slow_at_the_start_ends_no_worker(site: Site) -> None:
    async with slow_server(site.namespace.port, "DescribeNamespace") as slow:
        worker = site.worker(TEMPORAL_ADDRESS=slow.address)
        await until(lambda: slow.held)
        # Longer than a poll for ended workers ever took: what is slow has not ended.
        await asyncio.sleep(3)
        assert worker.said("worker_failed") is None
        assert worker.said("worker_ready") is None, "it does not poll yet"
        slow.go_on()
        await worker.ready()
        steersman = await site.steersman()
        assert (await steersman.run(site.process("echo", "hello"))).text == "hello"
        assert await worker.terminate() == 0


async def test_a_worker_that_waits_for_its_server_ends_when_it_is_told(site: Site) -> None:
    async with slow_server(site.namespace.port, "DescribeNamespace") as slow:
        worker = site.worker(TEMPORAL_ADDRESS=slow.address)
        await until(lambda: slow.held)
        async with asyncio.timeout(15):
            assert await worker.terminate() == 0


async def test_a_worker_whose_flags_do_not_allow_a_run_says_so_before_it_stops_the_agent(site: Site, mark: str) -> None:
    first = site.worker()
    await first.ready()
    steersman = await site.steersman()
    run = await steersman.start(site.process(*python(OBEDIENT), mark=mark))
    await phase(steersman, run, "running")
    first.kill()
    narrower = site.worker("--workspace-root", str(site.workspace()))
    await narrower.ready()
    with pytest.raises(InvalidRequest, match="outside this worker's --workspace-root"):
        await steersman.result(run)
    await gone(mark)
    said = narrower.said("run_refused")
    assert said
    assert (said["run"], said["error"]) == (run, "InvalidRequest")
    assert "--workspace-root" in said["why"]
    actions = [line.split('"action": "')[1].split('"')[0] for line in narrower.log.read_text().splitlines()]
    assert actions.index("run_refused") < actions.index("stop_asked")


async def test_two_hosts_of_one_name_say_so(site: Site, tmp_path: Path) -> None:
    first = site.worker("--host", "twin")
    await first.ready()
    second = site.worker("--host", "twin", "--state-dir", str(tmp_path / "another-state"))
    await second.ready()
    await until(lambda: first.said("host_shared") and second.said("host_shared"), 20)
    said = first.said("host_shared")
    assert said
    assert "another state directory" in said["message"]
    assert f"{second.pid}-" in said["message"]
    alone = site.worker("--host", "alone")
    await alone.ready()
    await asyncio.sleep(6)
    assert alone.said("host_shared") is None


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--workspace-root", "/no/such"), "error: --workspace-root: /no/such is no directory"),
        (("--profile", "nosuch"), "error: --profile: cannot load the connection's profile"),
    ],
)
async def test_a_worker_with_a_mistyped_flag_begins_nothing(site: Site, flags: tuple[str, str], says: str) -> None:
    worker = site.worker(*flags)
    await until(lambda: worker.exit_code is not None)
    assert worker.exit_code == 2
    assert says in worker.log.read_text()
    assert "Traceback" not in worker.log.read_text()
